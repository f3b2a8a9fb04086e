// Convolutions as fields, in a wrapper, by a module's name and with a computed weight.
use candle::{Module, Result, Tensor, D};
use candle_nn::conv::Conv1dConfig;
use candle_nn::{batch_norm, BatchNorm, Conv1d, Conv2d, ConvTranspose1d, Func, VarBuilder};

#[derive(Clone, Debug)]
struct Padded {
    conv: candle_nn::Conv1d,
}

struct Up {
    conv: ConvTranspose1d,
}

impl Padded {
    fn new(channels: usize, kernel: usize, vb: VarBuilder) -> Result<Self> {
        let config = Conv1dConfig { groups: 1, ..Default::default() };
        let conv = candle_nn::conv::conv1d(channels, channels, kernel, config, vb)?;
        Ok(Self { conv })
    }
}

impl Module for Padded {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let kernel = self.conv.weight().dim(D::Minus1)?;
        let reach = (kernel - 1) * self.conv.config().dilation;
        xs.pad_with_zeros(D::Minus1, reach, 0)?.apply(&self.conv)
    }
}

fn normed(inner: usize, vb: VarBuilder) -> Result<Conv1d> {
    let gain = vb.get((inner, 1, 1), "weight_g")?;
    let weight = vb.get((inner, inner, 7), "weight_v")?;
    let norm = weight.sqr()?.sum_keepdim((1, 2))?.sqrt()?;
    let weight = weight.broadcast_mul(&gain)?.broadcast_div(&norm)?;
    Ok(Conv1d::new(weight, None, Conv1dConfig::default()))
}

struct Codec {
    first: Padded,
    rest: Vec<Conv1d>,
    up: Up,
}

impl Codec {
    fn new(vb: VarBuilder) -> Result<Self> {
        let config = candle_nn::ConvTranspose1dConfig { stride: 2, ..Default::default() };
        Ok(Self {
            first: Padded::new(64, 1, vb.pp("first"))?,
            rest: (0..2).map(|i| normed(64, vb.pp(i))).collect::<Result<_>>()?,
            up: Up { conv: candle_nn::conv_transpose1d(64, 1, 4, config, vb.pp("up"))? },
        })
    }

    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = self.first.forward(xs)?;
        let xs = self.rest.iter().try_fold(xs, |xs, conv| conv.forward(&xs))?;
        xs.narrow(2, 0, self.first.conv.weight().dim(2)?)?.apply(&self.up.conv)
    }
}

struct Patches {
    proj: crate::models::with_tracing::Conv2d,
    weight: Tensor,
    deep: Tensor,
    norm: BatchNorm,
}

impl Patches {
    fn new(vb: VarBuilder) -> Result<Self> {
        let config = candle_nn::Conv2dConfig { stride: 14, ..Default::default() };
        let proj = crate::models::with_tracing::conv2d(3, 64, 14, config, vb.pp("proj"))?;
        let weight = vb.get((64, 64, 3, 3), "neck.weight")?;
        let deep = vb.get((64, 1, 3, 3), "deep.weight")?;
        let norm = batch_norm(64, 1e-5, vb.pp("norm"))?;
        Ok(Self { proj, weight, deep, norm })
    }

    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = self.proj.forward(xs)?;
        let xs = xs.conv2d(&self.weight, 1, 1, 1, 1)?.apply_t(&self.norm, false)?;
        xs.conv2d(&self.deep, 1, 1, 1, 64)
    }
}

fn folded(vb: VarBuilder) -> Result<Conv2d> {
    let conv = candle_nn::conv2d_no_bias(64, 64, 1, Default::default(), vb.pp("conv"))?;
    conv.absorb_bn(&batch_norm(64, 1e-5, vb.pp("bn"))?)
}

fn block(vb: VarBuilder) -> Result<Func<'static>> {
    let conv = folded(vb)?;
    Ok(Func::new(move |xs| xs.apply(&conv)?.relu()))
}
