//! Fields that hold no layer for certain, and others.
use std::collections::HashMap;

use candle::{Result, StreamTensor, Tensor};
use candle_dynquant::nn::Linear;
use candle_dynquant::Quantizable;

/// What a model of another crate holds is not known.
pub struct Encoder {
    model: foreign::Model,
}

pub trait Embed {
    fn embed(&self, xs: &Tensor) -> Result<Tensor>;
}

pub struct Embedder {
    inner: Box<dyn Embed + Send>,
}

pub struct Wrapped<T> {
    value: T,
}

pub struct Limits {
    size: usize,
    names: HashMap<String, &'static str>,
    next: Option<Box<Limits>>,
}

pub struct Config {
    limits: Vec<Limits>,
    masks: Wrapped<Tensor>,
    last: StreamTensor,
}

#[derive(Quantizable)]
pub enum Kind {
    Text(Embedder),
    Plain(Linear),
    Bounds(#[quantizable(skip)] Limits),
}

#[derive(Quantizable)]
pub struct Classifier {
    encoder: Encoder,
    other: Option<Wrapped<foreign::Model>>,
    config: Config,
    kind: Kind,
    head: Linear,
}
