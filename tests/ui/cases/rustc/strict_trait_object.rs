use candle_dynquant::{Quantizable, nn};

trait Plain {}

trait Block: Quantizable {}

#[derive(Quantizable)]
#[quantizable(strict)]
struct Model {
    head: nn::Linear,
    block: Box<dyn Block>,
    plain: Box<dyn Plain>,
}

fn main() {}
