use candle_dynquant::{Quantizable, nn};

#[derive(Quantizable)]
#[quantizable]
struct Model {
    #[quantizable = "skip"]
    head: nn::Linear,
    #[quantizable("skip")]
    size: usize,
}

fn main() {}
