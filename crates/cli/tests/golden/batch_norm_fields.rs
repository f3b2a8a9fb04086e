//! Batch norms in fields that are folded.
use candle::{Module, ModuleT, Result, Tensor};
use candle_nn::{batch_norm, conv2d_no_bias, BatchNorm, Conv2d, VarBuilder};

struct ConvNorm {
    conv: Conv2d,
    /// Folded.
    norm: BatchNorm,
    span: tracing::Span,
}

impl ConvNorm {
    fn new(vb: VarBuilder) -> Result<Self> {
        let conv = conv2d_no_bias(64, 64, 3, Default::default(), vb.pp("conv"))?;
        let norm = batch_norm(64, 1e-5, vb.pp("norm"))?;
        let span = tracing::span!(tracing::Level::TRACE, "conv-norm");
        Ok(Self { conv, norm, span })
    }
}

impl Module for ConvNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let _enter = self.span.enter();
        xs.apply(&self.conv)?.apply_t(&self.norm, false)
    }
}

/// Loaded where it is built, and the output of the convolution in a variable.
struct Stem {
    conv: Conv2d,
    bn: BatchNorm,
}

impl Stem {
    fn new(vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            conv: conv2d_no_bias(3, 64, 3, Default::default(), vb.pp("conv"))?,
            bn: batch_norm(64, 1e-5, vb)?,
        })
    }

    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = self.conv.forward(xs)?;
        let xs = self.bn.forward_t(&xs, false)?;
        xs.relu()
    }
}

/// A convolution that pads its input.
struct Padded {
    inner: Conv2d,
    pad: usize,
}

impl Padded {
    fn new(pad: usize, vb: VarBuilder) -> Result<Self> {
        let inner = conv2d_no_bias(64, 64, 3, Default::default(), vb)?;
        Ok(Self { inner, pad })
    }
}

impl Module for Padded {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        if self.pad > 0 {
            let xs = xs.pad_with_zeros(2, 0, self.pad)?;
            self.inner.forward(&xs)
        } else {
            xs.apply(&self.inner)
        }
    }
}

struct Block {
    padded: Padded,
    bn: BatchNorm,
    is_last: bool,
}

impl Block {
    fn new(vb: VarBuilder) -> Result<Self> {
        let padded = Padded::new(1, vb.pp("0"))?;
        let bn = batch_norm(64, 1e-3, vb.pp("1"))?;
        Ok(Self {
            bn,
            padded,
            is_last: false,
        })
    }

    fn last(self) -> Self {
        Self {
            is_last: true,
            ..self
        }
    }
}

impl Module for Block {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.padded.forward(xs)?;
        self.bn.forward_t(&ys, false)
    }
}
