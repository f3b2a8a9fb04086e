use candle_dynquant::{Quantizable, nn};

#[derive(Quantizable)]
#[quantizable(strcit)]
struct Model {
    #[quantizable(skipped)]
    head: nn::Linear,
    #[quantizable(alias = "dense")]
    dense: nn::Linear,
}

fn main() {}
