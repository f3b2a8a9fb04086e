//! Weights of codes or halves that were made before.

use super::{QWeight, check_shape, finite_bias};
use crate::error::{Error, Fault, Result};
use crate::halves::Halves;
use crate::kernels::reference::{InBlocks, Int8};
use crate::kernels::{self, BlockScale, OutOfRange};
use crate::observer::ZeroPoints;
use crate::qconfig::{DynamicConfig, GroupConfig};
use crate::qparams::{QDType, QScheme};
use crate::weight::coded::{Coded, check_codes, check_halves, check_sums, less_offset};
use crate::weight::format::Numbers;
use candle_core::Tensor;

impl QWeight {
    /// A weight of codes `[out_features, in_features]` in row order, as
    /// [`codes`](Self::codes), [`scales`](Self::scales) and [`zero_points`](Self::zero_points)
    /// give them; `bias`, `[out_features]`, stays f32. Activations become u8, a scale per row.
    ///
    /// ```
    /// use candle_dynquant::{QDType, QScheme, QWeight};
    ///
    /// let (codes, scales) = ([64, -128, 127, 64], [0.5, 0.25]);
    /// let qscheme = QScheme::PerChannelSymmetric;
    /// let weight = QWeight::from_codes([2, 2], &codes, &scales, &[0, 0], None, QDType::QInt8, qscheme)?;
    /// assert_eq!(weight.dequantize()?.to_vec2::<f32>()?, [[32., -64.], [31.75, 16.]]);
    /// # Ok::<(), candle_dynquant::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the shape has another number of codes, when there is not one scale for a tensor or one
    /// for each channel, with its zero point; when a code or zero point is none of `dtype`, a scale
    /// is not finite and positive, the zero points are float, the bias has another shape or holds a
    /// NaN or an infinity, a channel could overflow its accumulator, or `DYNQUANT_ISA` is wrong.
    pub fn from_codes(
        shape: [usize; 2],
        codes: &[i32],
        scales: &[f32],
        zero_points: &[i32],
        bias: Option<&Tensor>,
        dtype: QDType,
        qscheme: QScheme,
    ) -> Result<Self> {
        check_codes("zero point", dtype, zero_points)?;
        let raw = Coded {
            dtype,
            qscheme,
            codes: less_offset(dtype, codes)?,
            scales: scales.to_vec(),
            zero_points: ZeroPoints::Int(zero_points.to_vec()),
        };
        Self::of_codes(1, shape, raw, DynamicConfig::default(), bias)
    }

    /// [`from_codes`](Self::from_codes) of a weight whose output channels are `gates` gates, with
    /// codes less the offset of the dtype.
    pub(crate) fn of_codes(
        gates: usize,
        shape: [usize; 2],
        raw: Coded<i8>,
        activation: DynamicConfig,
        bias: Option<&Tensor>,
    ) -> Result<Self> {
        let isa = kernels::active()?;
        let [n, k] = check_shape("weight", gates, shape)?;
        let is_float = raw.qscheme == QScheme::PerChannelAffineFloatQParams;
        let (ZeroPoints::Int(zeros), false) = (&raw.zero_points, is_float) else {
            let expected = "integer zero points, for a weight that is multiplied";
            return Err(Error::qconfig(expected, raw.qscheme));
        };
        raw.check(shape)?;
        let bias = finite_bias("bias", bias, n)?;
        // The number of each channel's scale: a single scale is shared by all.
        let index = |channel| if raw.scales.len() == 1 { 0 } else { channel };
        let channels = || (0..n).map(index);
        let scales: Vec<_> = channels().map(|i| raw.scales[i]).collect();
        let zero_points: Vec<_> = channels().map(|i| zeros[i] - raw.dtype.offset()).collect();
        check_sums(&raw.codes, k, &zero_points)?;
        let int8 = Int8 { codes: &raw.codes, scales: &scales, zero_points: &zero_points };
        let packed = kernels::pack_codes(isa, k, gates, int8, &bias, activation.into());
        let format = Numbers::Codes((&raw).into()).multiplied(activation);
        Ok(Self::new(packed, format, OutOfRange::default()))
    }

    /// This weight with another bias, `[out_features]`.
    pub(crate) fn with_bias(&self, bias: &Tensor) -> Result<Self> {
        let bias = finite_bias("bias", Some(bias), self.packed.n())?;
        let out_of_range =
            OutOfRange { saturated: self.format.saturated, underflowed: self.underflowed };
        let packed = self.packed.with_bias(&bias);
        Ok(Self::new(packed, self.format, out_of_range))
    }

    /// This weight, of int8, with other scales of any sign, one a channel, and another bias. Its
    /// qscheme stays the one of the scales that it was made with.
    pub(crate) fn with_scales(
        &self,
        gates: usize,
        scales: &[f32],
        bias: Option<&Tensor>,
    ) -> Result<Self> {
        let [n, k] = self.shape();
        if let Some(index) = scales.iter().position(|scale| !scale.is_finite()) {
            let (index, value) = (vec![index], scales[index]);
            return Err(Error::from(Fault::NonFiniteWeight { index, value }));
        }
        let zero_points: Vec<_> = (0..n).map(|i| self.packed.zero_point(i)).collect();
        let int8 = Int8 { codes: &self.packed.codes(), scales, zero_points: &zero_points };
        let activation = self.format.dynamic().unwrap_or_default().into();
        let (isa, bias) = (kernels::active()?, finite_bias("bias", bias, n)?);
        let packed = kernels::pack_codes(isa, k, gates, int8, &bias, activation);
        Ok(Self::new(packed, self.format, OutOfRange::default()))
    }

    /// A weight in groups, its codes in row order, with the scale of each block and the factor of
    /// each channel.
    pub(crate) fn of_groups(
        gates: usize,
        shape: [usize; 2],
        groups: GroupConfig,
        codes: &[u8],
        (scales, factors): (&[BlockScale], &[f32]),
        bias: Option<&Tensor>,
    ) -> Result<Self> {
        let isa = kernels::active()?;
        let [n, k] = check_shape("weight", gates, shape)?;
        let bias = finite_bias("bias", bias, n)?;
        let rhs = InBlocks { format: groups.blocks()?, codes, scales, factors };
        let packed = kernels::pack_block_codes(isa, k, gates, rhs, &bias);
        let format = Numbers::Groups(groups).multiplied(DynamicConfig::default());
        Ok(Self::new(packed, format, OutOfRange::default()))
    }

    /// A weight of halves in row order, some of which were out of range when they were made.
    pub(crate) fn of_halves(
        gates: usize,
        shape: [usize; 2],
        halves: &Halves,
        out_of_range: OutOfRange,
        bias: Option<&Tensor>,
    ) -> Result<Self> {
        let isa = kernels::active()?;
        let [n, k] = check_shape("weight", gates, shape)?;
        check_halves(shape, halves)?;
        let bias = finite_bias("bias", bias, n)?;
        let packed = halves.pack(isa, [k, gates], &bias);
        let format = Numbers::Half(halves.half_type()).multiplied(DynamicConfig::default());
        Ok(Self::new(packed, format, out_of_range))
    }
}
