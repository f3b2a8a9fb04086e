//! `nn::Experts` at the sizes of Qwen3-30B-A3B against reading the weights, in one run.
//!
//! ```text
//! cargo bench --bench experts [-- --threads N] [--quick] [--json]
//! ```
//!
//! Four layers of 128 experts are more than any cache. Every round computes one token, of 8 random
//! experts in each layer, and reads as many bytes from as many random places on the same threads; the
//! table gives medians, a token's time divided by the reading's, and a prompt's time for each token.
#![allow(missing_docs)]

use std::cell::RefCell;
use std::process::ExitCode;

use anyhow::{Context, Result};
use candle_core::{DType, Device, Result as CandleResult, Tensor};
use candle_dynquant::{Layer, QConfig, QWeight, nn};
use candle_dynquant_support::bench::table::{self, Cell, cell};
use candle_dynquant_support::bench::{Args, interleaved};
use candle_dynquant_support::random;
use rayon::prelude::*;
use serde::Serialize;

const HIDDEN: usize = 2048;
const INNER: usize = 768;
const COUNT: usize = 128;
const CHOSEN: usize = 8;
const LAYERS: usize = 4;
/// The tokens of a prompt.
const PROMPT: usize = 128;

/// Medians of all layers.
#[derive(Serialize)]
struct Row {
    preset: &'static str,
    /// The bytes that a token reads.
    bytes: usize,
    token_us: f64,
    reading_us: f64,
    ratio: f64,
    /// The time of a prompt, for each of 128 tokens.
    prompt_us: f64,
}

impl table::Row for Row {
    fn cells(&self, _: &Args) -> Vec<Cell> {
        vec![
            cell("preset", 12, self.preset),
            cell("MB a token", 11, format_args!("{:.1}", self.bytes as f64 / 1e6)),
            cell("token us", 9, format_args!("{:.0}", self.token_us)),
            cell("reading us", 11, format_args!("{:.0}", self.reading_us)),
            cell("ratio", 6, format_args!("{:.2}", self.ratio)),
            cell("us of a prompt", 14, format_args!("{:.1}", self.prompt_us)),
        ]
    }
}

fn main() -> Result<ExitCode> {
    let about = "Time mixtures of experts against reading their weights";
    table::run(about, "experts of Qwen3-30B-A3B, 4 layers", |args, show| {
        let presets = [
            ("int8", QConfig::int8()),
            ("int8_groups", QConfig::int8_groups()),
            ("int4", QConfig::int4()),
        ];
        for (preset, qconfig) in presets {
            show(measure(preset, &qconfig, args)?);
        }
        Ok(())
    })
}

/// Experts whose weights are equal, and each in a place of memory.
fn layer(count: usize, qconfig: &QConfig) -> Result<nn::Experts> {
    let weight = |out: usize, inputs: usize| {
        let values = random::values(out * inputs, 7);
        Tensor::from_vec(values, (out, inputs), &Device::Cpu)? * 0.05
    };
    let [first, last] = [weight(INNER, HIDDEN)?, weight(HIDDEN, INNER)?];
    let linear = |weight: &Tensor| nn::Linear::new(weight.clone(), None).quantize(qconfig);
    let expert = |_| Ok(nn::Expert::new(linear(&first)?, linear(&first)?, linear(&last)?));
    Ok(nn::Experts::new((0..count).map(expert).collect::<Result<_>>()?))
}

/// Some experts of each of `rows`, all different.
fn choose(count: usize, rows: usize, random: &mut u64) -> CandleResult<Tensor> {
    let mut chosen = Vec::with_capacity(rows * CHOSEN);
    for _ in 0..rows {
        let mut some = Vec::new();
        while some.len() < CHOSEN {
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let expert = (*random >> 33) as u32 % count as u32;
            if !some.contains(&expert) {
                some.push(expert);
            }
        }
        chosen.extend(some);
    }
    Tensor::from_vec(chosen, (rows, CHOSEN), &Device::Cpu)
}

fn measure(preset: &'static str, qconfig: &QConfig, args: &Args) -> Result<Row> {
    let (count, layers) = if args.quick { (2 * CHOSEN, 1) } else { (COUNT, LAYERS) };
    let all = (0..layers).map(|_| layer(count, qconfig)).collect::<Result<Vec<_>>>()?;
    let one = nn::Linear::new(Tensor::zeros((INNER, HIDDEN), DType::F32, &Device::Cpu)?, None);
    let one = one.quantize(qconfig)?;
    let matrix = one.projection().qweight().map(QWeight::bytes).context("a quantized weight")?;
    let bytes = layers * CHOSEN * 3 * matrix;
    let random = RefCell::new(1u64);
    let run = |rows: usize| {
        let mut xs = Tensor::ones((rows, HIDDEN), DType::F32, &Device::Cpu)?;
        let weights = Tensor::full(1f32 / CHOSEN as f32, (rows, CHOSEN), &Device::Cpu)?;
        for experts in &all {
            let chosen = choose(count, rows, &mut random.borrow_mut())?;
            xs = experts.forward(&xs, &chosen, &weights)?;
        }
        Ok(xs)
    };
    let words = vec![1u64; layers * count * 3 * matrix / 8];
    let read = || {
        let chosen = choose(count, layers, &mut random.borrow_mut())?;
        let chosen: Vec<u32> = chosen.flatten_all()?.to_vec1()?;
        let parts: Vec<_> = (chosen.iter().enumerate())
            .flat_map(|(place, expert)| {
                let first = (place / CHOSEN * count + *expert as usize) * 3;
                (first..first + 3).map(|number| &words[number * matrix / 8..][..matrix / 8])
            })
            .flat_map(|matrix| matrix.chunks(1 << 14))
            .collect();
        let sums = parts.par_iter().map(|part| part.iter().fold(0u64, |a, b| a.wrapping_add(*b)));
        Tensor::new(sums.sum::<u64>() as f32, &Device::Cpu)
    };
    let ways: [&dyn Fn() -> CandleResult<Tensor>; 3] = [&|| run(1), &read, &|| run(PROMPT)];
    let us = interleaved(&ways, args.rounds())?;
    Ok(Row {
        preset,
        bytes,
        token_us: us[0],
        reading_us: us[1],
        ratio: us[0] / us[1],
        prompt_us: us[2] / PROMPT as f64,
    })
}
