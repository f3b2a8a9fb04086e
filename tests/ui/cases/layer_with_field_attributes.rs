use candle_dynquant::{Quantizable, nn};

#[derive(Quantizable)]
#[quantizable(layer, strict)]
struct Conv {
    #[quantizable(skip)]
    size: usize,
    #[quantizable(rename = "weight")]
    projection: nn::Projection,
}

#[derive(Quantizable)]
#[quantizable(layer)]
enum Either {
    A(#[quantizable(flatten)] nn::Linear),
}

fn main() {}
