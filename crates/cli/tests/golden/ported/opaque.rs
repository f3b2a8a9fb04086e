//! What may hide layers, and candle's own constructors.
use std::sync::Arc;

use candle::{Result, Tensor};
use candle_dynquant::nn::{gru, lstm, GRUConfig, LSTMConfig, Linear, GRU, LSTM};
use candle_dynquant::Quantizable;
use candle_nn::VarBuilder;

macro_rules! mm {
    ($x:expr, $w:expr) => {
        $x.matmul($w)?
    };
}

/// The macro puts other types in the place of these.
#[replace_layer_fields]
#[derive(Debug, AutoLoraConvert, Quantizable)]
pub struct Model {
    embed: Linear,
    head: Box<dyn LinearLayerLike>,
}

#[non_exhaustive]
#[derive(Debug, Quantizable)]
pub struct Attention {
    query: Arc<dyn QuantMethod>,
    key: Option<Arc<dyn QuantMethod>>,
    out: Linear,
    act: Box<dyn Fn(&Tensor) -> Result<Tensor> + Send>,
}

#[derive(Clone, Quantizable)]
pub struct Recurrent {
    there: LSTM,
    back: GRU,
}

impl Recurrent {
    pub fn load(size: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            there: lstm(size, size, LSTMConfig::default(), vb.pp("there"))?,
            back: gru(size, size, GRUConfig::default(), vb.pp("back"))?,
        })
    }
}

/// A macro multiplies.
pub struct Mixed {
    low: Tensor,
}

impl Mixed {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        let low = vb.get((4, 4), "low")?;
        Ok(Self { low })
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        Ok(mm!(xs, &self.low))
    }
}

/// All types of the trait are here.
pub trait Head: Quantizable {
    fn forward(&self, xs: &Tensor) -> Result<Tensor>;
}

#[derive(Clone, Quantizable)]
pub struct Classifier {
    output: Linear,
}

impl Head for Classifier {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        xs.apply(&self.output)
    }
}

/// How it is built.
#[derive(Clone)]
pub struct Config {
    size: usize,
}

#[derive(Clone, Copy)]
pub enum Kind {
    Plain,
}

#[derive(Quantizable)]
pub struct Headed {
    head: Box<dyn Head + Send>,
    /// As it was loaded.
    #[quantizable(skip)]
    config: Config,
    kind: Kind,
    cache: Option<(Config, Vec<Tensor>)>,
}

pub fn first() -> usize {
    struct Name(usize);
    Name(1).0
}

pub fn second() -> usize {
    struct Name {
        layer: usize,
    }
    Name { layer: 2 }.layer
}
// left: line 15: the macro `#[replace_layer_fields]` may give `Model` other fields
// left: line 19: `dyn LinearLayerLike` may hide layers
// left: line 25: `dyn QuantMethod` may hide layers
// left: line 26: `dyn QuantMethod` may hide layers
// left: line 57: `low` of `Mixed` multiplies as a tensor, and is no layer
