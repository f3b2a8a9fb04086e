use candle_dynquant::{Quantizable, nn};

#[derive(Quantizable)]
#[quantizable(skip, flatten, rename = "model", weight, name)]
struct Model {
    #[quantizable(strict)]
    strict: nn::Linear,
    #[quantizable(layer)]
    layer: nn::Linear,
    #[quantizable(crate = "candle_dynquant")]
    location: nn::Linear,
}

fn main() {}
