//! A quantized weight: codes or halves, and the packed form that is multiplied.

use std::sync::OnceLock;

use candle_core::{DType, Tensor};
use half::{bf16, f16};

use crate::error::{Error, Fault, Result};
use crate::halves::{HalfType, Halves};
use crate::kernels::reference::{InBlocks, Int8};
use crate::kernels::{
    self, BlockScale, Element, InputFactor, Isa, OutOfRange, Packed, PanelValues,
};
use crate::observer::ZeroPoints;
use crate::qconfig::{DynamicConfig, GroupConfig, GroupScheme, QConfig};
use crate::qparams::{QDType, QScheme};
use crate::sizes;
use crate::tensor::{Elements, as_f32, from_f32_vec, to_f32_vec};
use crate::weight::coded::{
    Coded, WeightCodes, check_codes, check_halves, check_sums, less_offset,
};
use crate::weight::codes::Parameters;
use crate::weight::format::{Codes, Format, Numbers};

/// A weight `[out_features, in_features]` as int8 codes with their scales and zero points, as
/// integers in groups of inputs, or as float16 or bfloat16.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::{QConfig, QWeight};
///
/// let weight = Tensor::new(&[[0.5f32, -1.0], [0.02, 0.01]], &Device::Cpu)?;
/// let qweight = QWeight::from_float(&weight, None, &QConfig::int8())?;
/// assert_eq!(qweight.codes(), [64, -127, 127, 64]);
/// assert_eq!(qweight.scales().len(), 2); // one per output channel
/// assert_eq!(qweight.zero_points(), [0, 0]);
/// let error = (qweight.dequantize()? - weight)?.abs()?.max_all()?;
/// assert!(error.to_scalar::<f32>()? < 1.0 / 127.0);
/// # Ok::<(), candle_dynquant::Error>(())
/// ```
#[derive(Debug)]
pub struct QWeight {
    packed: Packed,
    format: Format,
    /// Elements that lost precision or became 0 when they became halves.
    underflowed: usize,
    /// Filled when the weight is first asked for as a tensor.
    dequantized: OnceLock<Tensor>,
}

impl QWeight {
    /// Quantizes a float weight, once; `bias`, `[out_features]`, stays f32.
    ///
    /// Scales and zero points are the observer's, of the whole weight or of each output channel. In
    /// float16, elements beyond ±65,504 are clamped to it; in bfloat16, elements beyond
    /// ±3.39e38, and subnormal elements are 0.
    ///
    /// # Errors
    /// When a shape or dtype is wrong, a tensor is not on the CPU, an element is NaN or
    /// infinite, `DYNQUANT_ISA` is wrong, the observer does not support its arguments, or a channel
    /// could overflow its accumulator.
    pub fn from_float(weight: &Tensor, bias: Option<&Tensor>, config: &QConfig) -> Result<Self> {
        Self::of_gates(1, weight, bias, config, None)
    }

    /// [`from_float`](Self::from_float) of a weight whose output channels are `gates` gates of
    /// recurrent units, gate by gate. In groups it can be for inputs of which the factor is known.
    pub(crate) fn of_gates(
        gates: usize,
        weight: &Tensor,
        bias: Option<&Tensor>,
        config: &QConfig,
        inputs: Option<&InputFactor>,
    ) -> Result<Self> {
        let isa = kernels::active()?;
        let &[n, k] = weight.dims() else {
            let expected = "[out_features, in_features]";
            return Err(Error::shape("quantize weight", expected, weight.dims()));
        };
        sizes::weight("quantize weight", [n, k])?;
        check_shape("quantize weight", gates, [n, k])?;
        let bias = &finite_bias("quantize bias", bias, n)?;
        let weight = as_f32(weight, "quantize weight")?;
        let elements = Elements::new(&weight);
        let values = elements.as_slice()?;
        let mut out_of_range = OutOfRange::default();
        let packed = match config {
            QConfig::Int8 { weight: observer, activation } => {
                let parameters = Parameters::choose(isa, &weight, observer)?;
                let codings = |channels: &PanelValues<'_>| parameters.codings(channels);
                kernels::pack_int8(isa, k, gates, values, bias, (*activation).into(), codings)?
            }
            QConfig::Half(half) => {
                let packed;
                (packed, out_of_range) = half.pack(isa, [k, gates], values, bias)?;
                packed
            }
            QConfig::Groups(groups) => {
                let of_groups = (groups.blocks()?, groups.inputs(k));
                if groups.scheme == GroupScheme::Minimum {
                    let got = format!("{groups}, which only files have");
                    return Err(Error::qconfig("symmetric or affine groups", got));
                }
                kernels::pack_blocks(isa, k, gates, values, bias, of_groups, inputs)?
            }
            QConfig::Table(_) => {
                let expected = "int8 with dynamic activations, half precision or integers in \
                                groups, for a weight that is multiplied";
                return Err(Error::qconfig(expected, config));
            }
        };
        Ok(Self::new(packed, config.into(), out_of_range))
    }

    fn new(packed: Packed, format: Format, out_of_range: OutOfRange) -> Self {
        Self {
            packed: packed.scaled_per_row(format.groups().is_some_and(|groups| groups.per_row)),
            format: Format { saturated: out_of_range.saturated, ..format },
            underflowed: out_of_range.underflowed,
            dequantized: OnceLock::new(),
        }
    }

    /// `out_features` and `in_features`.
    pub fn shape(&self) -> [usize; 2] {
        [self.packed.n(), self.packed.k()]
    }

    /// The dtype of the codes; `None` of others than int8.
    pub fn dtype(&self) -> Option<QDType> {
        self.format.codes().map(|codes| codes.dtype)
    }

    /// The groups of inputs that share a scale; `None` of weights that have none.
    pub fn groups(&self) -> Option<GroupConfig> {
        self.format.groups()
    }

    /// The part of the weight that shares a scale; `None` of others than int8.
    pub fn qscheme(&self) -> Option<QScheme> {
        self.format.codes().map(|codes| codes.qscheme)
    }

    /// The codes in row order, `[out_features, in_features]`; none of float16 and bfloat16.
    pub fn codes(&self) -> Vec<i32> {
        if let Element::Blocks { format, .. } = self.packed.element() {
            let (codes, _) = self.packed.blocks();
            let code = |code| i32::from(code) - format.middle();
            return codes.into_iter().map(code).collect();
        }
        let Some(dtype) = self.dtype() else { return Vec::new() };
        self.packed.codes().into_iter().map(|code| i32::from(code) + dtype.offset()).collect()
    }

    /// The codes with their scales and zero points; `None` of float16 and bfloat16.
    pub(crate) fn weight_codes(&self) -> Option<WeightCodes> {
        self.half_type().is_none().then(|| WeightCodes {
            shape: self.shape(),
            codes: self.codes(),
            scales: self.scales(),
            zero_points: ZeroPoints::Int(self.zero_points()),
        })
    }

    /// The float16 elements in row order, `[out_features, in_features]`; none of int8 and bfloat16.
    pub fn halves(&self) -> Vec<f16> {
        self.packed.halves()
    }

    /// The bfloat16 elements in row order, `[out_features, in_features]`; none of int8 and float16.
    pub fn bfloats(&self) -> Vec<bf16> {
        self.packed.bfloats()
    }

    /// How activations become codes in products; `None` of others than int8.
    pub fn activation(&self) -> Option<DynamicConfig> {
        self.format.dynamic()
    }

    /// Whether both quantize activations alike.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.packed.element() == other.packed.element()
    }

    /// The type of the elements; `None` of codes.
    pub(crate) fn half_type(&self) -> Option<HalfType> {
        self.format.half()
    }

    /// The elements of either type; `None` of int8.
    pub(crate) fn stored_halves(&self) -> Option<Halves> {
        Halves::unpacked(&self.packed)
    }

    /// The scale of the weight, of each output channel or of each of its groups, channel by
    /// channel; none of float16 and bfloat16.
    pub fn scales(&self) -> Vec<f32> {
        match self.qscheme() {
            None => self.grouped().map_or_else(Vec::new, |grouped| grouped.scales),
            Some(qscheme) => (0..self.qparams(qscheme)).map(|i| self.packed.scale(i)).collect(),
        }
    }

    /// The zero point of the weight, of each output channel or of each of its groups, channel by
    /// channel; none of float16 and bfloat16, and of groups that have a minimum.
    pub fn zero_points(&self) -> Vec<i32> {
        let Some(Codes { dtype, qscheme }) = self.format.codes() else {
            return self.group_zero_points();
        };
        let zero_points = (0..self.qparams(qscheme)).map(|i| self.packed.zero_point(i));
        zero_points.map(|zero| zero + dtype.offset()).collect()
    }

    /// The zero points of groups, among the codes that [`codes`](Self::codes) gives.
    fn group_zero_points(&self) -> Vec<i32> {
        let Some(grouped) = self.grouped() else { return Vec::new() };
        if grouped.groups.scheme == GroupScheme::Symmetric {
            return vec![0; grouped.scales.len()];
        }
        grouped.zero_points.into_iter().map(|zero| i32::from(zero) + 8).collect()
    }

    /// How many scales there are.
    fn qparams(&self, qscheme: QScheme) -> usize {
        if qscheme.is_per_channel() { self.packed.n() } else { self.packed.n().min(1) }
    }

    /// How many elements were beyond the range of float16 or bfloat16.
    pub fn saturated(&self) -> usize {
        self.format.saturated
    }

    /// How many elements lost precision, or became 0, because all of their output channel is below
    /// the normal range of float16 (6.1e-5) or bfloat16 (1.2e-38); not known of a weight that was
    /// read from a checkpoint.
    pub(crate) fn underflowed(&self) -> usize {
        self.underflowed
    }

    /// The instruction set it is packed for.
    pub fn isa(&self) -> Isa {
        self.packed.isa()
    }

    /// Bytes in memory, scales and padding included.
    pub fn bytes(&self) -> usize {
        self.packed.bytes()
    }

    /// The f32 weight that this represents, `[out_features, in_features]`.
    ///
    /// # Errors
    /// When candle cannot make the tensor.
    pub fn dequantize(&self) -> Result<Tensor> {
        let [n, k] = self.shape();
        let mut values = Vec::with_capacity(n * k);
        for channel in 0..n {
            let sink = |chunk: &[f32]| values.extend_from_slice(chunk);
            self.read_channel(channel, sink);
        }
        from_f32_vec(values, &[n, k], DType::F32)
    }

    /// [`dequantize`](Self::dequantize), computed at the first call and kept.
    pub(crate) fn dequantized(&self) -> &Tensor {
        self.dequantized.get_or_init(|| {
            // A tensor of the right length on the CPU cannot fail to be made.
            self.dequantize().unwrap_or_else(|error| unreachable!("dequantize: {error}"))
        })
    }

    /// Calls `sink` with the values of one output channel, chunk by chunk.
    pub(crate) fn read_channel(&self, channel: usize, sink: impl FnMut(&[f32])) {
        kernels::read_channel(&self.packed, channel, sink);
    }

    /// The numbers and the activations that they are multiplied with.
    pub(crate) fn format(&self) -> Format {
        self.format
    }

    pub(crate) fn packed(&self) -> &Packed {
        &self.packed
    }
}

fn check_shape(op: &'static str, gates: usize, shape: [usize; 2]) -> Result<[usize; 2]> {
    if gates > 0 && shape[0].is_multiple_of(gates) {
        Ok(shape)
    } else {
        Err(Error::shape(op, format!("[out_features, in_features] of {gates} gates"), &shape))
    }
}

fn finite_bias(op: &'static str, bias: Option<&Tensor>, n: usize) -> Result<Vec<f32>> {
    let Some(bias) = bias else {
        return Ok(vec![0.; n]);
    };
    if bias.dims() != [n] {
        return Err(Error::shape(op, format!("[{n}]"), bias.dims()));
    }
    let bias = to_f32_vec(bias, op)?;
    Error::check_finite("bias", &bias)?;
    Ok(bias)
}

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
        Ok(Self::new(self.packed.with_bias(&bias), self.format, out_of_range))
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
        let packed = halves.pack(isa, [k, gates], &finite_bias("bias", bias, n)?);
        let format = Numbers::Half(halves.half_type()).multiplied(DynamicConfig::default());
        Ok(Self::new(packed, format, out_of_range))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::error::Fault;
    use crate::observer::ObserverConfig;
    use crate::observer::ObserverKind::{self, *};
    use crate::qconfig::Granularity;

    /// Each observer of codes, with schemes that it supports.
    fn observers() -> Vec<ObserverConfig> {
        use QScheme::*;
        let per_tensor = [PerTensorSymmetric, PerTensorAffine];
        let per_channel = [PerChannelSymmetric, PerChannelAffine];
        let averaging_constant = 0.1;
        let kinds: [(ObserverKind, &[QScheme]); 7] = [
            (MinMax, &per_tensor),
            (PerChannelMinMax, &per_channel),
            (MovingAverageMinMax { averaging_constant }, &per_tensor),
            (MovingAveragePerChannelMinMax { averaging_constant }, &per_channel),
            (Histogram { bins: 64 }, &per_tensor),
            (OnnxRuntime, &per_tensor),
            (OnnxRuntime, &per_channel),
        ];
        let mut configs = Vec::new();
        for (kind, qschemes) in kinds {
            for dtype in [QDType::QInt8, QDType::QUInt8] {
                let config = |qscheme: &QScheme| ObserverConfig::new(kind.clone(), dtype, *qscheme);
                configs.extend(qschemes.iter().map(config));
            }
        }
        configs
    }

    fn int8(weight: ObserverConfig) -> QConfig {
        QConfig::Int8 { weight, activation: DynamicConfig::new(Granularity::PerRow, false) }
    }

    #[test]
    #[cfg_attr(target_family = "wasm", ignore = "no threads")]
    fn codes_are_those_of_the_observer_on_any_number_of_threads() -> Result<()> {
        let pools = [1, 2, 3, 7].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            pool.expect("a pool")
        });
        for (n, k, dtype) in [
            (1, 3, DType::F32),
            (70, 129, DType::F64),
            (131, 515, DType::F32),
            (260, 300, DType::BF16),
            (129, 257, DType::F16),
            (0, 4, DType::F32),
            (4, 0, DType::F32),
        ] {
            let weight = Tensor::randn(0f32, 1., (k, n), &Device::Cpu)?.to_dtype(dtype)?;
            // Neither contiguous nor f32.
            let weight = weight.t()?;
            let values = to_f32_vec(&weight, "test")?;
            for config in observers() {
                let mut observer = config.build()?;
                observer.observe(&weight)?;
                let qparams = observer.calculate_qparams()?;
                let rows = (0..n).map(|row| (row, &values[row * k..][..k]));
                let codes: Vec<_> = rows.flat_map(|(i, row)| qparams.quantize(i, row)).collect();
                let ZeroPoints::Int(zero_points) = qparams.zero_points() else {
                    unreachable!("integers");
                };
                for pool in &pools {
                    let config = int8(config.clone());
                    let got = pool.install(|| QWeight::from_float(&weight, None, &config))?;
                    let case = format!("{config:?}, {n} x {k} {dtype:?}");
                    assert_eq!(got.codes(), codes, "{case}");
                    if n * k > 0 {
                        assert_eq!(got.scales(), qparams.scales(), "{case}");
                        assert_eq!(got.zero_points(), *zero_points, "{case}");
                    }
                }
            }
        }
        Ok(())
    }

    #[test]
    fn a_weight_that_is_not_finite_is_refused_wherever_it_is_read() -> Result<()> {
        for (at, value) in [(3, f32::NAN), (300 * 200 - 1, f32::NEG_INFINITY)] {
            let mut values = vec![1f32; 300 * 200];
            values[at] = value;
            let weight = Tensor::from_vec(values, (300, 200), &Device::Cpu)?;
            let halves = [HalfType::Float16, HalfType::BFloat16].map(QConfig::Half);
            for config in observers().into_iter().map(int8).chain(halves) {
                let error = QWeight::from_float(&weight, None, &config).expect_err("non-finite");
                let Fault::NonFiniteWeight { index, .. } = error.fault() else {
                    panic!("{config:?}: {error:?}");
                };
                assert_eq!(*index, [at / 200, at % 200], "{config:?}");
            }
        }
        Ok(())
    }
}
