use candle_dynquant::{Quantizable, nn};

#[derive(Quantizable)]
struct Model {
    #[quantizable(rename = "dense")]
    renamed: nn::Linear,
    dense: nn::Linear,
    #[quantizable(rename = "a")]
    first: nn::Linear,
    #[quantizable(rename = "a")]
    second: nn::Linear,
    #[quantizable(skip)]
    free: usize,
    #[quantizable(rename = "free")]
    takes_a_free_name: nn::Linear,
}

#[derive(Quantizable)]
struct Tuple(nn::Linear, #[quantizable(rename = "0")] nn::Linear);

#[derive(Quantizable)]
enum Either {
    A { dense: nn::Linear },
    B { dense: nn::Linear, #[quantizable(rename = "dense")] other: nn::Linear },
}

fn main() {}
