use candle_dynquant::{Quantizable, nn};

#[derive(Quantizable)]
#[quantizable(strict, strict, crate = "candle_dynquant")]
#[quantizable(crate = "::candle_dynquant")]
struct Model {
    #[quantizable(rename = "a")]
    #[quantizable(rename = "b")]
    head: nn::Linear,
    #[quantizable(skip, skip)]
    size: usize,
}

fn main() {}
