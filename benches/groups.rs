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
use candle_dynquant_support::bench::table::{self, Cell, cell};
use candle_dynquant_support::bench::{Args, interleaved, sqnr_db};
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
    fn cells(&self, _: &Args) -> Vec<Cell> {
        let shape = format_args!("{}, {}, {}", self.m, self.k, self.n);
        let mut cells = vec![cell("m, k, n; us", 16, shape)];
        let us = NAMES.iter().zip(self.us);
        cells.extend(us.map(|(name, us)| cell(name, 11, format_args!("{us:.1}"))));
        cells.push(cell("int4 x int8", 11, format_args!("{:.2}", self.us[0] / self.us[1])));
        cells.push(cell("GB/s", 6, format_args!("{:.0}", self.int4_gb_s)));
        cells
    }
}

fn main() -> Result<ExitCode> {
    let about = "Time nn::Linear in 4 bits against int8 and candle's quantized QMatMul";
    let title = "Linear, whole call, by preset, and candle's QMatMul without bias";
    table::run(about, title, |args, show| {
        for [m, k, n] in args.shapes(SHAPES) {
            show(measure(m, k, n, args.rounds())?);
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
    let mut all_db = [0.; 6];
    for ((name, contender), db) in NAMES.iter().zip(contenders).zip(&mut all_db) {
        *db = sqnr_db(&expected, &contender.forward(&xs)?)?;
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
        sqnr_db: all_db,
    })
}
