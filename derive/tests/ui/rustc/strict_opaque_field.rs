use candle_dynquant::{Quantizable, nn};

#[derive(Quantizable)]
#[quantizable(strict)]
struct Model {
    head: nn::Linear,
    hidden_size: usize,
    #[quantizable(skip)]
    skipped: usize,
    blocks: Vec<Option<candle_nn::Linear>>,
}

fn main() {}
