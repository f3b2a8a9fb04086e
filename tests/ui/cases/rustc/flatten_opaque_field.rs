use candle_dynquant::{Quantizable, nn};

struct Config;

#[derive(Quantizable)]
struct Model {
    #[quantizable(flatten)]
    head: nn::Linear,
    #[quantizable(flatten)]
    config: Config,
}

fn main() {}
