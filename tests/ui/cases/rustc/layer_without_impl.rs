use candle_dynquant::{Quantizable, nn};

#[derive(Quantizable)]
#[quantizable(layer)]
struct Conv {
    projection: nn::Projection,
}

fn main() {}
