//! Weights of a checkpoint, read and quantized a block of rows at a time.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, Tensor};

use crate::checkpoint::read::{self, Entry, Opened, Shard, invalid};
use crate::error::{Error, Fault, Result};
use crate::observer::{WeightQParams, ZeroPoints};
use crate::qconfig::QConfig;
use crate::sizes;
use crate::weight::{QTable, QWeight, Quantized, check_sums};

/// Elements of a weight that are read and quantized at once, where the observer allows it.
pub const BLOCK: usize = 1 << 22;
/// Elements that take as much memory as the range, scale and zero point kept for a row meanwhile.
const ROW: usize = 32;

/// A matrix of the source.
pub fn matrix<'a>(source: &'a Opened, name: &str) -> Result<(&'a Shard, &'a Entry, [usize; 2])> {
    let found = source.files.find(name);
    let found = found.and_then(|(shard, entry)| {
        let shape = read::matrix(name, entry).ok()?;
        Some((shard, entry, shape))
    });
    let found = found.ok_or_else(|| invalid(name, "a matrix", "none"))?;
    sizes::weight("quantize weight", found.2)?;
    Ok(found)
}

/// Rows that are read and quantized at once: of short rows fewer, because each has parameters
/// besides.
pub fn rows_of_block(k: usize) -> usize {
    (BLOCK / k.max(ROW)).max(1)
}

/// Calls `with` with the rows and the elements of each block of that many rows.
pub fn blocks(
    source: &Opened,
    name: &str,
    rows: usize,
    mut with: impl FnMut(Range<usize>, Vec<f32>) -> Result<()>,
) -> Result<()> {
    let (shard, entry, [n, k]) = matrix(source, name)?;
    for row in (0..n).step_by(rows.max(1)) {
        let end = n.min(row.saturating_add(rows));
        let values = shard.floats(name, entry, row * k..end * k)?;
        with(row..end, values).map_err(|error| below(error, row))?;
    }
    Ok(())
}

/// A block of rows.
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
    source: &Opened,
    name: &str,
    config: &QConfig,
    mut with: impl FnMut(&Quantized) -> Result<()>,
) -> Result<()> {
    let (_, _, shape) = matrix(source, name)?;
    let observed = observed(source, name, config)?;
    let one_scale = config
        .observer()
        .is_some_and(|codes| !codes.qscheme.is_per_channel());
    let rows = if observed.is_none() && one_scale {
        shape[0]
    } else {
        rows_of_block(shape[1])
    };
    blocks(source, name, rows, |rows, values| {
        let block = block(values, &rows, shape[1])?;
        let quantized = match config {
            QConfig::Groups(_) => {
                let weight = QWeight::from_float(&block, None, config)?;
                Quantized::matrix(Arc::new(weight), true)
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
pub fn check_products(source: &Opened, name: &str, config: &QConfig) -> Result<()> {
    let (_, _, [_, k]) = matrix(source, name)?;
    let is_int8 = config.observer().is_some();
    // Few inputs need no look at the weight.
    if !is_int8 || (k as u64).saturating_mul(255 * 255) <= i32::MAX as u64 {
        return Ok(());
    }
    quantized_blocks(source, name, config, check_block)
}

/// [`check_products`] of a quantized block of rows.
pub fn check_block(block: &Quantized) -> Result<()> {
    let Quantized::Table(table) = block else {
        return Ok(());
    };
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
fn observed(source: &Opened, name: &str, config: &QConfig) -> Result<Option<WeightQParams>> {
    let Some(config) = config.observer().filter(|config| config.sees_blocks()) else {
        return Ok(None);
    };
    let (_, _, shape) = matrix(source, name)?;
    let mut observer = config.build()?;
    blocks(source, name, rows_of_block(shape[1]), |rows, values| {
        observer.observe(&block(values, &rows, shape[1])?)
    })?;
    observer.calculate_qparams().map(Some)
}
