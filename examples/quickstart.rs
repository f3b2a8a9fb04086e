//! Quantizes a small classifier and compares it with its float self; no files needed.
//!
//!     cargo run --release --example quickstart
//!
//! prints, with your machine's times and instruction set (weights are random: 35 to 38 dB):
//!
//! ```text
//!  layer   kind         now                              before      after
//! ═════════════════════════════════════════════════════════════════════════
//!  up      Linear       qint8 per channel, u8 per row    2.4 MB   602.2 kB
//! ...
//! 3 of 3 layers swapped, weights 4.7 MB -> 1.2 MB (25.4 %), running on ...
//!
//! SQNR 36.9 dB; float ... ms, int8 ... ms for 32 rows
//! ```

use std::time::Instant;

use candle_core::{DType, Device, Module, Result, Tensor};
use candle_dynquant::{QConfigSpec, Quantizable, nn, quantize_dynamic};
use candle_nn::VarBuilder;

// One derive per struct, and `nn::Linear` in place of `candle_nn::Linear`.
#[derive(Quantizable, Clone)]
struct Classifier {
    up: nn::Linear,
    down: nn::Linear,
    head: nn::Linear,
}

impl Classifier {
    fn load(vb: VarBuilder<'_>) -> Result<Self> {
        Ok(Self {
            up: nn::linear(384, 1536, vb.pp("up"))?,
            down: nn::linear(1536, 384, vb.pp("down"))?,
            head: nn::linear(384, 10, vb.pp("head"))?,
        })
    }

    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.down.forward(&self.up.forward(xs)?.relu()?)?;
        self.head.forward(&(xs + ys)?)
    }
}

/// The output and the milliseconds of one call, the first call left out.
fn timed(model: &Classifier, xs: &Tensor) -> Result<(Tensor, f64)> {
    model.forward(xs)?;
    let start = Instant::now();
    let repeats = 20;
    for _ in 1..repeats {
        model.forward(xs)?;
    }
    let ys = model.forward(xs)?;
    Ok((ys, start.elapsed().as_secs_f64() * 1e3 / f64::from(repeats)))
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    // An ordinary VarBuilder; a real model would read a checkpoint through it.
    let variables = candle_nn::VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
    let float = Classifier::load(vb)?;

    let mut quantized = float.clone(); // shares the weights, so it costs nothing
    let report = quantize_dynamic(&mut quantized, &QConfigSpec::int8())?;
    println!("{report}");

    let xs = Tensor::randn(0f32, 1., (32, 384), &Device::Cpu)?;
    let (expected, float_ms) = timed(&float, &xs)?;
    let (got, int8_ms) = timed(&quantized, &xs)?;
    let energy = |t: &Tensor| t.sqr()?.sum_all()?.to_scalar::<f32>();
    let sqnr = 10. * (energy(&expected)? / energy(&(&expected - &got)?)?).log10();
    println!("SQNR {sqnr:.1} dB; float {float_ms:.2} ms, int8 {int8_ms:.2} ms for 32 rows");
    Ok(())
}
