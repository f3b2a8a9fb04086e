use candle_dynquant::{Quantizable, nn};

#[derive(Quantizable)]
struct Model {
    #[quantizable(skip, rename = "a")]
    skip_rename: nn::Linear,
    #[quantizable(skip, flatten)]
    skip_flatten: nn::Linear,
    #[quantizable(rename = "b", flatten)]
    rename_flatten: nn::Linear,
    #[quantizable(rename = "c")]
    #[quantizable(flatten, skip)]
    all: nn::Linear,
}

fn main() {}
