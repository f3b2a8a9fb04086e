//! `nn::Linear` in int8 and in f32 against candle's f32 `Linear` and Q8_0 `QMatMul`, in one run.
//!
//! ```text
//! cargo bench --bench linear [-- --threads N] [--quick] [--json]
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
    [1, 4096, 4096],
    [8, 768, 3072],
    [16, 768, 768],
    [128, 384, 384],
    [128, 768, 768],
    [128, 768, 3072],
    [128, 3072, 768],
    [1024, 768, 3072],
];

/// The medians in microseconds; candle refuses Q8_0 unless k is a multiple of 32.
#[derive(Serialize)]
struct Row {
    m: usize,
    k: usize,
    n: usize,
    ours_us: f64,
    ours_gops: f64,
    ours_f32_us: f64,
    candle_f32_us: f64,
    candle_q8_0_us: f64,
    ratio_f32: f64,
    /// candle's time in f32 over ours in f32.
    ratio_of_f32: f64,
    ratio_q8_0: f64,
    sqnr_db: f64,
    sqnr_q8_0_db: f64,
}

impl table::Row for Row {
    fn cells(&self, _: &Args) -> Vec<Cell> {
        vec![
            cell("m, k, n", 18, format_args!("{}, {}, {}", self.m, self.k, self.n)),
            cell("ours us", 10, format_args!("{:.1}", self.ours_us)),
            cell("GOP/s", 7, format_args!("{:.0}", self.ours_gops)),
            cell("ours f32", 11, format_args!("{:.1}", self.ours_f32_us)),
            cell("candle f32", 11, format_args!("{:.1}", self.candle_f32_us)),
            cell("Q8_0", 11, format_args!("{:.1}", self.candle_q8_0_us)),
            cell("x f32", 8, format_args!("{:.2}", self.ratio_f32)),
            cell("x Q8_0", 8, format_args!("{:.2}", self.ratio_q8_0)),
            cell("f32 x f32", 10, format_args!("{:.2}", self.ratio_of_f32)),
            cell("SQNR dB", 8, format_args!("{:.1}", self.sqnr_db)),
        ]
    }
}

fn main() -> Result<ExitCode> {
    let about = "Time nn::Linear in int8 and f32 against candle's f32 Linear and Q8_0 QMatMul";
    table::run(about, "Linear, whole call, int8() preset", |args, show| {
        for [m, k, n] in args.shapes(SHAPES) {
            show(measure(m, k, n, args.rounds())?);
        }
        Ok(())
    })
}

fn measure(m: usize, k: usize, n: usize, rounds: usize) -> Result<Row> {
    let device = Device::Cpu;
    let weight = Tensor::randn(0f32, 1. / (k as f32).sqrt(), (n, k), &device)?;
    let bias = Tensor::randn(0f32, 0.1, n, &device)?;
    let xs = Tensor::randn(0f32, 1., (m, k), &device)?;
    let float = candle_nn::Linear::new(weight.clone(), Some(bias.clone()));
    let q8_0 = QMatMul::from_qtensor(QTensor::quantize(&weight, GgmlDType::Q8_0)?)?;
    let ours_f32 = nn::Linear::from(float.clone());
    let mut ours = ours_f32.clone();
    quantize_dynamic(&mut ours, &QConfigSpec::int8())?;

    let expected = float.forward(&xs)?;
    let ours_db = sqnr_db(&expected, &ours.forward(&xs)?)?;
    let f32_db = sqnr_db(&expected, &ours_f32.forward(&xs)?)?;
    let q8_0_db = sqnr_db(&expected, &q8_0.forward(&xs)?.broadcast_add(&bias)?)?;
    ensure!(
        ours_db > 30. && q8_0_db > 30. && f32_db > 100.,
        "outputs disagree: {ours_db} {q8_0_db} {f32_db} dB"
    );

    let contenders: [&dyn Module; 4] = [&ours, &float, &q8_0, &ours_f32];
    let us = interleaved(&contenders.map(|module| || module.forward(&xs)), rounds)?;
    Ok(Row {
        m,
        k,
        n,
        ours_us: us[0],
        ours_gops: 2e-3 * (m * k * n) as f64 / us[0],
        ours_f32_us: us[3],
        candle_f32_us: us[1],
        candle_q8_0_us: us[2],
        ratio_f32: us[1] / us[0],
        ratio_of_f32: us[1] / us[3],
        ratio_q8_0: us[2] / us[0],
        sqnr_db: ours_db,
        sqnr_q8_0_db: q8_0_db,
    })
}
