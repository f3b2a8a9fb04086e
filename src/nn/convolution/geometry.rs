//! The geometry of a convolution, and the matrices of its taps.

use std::sync::{Arc, OnceLock};

use candle_core::Tensor;
use candle_core::conv::CudnnFwdAlgo;

use crate::error::Result;
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

    pub fn is_transposed(&self) -> bool {
        self.output_padding.is_some()
    }

    /// Output and input channels of a group, of a weight of `dims`.
    pub fn channels(&self, dims: &[usize]) -> [usize; 2] {
        let of_group = dims[0] / self.groups.max(1);
        if self.is_transposed() {
            [dims[1], of_group]
        } else {
            [of_group, dims[1]]
        }
    }

    /// The shape of a weight with its taps first, as a file has it: `[groups, kernel.., out
    /// channels, in channels]` of a group, of a transposed convolution `[groups, kernel, 1, ..]`. By
    /// the number of axes it is never taken for a float weight, or for the other kind.
    pub fn taps(&self, dims: &[usize]) -> Vec<usize> {
        let more: &[usize] = if self.is_transposed() { &[1] } else { &[] };
        [&[self.groups], &dims[2..], more, &self.channels(dims)].concat()
    }

    /// A float weight as the matrices of its taps, one below the other, group by group.
    pub fn matrix(&self, weight: &Tensor) -> Result<Tensor> {
        let dims = weight.dims();
        let [_, columns] = self.channels(dims);
        // Each group is `[out channels, in channels, ..]`, transposed the other way around.
        let axes = if self.is_transposed() { [2, 1] } else { [1, 2] };
        let order: Vec<usize> = [0]
            .into_iter()
            .chain(3..dims.len() + 1)
            .chain(axes)
            .collect();
        let by_group =
            weight.reshape([&[self.groups, dims[0] / self.groups], &dims[1..]].concat())?;
        Ok(by_group.permute(order)?.reshape(((), columns))?)
    }

    /// The gates of the packed weight, one a tap of a group whose product is added by windows, and
    /// its bias, with which the first tap begins.
    pub fn gates(&self, bias: Option<&Tensor>, dims: &[usize]) -> Result<(usize, Option<Tensor>)> {
        let ([channels, _], groups) = (self.channels(dims), self.groups);
        let all = channels * groups;
        if let Some(bias) = bias.filter(|bias| bias.dims() != [all]) {
            return Err(mismatch("bias", format!("[{all}]"), bias));
        }
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
        let channels = if self.geometry.is_transposed() {
            [rank - 1, rank - 2]
        } else {
            [rank - 2, rank - 1]
        };
        let order: Vec<usize> = [0].into_iter().chain(channels).chain(1..rank - 2).collect();
        Ok(taps.permute(order)?.reshape(&*self.dims)?)
    }
}
