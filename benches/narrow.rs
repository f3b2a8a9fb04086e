//! `nn::Linear` int8 against candle's f32 `Linear` with few inputs or outputs, in one run: the
//! shapes from which a layer gains by `int8()`.
//!
//! ```text
//! cargo bench --bench narrow [-- --threads N] [--quick] [--json]
//! ```
//!
//! Every round times each contender once; the table gives candle's median time divided by the int8
//! time, for each number of rows, and the bytes of the quantized weight divided by those of the f32
//! weight.
#![allow(missing_docs)]

use std::process::ExitCode;

use anyhow::Result;
use candle_core::{Device, Module, Tensor};
use candle_dynquant::{LayerKind, QConfig, QConfigSpec, nn, quantize_dynamic};
use candle_dynquant_support::bench::table::{self, Cell, cell};
use candle_dynquant_support::bench::{Args, interleaved};
use serde::Serialize;

/// Rows of a call.
const ROWS: [usize; 3] = [1, 32, 4096];
const INPUTS: [usize; 7] = [8, 16, 32, 64, 128, 256, 768];
const OUTPUTS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// The figures of one shape.
#[derive(Serialize)]
struct Row {
    k: usize,
    n: usize,
    /// Our median microseconds, by [`ROWS`].
    us: [f64; ROWS.len()],
    /// Candle's time over ours, by [`ROWS`].
    ratios: [f64; ROWS.len()],
    /// The bytes of the quantized weight divided by those of the float weight.
    bytes: f64,
}

impl table::Row for Row {
    fn cells(&self, _: &Args) -> Vec<Cell> {
        let mut cells = vec![cell("k, n", 12, format_args!("{}, {}", self.k, self.n))];
        for (m, ratio) in ROWS.into_iter().zip(self.ratios) {
            cells.push(cell(format!("x f32, {m}"), 12, format_args!("{ratio:.2}")));
        }
        cells.push(cell("bytes", 8, format_args!("{:.2}", self.bytes)));
        cells
    }
}

fn main() -> Result<ExitCode> {
    let about = "Time narrow int8 layers against candle's f32 Linear";
    table::run(about, "narrow Linear, whole call, int8() preset", |args, show| {
        for k in INPUTS {
            for n in OUTPUTS {
                show(measure(k, n, args.rounds())?);
            }
        }
        Ok(())
    })
}

fn measure(k: usize, n: usize, rounds: usize) -> Result<Row> {
    let device = Device::Cpu;
    let weight = Tensor::randn(0f32, 1. / (k as f32).sqrt(), (n, k), &device)?;
    let bias = Tensor::randn(0f32, 0.1, n, &device)?;
    let float = candle_nn::Linear::new(weight, Some(bias));
    let mut ours = nn::Linear::from(float.clone());
    let spec = QConfigSpec::new().kind(LayerKind::Linear, QConfig::int8());
    let report = quantize_dynamic(&mut ours, &spec)?;
    let (mut ours_us, mut ratios) = ([0.; ROWS.len()], [0.; ROWS.len()]);
    for (i, m) in ROWS.into_iter().enumerate() {
        let xs = Tensor::randn(0f32, 1., (m, k), &device)?;
        let contenders: [&dyn Module; 2] = [&ours, &float];
        let us = interleaved(&contenders.map(|module| || module.forward(&xs)), rounds)?;
        (ours_us[i], ratios[i]) = (us[0], us[1] / us[0]);
    }
    Ok(Row {
        k,
        n,
        us: ours_us,
        ratios,
        bytes: report.bytes_after() as f64 / report.bytes_before() as f64,
    })
}
