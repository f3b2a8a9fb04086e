//! An encoder of the project's layers, behind a trait.
use crate::layers::{library, Act, Linear, Norm};
use candle::{Device, Module, Result, Tensor, D};
use candle_nn::{Embedding, VarBuilder};
use serde::Deserialize;

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Config {
    pub vocab: usize,
    pub size: usize,
    pub heads: usize,
    pub act: Act,
}

fn dense(out: usize, size: usize, act: Option<Act>, vb: VarBuilder) -> Result<Linear> {
    let weight = vb.get((out, size), "weight")?;
    let bias = vb.get(out, "bias")?;
    Ok(Linear::new(weight, Some(bias), act))
}

struct Attention {
    qkv: Linear,
    out: Linear,
    norm: Norm,
    heads: usize,
    scale: f64,
    span: tracing::Span,
}

impl Attention {
    fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let size = config.size;
        Ok(Self {
            qkv: dense(3 * size, size, None, vb.pp("qkv"))?,
            out: dense(size, size, None, vb.pp("out"))?,
            norm: Norm::load(vb.pp("norm"), size)?,
            heads: config.heads,
            scale: 1. / (size as f64 / config.heads as f64).sqrt(),
            span: tracing::span!(tracing::Level::TRACE, "attention"),
        })
    }

    fn forward(&self, xs: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let _enter = self.span.enter();
        let qkv = self.qkv.forward(xs)?;
        let mut shape = qkv.dims().to_vec();
        shape.pop();
        shape.push(3 * self.heads);
        shape.push(xs.dim(D::Minus1)? / self.heads);
        let qkv = qkv.reshape(shape.as_slice())?.transpose(1, 2)?.chunk(3, 1)?;
        let q = &qkv[0].contiguous()?;
        let k = &qkv[1].contiguous()?;
        let v = &qkv[2];
        // The mask becomes a tensor of the encoder from here on.
        let mask = match mask {
            Some(mask) => Some(mask.unsqueeze(1)?.unsqueeze(1)?),
            None => None,
        };
        #[allow(unused_variables)]
        let context = if let (Device::Cuda(_), Some(library)) = (xs.device(), library()) {
            #[cfg(feature = "cuda")]
            {
                let mask = mask.map(|mask| mask.flatten(0, 1)).transpose()?;
                let scores = library.scores(&q.flatten(0, 1)?, &k.flatten(0, 1)?, mask)?;
                let probs = candle_nn::ops::softmax_last_dim(&scores)?;
                probs.matmul(v)?.matmul(v)
            }
            #[cfg(not(feature = "cuda"))]
            {
                candle::bail!("`cuda` is not enabled")
            }
        } else {
            let scores = q.matmul(&k.t()?)?;
            let mut scores = (scores * self.scale)?;
            // Padding is masked.
            if let Some(mask) = mask {
                scores = scores.broadcast_add(&mask)?;
            }
            let probs = candle_nn::ops::softmax_last_dim(&scores)?;
            probs.matmul(&v.contiguous()?)
        }?;
        let context = context.transpose(1, 2)?.flatten_from(D::Minus2)?;
        let ys = self.out.forward(&context)?;
        self.norm.forward(&ys, Some(xs))
    }
}

struct Layer {
    attention: Attention,
    up: Linear,
    down: Linear,
    norm: Norm,
    config: Config,
}

impl Layer {
    fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let size = config.size;
        let act = Some(config.act.clone());
        Ok(Self {
            attention: Attention::load(vb.pp("attention"), config)?,
            up: dense(2 * size, size, act, vb.pp("up"))?,
            down: dense(size, 2 * size, None, vb.pp("down"))?,
            norm: Norm::load(vb.pp("norm"), size)?,
            config: config.clone(),
        })
    }

    fn forward(&self, xs: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let xs = self.attention.forward(xs, mask)?;
        debug_assert_eq!(xs.dim(D::Minus1)?, self.config.size);
        let ys = self.down.forward(&self.up.forward(&xs)?)?;
        self.norm.forward(&ys, Some(&xs))
    }
}

pub trait Head {
    fn forward(&self, xs: &Tensor) -> Result<Tensor>;
}

struct Classifier {
    output: Linear,
}

impl Head for Classifier {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.output.forward(xs)
    }
}

struct NoHead;

impl Head for NoHead {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        Ok(xs.clone())
    }
}

pub struct Encoder {
    words: Embedding,
    layers: Vec<Layer>,
    head: Box<dyn Head + Send>,
}

impl Encoder {
    pub fn load(vb: VarBuilder, config: &Config, has_head: bool) -> Result<Self> {
        let words = vb.get((config.vocab, config.size), "words.weight")?;
        let layers = (0..2).map(|i| Layer::load(vb.pp(format!("layers.{i}")), config));
        let head: Box<dyn Head + Send> = if has_head { Box::new(Classifier {
                output: dense(24, config.size, None, vb.pp("output"))?,
            }) } else { Box::new(NoHead) };
        Ok(Self {
            words: Embedding::new(words, config.size),
            layers: layers.collect::<Result<Vec<_>>>()?,
            head,
        })
    }

    pub fn forward(&self, ids: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let mut xs = self.words.forward(ids)?;
        for layer in &self.layers {
            xs = layer.forward(&xs, mask)?;
        }
        self.head.forward(&xs)
    }
}

/// Two types of one name, each in a function.
pub fn names() -> [&'static str; 2] {
    fn first() -> &'static str {
        struct Name(&'static str);
        Name("first").0
    }
    fn second() -> &'static str {
        struct Name {
            name: &'static str,
        }
        Name { name: "second" }.name
    }
    [first(), second()]
}
