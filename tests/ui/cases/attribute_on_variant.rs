use candle_dynquant::{Quantizable, nn};

#[derive(Quantizable)]
enum Model {
    #[quantizable(skip)]
    Unit,
    #[quantizable(rename = "dense")]
    Newtype(nn::Linear),
    #[quantizable(strict)]
    Named { head: nn::Linear },
    #[quantizable(unknown)]
    Other,
}

fn main() {}
