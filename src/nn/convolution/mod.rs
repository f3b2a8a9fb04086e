//! Convolutions over signals and images.

mod batch_norm;
mod geometry;
mod layer;

use candle_core::{Result as CandleResult, Tensor};
use candle_nn::{BatchNorm, Conv1dConfig, Conv2dConfig, ConvTranspose1dConfig, Module, VarBuilder};

use crate::error::{Error, ErrorKind, Result};
use crate::kernels::FusedActivation;
use crate::module::trees::layers;
use crate::module::{Layer, LayerKind, WeightInfo};
use crate::qconfig::QConfig;
use crate::tap::{Replay, Tap};
use crate::trace::{self, Span};
use crate::weight::StoredWeight;
use geometry::ConvolutionConfig;
pub(crate) use geometry::{Geometry, of_taps};
use layer::AnyConvolution;

/// A convolution of a kind: [`Conv1d`], [`Conv2d`] or [`ConvTranspose1d`].
#[derive(Clone, Debug)]
pub struct Conv<C> {
    convolution: AnyConvolution,
    config: C,
}

impl<C: ConvolutionConfig> Conv<C> {
    /// A layer of these tensors; shapes are checked when it is used or quantized.
    pub fn new(weight: Tensor, bias: Option<Tensor>, config: C) -> Self {
        let convolution = AnyConvolution::new(weight, bias, C::RANK, config.geometry());
        Self { convolution, config }
    }

    /// A layer whose weight is computed while the model is loaded, such as one that is normalized
    /// by its gains: the quantized `weight` of `vb` where a checkpoint has that.
    ///
    /// Quantized, it is saved as `weight` of `vb`, beside the tensors that it is computed from.
    ///
    /// # Errors
    /// When the quantized weight has another shape.
    pub fn computed(
        weight: Tensor,
        bias: Option<Tensor>,
        config: C,
        vb: VarBuilder<'_>,
    ) -> CandleResult<Self> {
        let geometry = config.geometry();
        let convolution = AnyConvolution::computed(weight, bias, C::RANK, geometry, &vb)?;
        Ok(Self { convolution, config })
    }

    fn load(
        channels: [usize; 2],
        kernel_size: usize,
        has_bias: bool,
        config: C,
        vb: &VarBuilder<'_>,
    ) -> CandleResult<Self> {
        let (kernel, geometry) = (vec![kernel_size; C::RANK], config.geometry());
        let convolution = AnyConvolution::load(channels, &kernel, has_bias, geometry, vb)?;
        Ok(Self { convolution, config })
    }

    /// The sizes of the kernel, without a quantized weight being dequantized.
    pub fn kernel_size(&self) -> &[usize] {
        self.convolution.dims().get(2..).unwrap_or_default()
    }

    /// The configuration.
    pub fn config(&self) -> &C {
        &self.config
    }

    /// The weight in the shape of the layer; of a quantized layer the dequantized weight, computed
    /// at the first call and kept.
    pub fn weight(&self) -> &Tensor {
        self.convolution.weight()
    }

    /// The bias, `[out_channels]`; never quantized.
    pub fn bias(&self) -> Option<&Tensor> {
        self.convolution.bias.as_ref()
    }

    /// This layer with a function applied to every element of its output; quantized, it is applied
    /// while the output is in the cache.
    #[must_use]
    pub fn with_activation(mut self, activation: FusedActivation) -> Self {
        self.convolution.activation = Some(activation);
        self
    }

    /// The output for `xs` plus a residual of its shape, before the activation function.
    ///
    /// # Errors
    /// As [`forward`](Module::forward), and when the residual has another shape.
    pub fn forward_add(&self, xs: &Tensor, residual: &Tensor) -> CandleResult<Tensor> {
        self.try_forward(xs, Some(residual))
    }

    fn try_forward(&self, xs: &Tensor, residual: Option<&Tensor>) -> CandleResult<Tensor> {
        let _span = C::span(self.convolution.name.as_deref());
        Ok(self.named(self.convolution.try_forward(xs, residual))?)
    }

    /// This layer with the batch norm behind it folded in, computed in f64, without gradients: the
    /// norm is left out of the model then.
    ///
    /// The layer is quantized and saved as without the norm, whose factors multiply the scales:
    /// what is saved is loaded and folded again, to the same bits. Until it is quantized it keeps
    /// both weights.
    ///
    /// # Errors
    /// When the norm is of other sizes or has factors that are not finite, the layer itself is
    /// malformed, or it has an activation function, which stands between the two.
    pub fn absorb_bn(&self, bn: &BatchNorm) -> CandleResult<Self> {
        let folded = match self.convolution.activation {
            None => self.convolution.with_batch_norm(bn),
            Some(activation) => {
                let expected = "batch norm: expected a layer without an activation function";
                let message = format!("{expected}, got {activation:?}");
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        };
        Ok(Self { convolution: self.named(folded)?, ..self.clone() })
    }

    /// A result whose error names the layer.
    fn named<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| match self.convolution.name.as_deref() {
            Some(name) => error.at(name),
            None => error.at(&C::KIND.to_string()),
        })
    }
}

impl<C: ConvolutionConfig> Module for Conv<C> {
    fn forward(&self, xs: &Tensor) -> CandleResult<Tensor> {
        self.try_forward(xs, None)
    }
}

impl<C: ConvolutionConfig + 'static> Layer for Conv<C> {
    fn kind(&self) -> LayerKind {
        C::KIND
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
        Ok(vec![self.convolution.stored()?])
    }

    fn weights(&self) -> Result<Vec<Tensor>> {
        Ok(vec![self.convolution.value()?])
    }

    fn scale(&self, dim: usize, factors: &Tensor) -> Result<Option<Self>> {
        let scaled = self.convolution.scale(dim, factors)?;
        Ok(scaled.map(|convolution| Self { convolution, ..self.clone() }))
    }

    fn attach(&mut self, tap: Option<Tap>) -> bool {
        self.convolution.tap = tap;
        true
    }

    fn replay(&self) -> Option<Replay> {
        Some(self.convolution.replay())
    }
}

layers! { [C: ConvolutionConfig + 'static] Conv<C> }

/// The layers, by candle's names.
macro_rules! convolutions {
    ($(
        $(#[$doc:meta])*
        $layer:ident, $config:ident, $rank:literal, $cudnn:expr, $output_padding:expr;
        $load:ident, $load_without_bias:ident, $shape:literal, $span:literal;
    )+) => {$(
        $(#[$doc])*
        pub type $layer = Conv<$config>;

        impl ConvolutionConfig for $config {
            const KIND: LayerKind = LayerKind::$layer;
            const RANK: usize = $rank;

            fn geometry(self) -> Geometry {
                Geometry {
                    padding: self.padding,
                    stride: self.stride,
                    dilation: self.dilation,
                    groups: self.groups,
                    cudnn_fwd_algo: $cudnn(self),
                    output_padding: $output_padding(self),
                }
            }

            fn span(name: Option<&str>) -> Span {
                trace::span!($span, name)
            }
        }

        impl From<candle_nn::$layer> for $layer {
            fn from(layer: candle_nn::$layer) -> Self {
                Self::new(layer.weight().clone(), layer.bias().cloned(), *layer.config())
            }
        }

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
            $layer::load([out_channels, in_channels], kernel_size, true, cfg, &vb)
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
            $layer::load([out_channels, in_channels], kernel_size, false, cfg, &vb)
        }
    )+};
}

convolutions! {
    /// A convolution over signals, call-compatible with [`candle_nn::Conv1d`].
    ///
    /// Quantized, each position of the input becomes u8 codes with a scale for its channels of each
    /// group, and each tap adds its product to the output in f32: an output depends on the inputs
    /// that it reads only, and has the same bits in a batch, in a longer signal and in a stream.
    /// Activations per tensor, as in [`QConfig::onnxruntime`], share a scale instead, and with one
    /// scale for the weight, too, the products of all taps are added in i32.
    ///
    /// In float, results are candle's but for rounding. Where candle tracks a gradient, as for the
    /// variables of a [`candle_nn::VarMap`], its own convolution computes them, in its time.
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
    Conv1d, Conv1dConfig, 1, |config: Conv1dConfig| config.cudnn_fwd_algo, |_| None;
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
    /// let weight = Tensor::randn(0f32, 1., (16, 32, 3, 3), &Device::Cpu)?;
    /// let mut layer = nn::Conv2d::new(weight, None, Default::default());
    /// quantize_dynamic(&mut layer, &QConfigSpec::int8())?;
    /// let ys = layer.forward(&Tensor::ones((1, 32, 7, 9), DType::F32, &Device::Cpu)?)?;
    /// assert_eq!(ys.dims(), [1, 16, 5, 7]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Conv2d, Conv2dConfig, 2, |config: Conv2dConfig| config.cudnn_fwd_algo, |_| None;
    conv2d, conv2d_no_bias, "[out_channels, in_channels / groups, kernel_size, kernel_size]",
    "conv2d";

    /// A transposed convolution over signals, call-compatible with [`candle_nn::ConvTranspose1d`].
    ///
    /// Quantized, each position of the input becomes u8 codes with a scale, and the products of its
    /// taps are added to the outputs in f32: an output depends on the positions that reach it only.
    ///
    /// # Shapes
    /// - weight: `[in_channels, out_channels / groups, kernel_size]`, bias: `[out_channels]`
    /// - input: `[batch, in_channels, length]`, f32, f16, bf16 or f64, contiguous or not
    /// - output: `[batch, out_channels, length]` in the dtype of the input
    ///
    /// ```
    /// use candle_core::{DType, Device, Module, Tensor};
    /// use candle_dynquant::{QConfigSpec, nn, quantize_dynamic};
    /// use candle_nn::ConvTranspose1dConfig;
    ///
    /// let weight = Tensor::randn(0f32, 1., (128, 32, 8), &Device::Cpu)?;
    /// let config = ConvTranspose1dConfig { stride: 4, padding: 2, ..Default::default() };
    /// let mut layer = nn::ConvTranspose1d::new(weight, None, config);
    /// quantize_dynamic(&mut layer, &QConfigSpec::int8())?;
    /// let ys = layer.forward(&Tensor::ones((1, 128, 10), DType::F32, &Device::Cpu)?)?;
    /// assert_eq!(ys.dims(), [1, 32, 40]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ConvTranspose1d, ConvTranspose1dConfig, 1, |_| None,
    |config: ConvTranspose1dConfig| Some(config.output_padding);
    conv_transpose1d, conv_transpose1d_no_bias,
    "[in_channels, out_channels / groups, kernel_size]", "conv_transpose1d";
}
