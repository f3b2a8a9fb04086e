//! Weights of a checkpoint, read and quantized a block of rows at a time.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, Tensor};

use crate::checkpoint::read::{Entry, Opened, Shard, invalid};
use crate::error::{Error, Fault, Result};
use crate::module::LayerKind;
use crate::nn::Geometry;
use crate::observer::{WeightQParams, ZeroPoints};
use crate::qconfig::QConfig;
use crate::sizes;
use crate::tensor::to_f32_vec;
use crate::weight::origin::Part;
use crate::weight::{QTable, QWeight, Quantized, check_sums};

/// Elements of a weight that are read and quantized at once, where the observer allows it.
pub const BLOCK: usize = 1 << 22;
/// Elements that take as much memory as the range, scale and zero point kept for a row meanwhile.
const ROW: usize = 32;

/// A weight of the source, and the layout of its taps if it is a convolution's.
#[derive(Clone, Copy)]
pub struct SourceWeight<'a> {
    pub source: &'a Opened,
    pub name: &'a str,
    taps: Option<(Geometry, usize)>,
}

impl<'a> SourceWeight<'a> {
    pub fn new(source: &'a Opened, name: &'a str, kind: &LayerKind) -> Self {
        Self { source, name, taps: Geometry::of_kind(kind) }
    }

    /// The tensor, and the shape that it is written in.
    pub fn stored(self) -> Result<(&'a Shard, &'a Entry, Vec<usize>)> {
        let name = self.name;
        let found = self.source.files.find(name);
        let (shard, entry) = found.ok_or_else(|| invalid(name, "a matrix", "none"))?;
        let shape = match self.taps {
            None if entry.shape.len() > 1 => entry.shape.clone(),
            Some((geometry, rank)) if entry.shape.len() == rank && !entry.shape.contains(&0) => {
                geometry.taps(&entry.shape)
            }
            _ => {
                return Err(invalid(name, "a weight of its layer", format!("{:?}", entry.shape)));
            }
        };
        Ok((shard, entry, shape))
    }

    pub fn matrix(self) -> Result<[usize; 2]> {
        let (_, _, shape) = self.stored()?;
        let matrix = Part::whole(&shape).shape;
        sizes::weight("quantize weight", matrix)?;
        Ok(matrix)
    }
}

/// Rows that are read and quantized at once: of short rows fewer, because each has parameters
/// besides.
pub fn rows_of_block(k: usize) -> usize {
    (BLOCK / k.max(ROW)).max(1)
}

/// Calls `with` with the rows and the elements of each block of that many rows.
pub fn blocks(
    weight: SourceWeight<'_>,
    rows: usize,
    mut with: impl FnMut(Range<usize>, Vec<f32>) -> Result<()>,
) -> Result<()> {
    let (name, [n, k]) = (weight.name, weight.matrix()?);
    let (shard, entry, _) = weight.stored()?;
    // The rows of a tap are spread over the tensor.
    let of_taps = weight.taps.map(|(geometry, _)| {
        let values = shard.floats(name, entry, 0..entry.elements())?;
        geometry.matrix(&Tensor::from_vec(values, &*entry.shape, &Device::Cpu)?)
    });
    let of_taps = of_taps.transpose()?;
    for row in (0..n).step_by(rows.max(1)) {
        let end = n.min(row.saturating_add(rows));
        let values = match &of_taps {
            Some(all) => to_f32_vec(&all.narrow(0, row, end - row)?, "quantize weight")?,
            None => shard.floats(name, entry, row * k..end * k)?,
        };
        with(row..end, values).map_err(|error| below(error, row))?;
    }
    Ok(())
}

fn block(values: Vec<f32>, rows: &Range<usize>, k: usize) -> Result<Tensor> {
    Ok(Tensor::from_vec(values, (rows.len(), k), &Device::Cpu)?)
}

/// The error of a block of rows that begins at `first`.
fn below(mut error: Error, first: usize) -> Error {
    match error.fault_mut() {
        Fault::NonFiniteWeight { index, .. } => index.iter_mut().take(1).for_each(|i| *i += first),
        Fault::AccumulatorOverflow { channel, .. } => *channel += first,
        _ => {}
    }
    error
}

/// Calls `with` with each block of rows of a matrix, quantized.
pub fn quantized_blocks(
    weight: SourceWeight<'_>,
    config: &QConfig,
    mut with: impl FnMut(&Quantized) -> Result<()>,
) -> Result<()> {
    let shape = weight.matrix()?;
    let observed = observed(weight, config)?;
    let one_scale = config.observer().is_some_and(|codes| !codes.qscheme.is_per_channel());
    let rows = if observed.is_none() && one_scale { shape[0] } else { rows_of_block(shape[1]) };
    blocks(weight, rows, |rows, values| {
        let block = block(values, &rows, shape[1])?;
        let quantized = match config {
            QConfig::Groups(_) => {
                Quantized::matrix(Arc::new(QWeight::from_float(&block, None, config)?), true)
            }
            _ => {
                let table = QTable::from_observed(&block, config, observed.as_ref())?;
                Quantized::Table(Arc::new(table))
            }
        };
        drop(block);
        with(&quantized)
    })
}

/// Checks that the products of a weight, quantized so, stay within an i32.
///
/// # Errors
/// When they do not, the weight cannot be read, or it holds a NaN or an infinity.
pub fn check_products(weight: SourceWeight<'_>, config: &QConfig) -> Result<()> {
    let [_, k] = weight.matrix()?;
    let is_int8 = config.observer().is_some();
    // Few inputs need no look at the weight.
    if !is_int8 || (k as u64).saturating_mul(255 * 255) <= i32::MAX as u64 {
        return Ok(());
    }
    quantized_blocks(weight, config, check_block)
}

/// [`check_products`] of a quantized block of rows.
pub fn check_block(block: &Quantized) -> Result<()> {
    let Quantized::Table(table) = block else { return Ok(()) };
    let (Some(ZeroPoints::Int(zeros)), Some(dtype)) = (table.zero_points(), table.dtype()) else {
        return Ok(());
    };
    let [rows, k] = table.shape();
    let zero = |row: usize| zeros[if zeros.len() == 1 { 0 } else { row }] - dtype.offset();
    let zeros: Vec<i32> = (0..rows).map(zero).collect();
    let codes: Vec<i8> = table.stored_codes().collect();
    check_sums(&codes, k, &zeros)
}

/// The parameters of a weight with one scale, if its observer needs no more than a block at a time.
fn observed(weight: SourceWeight<'_>, config: &QConfig) -> Result<Option<WeightQParams>> {
    let Some(config) = config.observer().filter(|config| config.sees_blocks()) else {
        return Ok(None);
    };
    let [_, k] = weight.matrix()?;
    let mut observer = config.build()?;
    blocks(weight, rows_of_block(k), |rows, values| observer.observe(&block(values, &rows, k)?))?;
    observer.calculate_qparams().map(Some)
}
