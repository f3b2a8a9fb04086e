//! Quantized weights, and norms that multiply their residual, from a `VarBuilder`.

use candle_core::{DType, Tensor};
use candle_nn::{Init, VarBuilder};

use super::format::{
    Codes, EQUALIZED, FORMAT, Format, MINIMUM, RESIDUAL, SCALE, UNSIGNED_ZERO_POINT, Written,
    ZERO_POINT,
};
use super::groups::Grouped;
use super::origin::{self, Origin};
use crate::error::{Error, Fault, Result};
use crate::halves::{HalfType, Halves};
use crate::kernels::OutOfRange;
use crate::observer::ZeroPoints;
use crate::qconfig::{GroupConfig, GroupScheme};
use crate::qparams::QScheme;
use crate::tensor::{Elements, check_float_dtype};
use crate::weight::coded::Coded;
use crate::weight::coded::offset;
use crate::weight::qtable::QTable;
use crate::weight::qweight::QWeight;

/// A quantized weight that a checkpoint has.
pub(crate) struct Found<'a> {
    vb: &'a VarBuilder<'a>,
    name: &'a str,
    pub format: Format,
    /// The description, as it was handed out.
    answer: Tensor,
}

/// The quantized weight `name`, if `vb` belongs to a checkpoint which has it and is on the CPU.
pub(crate) fn find<'a>(vb: &'a VarBuilder<'a>, name: &'a str) -> Option<Found<'a>> {
    let format = format!("{name}{FORMAT}");
    if !vb.device().is_cpu() || !vb.contains_tensor(&format) {
        return None;
    }
    // A backend that claims to have every tensor, as candle's of zeros does, has no such format.
    let answer = vb.get_unchecked_dtype(&format, DType::U8).ok()?;
    let json = answer.to_vec1::<u8>().ok()?;
    let written: Written = serde_json::from_slice(&json).ok()?;
    let format = written.try_into().ok()?;
    Some(Found {
        vb,
        name,
        format,
        answer,
    })
}

/// Where a norm's parameters are, and the factors of its residual, `[hidden]`; `None` if it has
/// none.
pub(crate) fn equalized<'a>(vb: &VarBuilder<'a>) -> Option<(VarBuilder<'a>, Tensor)> {
    let own = vb.pp(EQUALIZED);
    if !own.contains_tensor(RESIDUAL) {
        return None;
    }
    // As in `find`. If they are there but cannot be read, the caller misses `weight`.
    let factors = own.get_unchecked_dtype(RESIDUAL, DType::F32).ok()?;
    Some((own, factors))
}

impl Found<'_> {
    /// The weight, packed to be multiplied; its channels are `gates` gates.
    pub fn qweight(
        &self,
        gates: usize,
        shape: [usize; 2],
        bias: Option<&Tensor>,
    ) -> Result<QWeight> {
        let read = || match self.format {
            Format::Groups { groups, .. } => {
                self.groups(groups, shape)?.qweight(gates, shape, bias)
            }
            Format::Int8 { codes, activation } => {
                let raw = self.codes(codes, shape, Self::zero_points)?;
                QWeight::of_codes(gates, shape, raw, activation.unwrap_or_default(), bias)
            }
            Format::Half {
                half, saturated, ..
            } => {
                let out_of_range = OutOfRange {
                    saturated,
                    underflowed: 0,
                };
                let halves = self.halves(half, shape)?;
                QWeight::of_halves(gates, shape, &halves, out_of_range, bias)
            }
        };
        read().map_err(|e| e.at(&self.path()))
    }

    /// The weight as a table.
    pub fn qtable(&self, shape: [usize; 2]) -> Result<QTable> {
        let read = || match self.format {
            Format::Groups { groups, .. } => Err(Error::from(Fault::UnsupportedQConfig {
                expected: "a table".into(),
                got: groups.to_string(),
            })),
            Format::Int8 { codes, .. } => {
                let raw = self.codes(codes, shape, |found, codes, count| {
                    if codes.qscheme == QScheme::PerChannelAffineFloatQParams {
                        let zero_points = found.f32s(UNSIGNED_ZERO_POINT)?;
                        return Ok(ZeroPoints::Float(zero_points));
                    }
                    let mut zero_points = found.zero_points(codes, count)?;
                    for zero_point in &mut zero_points {
                        *zero_point += offset(codes.dtype);
                    }
                    Ok(ZeroPoints::Int(zero_points))
                })?;
                QTable::of_codes(shape, raw)
            }
            Format::Half {
                half, saturated, ..
            } => QTable::of_halves(shape, self.halves(half, shape)?, saturated),
        };
        read().map_err(|e| e.at(&self.path()))
    }

    /// Where the weight is in the checkpoint, whatever name it was asked for by.
    pub fn origin(&self, shape: [usize; 2]) -> Option<Origin> {
        origin::of_answer(&self.answer, shape)
    }

    fn path(&self) -> String {
        self.vb.pp(self.name).prefix()
    }

    fn codes<Z>(
        &self,
        codes: Codes,
        shape: [usize; 2],
        zero_points: impl Fn(&Self, Codes, usize) -> Result<Z>,
    ) -> Result<Coded<i8, Z>> {
        let scales = self.f32s(SCALE)?;
        let zero_points = zero_points(self, codes, scales.len())?;
        let bits = self.weight(shape, DType::U8)?;
        let bits = Elements::of(&bits);
        let bits = bits.as_slice::<u8>()?.iter();
        Ok(Coded {
            dtype: codes.dtype,
            qscheme: codes.qscheme,
            codes: bits.map(|bits| bits.cast_signed()).collect(),
            scales,
            zero_points,
        })
    }

    fn groups(&self, groups: GroupConfig, shape: [usize; 2]) -> Result<Grouped> {
        let bits = self.weight(shape, DType::U8)?;
        let bits = Elements::of(&bits);
        let zero_points = match groups.scheme {
            GroupScheme::Symmetric | GroupScheme::Minimum => Vec::new(),
            GroupScheme::Affine => {
                let name = format!("{}{ZERO_POINT}", self.name);
                let zeros = self.vb.get_unchecked_dtype(&name, DType::I64)?;
                let zeros = zeros.flatten_all()?.to_vec1::<i64>()?;
                zeros
                    .into_iter()
                    .map(|z| z.clamp(-128, 127) as i8)
                    .collect()
            }
        };
        Ok(Grouped {
            groups,
            codes: (bits.as_slice::<u8>()?.iter())
                .map(|bits| bits.cast_signed())
                .collect(),
            scales: self.f32s(SCALE)?,
            zero_points,
            minimums: match groups.scheme {
                GroupScheme::Minimum => self.f32s(MINIMUM)?,
                GroupScheme::Symmetric | GroupScheme::Affine => Vec::new(),
            },
        })
    }

    fn halves(&self, half: HalfType, shape: [usize; 2]) -> Result<Halves> {
        let halves = self.weight(shape, half.dtype())?;
        let halves = Elements::of(&halves);
        Ok(match half {
            HalfType::BFloat16 => Halves::BFloat16(halves.as_slice()?.to_vec()),
            HalfType::Float16 => Halves::Float16(halves.as_slice()?.to_vec()),
        })
    }

    fn weight(&self, shape: [usize; 2], dtype: DType) -> Result<Tensor> {
        // Biases are read in it, and rows of tables dequantized to it.
        check_float_dtype(self.vb.dtype(), "load")?;
        let none = Init::Const(0.);
        let weight = self
            .vb
            .get_with_hints_dtype(&shape[..], self.name, none, dtype)?;
        Ok(weight.contiguous()?)
    }

    fn f32s(&self, suffix: &str) -> Result<Vec<f32>> {
        let name = format!("{}{suffix}", self.name);
        let tensor = self.vb.get_unchecked_dtype(&name, DType::F32)?;
        Ok(tensor.flatten_all()?.to_vec1()?)
    }

    /// The zero points, each less the offset of the dtype.
    fn zero_points(&self, _: Codes, count: usize) -> Result<Vec<i32>> {
        let name = format!("{}{ZERO_POINT}", self.name);
        if !self.vb.contains_tensor(&name) {
            return Ok(vec![0; count]);
        }
        let tensor = self.vb.get_unchecked_dtype(&name, DType::I64)?;
        let zero_points = tensor.flatten_all()?.to_vec1::<i64>()?;
        // Beyond i8 they are refused later.
        let clamp = |z: i64| z.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
        Ok(zero_points.into_iter().map(clamp).collect())
    }
}
