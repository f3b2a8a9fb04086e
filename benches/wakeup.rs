//! The time that a product on several threads takes to start and to end, by the length of the pause
//! before it.
//!
//! ```text
//! cargo bench --bench wakeup [-- --threads N] [--quick] [--json]
//! ```
//!
//! One row by 512 x 1,024 weights for each thread, against one row by 512 x 1,024, which stays on
//! the calling thread: every thread has as much to do, so the extra time of the wide product is its
//! start, its end, and the larger result. Single calls, interleaved, each after a pause; medians.
#![allow(missing_docs)]

use std::hint::{black_box, spin_loop};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use candle_core::{Device, Module, Tensor};
use candle_dynquant::{QConfigSpec, nn, quantize_dynamic};
use candle_dynquant_support::bench::table::{self, Cell, cell};
use candle_dynquant_support::bench::{Args, median};
use serde::Serialize;

const INPUTS: usize = 512;

/// The channels of each thread: a product with fewer stays on one thread.
const CHANNELS: usize = 1_024;

const PAUSES: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_micros(10),
    Duration::from_micros(100),
    Duration::from_millis(1),
    Duration::from_millis(10),
];

/// Medians in microseconds.
#[derive(Serialize)]
struct Row {
    pause_us: u128,
    one_thread_us: f64,
    all_threads_us: f64,
    start_us: f64,
}

/// Calls in a round.
const CALLS: usize = 25;

impl table::Row for Row {
    fn cells(&self, args: &Args) -> Vec<Cell> {
        let us = |name: &str, us: f64| cell(name, 12, format_args!("{us:.2}"));
        vec![
            cell("pause us", 12, self.pause_us),
            us("one thread", self.one_thread_us),
            us(&format!("{} threads", args.threads), self.all_threads_us),
            us("start, end", self.start_us),
        ]
    }
}

fn main() -> Result<ExitCode> {
    let title =
        format!("1 x {INPUTS} by {CHANNELS} channels a thread, int8(), us, {CALLS} calls a round,");
    table::run("Time to start a product on several threads", &title, |args, show| {
        let weight = Tensor::randn(0f32, 1., (args.threads * CHANNELS, INPUTS), &Device::Cpu)?;
        let xs = Tensor::randn(0f32, 1., (1, INPUTS), &Device::Cpu)?;
        let narrow = quantized(weight.narrow(0, 0, CHANNELS)?)?;
        let wide = quantized(weight)?;
        let of_narrow = wide.forward(&xs)?.narrow(1, 0, CHANNELS)?;
        ensure!(
            of_narrow.to_vec2::<f32>()? == narrow.forward(&xs)?.to_vec2::<f32>()?,
            "outputs disagree"
        );
        for pause in PAUSES {
            let [one, all] = medians([&narrow, &wide], &xs, pause, CALLS * args.rounds())?;
            show(Row {
                pause_us: pause.as_micros(),
                one_thread_us: one,
                all_threads_us: all,
                start_us: all - one,
            });
        }
        Ok(())
    })
}

fn quantized(weight: Tensor) -> Result<nn::Linear> {
    let mut linear = nn::Linear::new(weight, None);
    quantize_dynamic(&mut linear, &QConfigSpec::int8())?;
    Ok(linear)
}

/// Median microseconds of a call of each, after a pause.
fn medians(
    linears: [&nn::Linear; 2],
    xs: &Tensor,
    pause: Duration,
    calls: usize,
) -> Result<[f64; 2]> {
    let mut samples = [const { Vec::new() }; 2];
    for _ in 0..calls {
        for (linear, samples) in linears.into_iter().zip(&mut samples) {
            wait(pause);
            let start = Instant::now();
            black_box(linear.forward(xs)?);
            samples.push(1e6 * start.elapsed().as_secs_f64());
        }
    }
    Ok(samples.map(median))
}

/// Awake where the system could not wake this thread up in time.
fn wait(pause: Duration) {
    if pause >= Duration::from_millis(1) {
        return thread::sleep(pause);
    }
    let end = Instant::now() + pause;
    while Instant::now() < end {
        spin_loop();
    }
}
