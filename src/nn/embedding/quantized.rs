//! The table of a quantized embedding.

use std::sync::{Arc, OnceLock};

use candle_core::{DType, Device, Tensor, WithDType};
use half::{bf16, f16};

use crate::error::Result;
use crate::kernels;
use crate::module::{WeightDType, WeightId, WeightInfo};
use crate::nn::projection;
use crate::qconfig::QConfig;
use crate::weight::origin::Parts;
use crate::weight::{Origin, Quantized as Rows, WeightCodes};

/// A quantized table, and the tensor it dequantizes to.
#[derive(Debug)]
pub(super) struct QuantizedTable {
    /// The table, or the weight shared with a projection, as a checkpoint may have it, too.
    pub rows: Rows,
    /// The configuration of a table that is not shared; `None` if it was read from a checkpoint.
    pub qconfig: Option<QConfig>,
    /// The dtype of the float table.
    dtype: DType,
    /// The place of the table in a checkpoint, if it was read as it is.
    origin: Option<Origin>,
    /// Filled when the table is first read as a tensor.
    dequantized: OnceLock<Tensor>,
}

/// The rows of a table of a checkpoint.
pub(super) fn read(parts: Parts) -> Result<Rows> {
    let multiplied = parts.format.is_multiplied();
    Ok(if multiplied || parts.format.groups().is_some() {
        let weight = Arc::new(parts.qweight(1, None)?);
        Rows::matrix(weight, multiplied)
    } else {
        Rows::Table(Arc::new(parts.qtable()?))
    })
}

impl QuantizedTable {
    /// A quantized table in place of a float table of `dtype`.
    pub fn new(rows: Rows, dtype: DType, origin: Option<Origin>) -> Self {
        Self { rows, qconfig: None, dtype, origin, dequantized: OnceLock::new() }
    }

    pub fn codes(&self) -> Option<WeightCodes> {
        match &self.rows {
            Rows::Table(table) => table.weight_codes(),
            Rows::Weight { weight, .. } => weight.weight_codes(),
        }
    }

    fn read_row(&self, row: usize, sink: impl FnMut(&[f32])) {
        match &self.rows {
            Rows::Table(table) => table.read_row(row, sink),
            Rows::Weight { weight, .. } => weight.read_channel(row, sink),
        }
    }

    /// The rows of indexes that are checked.
    pub fn select(&self, indexes: &[usize]) -> Result<Tensor> {
        match self.dtype {
            DType::F16 => self.gather(indexes, f16::from_f32),
            DType::BF16 => self.gather(indexes, bf16::from_f32),
            DType::F64 => self.gather(indexes, f64::from),
            _ => self.gather(indexes, f32::from),
        }
    }

    /// [`select`](Self::select), in the dtype of the output. `from_f32` rounds once:
    /// by way of f64, `half` loses what decides next to a tie.
    fn gather<T: WithDType>(
        &self,
        indexes: &[usize],
        from_f32: impl Fn(f32) -> T + Sync,
    ) -> Result<Tensor> {
        let [_, k] = self.rows.shape();
        let mut values = vec![T::zero(); indexes.len() * k];
        kernels::for_each_row(&mut values, k, |i, out| {
            let mut written = 0;
            self.read_row(indexes[i], |chunk| {
                for (out, value) in out[written..].iter_mut().zip(chunk) {
                    *out = from_f32(*value);
                }
                written += chunk.len();
            });
        });
        Ok(Tensor::from_vec(values, (indexes.len(), k), &Device::Cpu)?)
    }

    /// The table in f32, which is not kept.
    pub fn dequantize(&self) -> Result<Tensor> {
        match &self.rows {
            Rows::Table(table) => table.dequantize(),
            Rows::Weight { weight, .. } => weight.dequantize(),
        }
    }

    pub fn dequantized(&self) -> &Tensor {
        self.dequantized.get_or_init(|| {
            let table = match &self.rows {
                Rows::Table(table) => table.dequantize(),
                Rows::Weight { weight, .. } => Ok(weight.dequantized().clone()),
            };
            let table = table.and_then(|table| Ok(table.to_dtype(self.dtype)?));
            // A tensor of the right length on the CPU can always be created.
            let table = table.unwrap_or_else(|error| unreachable!("dequantize: {error}"));
            if let Some(origin) = &self.origin {
                origin.record(&table);
            }
            table
        })
    }

    pub fn info(self: &Arc<Self>) -> WeightInfo {
        let name = "weight";
        match &self.rows {
            Rows::Weight { weight, .. } => projection::weight_info(weight, name),
            Rows::Table(table) => {
                let dtype = WeightDType::of_quantized(table.dtype(), table.half_type());
                WeightInfo {
                    underflowed: table.underflowed(),
                    ..WeightInfo::new(name, &table.shape(), dtype, table.bytes())
                        .quantized(table.saturated())
                        .held_as(WeightId::of_shared(self))
                }
            }
        }
    }
}
