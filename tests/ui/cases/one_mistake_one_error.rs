use candle_dynquant::{Quantizable, nn};

#[derive(Quantizable)]
struct Part {
    #[quantizable(renam = "dense")]
    head: nn::Linear,
}

#[derive(Quantizable)]
#[quantizable(strict)]
struct Model {
    part: Part,
    parts: Vec<Part>,
}

fn use_of(model: &mut Model) {
    let spec = candle_dynquant::QConfigSpec::int8();
    let _ = candle_dynquant::quantize_dynamic(model, &spec);
}

fn main() {}
