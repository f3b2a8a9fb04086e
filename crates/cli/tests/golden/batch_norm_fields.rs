//! Batch norms in fields and behind variables: which are folded, and which stay.
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

fn variables(xs: &Tensor, vb: VarBuilder) -> Result<Tensor> {
    let conv = conv2d_no_bias(64, 64, 3, Default::default(), vb.pp("conv"))?;
    let bn = batch_norm(64, 1e-5, vb.pp("bn"))?;
    let ys = xs.apply(&conv)?;
    let zs = bn.forward_t(&ys, false)?.relu()?;
    let conv = conv2d_no_bias(64, 64, 3, Default::default(), vb.pp("conv2"))?;
    let bn = batch_norm(64, 1e-5, vb.pp("bn2"))?;
    zs.apply(&conv)?.apply_t(&bn, false)
}

/// Variables that are read again, or in a block that may not run.
fn stay(xs: &Tensor, vb: VarBuilder) -> Result<Tensor> {
    let conv1 = conv2d_no_bias(64, 64, 3, Default::default(), vb.pp("conv1"))?;
    let bn1 = batch_norm(64, 1e-5, vb.pp("bn1"))?;
    let conv2 = conv2d_no_bias(64, 64, 3, Default::default(), vb.pp("conv2"))?;
    let bn2 = batch_norm(64, 1e-5, vb.pp("bn2"))?;
    let xs = xs.apply(&conv1)?;
    let ys = bn1.forward_t(&xs, false)?;
    let ys = (ys + xs)?.apply(&conv2)?;
    if vb.contains_tensor("bn2") {
        bn2.forward_t(&ys, false)
    } else {
        Tensor::zeros(1, vb.dtype(), vb.device())
    }
}

/// A convolution with something behind it.
struct Activated {
    inner: Conv2d,
}

impl Module for Activated {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.inner.forward(xs)?.relu()
    }
}

/// A convolution that some inputs pass by.
struct Skipped {
    inner: Conv2d,
}

impl Module for Skipped {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        if xs.dim(1)? == 64 {
            return Ok(xs.clone());
        }
        self.inner.forward(xs)
    }
}

struct Others {
    activated: Activated,
    bn1: BatchNorm,
    skipped: Skipped,
    bn2: BatchNorm,
}

impl Others {
    fn new(activated: Activated, skipped: Skipped, vb: VarBuilder) -> Result<Self> {
        let bn1 = batch_norm(64, 1e-5, vb.pp("bn1"))?;
        let bn2 = batch_norm(64, 1e-5, vb.pp("bn2"))?;
        Ok(Self {
            activated,
            bn1,
            skipped,
            bn2,
        })
    }

    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = self.activated.forward(xs)?.apply_t(&self.bn1, false)?;
        self.skipped.forward(&xs)?.apply_t(&self.bn2, false)
    }
}
