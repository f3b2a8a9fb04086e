//! Convolutions over signals and images.

use std::sync::{Arc, OnceLock};

use candle_core::conv::CudnnFwdAlgo;
use candle_core::{DType, Result as CandleResult, Tensor};
use candle_nn::{BatchNorm, Conv1dConfig, Conv2dConfig, Init, Module, VarBuilder, init};

use super::prefix::prefix_of;
use super::projection::weight_info;
use crate::error::{Error, Fault, Result};
use crate::kernels::{self, FusedActivation};
use crate::module::trees::layers;
use crate::module::{Layer, LayerKind, WeightInfo};
use crate::ops;
use crate::qconfig::QConfig;
use crate::sizes;
use crate::tap::{self, Replay, Tap};
use crate::tensor::{Elements, as_f32, check_float, from_f32_vec, mismatch, without_gradient};
use crate::trace;
use crate::weight::{
    Origin, QWeight, Quantized, QuantizedEntry, StoredValue, StoredWeight, find, origin,
};

/// A convolution of any rank: the part that the layers share.
#[derive(Clone, Debug)]
struct Convolution {
    weight: Weight,
    bias: Option<Tensor>,
    /// Spatial dimensions: 1 of signals, 2 of images.
    rank: usize,
    steps: Steps,
    activation: Option<FusedActivation>,
    origin: Option<Origin>,
    name: Option<Arc<str>>,
    /// Whether the weight may be in no checkpoint.
    is_computed: bool,
    tap: Option<Tap>,
}

#[derive(Clone, Debug)]
enum Weight {
    Float(Tensor),
    Quantized(Arc<QuantizedTaps>),
}

/// A quantized weight: the matrices of its taps, `[taps * out channels, in channels]`.
#[derive(Debug)]
struct QuantizedTaps {
    weight: Arc<QWeight>,
    /// The shape of the float weight.
    dims: Vec<usize>,
    /// Filled when the weight is first asked for as a tensor.
    dequantized: OnceLock<Tensor>,
}

/// The configuration, which is one for all spatial dimensions.
#[derive(Clone, Copy, Debug)]
struct Steps {
    padding: usize,
    stride: usize,
    dilation: usize,
    groups: usize,
    cudnn_fwd_algo: Option<CudnnFwdAlgo>,
}

impl Steps {
    /// The outputs along a dimension of `size` inputs for `taps` taps.
    fn outputs(&self, size: usize, taps: usize) -> Option<usize> {
        let padded = self.padding.checked_mul(2)?.checked_add(size)?;
        let reach = self.dilation.checked_mul(taps.checked_sub(1)?)?;
        let left = padded.checked_sub(reach.checked_add(1)?)?;
        Some(left.checked_div(self.stride)? + 1)
    }
}

impl QuantizedTaps {
    /// The weight as a float tensor of its shape.
    fn value(&self) -> Result<Tensor> {
        let (spatial, matrix) = (&self.dims[2..], self.weight.dequantize()?);
        let taps = matrix.reshape([spatial, &self.dims[..2]].concat())?;
        let rank = self.dims.len();
        let order: Vec<usize> = (rank - 2..rank).chain(0..rank - 2).collect();
        Ok(taps.permute(order)?.contiguous()?)
    }
}

/// A float weight as the matrices of its taps.
fn taps_of(weight: &Tensor) -> Result<Tensor> {
    let rank = weight.rank();
    let order: Vec<usize> = (2..rank).chain(0..2).collect();
    let [rows, columns] = matrix_shape(weight.dims());
    Ok(weight.permute(order)?.reshape((rows, columns))?)
}

/// The shape of the matrices of the taps of a weight.
fn matrix_shape(dims: &[usize]) -> [usize; 2] {
    let taps: usize = dims[2..].iter().product();
    [taps * dims[0], dims[1]]
}

/// The bias of the rows of all taps: the results of the first begin with it.
fn bias_of_taps(bias: Option<&Tensor>, dims: &[usize]) -> Result<Option<Tensor>> {
    let Some(bias) = bias else { return Ok(None) };
    if bias.dims() != [dims[0]] {
        return Err(mismatch("bias", format!("[{}]", dims[0]), bias));
    }
    let [rows, _] = matrix_shape(dims);
    Ok(Some(bias.pad_with_zeros(0, 0, rows - dims[0])?))
}

impl Convolution {
    fn new(weight: Tensor, bias: Option<Tensor>, rank: usize, steps: Steps) -> Self {
        let origin = origin::of_convolution(&weight);
        let quantized = origin.as_ref().and_then(|origin| {
            let of_taps = bias_of_taps(bias.as_ref(), weight.dims()).ok()?;
            let taps = weight.dims()[2..].iter().product();
            let weight = origin.weight().ok()??.qweight(taps, of_taps.as_ref());
            weight.ok()
        });
        Self {
            rank,
            weight: match quantized {
                Some(quantized) => Weight::quantized(Arc::new(quantized), weight.dims().to_vec()),
                None => Weight::Float(weight),
            },
            bias,
            steps,
            activation: None,
            origin,
            name: None,
            is_computed: false,
            tap: None,
        }
    }

    /// A layer of a computed weight, which a checkpoint may have quantized.
    fn computed(
        weight: Tensor,
        bias: Option<Tensor>,
        rank: usize,
        steps: Steps,
        vb: &VarBuilder<'_>,
    ) -> CandleResult<Self> {
        let name = prefix_of(vb);
        let found = find(vb, "weight").filter(|found| found.format.is_multiplied());
        // A weight of another rank is an error when it is used.
        let layer = match found.filter(|_| weight.rank() == rank + 2) {
            None => Self::new(weight, bias, rank, steps),
            Some(found) => Self::stored_as(&found, weight.dims(), bias, steps)
                .map_err(|error| error.at(name.as_deref().unwrap_or("convolution")))?,
        };
        Ok(Self {
            name,
            is_computed: true,
            ..layer
        })
    }

    /// A layer of the quantized weight of a checkpoint, for a float weight of `dims`.
    fn stored_as(
        found: &QuantizedEntry,
        dims: &[usize],
        bias: Option<Tensor>,
        steps: Steps,
    ) -> Result<Self> {
        let of_taps = bias_of_taps(bias.as_ref(), dims)?;
        let (channels, spatial) = dims.split_at(2);
        let shape = [spatial, channels].concat();
        let taps = spatial.iter().product();
        let weight = found.read(&shape, |parts| parts.qweight(taps, of_taps.as_ref()))?;
        Ok(Self {
            weight: Weight::quantized(Arc::new(weight), dims.to_vec()),
            bias,
            rank: spatial.len(),
            steps,
            activation: None,
            origin: Some(found.origin(&shape)),
            name: None,
            is_computed: false,
            tap: None,
        })
    }

    /// Loads a weight of `dims`, quantized where the checkpoint has it so.
    fn load(
        [out_channels, in_channels]: [usize; 2],
        spatial: &[usize],
        has_bias: bool,
        steps: Steps,
        vb: &VarBuilder<'_>,
    ) -> CandleResult<Self> {
        let name = prefix_of(vb);
        let at = |error: Error| error.at(name.as_deref().unwrap_or("convolution"));
        if steps.groups == 0 || !in_channels.is_multiple_of(steps.groups) {
            let expected = format!("a number that divides {in_channels} input channels");
            return Err(at(Error::argument("groups", expected, steps.groups)).into());
        }
        let dims = [&[out_channels, in_channels / steps.groups], spatial].concat();
        sizes::elements("weight", &dims)?;
        let bound = 1. / (in_channels as f64).sqrt();
        let uniform = Init::Uniform {
            lo: -bound,
            up: bound,
        };
        let bias = || {
            let load = || vb.get_with_hints(out_channels, "bias", uniform);
            has_bias.then(load).transpose()
        };
        let found = find(vb, "weight").filter(|found| found.format.is_multiplied());
        let layer = match found {
            None => {
                let weight = vb.get_with_hints(&*dims, "weight", init::DEFAULT_KAIMING_NORMAL)?;
                Self::new(weight, bias()?, spatial.len(), steps)
            }
            Some(found) => Self::stored_as(&found, &dims, bias()?, steps).map_err(at)?,
        };
        Ok(Self { name, ..layer })
    }

    /// The shape of the weight.
    fn dims(&self) -> &[usize] {
        match &self.weight {
            Weight::Float(weight) => weight.dims(),
            Weight::Quantized(taps) => &taps.dims,
        }
    }

    fn weight(&self) -> &Tensor {
        match &self.weight {
            Weight::Float(weight) => weight,
            Weight::Quantized(taps) => taps.dequantized.get_or_init(|| {
                // A tensor of the right length on the CPU cannot fail to be made.
                let weight = taps.value();
                weight.unwrap_or_else(|error| unreachable!("dequantize: {error}"))
            }),
        }
    }

    fn try_forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.convolve(xs)?;
        tap::report(self.tap.as_ref(), &[xs], &ys);
        Ok(ys)
    }

    fn convolve(&self, xs: &Tensor) -> Result<Tensor> {
        let (dims, steps) = (self.dims(), self.steps);
        let expected = || {
            let channels = dims.get(1).map_or(0, |channels| channels * steps.groups);
            let sizes = ["length", "height, width"][usize::from(self.rank == 2)];
            format!("[batch, {channels}, {sizes}]")
        };
        let shape = self.output_shape(xs).ok_or_else(|| {
            let taps = dims.get(2..).unwrap_or_default();
            let windows = format!(
                "{}, at least one window of {taps:?} with padding {}, stride {} and dilation {}",
                expected(),
                steps.padding,
                steps.stride,
                steps.dilation
            );
            mismatch("convolution", windows, xs)
        })?;
        sizes::computed("convolution", &shape, xs.elem_count())?;
        match &self.weight {
            Weight::Float(weight) => self.convolve_float(weight, xs, &shape),
            Weight::Quantized(taps) => {
                let input = as_f32(xs, "convolution")?;
                let elements = Elements::new(&input);
                let pair = |sizes: &[usize]| match *sizes {
                    [width] => [1, width],
                    _ => [sizes[0], sizes[1]],
                };
                // A signal is an image of one row, which no step leaves.
                let of_rows = |step: usize, none: usize| {
                    let rows = if self.rank == 2 { step } else { none };
                    [rows, step]
                };
                let [height, width] = pair(&xs.dims()[2..]);
                let convolution = kernels::Convolution {
                    shape: [xs.dims()[0], dims[1], height, width],
                    weight: taps.weight.packed(),
                    kernel: pair(&dims[2..]),
                    stride: of_rows(steps.stride, 1),
                    padding: of_rows(steps.padding, 0),
                    dilation: of_rows(steps.dilation, 1),
                    activation: self.activation.map(Into::into),
                };
                if convolution.out_size().is_none() {
                    return Err(mismatch("convolution", expected(), xs));
                }
                let ys = kernels::convolve(&convolution, elements.as_slice()?);
                without_gradient(from_f32_vec(ys, &shape, xs.dtype())?, &[xs])
            }
        }
    }

    /// The shape of the output; `None` of an input of another shape, or without a window.
    fn output_shape(&self, xs: &Tensor) -> Option<Vec<usize>> {
        let (dims, steps) = (self.dims(), self.steps);
        let ([out_channels, in_channels, taps @ ..], [batch, channels, sizes @ ..]) =
            (dims, xs.dims())
        else {
            return None;
        };
        let fits = steps.groups > 0
            && out_channels.is_multiple_of(steps.groups)
            && Some(*channels) == in_channels.checked_mul(steps.groups)
            && [sizes.len(), taps.len()] == [self.rank; 2];
        let outputs = sizes.iter().zip(taps);
        let outputs = outputs.map(|(size, taps)| steps.outputs(*size, *taps));
        let mut shape = vec![*batch, *out_channels];
        shape.extend(outputs.collect::<Option<Vec<_>>>()?);
        fits.then_some(shape)
    }

    /// candle's convolution, in the dtype of the weight, so that gradients flow.
    fn convolve_float(&self, weight: &Tensor, xs: &Tensor, shape: &[usize]) -> Result<Tensor> {
        check_float(xs, "convolution")?;
        let (dtype, steps) = (xs.dtype(), self.steps);
        let is_empty = weight.elem_count() == 0 || shape.contains(&0);
        let ys = if is_empty {
            Tensor::zeros(shape, weight.dtype(), weight.device())?
        } else {
            let xs = xs.to_dtype(weight.dtype())?;
            let Steps {
                padding,
                stride,
                dilation,
                groups,
                cudnn_fwd_algo: algo,
            } = steps;
            match self.rank {
                2 => xs.conv2d_with_algo(weight, padding, stride, dilation, groups, algo)?,
                _ => xs.conv1d_with_algo(weight, padding, stride, dilation, groups, algo)?,
            }
        };
        let ys = match &self.bias {
            Some(bias) => {
                if bias.dims() != [shape[1]] {
                    return Err(mismatch("bias", format!("[{}]", shape[1]), bias));
                }
                let mut of_channels = vec![1; shape.len()];
                of_channels[1] = shape[1];
                ys.broadcast_add(&bias.reshape(of_channels)?)?
            }
            None => ys,
        };
        let ys = match self.activation {
            None => ys,
            Some(activation) => ops::activate(&ys, activation)?,
        };
        Ok(ys.to_dtype(dtype)?)
    }

    fn info(&self) -> WeightInfo {
        WeightInfo {
            origin: self.origin.clone(),
            ..match &self.weight {
                Weight::Float(weight) => WeightInfo::of_float("weight", weight),
                Weight::Quantized(taps) => WeightInfo {
                    shape: taps.dims.clone(),
                    ..weight_info(&taps.weight, "weight")
                },
            }
        }
    }

    fn quantize(&self, qconfig: &QConfig) -> Result<Self> {
        let Weight::Float(weight) = &self.weight else {
            let got = "one that is quantized already";
            return Err(Error::qconfig("a float weight", got));
        };
        let (out_channels, in_channels, spatial) = match weight.dims() {
            &[out, channels, ref spatial @ ..] if spatial.len() == self.rank => {
                (out, channels, spatial)
            }
            _ => {
                let kernel = ["kernel", "kernel_height, kernel_width"][usize::from(self.rank == 2)];
                let expected = format!("[out_channels, in_channels / groups, {kernel}]");
                return Err(mismatch("weight", expected, weight));
            }
        };
        if self.steps.groups != 1 {
            let groups = self.steps.groups;
            return Err(Error::from(Fault::GroupedConvolution { groups }));
        }
        if !matches!(qconfig, QConfig::Int8 { .. }) {
            let expected = "int8 with dynamic activations, for a convolution";
            return Err(Error::qconfig(expected, qconfig));
        }
        let taps: usize = spatial.iter().product();
        let dims = weight.dims().to_vec();
        sizes::elements("weight", &dims)?;
        if taps == 0 || in_channels == 0 || out_channels == 0 {
            return Err(mismatch("weight", "at least one of each dimension", weight));
        }
        let bias = bias_of_taps(self.bias.as_ref(), &dims)?;
        let matrix = taps_of(weight)?;
        let weight = QWeight::of_gates(taps, &matrix, bias.as_ref(), qconfig, None)?;
        Ok(Self {
            weight: Weight::quantized(Arc::new(weight), dims),
            tap: None,
            ..self.clone()
        })
    }

    fn stored(&self) -> StoredWeight {
        let value = match &self.weight {
            Weight::Float(weight) => StoredValue::Float {
                weight: weight.clone(),
                folded: false,
            },
            Weight::Quantized(taps) => StoredValue::Quantized(Quantized::Weight {
                weight: Arc::clone(&taps.weight),
                multiplied: true,
                kernel: taps.dims[2..].to_vec(),
            }),
        };
        let weight = StoredWeight::new("weight", value).with_bias(self.bias.clone());
        weight.computed(self.is_computed)
    }

    fn value(&self) -> Result<Tensor> {
        match &self.weight {
            Weight::Float(weight) => Ok(weight.clone()),
            Weight::Quantized(taps) => taps.value(),
        }
    }

    fn replay(&self) -> Replay {
        let convolution = self.clone();
        Arc::new(move |inputs| match inputs {
            [xs] => convolution.convolve(xs),
            _ => Err(tap::unlike("one input", inputs)),
        })
    }

    /// This convolution, float, with a batch norm behind it folded in, in f64.
    fn with_batch_norm(&self, norm: &BatchNorm) -> Result<Self> {
        let Weight::Float(weight) = &self.weight else {
            return Err(Error::qconfig("a float weight", "a quantized one"));
        };
        let f64 = |tensor: &Tensor| tensor.to_dtype(DType::F64);
        let deviation = (f64(norm.running_var())? + norm.eps())?.sqrt()?;
        let (scale, shift) = match norm.weight_and_bias() {
            Some((weight, bias)) => (f64(weight)?.div(&deviation)?, f64(bias)?),
            None => (deviation.recip()?, deviation.zeros_like()?),
        };
        let mut of_channels = vec![1; weight.rank()];
        of_channels[0] = scale.elem_count();
        let folded = f64(weight)?.broadcast_mul(&scale.reshape(of_channels)?)?;
        let mean = f64(norm.running_mean())?;
        let mean = match &self.bias {
            None => mean,
            Some(bias) => (mean - f64(bias)?)?,
        };
        let bias = (shift - mean.mul(&scale)?)?;
        Ok(Self {
            weight: Weight::Float(folded.to_dtype(weight.dtype())?),
            bias: Some(bias.to_dtype(weight.dtype())?),
            origin: None,
            ..self.clone()
        })
    }
}

impl Weight {
    fn quantized(weight: Arc<QWeight>, dims: Vec<usize>) -> Self {
        Self::Quantized(Arc::new(QuantizedTaps {
            weight,
            dims,
            dequantized: OnceLock::new(),
        }))
    }
}

/// The layers, by candle's names.
macro_rules! convolutions {
    ($(
        $(#[$doc:meta])*
        $layer:ident, $config:ident, [$($tap:literal),+];
        $load:ident, $load_without_bias:ident, $shape:literal, $span:literal;
    )+) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $layer {
            convolution: Convolution,
            config: $config,
        }

        impl $layer {
            /// A layer of these tensors; shapes are checked when it is used or quantized.
            pub fn new(weight: Tensor, bias: Option<Tensor>, config: $config) -> Self {
                Self {
                    convolution: Convolution::new(weight, bias, [$($tap),+].len(), config.into()),
                    config,
                }
            }

            /// A layer whose weight is computed while the model is loaded, such as one that is
            /// normalized by its gains: the quantized `weight` of `vb` where a checkpoint has that.
            ///
            /// Quantized, it is saved as `weight` of `vb`, beside the tensors that it is computed
            /// from.
            ///
            /// # Errors
            /// When the quantized weight has another shape.
            pub fn computed(
                weight: Tensor,
                bias: Option<Tensor>,
                config: $config,
                vb: VarBuilder<'_>,
            ) -> CandleResult<Self> {
                let rank = [$($tap),+].len();
                let convolution = Convolution::computed(weight, bias, rank, config.into(), &vb)?;
                Ok(Self { convolution, config })
            }

            /// The sizes of the kernel, without a quantized weight being dequantized.
            pub fn kernel_size(&self) -> &[usize] {
                self.convolution.dims().get(2..).unwrap_or_default()
            }

            /// The configuration.
            pub fn config(&self) -> &$config {
                &self.config
            }

            #[doc = concat!("The weight, `", $shape, "`; of a quantized layer the dequantized")]
            /// weight, computed at the first call and kept.
            pub fn weight(&self) -> &Tensor {
                self.convolution.weight()
            }

            /// The bias, `[out_channels]`; never quantized.
            pub fn bias(&self) -> Option<&Tensor> {
                self.convolution.bias.as_ref()
            }

            /// This layer with a function applied to every element of its output; quantized, it is
            /// applied while the output is in the cache.
            #[must_use]
            pub fn with_activation(mut self, activation: FusedActivation) -> Self {
                self.convolution.activation = Some(activation);
                self
            }

            /// This layer with the batch norm behind it folded in, computed in f64: the norm is
            /// left out of the model then.
            ///
            /// # Errors
            /// When the layer is quantized, or the norm of other sizes.
            pub fn absorb_bn(&self, bn: &BatchNorm) -> CandleResult<Self> {
                let convolution = self.convolution.with_batch_norm(bn);
                let convolution = convolution.map_err(|error| error.at(self.label()))?;
                Ok(Self { convolution, ..self.clone() })
            }

            fn label(&self) -> &str {
                self.convolution.name.as_deref().unwrap_or(stringify!($layer))
            }
        }

        impl From<$config> for Steps {
            fn from(config: $config) -> Self {
                Self {
                    padding: config.padding,
                    stride: config.stride,
                    dilation: config.dilation,
                    groups: config.groups,
                    cudnn_fwd_algo: config.cudnn_fwd_algo,
                }
            }
        }

        impl From<candle_nn::$layer> for $layer {
            fn from(layer: candle_nn::$layer) -> Self {
                Self::new(layer.weight().clone(), layer.bias().cloned(), *layer.config())
            }
        }

        impl Module for $layer {
            fn forward(&self, xs: &Tensor) -> CandleResult<Tensor> {
                trace::forward!($span, self.convolution.name.as_deref());
                let ys = self.convolution.try_forward(xs);
                ys.map_err(|error| error.at(self.label()).into())
            }
        }

        impl Layer for $layer {
            fn kind(&self) -> LayerKind {
                LayerKind::$layer
            }

            fn checkpoint_name(&self) -> Option<&str> {
                self.convolution.name.as_deref()
            }

            fn weight_infos(&self) -> Vec<WeightInfo> {
                vec![self.convolution.info()]
            }

            fn quantize(&self, qconfig: &QConfig) -> Result<Self> {
                let convolution = self.convolution.quantize(qconfig)?;
                Ok(Self { convolution, ..self.clone() })
            }

            fn stored(&self) -> Result<Vec<StoredWeight>> {
                Ok(vec![self.convolution.stored()])
            }

            fn weights(&self) -> Result<Vec<Tensor>> {
                Ok(vec![self.convolution.value()?])
            }

            fn attach(&mut self, tap: Option<Tap>) -> bool {
                self.convolution.tap = tap;
                true
            }

            fn replay(&self) -> Option<Replay> {
                Some(self.convolution.replay())
            }
        }

        layers! { $layer }

        #[doc = concat!("Loads `weight`, `", $shape, "`, and `bias` from `vb`.")]
        ///
        /// # Errors
        /// When a tensor is missing or has another shape, or groups do not divide the channels.
        pub fn $load(
            in_channels: usize,
            out_channels: usize,
            kernel_size: usize,
            cfg: $config,
            vb: VarBuilder<'_>,
        ) -> CandleResult<$layer> {
            let (channels, spatial) = ([out_channels, in_channels], [kernel_size; [$($tap),+].len()]);
            let convolution = Convolution::load(channels, &spatial, true, cfg.into(), &vb)?;
            Ok($layer { convolution, config: cfg })
        }

        #[doc = concat!("Loads `weight`, `", $shape, "`, from `vb`, without a bias.")]
        ///
        /// # Errors
        /// When the tensor is missing or has another shape, or groups do not divide the channels.
        pub fn $load_without_bias(
            in_channels: usize,
            out_channels: usize,
            kernel_size: usize,
            cfg: $config,
            vb: VarBuilder<'_>,
        ) -> CandleResult<$layer> {
            let (channels, spatial) = ([out_channels, in_channels], [kernel_size; [$($tap),+].len()]);
            let convolution = Convolution::load(channels, &spatial, false, cfg.into(), &vb)?;
            Ok($layer { convolution, config: cfg })
        }
    )+};
}

convolutions! {
    /// A convolution over signals, call-compatible with [`candle_nn::Conv1d`].
    ///
    /// Quantized, each position of the input becomes u8 codes with a scale for all of its channels,
    /// and each tap adds its product to the output in f32: an output depends on the inputs that it
    /// reads only, and has the same bits in a batch, in a longer signal and in a stream.
    ///
    /// # Shapes
    /// - weight: `[out_channels, in_channels / groups, kernel_size]`, bias: `[out_channels]`
    /// - input: `[batch, in_channels, length]`, f32, f16, bf16 or f64, contiguous or not
    /// - output: `[batch, out_channels, length]` in the dtype of the input
    ///
    /// ```
    /// use candle_core::{DType, Device, Module, Tensor};
    /// use candle_dynquant::{QConfigSpec, nn, quantize_dynamic};
    /// use candle_nn::{VarBuilder, VarMap};
    ///
    /// let vars = VarMap::new();
    /// let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    /// let mut layer = nn::conv1d(64, 32, 3, Default::default(), vb.pp("conv"))?;
    /// quantize_dynamic(&mut layer, &QConfigSpec::int8())?;
    /// let ys = layer.forward(&Tensor::ones((2, 64, 10), DType::F32, &Device::Cpu)?)?;
    /// assert_eq!(ys.dims(), [2, 32, 8]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Conv1d, Conv1dConfig, [0];
    conv1d, conv1d_no_bias, "[out_channels, in_channels / groups, kernel_size]", "conv1d";

    /// A convolution over images, call-compatible with [`candle_nn::Conv2d`]; quantized as
    /// [`Conv1d`].
    ///
    /// # Shapes
    /// - weight: `[out_channels, in_channels / groups, kernel_height, kernel_width]`, bias:
    ///   `[out_channels]`
    /// - input: `[batch, in_channels, height, width]`, f32, f16, bf16 or f64, contiguous or not
    /// - output: `[batch, out_channels, height, width]` in the dtype of the input
    ///
    /// ```
    /// use candle_core::{DType, Device, Module, Tensor};
    /// use candle_dynquant::{QConfigSpec, nn, quantize_dynamic};
    ///
    /// let weight = Tensor::randn(0f32, 1., (8, 32, 3, 3), &Device::Cpu)?;
    /// let mut layer = nn::Conv2d::new(weight, None, Default::default());
    /// quantize_dynamic(&mut layer, &QConfigSpec::int8())?;
    /// let ys = layer.forward(&Tensor::ones((1, 32, 7, 9), DType::F32, &Device::Cpu)?)?;
    /// assert_eq!(ys.dims(), [1, 8, 5, 7]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Conv2d, Conv2dConfig, [0, 0];
    conv2d, conv2d_no_bias, "[out_channels, in_channels / groups, kernel_size, kernel_size]",
    "conv2d";
}
