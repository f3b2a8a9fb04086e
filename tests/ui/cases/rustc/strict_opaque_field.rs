use candle_dynquant::{Quantizable, nn};

struct Config;

#[derive(Quantizable)]
#[quantizable(strict)]
struct Model {
    head: nn::Linear,
    hidden_size: usize,
    norm: candle_nn::LayerNorm,
    config: Config,
    #[quantizable(skip)]
    skipped: Config,
    blocks: Vec<Option<candle_nn::Linear>>,
}

fn main() {}
