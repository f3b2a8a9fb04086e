// A layer with a span of the file's own.
use candle_dynquant::{nn, Quantizable};

#[derive(Debug, Clone, Quantizable)]
pub struct Linear {
    #[quantizable(flatten)]
    inner: nn::Linear,
    span: tracing::Span,
}

pub fn linear(d1: usize, d2: usize, vb: candle_nn::VarBuilder) -> candle::Result<Linear> {
    let inner = nn::linear(d1, d2, vb)?;
    let span = tracing::span!(tracing::Level::TRACE, "linear");
    Ok(Linear { inner, span })
}

trait Layer: Quantizable {
    fn run(&self);
}

impl Layer for Linear {
    fn run(&self) {}
}

#[derive(Quantizable)]
struct Stack {
    layers: Vec<Box<dyn Layer>>,
    // The library is told to pass by.
    #[quantizable(skip)]
    others: Vec<Box<dyn candle_nn::Module>>,
}

#[derive(Clone, Quantizable)]
pub enum Head<T> {
    One(Linear),
    Two { first: Linear, rest: Option<T> },
}
