use candle_dynquant::{Quantizable, nn};

#[derive(Quantizable)]
#[quantizable(layer = "Conv")]
struct NoWeight {
    projection: nn::Projection,
}

#[derive(Quantizable)]
#[quantizable(layer = "")]
struct NoKind(#[quantizable(weight = "")] nn::Projection);

#[derive(Quantizable)]
#[quantizable(layer = "Conv")]
enum Either {
    A(#[quantizable(weight)] nn::Projection),
}

#[derive(Quantizable)]
#[quantizable(layer = "Conv")]
struct Namesakes {
    #[quantizable(weight)]
    first: nn::Projection,
    #[quantizable(weight)]
    second: nn::Projection,
    #[quantizable(weight = "a weight")]
    third: nn::Projection,
    #[quantizable(name)]
    name: String,
    #[quantizable(name)]
    other: String,
    #[quantizable(skip)]
    size: usize,
}

#[derive(Quantizable)]
#[quantizable(layer)]
struct ByHand {
    #[quantizable(weight)]
    projection: nn::Projection,
    #[quantizable(name)]
    name: String,
}

#[derive(Quantizable)]
struct Tree {
    #[quantizable(weight)]
    projection: nn::Projection,
    #[quantizable(name)]
    name: String,
}

#[derive(Quantizable)]
#[quantizable(layer = "Conv")]
struct Both {
    #[quantizable(weight, name)]
    projection: nn::Projection,
}

fn main() {}
