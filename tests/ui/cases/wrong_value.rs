use candle_dynquant::{Quantizable, nn};

#[derive(Quantizable)]
#[quantizable(strict = true)]
#[quantizable(crate = candle_dynquant)]
struct Model {
    #[quantizable(rename = 3)]
    number: nn::Linear,
    #[quantizable(rename = dense)]
    word: nn::Linear,
    #[quantizable(rename("dense"))]
    call: nn::Linear,
    #[quantizable(rename)]
    missing: nn::Linear,
    #[quantizable(rename =)]
    no_value: nn::Linear,
    #[quantizable(skip = true)]
    skip: usize,
    #[quantizable(flatten(head))]
    flatten: nn::Linear,
}

#[derive(Quantizable)]
#[quantizable(crate = "no path")]
struct Elsewhere;

#[derive(Quantizable)]
#[quantizable(layer = yes)]
struct Layer {
    #[quantizable(weight = 1)]
    projection: nn::Projection,
    #[quantizable(name = "conv")]
    name: String,
}

fn main() {}
