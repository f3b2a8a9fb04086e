use candle_dynquant::{Quantizable, nn};

struct Config;

#[derive(Quantizable)]
#[quantizable(layer = "Conv")]
struct Conv {
    #[quantizable(weight)]
    linear: nn::Linear,
    #[quantizable(name)]
    name: usize,
    config: Config,
}

fn main() {}
