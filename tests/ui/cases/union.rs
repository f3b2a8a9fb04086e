use candle_dynquant::Quantizable;

#[derive(Quantizable)]
union Model {
    bits: u32,
    float: f32,
}

fn main() {}
