//! The geometry of a convolution, and the matrices of its taps.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

use candle_core::Tensor;
use candle_core::conv::CudnnFwdAlgo;
use candle_nn::{Conv1dConfig, Conv2dConfig, ConvTranspose1dConfig};

use crate::error::{Error, Result};
use crate::module::{ConvolutionCost, LayerKind};
use crate::qconfig::QConfig;
use crate::sizes;
use crate::tensor::mismatch;
use crate::trace::Span;
use crate::weight::QWeight;

/// A configuration of candle's, which tells the kind of convolution.
pub trait ConvolutionConfig: Copy + Debug + Send + Sync {
    const KIND: LayerKind;
    /// Spatial dimensions.
    const RANK: usize;

    fn geometry(self) -> Geometry;

    fn span(name: Option<&str>) -> Span;
}

/// A quantized weight: the matrices of its taps, `[taps * out channels, in channels]`.
#[derive(Debug)]
pub struct QuantizedTaps {
    pub weight: Arc<QWeight>,
    /// The shape of the float weight.
    pub dims: Vec<usize>,
    geometry: Geometry,
    /// Filled when the weight is first asked for as a tensor.
    pub dequantized: OnceLock<Tensor>,
}

/// The configuration, which is one for all spatial dimensions.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    pub padding: usize,
    pub stride: usize,
    pub dilation: usize,
    pub groups: usize,
    pub cudnn_fwd_algo: Option<CudnnFwdAlgo>,
    /// Outputs behind the last of a transposed convolution; `None` of another.
    pub output_padding: Option<usize>,
}

impl Geometry {
    /// The outputs along a dimension of `size` inputs for `taps` taps.
    pub fn outputs(&self, size: usize, taps: usize) -> Option<usize> {
        let reach = self.dilation.checked_mul(taps.checked_sub(1)?)?;
        let padding = self.padding.checked_mul(2)?;
        if self.stride == 0 {
            return None;
        }
        if let Some(output_padding) = self.output_padding {
            let last = size.checked_sub(1)?.checked_mul(self.stride)?;
            let end = last.checked_add(reach)?.checked_add(output_padding)?;
            return end.checked_add(1)?.checked_sub(padding);
        }
        let left = padding.checked_add(size)?.checked_sub(reach.checked_add(1)?)?;
        Some(left.checked_div(self.stride)? + 1)
    }

    /// Checks that a quantized convolution has that form.
    pub fn check(qconfig: &QConfig) -> Result<()> {
        if matches!(qconfig, QConfig::Int8 { .. }) {
            return Ok(());
        }
        let expected = "int8 with dynamic activations, for a convolution";
        Err(Error::qconfig(expected, qconfig))
    }

    /// Checks a weight of `dims`, of `rank` spatial dimensions.
    pub fn check_weight(&self, dims: &[usize], rank: usize) -> Result<()> {
        if dims.len() != rank + 2 {
            let channels = if self.is_transposed() {
                "in_channels, out_channels / groups"
            } else {
                "out_channels, in_channels / groups"
            };
            let kernel = ["kernel", "kernel_height, kernel_width"][usize::from(rank == 2)];
            return Err(Error::shape("weight", format!("[{channels}, {kernel}]"), dims));
        }
        sizes::elements("weight", dims)?;
        if dims.contains(&0) {
            return Err(Error::shape("weight", "at least one of each dimension", dims));
        }
        if self.groups == 0 || !dims[0].is_multiple_of(self.groups) {
            let expected = format!("a number that divides {} channels", dims[0]);
            return Err(Error::argument("groups", expected, self.groups));
        }
        Ok(())
    }

    /// Checks that a bias has the output channels of a weight of `dims`.
    pub fn check_bias(&self, bias: Option<&Tensor>, dims: &[usize]) -> Result<()> {
        let all = self.channels(dims)[0] * self.groups;
        match bias.filter(|bias| bias.dims() != [all]) {
            None => Ok(()),
            Some(bias) => Err(mismatch("bias", format!("[{all}]"), bias)),
        }
    }

    pub fn is_transposed(&self) -> bool {
        self.output_padding.is_some()
    }

    /// Output and input channels of a group, of a weight of `dims`.
    pub fn channels(&self, dims: &[usize]) -> [usize; 2] {
        let of_group = dims[0] / self.groups.max(1);
        if self.is_transposed() { [dims[1], of_group] } else { [of_group, dims[1]] }
    }

    /// The geometry of a layer of that kind with candle's defaults, and the dimensions of its
    /// weight; `None` of another kind.
    pub fn of_kind(kind: &LayerKind) -> Option<(Self, usize)> {
        match kind {
            LayerKind::Conv1d => Some((Conv1dConfig::default().geometry(), 3)),
            LayerKind::Conv2d => Some((Conv2dConfig::default().geometry(), 4)),
            LayerKind::ConvTranspose1d => Some((ConvTranspose1dConfig::default().geometry(), 3)),
            _ => None,
        }
    }

    /// The sizes that decide whether a convolution gains, by the shape of its weight alone; `None`
    /// for another shape.
    pub(crate) fn cost(&self, dims: &[usize]) -> Option<ConvolutionCost> {
        let [outputs, channels] = (dims.len() > 2).then(|| self.channels(dims))?;
        let taps: usize = dims[2..].iter().product();
        // The channels that are written for each position.
        let written = if self.is_transposed() { outputs.saturating_mul(taps) } else { outputs };
        let products = outputs.saturating_mul(channels).saturating_mul(taps);
        Some(ConvolutionCost {
            channels,
            products: products / channels.saturating_add(written).max(1),
        })
    }

    /// The shape of a weight with its taps first, as a file has it: `[groups, kernel.., out
    /// channels, in channels]` of a group, of a transposed convolution `[groups, kernel, 1, 1, ..]`.
    /// By the number of axes it is never taken for a float weight, or for another kind.
    pub fn taps(&self, dims: &[usize]) -> Vec<usize> {
        let more: &[usize] = if self.is_transposed() { &[1, 1] } else { &[] };
        [&[self.groups], &dims[2..], more, &self.channels(dims)].concat()
    }

    /// A float weight as the matrices of its taps, one below the other, group by group.
    pub fn matrix(&self, weight: &Tensor) -> Result<Tensor> {
        let dims = weight.dims();
        let [_, columns] = self.channels(dims);
        // Each group is `[out channels, in channels, ..]`, transposed the other way around.
        let axes = if self.is_transposed() { [2, 1] } else { [1, 2] };
        let order: Vec<usize> = [0].into_iter().chain(3..dims.len() + 1).chain(axes).collect();
        let by_group =
            weight.reshape([&[self.groups, dims[0] / self.groups], &dims[1..]].concat())?;
        Ok(by_group.permute(order)?.reshape(((), columns))?)
    }

    /// The gates of the packed weight, one a tap of a group whose product is added by windows, and
    /// its bias, with which the first tap begins.
    pub fn gates(&self, bias: Option<&Tensor>, dims: &[usize]) -> Result<(usize, Option<Tensor>)> {
        let ([channels, _], groups) = (self.channels(dims), self.groups);
        self.check_bias(bias, dims)?;
        if self.is_transposed() {
            return Ok((groups, None));
        }
        let taps: usize = dims[2..].iter().product();
        let bias = bias.map(|bias| {
            let bias = bias.reshape((groups, channels))?;
            let bias = bias.pad_with_zeros(1, 0, channels * taps.saturating_sub(1));
            bias?.flatten_all()
        });
        Ok((groups * taps, bias.transpose()?))
    }
}

/// The shape of the float weight whose [taps](Geometry::taps) a file has, and the order of the axes
/// there that makes it; `None` of a tensor that has no taps.
pub fn of_taps(taps: &[usize]) -> Option<(Vec<usize>, &'static [usize])> {
    let (first, rest, axes): (_, _, &[usize]) = match *taps {
        [groups, taps, n, k] => ([groups, n], vec![k, taps], &[0, 2, 3, 1]),
        [groups, h, w, n, k] => ([groups, n], vec![k, h, w], &[0, 3, 4, 1, 2]),
        [groups, taps, 1, 1, n, k] => ([groups, k], vec![n, taps], &[0, 5, 4, 1, 2, 3]),
        _ => return None,
    };
    let first: usize = first.iter().product();
    Some(([vec![first], rest].concat(), axes))
}

impl QuantizedTaps {
    pub fn new(weight: QWeight, dims: Vec<usize>, geometry: Geometry) -> Self {
        Self { weight: Arc::new(weight), dims, geometry, dequantized: OnceLock::new() }
    }

    /// The shape with the taps first.
    pub fn shape(&self) -> Vec<usize> {
        self.geometry.taps(&self.dims)
    }

    /// The scales of the rows of the matrices, each times the factor of its output channel.
    pub fn scales(&self, factors: &[f64]) -> Vec<f32> {
        let (packed, [channels, _]) = (self.weight.packed(), self.geometry.channels(&self.dims));
        let of_group = channels * self.dims[2..].iter().product::<usize>();
        let factor = |row| factors[row / of_group * channels + row % channels];
        let scale = |row| (f64::from(packed.scale(row)) * factor(row)) as f32;
        (0..packed.n()).map(scale).collect()
    }

    /// These codes with other scales, one a row, and another bias.
    pub fn with_scales(&self, scales: &[f32], bias: Option<&Tensor>) -> Result<Arc<Self>> {
        let (gates, bias) = self.geometry.gates(bias, &self.dims)?;
        let weight = self.weight.with_scales(gates, scales, bias.as_ref())?;
        Ok(Arc::new(Self::new(weight, self.dims.clone(), self.geometry)))
    }

    /// The weight as a float tensor of its shape.
    pub fn value(&self) -> Result<Tensor> {
        let taps = self.weight.dequantize()?.reshape(self.shape())?;
        let rank = taps.rank();
        let channels =
            if self.geometry.is_transposed() { [rank - 1, rank - 2] } else { [rank - 2, rank - 1] };
        let order: Vec<usize> = [0].into_iter().chain(channels).chain(1..rank - 2).collect();
        Ok(taps.permute(order)?.reshape(&*self.dims)?)
    }
}
