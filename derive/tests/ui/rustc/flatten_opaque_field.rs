use candle_dynquant::{Quantizable, nn};

#[derive(Quantizable)]
struct Model {
    #[quantizable(flatten)]
    head: nn::Linear,
    #[quantizable(flatten)]
    config: String,
}

fn main() {}
