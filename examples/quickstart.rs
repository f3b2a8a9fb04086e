//! Quantizes a small model and compares it with its float original; needs no files.
//!
//!     cargo run --release --example quickstart
//!
//! prints, with your machine's instruction set (weights are random: 35 to 38 dB):
//!
//! ```text
//! 2 of 2 layers swapped, weights 4.7 MB -> 1.2 MB (25.3 %), running on ...
//!  layer       kind     now                             before      after
//! ────────────────────────────────────────────────────────────────────────
//!  up          Linear   qint8 per channel, u8 per row   2.4 MB   602.2 kB
//! ...
//!
//! SQNR 36.9 dB
//! ```

use candle_core::{DType, Device, Module, Result, Tensor};
use candle_dynquant::{QConfigSpec, Quantizable, nn, quantize_dynamic};
use candle_nn::{VarBuilder, VarMap};

#[derive(Quantizable, Clone)] // one derive per struct
struct Mlp {
    up: nn::Linear, // in place of candle_nn::Linear
    down: nn::Linear,
    scale: f64, // holds no layer
}

impl Mlp {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.down.forward(&self.up.forward(xs)?.relu()?)? * self.scale
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let vars = VarMap::new(); // a real model would read a checkpoint
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let (up, down) = (nn::linear(384, 1536, vb.pp("up"))?, nn::linear(1536, 384, vb.pp("down"))?);
    let float = Mlp { up, down, scale: 0.5 };

    let mut quantized = float.clone(); // shares the weights, so it costs nothing
    let report = quantize_dynamic(&mut quantized, &QConfigSpec::int8())?;
    println!("{report}");

    let xs = Tensor::randn(0f32, 1., (32, 384), &Device::Cpu)?;
    let (expected, got) = (float.forward(&xs)?, quantized.forward(&xs)?);
    let energy = |t: &Tensor| t.sqr()?.sum_all()?.to_scalar::<f32>();
    let sqnr = 10. * (energy(&expected)? / energy(&(&expected - &got)?)?).log10();
    println!("SQNR {sqnr:.1} dB");
    Ok(())
}
