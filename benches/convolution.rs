//! `nn::Conv2d` in int8 and in f32 against candle's f32 `Conv2d`, in one run: the shapes from which a
//! convolution gains by `int8()`.
//!
//! ```text
//! cargo bench --bench convolution [-- --threads N] [--quick] [--json]
//! ```
//!
//! Every round times each contender once, on images of 28 x 28; the table gives the times of f32
//! divided by the int8 time.
#![allow(missing_docs)]

use std::process::ExitCode;

use anyhow::Result;
use candle_core::{Device, Module, Tensor};
use candle_dynquant::{Layer, QConfig, nn};
use candle_dynquant_support::bench::table::{self, Cell, cell};
use candle_dynquant_support::bench::{Args, interleaved};
use serde::Serialize;

const CHANNELS: [usize; 5] = [16, 32, 64, 128, 256];
const KERNELS: [usize; 2] = [1, 3];

/// The figures of one shape.
#[derive(Serialize)]
struct Row {
    inputs: usize,
    outputs: usize,
    kernel: usize,
    /// The median microseconds of int8, of this crate's f32 and of candle's.
    us: [f64; 3],
}

impl table::Row for Row {
    fn cells(&self, _: &Args) -> Vec<Cell> {
        let shape = format!("{}, {}, {k} x {k}", self.inputs, self.outputs, k = self.kernel);
        let [int8, float, candle] = self.us;
        vec![
            cell("inputs, outputs", 20, shape),
            cell("int8 us", 12, format_args!("{int8:.0}")),
            cell("x f32", 12, format_args!("{:.2}", float / int8)),
            cell("x candle f32", 12, format_args!("{:.2}", candle / int8)),
        ]
    }
}

fn main() -> Result<ExitCode> {
    let about = "Time int8 convolutions against f32";
    table::run(about, "Conv2d, whole call", |args, show| {
        for kernel in KERNELS {
            for inputs in CHANNELS {
                for outputs in CHANNELS {
                    show(measure([inputs, outputs, kernel], args.rounds())?);
                }
            }
        }
        Ok(())
    })
}

fn measure([inputs, outputs, kernel]: [usize; 3], rounds: usize) -> Result<Row> {
    let device = Device::Cpu;
    let weight = Tensor::randn(0f32, 0.1, (outputs, inputs, kernel, kernel), &device)?;
    let config = nn::Conv2dConfig { padding: kernel / 2, ..Default::default() };
    let candle = candle_nn::Conv2d::new(weight, None, config);
    let float = nn::Conv2d::from(candle.clone());
    let int8 = float.quantize(&QConfig::int8())?;
    let xs = Tensor::randn(0f32, 1., (1, inputs, 28, 28), &device)?;
    let contenders: [&dyn Module; 3] = [&int8, &float, &candle];
    let us = interleaved(&contenders.map(|module| || module.forward(&xs)), rounds)?;
    Ok(Row { inputs, outputs, kernel, us: [us[0], us[1], us[2]] })
}
