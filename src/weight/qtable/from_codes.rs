//! Tables of codes or halves that were made before.

use super::{QTable, TableElements};
use crate::error::{Error, Result};
use crate::halves::Halves;
use crate::kernels::{self, OutOfRange};
use crate::observer::ZeroPoints;
use crate::qparams::{QDType, QScheme};
use crate::weight::coded::{Coded, check_codes, check_halves, less_offset};

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
                let got = format!("{}, {}", raw.dtype, raw.qscheme);
                return Err(Error::qconfig(expected, got));
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
