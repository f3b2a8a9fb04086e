//! A quantized table: rows of codes or halves that are looked up, never multiplied.

use candle_core::{DType, Tensor};
use half::f16;

use crate::error::{Error, Result};
use crate::kernels::reference::Affine;
use crate::kernels::{self, Isa};
use crate::observer::{ObserverConfig, ZeroPoints};
use crate::qconfig::WeightConfig;
use crate::qparams::{QDType, QScheme};
use crate::qweight::{finite_values, offset, to_halves};
use crate::sizes;
use crate::tensor::from_f32_vec;

/// A table `[rows, row length]` as 8-bit codes with their scales and zero points, or as float16.
///
/// Where a [`QWeight`](crate::QWeight) is packed to be multiplied, a table is in row order, so that
/// a row is read at once. A row with a float zero point represents
/// `fma(code, scale, -zero_point * scale)`, as PyTorch's quantized embedding computes it, and one
/// with an integer zero point represents `scale * (code - zero_point)`.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::{QConfig, QTable};
///
/// let table = Tensor::new(&[[1f32, 2., 256.], [-1., 0., 0.5]], &Device::Cpu)?;
/// let qtable = QTable::from_float(&table, &QConfig::float_qparams_weight_only().weight)?;
/// assert_eq!(qtable.codes(), [0, 1, 255, 0, 170, 255]);
/// assert_eq!(qtable.scales(), [1., 1.5 / 255.]);
/// # Ok::<(), candle_dynquant::Error>(())
/// ```
#[derive(Debug)]
pub struct QTable {
    isa: Isa,
    rows: usize,
    k: usize,
    elements: Elements,
}

#[derive(Debug)]
enum Elements {
    Int8 {
        dtype: QDType,
        qscheme: QScheme,
        /// Codes of qint8 are moved up by 128.
        codes: Vec<u8>,
        scales: Vec<f32>,
        zero_points: ZeroPoints,
    },
    Float16 {
        halves: Vec<f16>,
        saturated: usize,
    },
}

impl QTable {
    /// Quantizes a float table, once.
    ///
    /// Scales and zero points are the observer's, of the whole table or of each row. In float16,
    /// elements beyond ±65,504 are clamped to it.
    ///
    /// # Errors
    /// When the shape or dtype is wrong, the tensor is not on the CPU, an element is NaN or
    /// infinite, `DYNQUANT_ISA` is wrong, or the observer does not support its arguments.
    pub fn from_float(table: &Tensor, config: &WeightConfig) -> Result<Self> {
        let isa = Isa::active()?;
        let &[rows, k] = table.dims() else {
            return Err(Error::ShapeMismatch {
                op: "quantize table",
                expected: "[rows, row length]".into(),
                got: table.dims().to_vec(),
            });
        };
        sizes::elements("quantize table", &[rows, k])?;
        let values = finite_values(table)?;
        let elements = match config {
            WeightConfig::Int8(config) => int8(table, &values, (rows, k), config)?,
            WeightConfig::Float16 => {
                let (halves, saturated) = to_halves(&values);
                Elements::Float16 { halves, saturated }
            }
        };
        Ok(Self {
            isa,
            rows,
            k,
            elements,
        })
    }

    /// Rows and their length.
    pub fn shape(&self) -> [usize; 2] {
        [self.rows, self.k]
    }

    /// The dtype of the codes; `None` of float16.
    pub fn dtype(&self) -> Option<QDType> {
        match self.elements {
            Elements::Int8 { dtype, .. } => Some(dtype),
            Elements::Float16 { .. } => None,
        }
    }

    /// Over how much of the table one scale stretches; `None` of float16.
    pub fn qscheme(&self) -> Option<QScheme> {
        match self.elements {
            Elements::Int8 { qscheme, .. } => Some(qscheme),
            Elements::Float16 { .. } => None,
        }
    }

    /// The codes in row order; none of float16.
    pub fn codes(&self) -> Vec<i32> {
        match &self.elements {
            Elements::Int8 { dtype, codes, .. } => {
                let moved = moved(*dtype);
                codes.iter().map(|code| i32::from(*code) - moved).collect()
            }
            Elements::Float16 { .. } => Vec::new(),
        }
    }

    /// The float16 elements in row order; none of int8.
    pub fn halves(&self) -> &[f16] {
        match &self.elements {
            Elements::Int8 { .. } => &[],
            Elements::Float16 { halves, .. } => halves,
        }
    }

    /// The scale of the table, or of each row; none of float16.
    pub fn scales(&self) -> &[f32] {
        match &self.elements {
            Elements::Int8 { scales, .. } => scales,
            Elements::Float16 { .. } => &[],
        }
    }

    /// As many zero points as scales; `None` of float16.
    pub fn zero_points(&self) -> Option<&ZeroPoints> {
        match &self.elements {
            Elements::Int8 { zero_points, .. } => Some(zero_points),
            Elements::Float16 { .. } => None,
        }
    }

    /// How many elements were beyond the range of float16.
    pub fn saturated(&self) -> usize {
        match self.elements {
            Elements::Int8 { .. } => 0,
            Elements::Float16 { saturated, .. } => saturated,
        }
    }

    /// Bytes in memory, scales and zero points included.
    pub fn bytes(&self) -> usize {
        match &self.elements {
            // Zero points take four bytes either way.
            Elements::Int8 { codes, scales, .. } => codes.len() + 2 * size_of_val(&**scales),
            Elements::Float16 { halves, .. } => size_of_val(&**halves),
        }
    }

    /// The f32 table that this represents.
    ///
    /// # Errors
    /// When candle cannot make the tensor.
    pub fn dequantize(&self) -> Result<Tensor> {
        let mut values = Vec::with_capacity(self.rows * self.k);
        for row in 0..self.rows {
            self.read_row(row, |chunk| values.extend_from_slice(chunk));
        }
        from_f32_vec(values, &self.shape(), DType::F32)
    }

    /// Calls `sink` with the f32 values of a row, chunk by chunk.
    pub(crate) fn read_row(&self, row: usize, sink: impl FnMut(&[f32])) {
        let elements = row * self.k..(row + 1) * self.k;
        match &self.elements {
            Elements::Float16 { halves, .. } => {
                kernels::widen_row(self.isa, &halves[elements], sink);
            }
            Elements::Int8 {
                dtype,
                codes,
                scales,
                zero_points,
                ..
            } => {
                let index = if scales.len() == 1 { 0 } else { row };
                let scale = scales[index];
                let (shift, offset) = match zero_points {
                    ZeroPoints::Int(zero_points) => (zero_points[index], 0.),
                    ZeroPoints::Float(zero_points) => (0, -zero_points[index] * scale),
                };
                let affine = Affine {
                    shift: shift + moved(*dtype),
                    scale,
                    offset,
                };
                kernels::dequantize_row(self.isa, &codes[elements], affine, sink);
            }
        }
    }
}

fn int8(
    table: &Tensor,
    values: &[f32],
    (rows, k): (usize, usize),
    config: &ObserverConfig,
) -> Result<Elements> {
    if !matches!(config.ch_axis, 0 | -2) {
        return Err(Error::UnsupportedQConfig {
            expected: "channels along axis 0: the rows of the table".into(),
            got: format!("ch_axis {}", config.ch_axis),
        });
    }
    let mut observer = config.build()?;
    observer.observe(table)?;
    let qparams = observer.calculate_qparams()?;
    let (dtype, scales) = (qparams.dtype(), qparams.scales());
    if dtype != config.dtype {
        return Err(Error::UnsupportedQConfig {
            expected: format!("an observer for {}", config.dtype),
            got: format!("one that chose {dtype}"),
        });
    }
    let per_row = config.qscheme.is_per_channel();
    if scales.len() != 1 && !(per_row && scales.len() == rows) {
        return Err(Error::UnsupportedQConfig {
            expected: match per_row {
                true => format!("one scale, or one for each of {rows} rows"),
                false => format!("one scale for {}", config.qscheme),
            },
            got: scales.len().to_string(),
        });
    }
    // The minimum gets code 0, whatever the dtype's minimum code is.
    if let (ZeroPoints::Float(_), QDType::QInt8) = (qparams.zero_points(), dtype) {
        return Err(Error::UnsupportedQConfig {
            expected: "quint8, for float zero points".into(),
            got: dtype.to_string(),
        });
    }
    let mut codes = Vec::with_capacity(rows * k);
    for row in 0..rows {
        let row = qparams.quantize(row, &values[row * k..][..k]);
        // A code, moved where it is signed, is a u8.
        codes.extend(row.iter().map(|code| (code + moved(dtype)) as u8));
    }
    Ok(Elements::Int8 {
        dtype,
        qscheme: config.qscheme,
        codes,
        scales: scales.to_vec(),
        zero_points: qparams.zero_points().clone(),
    })
}

/// The difference between the stored u8 and the code.
fn moved(dtype: QDType) -> i32 {
    128 - offset(dtype)
}
