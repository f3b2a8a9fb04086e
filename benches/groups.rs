//! `nn::Linear` of integers in groups against int8 and candle's Q4_0, Q4_K and Q8_0 `QMatMul`, in
//! one run.
//!
//! ```text
//! cargo bench --bench groups [-- --threads N] [--quick] [--json]
//! ```
//!
//! Every round times each contender once, so that drift of the machine hits all alike; the table
//! gives medians. Outputs are checked against f32 before anything is timed.
#![allow(missing_docs)]

use std::process::ExitCode;

use anyhow::{Result, ensure};
use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{Device, Module, Tensor};
use candle_dynquant::{QConfigSpec, nn, quantize_dynamic};
use candle_dynquant_support::bench::{Args, interleaved, table};
use serde::Serialize;

const SHAPES: [[usize; 3]; 10] = [
    [1, 768, 768],
    [1, 768, 3072],
    [1, 2048, 2048],
    [1, 4096, 4096],
    [1, 2048, 11264],
    [8, 768, 3072],
    [8, 4096, 4096],
    [128, 768, 3072],
    [128, 3072, 768],
    [1024, 768, 3072],
];

/// The contenders, ours first.
const NAMES: [&str; 6] = ["int8", "int4", "int8_groups", "Q4_0", "Q4_K", "Q8_0"];

/// Medians in microseconds, and signal to noise in decibels, in the order of the contenders.
#[derive(Serialize)]
struct Row {
    m: usize,
    k: usize,
    n: usize,
    contenders: [&'static str; 6],
    us: [f64; 6],
    sqnr_db: [f64; 6],
    /// Billions of bytes of int4 weights a second.
    int4_gb_s: f64,
}

impl table::Row for Row {
    fn header(_: &Args) -> String {
        let names = NAMES.map(|name| format!("{name:>12}")).concat();
        format!("{:>16} {names} {:>11} {:>6}", "m, k, n; us", "int4 x int8", "GB/s")
    }

    fn line(&self) -> String {
        format!(
            "{:>16} {} {:>11.2} {:>6.0}",
            format!("{}, {}, {}", self.m, self.k, self.n),
            self.us.map(|us| format!("{us:>12.1}")).concat(),
            self.us[0] / self.us[1],
            self.int4_gb_s,
        )
    }
}

fn main() -> Result<ExitCode> {
    let about = "Time nn::Linear in 4 bits against int8 and candle's quantized QMatMul";
    let title = "Linear, whole call, by preset, and candle's QMatMul without bias";
    table::run(about, title, |args, show| {
        for [m, k, n] in SHAPES {
            if !args.quick || m * k * n <= 1 << 30 {
                show(measure(m, k, n, args.rounds())?);
            }
        }
        Ok(())
    })
}

fn measure(m: usize, k: usize, n: usize, rounds: usize) -> Result<Row> {
    let weight = Tensor::randn(0f32, 1. / (k as f32).sqrt(), (n, k), &Device::Cpu)?;
    let xs = Tensor::randn(0f32, 1., (m, k), &Device::Cpu)?;
    let float = nn::Linear::new(weight.clone(), None);
    let ours = |spec: QConfigSpec| -> Result<nn::Linear> {
        let mut linear = float.clone();
        quantize_dynamic(&mut linear, &spec)?;
        Ok(linear)
    };
    let ours =
        [ours(QConfigSpec::int8())?, ours(QConfigSpec::int4())?, ours(QConfigSpec::int8_groups())?];
    let candle = |dtype| QMatMul::from_qtensor(QTensor::quantize(&weight, dtype)?);
    let candle = [candle(GgmlDType::Q4_0)?, candle(GgmlDType::Q4K)?, candle(GgmlDType::Q8_0)?];
    let [a, b, c] = &ours;
    let [x, y, z] = &candle;
    let contenders: [&dyn Module; 6] = [a, b, c, x, y, z];

    let expected = float.forward(&xs)?;
    let energy = |of: &Tensor| of.sqr()?.sum_all()?.to_scalar::<f32>();
    let mut sqnr_db = [0.; 6];
    for ((name, contender), db) in NAMES.iter().zip(contenders).zip(&mut sqnr_db) {
        let noise = energy(&(&expected - contender.forward(&xs)?)?)?;
        *db = 10. * f64::from(energy(&expected)? / noise).log10();
        ensure!(*db > 15., "{name}: outputs disagree: {db} dB");
    }
    let us = interleaved(&contenders.map(|module| || module.forward(&xs)), rounds)?;
    let weight = ours[1].projection().qweight();
    let bytes = weight.map_or(0, |weight| weight.bytes());
    Ok(Row {
        m,
        k,
        n,
        contenders: NAMES,
        int4_gb_s: bytes as f64 / us[1] / 1e3,
        us: std::array::from_fn(|i| us[i]),
        sqnr_db,
    })
}
