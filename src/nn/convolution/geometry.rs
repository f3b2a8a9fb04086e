//! The geometry of a convolution, and the matrices of its taps.

use std::sync::{Arc, OnceLock};

use candle_core::Tensor;
use candle_core::conv::CudnnFwdAlgo;
use candle_nn::{Conv1dConfig, Conv2dConfig, ConvTranspose1dConfig};

use crate::error::{Error, Fault, Result};
use crate::module::LayerKind;
use crate::qconfig::QConfig;
use crate::tensor::mismatch;
use crate::weight::QWeight;

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
        let left = padding
            .checked_add(size)?
            .checked_sub(reach.checked_add(1)?)?;
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

    pub fn is_transposed(&self) -> bool {
        self.output_padding.is_some()
    }

    /// Output and input channels of a weight, of one group.
    pub fn channels(&self, dims: &[usize]) -> [usize; 2] {
        if self.is_transposed() {
            [dims[1], dims[0]]
        } else {
            [dims[0], dims[1]]
        }
    }

    /// The geometry of a layer of that kind with candle's defaults, and the dimensions of its
    /// weight; `None` of another kind.
    pub fn of_kind(kind: &LayerKind) -> Option<(Self, usize)> {
        match kind {
            LayerKind::Conv1d => Some((Conv1dConfig::default().into(), 3)),
            LayerKind::Conv2d => Some((Conv2dConfig::default().into(), 4)),
            LayerKind::ConvTranspose1d => Some((ConvTranspose1dConfig::default().into(), 3)),
            _ => None,
        }
    }

    /// The shape of a weight with its taps first, as a file has it: `[1, kernel.., out channels, in
    /// channels]`, of a transposed convolution `[1, kernel, 1, 1, ..]`. By the number of axes it is
    /// never taken for a float weight, or for another kind.
    pub fn taps(&self, dims: &[usize]) -> Vec<usize> {
        let more: &[usize] = if self.is_transposed() { &[1, 1] } else { &[] };
        [&[1], &dims[2..], more, &self.channels(dims)].concat()
    }

    /// A float weight as the matrices of its taps, one below the other.
    pub fn matrix(&self, weight: &Tensor) -> Result<Tensor> {
        let [out_axis, in_axis] = self.channels(&[0, 1]);
        let order: Vec<usize> = (2..weight.rank()).chain([out_axis, in_axis]).collect();
        let [taps @ .., rows, columns] = &self.taps(weight.dims())[..] else {
            return Err(mismatch("weight", "taps of a matrix each", weight));
        };
        let rows = rows * taps.iter().product::<usize>();
        Ok(weight.permute(order)?.reshape((rows, *columns))?)
    }

    /// The gates of the packed weight, one a tap whose product is added by windows, and its bias,
    /// with which the first begins; an error of groups.
    pub fn gates(&self, bias: Option<&Tensor>, dims: &[usize]) -> Result<(usize, Option<Tensor>)> {
        let (groups, [channels, _]) = (self.groups, self.channels(dims));
        if groups != 1 {
            return Err(Error::from(Fault::GroupedConvolution { groups }));
        }
        if let Some(bias) = bias.filter(|bias| bias.dims() != [channels]) {
            return Err(mismatch("bias", format!("[{channels}]"), bias));
        }
        if self.is_transposed() {
            return Ok((1, None));
        }
        let taps: usize = dims[2..].iter().product();
        let bias = bias.map(|bias| bias.pad_with_zeros(0, 0, channels * taps.saturating_sub(1)));
        Ok((taps, bias.transpose()?))
    }
}

/// The shape of the float weight whose [taps](Geometry::taps) a file has, and the order of the axes
/// there that makes it; `None` of a tensor that has no taps.
pub fn of_taps(taps: &[usize]) -> Option<(Vec<usize>, &'static [usize])> {
    let (rank, axes): (_, &[usize]) = match taps {
        [1, _, _, _] => (3, &[2, 3, 1, 0]),
        [1, _, _, _, _] => (4, &[3, 4, 1, 2, 0]),
        [1, _, 1, 1, _, _] => (3, &[5, 4, 1, 0, 2, 3]),
        _ => return None,
    };
    let dims = axes[..rank].iter().map(|axis| taps[*axis]);
    Some((dims.collect(), axes))
}

impl QuantizedTaps {
    pub fn new(weight: QWeight, dims: Vec<usize>, geometry: Geometry) -> Self {
        Self {
            weight: Arc::new(weight),
            dims,
            geometry,
            dequantized: OnceLock::new(),
        }
    }

    /// The shape with the taps first.
    pub fn shape(&self) -> Vec<usize> {
        self.geometry.taps(&self.dims)
    }

    /// The weight as a float tensor of its shape.
    pub fn value(&self) -> Result<Tensor> {
        let taps = self.weight.dequantize()?.reshape(self.shape())?;
        let rank = taps.rank();
        let channels = self.geometry.channels(&[rank - 2, rank - 1]);
        let order: Vec<usize> = channels.into_iter().chain(0..rank - 2).collect();
        Ok(taps.permute(order)?.reshape(&*self.dims)?)
    }
}
