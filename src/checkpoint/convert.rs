//! Checkpoints quantized and dequantized without a model, a block of rows at a time.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use candle_core::{Device, Tensor};
use safetensors::Dtype;
use serde_json::Value;

use super::config::{self, Module};
use super::header::{Entry, invalid};
use super::plan::Plan;
use super::rewrite::{Rewrite, rewrite};
use super::save::{planned, write_qparams};
use super::shard::Shard;
use super::weights::{self, belongs};
use super::writer::{Planned, Writer};
use super::{Checkpoint, Opened};
use crate::codes::offset;
use crate::error::{Error, Result};
use crate::module::LayerKind;
use crate::observer::{ObserverConfig, WeightQParams, ZeroPoints};
use crate::qconfig::QConfig;
use crate::qparams::QScheme;
use crate::qtable::QTable;
use crate::qweight::check_sums;
use crate::sizes;
use crate::stored::{Codes, Format, Zeros};

/// Elements of a weight that are read and quantized at once, where the observer allows it.
const BLOCK: usize = 1 << 22;
/// Elements that take as much memory as the range, scale and zero point kept for a row meanwhile.
const ROW: usize = 32;

/// Writes `source` with the weights of a plan quantized: the same tensors as of a model that is
/// quantized and [saved](super::save).
///
/// A weight takes 100 MB of memory whatever its size: one with a scale for each row is read once,
/// one with a single scale by a min-max observer twice. By another observer of the whole weight,
/// such as `Histogram`, it takes three times its f32 elements. `progress` is called with the bytes
/// of each tensor when it is done.
///
/// # Errors
/// When a weight cannot be quantized as planned, or `out` cannot be written, is the source, or is a
/// folder with other files. Then nothing is changed.
pub fn quantize(
    source: &Checkpoint,
    plan: &Plan,
    out: impl AsRef<Path>,
    progress: impl FnMut(u64),
) -> Result<()> {
    let mut quantize = Quantize::new(&source.opened, plan, progress)?;
    rewrite(&source.opened, out.as_ref(), &mut quantize)
}

/// Writes `source` with its quantized weights as f32, which any loader reads.
///
/// # Errors
/// When a scale is not finite and positive, or `out` cannot be written, is the source, or is a
/// folder with other files. Then nothing is changed.
pub fn dequantize(
    source: &Checkpoint,
    out: impl AsRef<Path>,
    progress: impl FnMut(u64),
) -> Result<()> {
    let source = &source.opened;
    rewrite(source, out.as_ref(), &mut Dequantize { source, progress })
}

struct Quantize<'a, F> {
    source: &'a Opened,
    weights: BTreeMap<String, (QConfig, Format)>,
    config: Option<Value>,
    progress: F,
}

impl<'a, F: FnMut(u64)> Quantize<'a, F> {
    fn new(source: &'a Opened, plan: &Plan, progress: F) -> Result<Self> {
        let mut weights = BTreeMap::new();
        let (mut linears, mut tables, mut ignore) = (Vec::new(), Vec::new(), Vec::new());
        for layer in plan.layers() {
            let name = || layer.name.clone();
            let Some(qconfig) = &layer.qconfig else {
                if layer.is_matrix() && layer.kind != LayerKind::Embedding {
                    ignore.push(name());
                }
                continue;
            };
            for tensor in &layer.tensors {
                let format = format(&layer.kind, qconfig, source, tensor);
                let format = format.map_err(|e| e.at(tensor))?;
                let module = || Module {
                    name: name(),
                    format,
                };
                // Other libraries have no module for a tensor of several layers.
                let is_module = !layer.is_tensor();
                if is_module && layer.is_linear() {
                    linears.push(module());
                } else if is_module && layer.kind == LayerKind::Embedding {
                    tables.push(module());
                }
                if is_module && format.codes().is_none() && layer.is_linear() {
                    ignore.push(name());
                }
                weights.insert(tensor.clone(), (qconfig.clone(), format));
            }
        }
        Ok(Self {
            source,
            weights,
            config: config::entry(&linears, &tables, &ignore, source),
            progress,
        })
    }
}

fn format(kind: &LayerKind, qconfig: &QConfig, source: &Opened, tensor: &str) -> Result<Format> {
    let codes = |config: &ObserverConfig| Codes {
        dtype: config.dtype,
        qscheme: config.qscheme,
    };
    let is_table = *kind == LayerKind::Embedding;
    // A weight that cannot be quantized is an error before anything is written.
    let (_, _, [_, k]) = matrix(source, tensor)?;
    match qconfig {
        QConfig::Table(weight) if is_table => Ok(Format::Int8 {
            codes: codes(weight),
            activation: None,
        }),
        QConfig::Table(_) => Err(Error::UnsupportedQConfig {
            expected: "dynamic activations, for a weight that is multiplied".into(),
            got: qconfig.to_string(),
        }),
        QConfig::Int8 { weight, activation } => Ok(Format::Int8 {
            codes: codes(weight),
            activation: (!is_table).then_some(*activation),
        }),
        QConfig::Half(half) => {
            let max = half.max();
            let mut saturated = 0;
            blocks(source, tensor, rows_of_block(k), |_, values| {
                saturated += values.iter().filter(|value| value.abs() > max).count();
                Ok(())
            })?;
            Ok(Format::Half {
                half: *half,
                saturated,
                multiplied: !is_table,
            })
        }
    }
}

/// A matrix of the source.
fn matrix<'a>(source: &'a Opened, name: &str) -> Result<(&'a Shard, &'a Entry, [usize; 2])> {
    let found = source.files.find(name);
    let found = found.and_then(|(shard, entry)| {
        let shape = weights::matrix(name, entry).ok()?;
        Some((shard, entry, shape))
    });
    let found = found.ok_or_else(|| invalid(name, "a matrix", "none"))?;
    sizes::weight("quantize weight", found.2)?;
    Ok(found)
}

/// Rows that are read and quantized at once: of short rows fewer, because each has parameters
/// besides.
fn rows_of_block(k: usize) -> usize {
    (BLOCK / k.max(ROW)).max(1)
}

/// Calls `with` with the rows and the elements of each block of that many rows.
fn blocks(
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
    match &mut error {
        Error::NonFiniteWeight { index, .. } => index.iter_mut().take(1).for_each(|i| *i += first),
        Error::AccumulatorOverflow { channel, .. } => *channel += first,
        _ => {}
    }
    error
}

/// The error of a weight, at its place in the source.
fn fault(error: Error, source: &Opened, name: &str) -> Error {
    match (error, source.files.find(name)) {
        // Names a file already: the source, or the output.
        (error @ (Error::InFile { .. } | Error::Io { .. }), _) => error,
        (error, Some((shard, _))) => error.at(name).in_file(&shard.path),
        (error, None) => error.at(name),
    }
}

/// Calls `with` with the first row and the codes of each block of rows of a matrix.
fn quantized_blocks(
    source: &Opened,
    name: &str,
    config: &QConfig,
    mut with: impl FnMut(usize, &QTable) -> Result<()>,
) -> Result<()> {
    let (_, _, shape) = matrix(source, name)?;
    let observed = observed(source, name, config)?;
    let one_scale = config
        .observer()
        .is_some_and(|own| !own.qscheme.is_per_channel());
    let rows = if observed.is_none() && one_scale {
        shape[0]
    } else {
        rows_of_block(shape[1])
    };
    blocks(source, name, rows, |rows, values| {
        let block = block(values, &rows, shape[1])?;
        let table = QTable::from_observed(&block, config, observed.as_ref())?;
        drop(block);
        with(rows.start, &table)
    })
}

/// Checks that the products of a weight, quantized so, stay within an i32.
///
/// # Errors
/// When they do not, the weight cannot be read, or it holds a NaN or an infinity.
pub(super) fn check_products(source: &Opened, name: &str, config: &QConfig) -> Result<()> {
    let (_, _, [_, k]) = matrix(source, name)?;
    let is_int8 = config.observer().is_some();
    // Few inputs need no look at the weight.
    if !is_int8 || (k as u64).saturating_mul(255 * 255) <= i32::MAX as u64 {
        return Ok(());
    }
    quantized_blocks(source, name, config, |_, table| check_block(table))
}

/// As [`check_products`], of a block of rows that is quantized.
fn check_block(table: &QTable) -> Result<()> {
    let (Some(ZeroPoints::Int(zeros)), Some(dtype)) = (table.zero_points(), table.dtype()) else {
        return Ok(());
    };
    let [rows, k] = table.shape();
    let of = |row: usize| zeros[if zeros.len() == 1 { 0 } else { row }] - offset(dtype);
    let zeros: Vec<i32> = (0..rows).map(of).collect();
    let codes: Vec<i8> = table.stored_codes().collect();
    check_sums(&codes, k, &zeros)
}

/// The parameters of a weight with one scale, if its observer needs no more than a block at a time.
fn observed(source: &Opened, name: &str, config: &QConfig) -> Result<Option<WeightQParams>> {
    let Some(config) = config.observer().filter(|own| own.sees_blocks()) else {
        return Ok(None);
    };
    let (_, _, shape) = matrix(source, name)?;
    let mut observer = config.build()?;
    blocks(source, name, rows_of_block(shape[1]), |rows, values| {
        observer.observe(&block(values, &rows, shape[1])?)
    })?;
    observer.calculate_qparams().map(Some)
}

impl<F: FnMut(u64)> Rewrite for Quantize<'_, F> {
    fn replaced(&self, name: &str) -> Option<Vec<Planned>> {
        let (_, format) = self.weights.get(name)?;
        let (_, entry) = self.source.files.find(name)?;
        let zeros = match format.codes().map(|codes| codes.qscheme) {
            Some(QScheme::PerChannelAffineFloatQParams) => Zeros::Float(Vec::new()),
            Some(qscheme) if !qscheme.is_symmetric() => Zeros::Int(Vec::new()),
            _ => Zeros::None,
        };
        Some(planned(name, &entry.shape, *format, &zeros))
    }

    fn write(&mut self, name: &str, to: &mut Writer<'_>) -> Result<()> {
        let Some((qconfig, format)) = self.weights.get(name) else {
            return Ok(());
        };
        let written = quantized_blocks(
            self.source,
            name,
            qconfig,
            |row, table| match Quantized::of(table, *format, row)? {
                Quantized::Halves(bytes) => to.write(name, &bytes),
                Quantized::Codes(codes, scales, zeros) => {
                    let bytes: Vec<u8> = codes.into_iter().map(i8::cast_unsigned).collect();
                    to.write(name, &bytes)?;
                    write_qparams(name, &scales, &zeros, to)
                }
            },
        );
        written.map_err(|error| fault(error, self.source, name))
    }

    fn formats(&self) -> BTreeMap<String, Format> {
        let own = self.weights.iter();
        own.map(|(name, (_, format))| (name.clone(), *format))
            .collect()
    }

    fn config(&self) -> Option<Value> {
        self.config.clone()
    }

    fn progress(&mut self, bytes: u64) {
        (self.progress)(bytes);
    }
}

/// A block of rows as it is written.
enum Quantized {
    Halves(Vec<u8>),
    /// Codes, scales and zero points: where one scale is for all rows, those are of the first
    /// block.
    Codes(Vec<i8>, Vec<f32>, Zeros),
}

impl Quantized {
    fn of(table: &QTable, format: Format, first: usize) -> Result<Self> {
        if let Some(halves) = table.stored_halves() {
            return Ok(Self::Halves(halves.to_bytes()));
        }
        if format.is_multiplied() {
            check_block(table)?;
        }
        let codes: Vec<i8> = table.stored_codes().collect();
        let [rows, _] = table.shape();
        let qscheme = format.codes().map(|codes| codes.qscheme);
        let repeat = |len: usize| {
            if !qscheme.is_some_and(QScheme::is_per_channel) {
                usize::from(first == 0)
            } else if len == 1 {
                // An observer may choose one value for all rows of a block.
                rows
            } else {
                1
            }
        };
        let offset = format.codes().map_or(0, |codes| offset(codes.dtype));
        let zeros = match table.zero_points() {
            Some(ZeroPoints::Float(zeros)) => Zeros::Float(zeros.repeat(repeat(zeros.len()))),
            Some(ZeroPoints::Int(zeros)) => {
                let zeros: Vec<i32> = zeros.iter().map(|zero| zero - offset).collect();
                if qscheme.is_some_and(QScheme::is_symmetric) {
                    Zeros::None
                } else {
                    Zeros::Int(zeros.repeat(repeat(zeros.len())))
                }
            }
            None => Zeros::None,
        };
        let scales = table.scales();
        Ok(Self::Codes(
            codes,
            scales.repeat(repeat(scales.len())),
            zeros,
        ))
    }
}

struct Dequantize<'a, F> {
    source: &'a Opened,
    progress: F,
}

impl<F: FnMut(u64)> Rewrite for Dequantize<'_, F> {
    fn replaced(&self, name: &str) -> Option<Vec<Planned>> {
        let weights = &self.source.weights;
        if weights.contains_key(name) && !self.source.is_view(name) {
            let (_, entry) = self.source.files.find(name)?;
            return Some(vec![Planned {
                name: name.to_owned(),
                dtype: Dtype::F32,
                shape: entry.shape.clone(),
            }]);
        }
        // The tensor has the elements of a view.
        let goes = belongs(weights, name) || self.source.is_view(name);
        goes.then(Vec::new)
    }

    fn write(&mut self, name: &str, to: &mut Writer<'_>) -> Result<()> {
        let kind = self.source.weights.get(name);
        let Some(kind) = kind.filter(|_| !self.source.is_view(name)) else {
            return Ok(());
        };
        let (_, entry) = self.source.tensor(name)?;
        let all = 0..entry.shape.iter().product();
        let values = kind.dequantize(&self.source.files, name, all);
        let values = values.map_err(|e| match self.source.files.find(name) {
            Some((shard, _)) => e.in_file(&shard.path),
            None => e,
        })?;
        for chunk in values.chunks(BLOCK) {
            let bytes: Vec<u8> = chunk.iter().flat_map(|value| value.to_le_bytes()).collect();
            to.write(name, &bytes)?;
        }
        Ok(())
    }

    fn formats(&self) -> BTreeMap<String, Format> {
        BTreeMap::new()
    }

    fn config(&self) -> Option<Value> {
        None
    }

    fn progress(&mut self, bytes: u64) {
        (self.progress)(bytes);
    }
}
