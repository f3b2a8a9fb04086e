// A layer with a span of the file's own.
#[derive(Debug, Clone)]
pub struct Linear {
    inner: candle_nn::Linear,
    span: tracing::Span,
}

pub fn linear(d1: usize, d2: usize, vb: candle_nn::VarBuilder) -> candle::Result<Linear> {
    let inner = candle_nn::linear(d1, d2, vb)?;
    let span = tracing::span!(tracing::Level::TRACE, "linear");
    Ok(Linear { inner, span })
}

trait Layer {
    fn run(&self);
}

impl Layer for Linear {
    fn run(&self) {}
}

struct Stack {
    layers: Vec<Box<dyn Layer>>,
    // The library is told to pass by.
    #[quantizable(skip)]
    others: Vec<Box<dyn candle_nn::Module>>,
}

pub enum Head<T> {
    One(Linear),
    Two { first: Linear, rest: Option<T> },
}
