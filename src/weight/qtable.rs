//! A quantized table: rows of codes or halves that are looked up, never multiplied.

use candle_core::{DType, Tensor};

use crate::error::{Error, Result};
use crate::halves::{HalfType, Halves};
use crate::kernels::reference::Affine;
use crate::kernels::{self, Isa, OutOfRange};
use crate::observer::{ObserverConfig, WeightQParams, ZeroPoints};
use crate::qconfig::QConfig;
use crate::qparams::{QDType, QScheme};
use crate::sizes;
use crate::tensor::{self, as_f32, from_f32_vec};
use crate::weight::coded::{Coded, WeightCodes, check_codes, check_halves, less_offset};
use crate::weight::codes::observe;
use crate::weight::format::{Format, Numbers};

/// A table `[rows, row length]` as 8-bit codes with their scales and zero points, or as float16
/// or bfloat16.
///
/// Where a [`QWeight`](crate::QWeight) is packed to be multiplied, a table is in row order, so that
/// a row is read at once. A row with a float zero point represents
/// `fma(code, scale, -zero_point * scale)`, as PyTorch's quantized embedding computes it, and a row
/// with an integer zero point represents `scale * (code - zero_point)`.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::{QConfig, QTable};
///
/// let table = Tensor::new(&[[1f32, 2., 256.], [-1., 0., 0.5]], &Device::Cpu)?;
/// let qtable = QTable::from_float(&table, &QConfig::table())?;
/// assert_eq!(qtable.codes(), [0, 1, 255, 0, 170, 255]);
/// assert_eq!(qtable.scales(), [1., 1.5 / 255.]);
/// # Ok::<(), candle_dynquant::Error>(())
/// ```
#[derive(Debug)]
pub struct QTable {
    isa: Isa,
    rows: usize,
    k: usize,
    elements: TableElements,
    /// Elements that did not fit when they became halves.
    out_of_range: OutOfRange,
}

#[derive(Debug)]
enum TableElements {
    /// Codes of qint8 are moved up by 128.
    Codes(Coded<u8>),
    Halves(Halves),
}

impl QTable {
    /// Quantizes a float table, once.
    ///
    /// Scales and zero points are the observer's, of the whole table or of each row. In float16,
    /// elements beyond ±65,504 are clamped to it; in bfloat16, elements beyond ±3.39e38.
    ///
    /// # Errors
    /// When the shape or dtype is wrong, the tensor is not on the CPU, an element is NaN or
    /// infinite, `DYNQUANT_ISA` is wrong, or the observer does not support its arguments.
    pub fn from_float(table: &Tensor, config: &QConfig) -> Result<Self> {
        if let QConfig::Int8 { .. } | QConfig::Groups(_) = config {
            return Err(multiplied(config));
        }
        Self::from_observed(table, config, None)
    }

    /// Quantizes some rows of a table or weight, for which an observer may have chosen the
    /// parameters before.
    pub(crate) fn from_observed(
        table: &Tensor,
        config: &QConfig,
        observed: Option<&WeightQParams>,
    ) -> Result<Self> {
        let isa = kernels::active()?;
        let &[rows, k] = table.dims() else {
            return Err(Error::shape("quantize table", "[rows, row length]", table.dims()));
        };
        sizes::weight("quantize table", [rows, k])?;
        let table = as_f32(table, "quantize weight")?;
        let values = tensor::Elements::new(&table);
        let values = values.as_slice()?;
        let mut out_of_range = OutOfRange::default();
        let elements = if let Some(observer) = config.observer() {
            TableElements::Codes(coded(isa, &table, values, observer, observed)?)
        } else if let QConfig::Half(half) = config {
            kernels::check_finite(isa, k, values)?;
            let halves;
            (halves, out_of_range) = Halves::rounded(*half, k, values);
            TableElements::Halves(halves)
        } else {
            return Err(multiplied(config));
        };
        Ok(Self { isa, rows, k, elements, out_of_range })
    }

    /// The numbers of the table.
    pub(crate) fn format(&self) -> Format {
        let numbers = match &self.elements {
            TableElements::Codes(coded) => Numbers::Codes(coded.into()),
            TableElements::Halves(halves) => Numbers::Half(halves.half_type()),
        };
        Format { saturated: self.out_of_range.saturated, ..numbers.table() }
    }

    /// Rows and their length.
    pub fn shape(&self) -> [usize; 2] {
        [self.rows, self.k]
    }

    /// The dtype of the codes; `None` of float16 and bfloat16.
    pub fn dtype(&self) -> Option<QDType> {
        self.coded().map(|coded| coded.dtype)
    }

    /// The part of the table that shares a scale; `None` of float16 and bfloat16.
    pub fn qscheme(&self) -> Option<QScheme> {
        self.coded().map(|coded| coded.qscheme)
    }

    /// The codes in row order; none of float16 and bfloat16.
    pub fn codes(&self) -> Vec<i32> {
        let Some(Coded { dtype, codes, .. }) = self.coded() else { return Vec::new() };
        let moved = moved(*dtype);
        codes.iter().map(|code| i32::from(*code) - moved).collect()
    }

    /// The codes with their scales and zero points; `None` of float16 and bfloat16.
    pub(crate) fn weight_codes(&self) -> Option<WeightCodes> {
        self.coded().map(|coded| WeightCodes {
            shape: self.shape(),
            codes: self.codes(),
            scales: coded.scales.clone(),
            zero_points: coded.zero_points.clone(),
        })
    }

    /// The elements of halves; `None` of codes.
    pub(crate) fn stored_halves(&self) -> Option<&Halves> {
        match &self.elements {
            TableElements::Halves(halves) => Some(halves),
            _ => None,
        }
    }

    /// The type of the elements; `None` of int8.
    pub(crate) fn half_type(&self) -> Option<HalfType> {
        self.stored_halves().map(Halves::half_type)
    }

    fn coded(&self) -> Option<&Coded<u8>> {
        match &self.elements {
            TableElements::Codes(coded) => Some(coded),
            _ => None,
        }
    }

    /// The scale of the table, or of each row; none of float16 and bfloat16.
    pub fn scales(&self) -> &[f32] {
        self.coded().map_or(&[], |coded| &coded.scales)
    }

    /// A zero point for each scale; `None` for float16 and bfloat16.
    pub fn zero_points(&self) -> Option<&ZeroPoints> {
        self.coded().map(|coded| &coded.zero_points)
    }

    /// How many elements were beyond the range of float16 or bfloat16.
    pub fn saturated(&self) -> usize {
        self.out_of_range.saturated
    }

    /// How many elements lost precision, or became 0, because all of their row is below the normal
    /// range of float16 (6.1e-5) or bfloat16 (1.2e-38); not known of a table that was read from a
    /// checkpoint.
    pub(crate) fn underflowed(&self) -> usize {
        self.out_of_range.underflowed
    }

    /// Bytes in memory, scales and zero points included.
    pub fn bytes(&self) -> usize {
        // Zero points take four bytes, integers or floats.
        let of_element = if self.coded().is_some() { 1 } else { 2 };
        of_element * self.rows * self.k + 2 * size_of_val(self.scales())
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
        match &self.elements {
            TableElements::Halves(halves) => halves.read_row(self.isa, self.k, row, sink),
            TableElements::Codes(Coded { dtype, codes, scales, zero_points, .. }) => {
                let index = if scales.len() == 1 { 0 } else { row };
                let scale = scales[index];
                let (shift, offset) = match zero_points {
                    ZeroPoints::Int(zero_points) => (zero_points[index], 0.),
                    ZeroPoints::Float(zero_points) => (0, -zero_points[index] * scale),
                };
                let affine = Affine { shift: shift + moved(*dtype), scale, offset };
                let codes = &codes[row * self.k..(row + 1) * self.k];
                kernels::dequantize_row(self.isa, codes, affine, sink);
            }
        }
    }
}

fn multiplied(config: &QConfig) -> Error {
    Error::qconfig(
        "a weight-only qconfig, for a table that multiplies nothing: QConfig::table()",
        config,
    )
}

fn coded(
    isa: Isa,
    table: &Tensor,
    values: &[f32],
    config: &ObserverConfig,
    observed: Option<&WeightQParams>,
) -> Result<Coded<u8>> {
    let qparams = match observed {
        Some(observed) => observed.clone(),
        None => observe(isa, table, "rows of the table", config)?,
    };
    let (dtype, zero_points) = (qparams.dtype(), qparams.zero_points());
    // The minimum gets code 0, whatever the dtype's minimum code is.
    if let (ZeroPoints::Float(_), QDType::QInt8) = (zero_points, dtype) {
        return Err(Error::qconfig("quint8, for float zero points", dtype));
    }
    let (_, k) = table.dims2()?;
    let coding = |row| qparams.coding(row).moved(moved(dtype));
    Ok(Coded {
        dtype,
        qscheme: config.qscheme,
        codes: kernels::encode_rows(isa, k, values, coding),
        scales: qparams.scales().to_vec(),
        zero_points: zero_points.clone(),
    })
}

/// The difference between the stored u8 and the code.
fn moved(dtype: QDType) -> i32 {
    128 - dtype.offset()
}

impl QTable {
    /// A table of codes `[rows, row length]` in row order, as [`codes`](Self::codes),
    /// [`scales`](Self::scales) and [`zero_points`](Self::zero_points) give them.
    ///
    /// ```
    /// use candle_dynquant::observer::ZeroPoints;
    /// use candle_dynquant::{QDType, QScheme, QTable};
    ///
    /// let zero_points = ZeroPoints::Float(vec![-1., 1.5]);
    /// let qscheme = QScheme::PerChannelAffineFloatQParams;
    /// let table = QTable::from_codes([2, 1], &[255, 0], &[1., 2.], zero_points, QDType::QUInt8, qscheme)?;
    /// assert_eq!(table.dequantize()?.to_vec2::<f32>()?, [[256.], [-3.]]);
    /// # Ok::<(), candle_dynquant::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the shape has another number of codes, when there is not one scale for a table or one
    /// for each row, with its zero point; when a code or zero point is none of `dtype`, a scale is
    /// not finite and positive, zero points are float without the qscheme and quint8, or
    /// `DYNQUANT_ISA` is wrong.
    pub fn from_codes(
        shape: [usize; 2],
        codes: &[i32],
        scales: &[f32],
        zero_points: ZeroPoints,
        dtype: QDType,
        qscheme: QScheme,
    ) -> Result<Self> {
        let raw = Coded {
            dtype,
            qscheme,
            codes: less_offset(dtype, codes)?,
            scales: scales.to_vec(),
            zero_points,
        };
        Self::of_codes(shape, raw)
    }

    /// [`from_codes`](Self::from_codes) of codes less their offset.
    pub(crate) fn of_codes(shape: [usize; 2], raw: Coded<i8>) -> Result<Self> {
        let isa = kernels::active()?;
        let is_float = raw.qscheme == QScheme::PerChannelAffineFloatQParams;
        match &raw.zero_points {
            ZeroPoints::Int(zero_points) if !is_float => {
                check_codes("zero point", raw.dtype, zero_points)?;
            }
            ZeroPoints::Float(zero_points) if is_float && raw.dtype == QDType::QUInt8 => {
                if let Some(got) = zero_points.iter().find(|z| !z.is_finite()) {
                    return Err(Error::argument("zero point", "a finite number", got));
                }
            }
            _ => {
                let expected = "float zero points for quint8 with \
                                per_channel_affine_float_qparams, integers for all else";
                return Err(Error::qconfig(expected, format!("{}, {}", raw.dtype, raw.qscheme)));
            }
        }
        raw.check(shape)?;
        Ok(Self {
            isa,
            rows: shape[0],
            k: shape[1],
            elements: TableElements::Codes(Coded {
                dtype: raw.dtype,
                qscheme: raw.qscheme,
                codes: (raw.codes.into_iter()).map(|code| code.cast_unsigned() ^ 128).collect(),
                scales: raw.scales,
                zero_points: raw.zero_points,
            }),
            out_of_range: OutOfRange::default(),
        })
    }

    /// A table of halves in row order, some of which were out of range when they were made.
    pub(crate) fn of_halves(
        shape: [usize; 2],
        halves: Halves,
        out_of_range: OutOfRange,
    ) -> Result<Self> {
        let isa = kernels::active()?;
        check_halves(shape, &halves)?;
        Ok(Self {
            isa,
            rows: shape[0],
            k: shape[1],
            elements: TableElements::Halves(halves),
            out_of_range,
        })
    }

    /// The codes in row order, each less the offset of its dtype.
    pub(crate) fn stored_codes(&self) -> impl Iterator<Item = i8> {
        let codes = self.coded().map_or(&[][..], |coded| &coded.codes);
        codes.iter().map(|code| (code ^ 128).cast_signed())
    }
}
