use candle_dynquant::{Quantizable, nn};

#[derive(Quantizable)]
struct Model {
    #[quantizable(rename = "")]
    empty: nn::Linear,
    #[quantizable(rename = ".self")]
    leading: nn::Linear,
    #[quantizable(rename = "self.")]
    trailing: nn::Linear,
    #[quantizable(rename = "attention..self")]
    double: nn::Linear,
    #[quantizable(rename = "attention self")]
    space: nn::Linear,
}

fn main() {}
