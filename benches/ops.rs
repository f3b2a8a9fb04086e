//! `ops` against candle's operations, in one run.
//!
//! ```text
//! cargo bench --bench ops [-- --threads N] [--quick] [--json]
//! ```
//!
//! Every round times each contender once, so that drift of the machine hits all alike; the table
//! gives medians. Results are compared before anything is timed.
#![allow(missing_docs)]

use std::process::ExitCode;

use anyhow::{Result, ensure};
use candle_core::{DType, Device, Module, Result as CandleResult, Tensor};
use candle_dynquant::{nn, ops};
use candle_dynquant_support::bench::table::{self, Cell, cell};
use candle_dynquant_support::bench::{Args, candle_attention::attention, interleaved};
use candle_nn::attention::{AttnMask, flash_attn};
use serde::Serialize;

/// Medians in microseconds.
#[derive(Serialize)]
struct Row {
    op: &'static str,
    shape: String,
    ours_us: f64,
    candle_us: f64,
    ratio: f64,
    /// candle's flash attention for the CPU, if it supports the case.
    candle_flash_us: Option<f64>,
    /// The time of `ops` with factors in bfloat16, if that is an option.
    bf16_us: Option<f64>,
    /// The time of `ops` with factors in 8 bits, if that is an option.
    int8_us: Option<f64>,
    /// The maximum difference between ours and candle's.
    difference: f32,
}

/// A way to compute a result.
type Way = Box<dyn Fn() -> CandleResult<Tensor>>;

fn way<T: Clone + 'static>(of: &T, call: impl Fn(&T) -> CandleResult<Tensor> + 'static) -> Way {
    let of = of.clone();
    Box::new(move || call(&of))
}

/// The same computed here, by candle, and by candle's flash attention.
struct Case {
    op: &'static str,
    shape: String,
    /// Left out by `--quick`.
    large: bool,
    ours: Way,
    candle: Way,
    flash: Option<Way>,
    bf16: Option<Way>,
    int8: Option<Way>,
}

/// The batch, heads, queries, keys and head dimension: BERT-base, its longest input, MiniLM, a
/// batch, a short text, one token of a decoder.
const ATTENTION: [[usize; 5]; 7] = [
    [1, 12, 128, 128, 64],
    [1, 12, 512, 512, 64],
    [1, 12, 128, 128, 32],
    [8, 12, 128, 128, 64],
    [8, 12, 128, 128, 32],
    [1, 12, 16, 16, 64],
    [1, 12, 1, 4096, 64],
];

/// The batch, heads, heads of keys, cached keys and head dimension of one token of a decoder.
const CACHES: [[usize; 5]; 2] = [[1, 12, 12, 4096, 64], [1, 32, 8, 4096, 128]];

impl table::Row for Row {
    fn cells(&self, _: &Args) -> Vec<Cell> {
        let option = |us: Option<f64>| us.map_or_else(|| "-".into(), |us| format!("{us:.1}"));
        vec![
            cell("op", 16, self.op),
            cell("shape", 18, &self.shape),
            cell("ours us", 9, format_args!("{:.1}", self.ours_us)),
            cell("bf16 us", 9, option(self.bf16_us)),
            cell("int8 us", 9, option(self.int8_us)),
            cell("candle us", 10, format_args!("{:.1}", self.candle_us)),
            cell("x candle", 8, format_args!("{:.2}", self.ratio)),
            cell("flash us", 9, option(self.candle_flash_us)),
            cell("difference", 10, format_args!("{:.1e}", self.difference)),
        ]
    }
}

fn main() -> Result<ExitCode> {
    let about = "Time the fused operations against candle's own";
    let title = "ops (attention: batch x heads x queries x head_dim, / keys if others)";
    table::run(about, title, |args, show| {
        let mut cases = row_cases()?;
        for shape in ATTENTION {
            cases.push(attention_case(shape)?);
        }
        for shape in CACHES {
            cases.push(cache_case(shape)?);
        }
        for case in cases.iter().filter(|case| !args.quick || !case.large) {
            show(measure(case, args.rounds())?);
        }
        Ok(())
    })
}

fn randn(shape: &[usize]) -> CandleResult<Tensor> {
    Tensor::randn(0f32, 1., shape, &Device::Cpu)
}

/// Operations on rows: activations, norms, softmax.
fn row_cases() -> Result<Vec<Case>> {
    let case = |op, xs: &Tensor, ours: Way, candle: Way| Case {
        op,
        shape: format!("{:?}", xs.dims()),
        large: false,
        ours,
        candle,
        flash: None,
        bf16: None,
        int8: None,
    };
    type Pointwise = fn(&Tensor) -> CandleResult<Tensor>;
    let pointwise: [(_, Pointwise, Pointwise); 5] = [
        ("gelu", ops::gelu, Tensor::gelu_erf),
        ("gelu_tanh", ops::gelu_tanh, Tensor::gelu),
        ("silu", ops::silu, Tensor::silu),
        ("tanh", ops::tanh, Tensor::tanh),
        ("sigmoid", ops::sigmoid, candle_nn::ops::sigmoid),
    ];
    let mut cases = Vec::new();
    let inner = randn(&[128, 3072])?;
    for (op, ours, candle) in pointwise {
        cases.push(case(op, &inner, way(&inner, ours), way(&inner, candle)));
    }
    let scores = randn(&[12, 128, 128])?;
    let ours = way(&scores, ops::softmax_last_dim);
    let candle = way(&scores, candle_nn::ops::softmax_last_dim);
    cases.push(case("softmax_last_dim", &scores, ours, candle));
    for rows in [16, 128, 1024] {
        // Factors are at most 1, since errors grow with them.
        let factors = || Tensor::rand(-1f32, 1., 768, &Device::Cpu);
        let norm = candle_nn::LayerNorm::new(factors()?, factors()?, 1e-12);
        let of = (randn(&[rows, 768])?, randn(&[rows, 768])?, norm);
        let ours =
            way(&of, |(xs, _, norm)| ops::layer_norm(xs, norm.weight(), norm.bias(), norm.eps()));
        cases.push(case("layer_norm", &of.0, ours, way(&of, |(xs, _, norm)| norm.forward(xs))));
        let ours = way(&of, |(xs, residual, norm)| {
            ops::add_layer_norm(xs, residual, norm.weight(), norm.bias(), norm.eps())
        });
        let candle = way(&of, |(xs, residual, norm)| norm.forward(&(xs + residual)?));
        cases.push(case("add_layer_norm", &of.0, ours, candle));
        let norm = candle_nn::RmsNorm::new(factors()?, 1e-6);
        let of = (of.0, of.1, nn::RmsNorm::from(norm.clone()), norm);
        let ours = way(&of, |(xs, residual, norm, _)| Ok(norm.forward_add(xs, residual)?.0));
        let candle = way(&of, |(xs, residual, _, norm)| norm.forward(&(xs + residual)?));
        cases.push(case("add_rms_norm", &of.0, ours, candle));
    }
    Ok(cases)
}

/// Turns the output of three projections, `[batch, seq, heads * head_dim]`, into the input of the
/// next projection, with a mask of keys.
fn attention_case([batch, heads, queries, keys, head_dim]: [usize; 5]) -> Result<Case> {
    let hidden = heads * head_dim;
    let projected = |seq: usize| randn(&[batch, seq, heads, head_dim]);
    let (q, k, v) = (projected(queries)?, projected(keys)?, projected(keys)?);
    let mask = Tensor::zeros((batch, 1, 1, keys), DType::F32, &Device::Cpu)?;
    let scale = 1. / (head_dim as f32).sqrt();
    let merged = move |context: Tensor| context.transpose(1, 2)?.reshape((batch, queries, hidden));

    let of = (q, k, v);
    let flash = (batch == 1).then(|| {
        way(&of, move |(q, k, v)| {
            merged(flash_attn::<f32>(q, k, v, scale, AttnMask::None, None, None)?)
        })
    });
    let of_heads = |t: Tensor| t.transpose(1, 2);
    let of = (of_heads(of.0)?, of_heads(of.1)?, of_heads(of.2)?, Some(mask));
    let ours = |precision| {
        way(&of, move |(q, k, v, mask)| {
            let mask = mask.as_ref();
            merged(ops::scaled_dot_product_attention_with(q, k, v, mask, scale, precision)?)
        })
    };
    let seq = if queries == keys { queries.to_string() } else { format!("{queries}/{keys}") };
    Ok(Case {
        op: "attention",
        shape: format!("{batch}x{heads}x{seq}x{head_dim}"),
        large: batch * keys > 512,
        ours: ours(ops::Precision::Float32),
        bf16: Some(ours(ops::Precision::BFloat16)),
        int8: Some(ours(ops::Precision::Int8)),
        candle: way(&of, move |(q, k, v, mask)| merged(attention(q, k, v, mask.as_ref(), scale)?)),
        flash,
    })
}

/// A token's queries over a cache of keys and values, in each of its precisions.
fn cache_case([batch, heads, kv_heads, keys, head_dim]: [usize; 5]) -> Result<Case> {
    let rows = |heads, rows| randn(&[batch, heads, rows, head_dim]);
    let (q, k, v) = (rows(heads, 1)?, rows(kv_heads, keys)?, rows(kv_heads, keys)?);
    let scale = 1. / (head_dim as f32).sqrt();
    let merged = move |ys: Tensor| ys.transpose(1, 2)?.reshape((batch, 1, heads * head_dim));
    let ours = |precision| -> Result<Way> {
        let mut cache = nn::KvCache::new(precision);
        cache.append(&k, &v)?;
        let q = q.clone();
        Ok(Box::new(move || merged(cache.attend(&q, ops::Mask::Causal, scale)?)))
    };
    let repeated = |t: &Tensor| -> CandleResult<Tensor> {
        let groups = (batch, kv_heads, heads / kv_heads, keys, head_dim);
        let each = t.unsqueeze(2)?.broadcast_as(groups)?.contiguous()?;
        each.reshape((batch, heads, keys, head_dim))
    };
    let of = (q.clone(), repeated(&k)?, repeated(&v)?);
    Ok(Case {
        op: "KvCache",
        shape: format!("{batch}x{heads}/{kv_heads}x1/{keys}x{head_dim}"),
        large: false,
        ours: ours(ops::Precision::Float32)?,
        bf16: Some(ours(ops::Precision::BFloat16)?),
        int8: Some(ours(ops::Precision::Int8)?),
        candle: way(&of, move |(q, k, v)| merged(attention(q, k, v, None, scale)?)),
        flash: None,
    })
}

fn measure(case: &Case, rounds: usize) -> Result<Row> {
    let (ours, candle) = ((case.ours)()?, (case.candle)()?);
    let mut difference = 0f32;
    let flash = case.flash.as_ref().map(|way| way()).transpose()?;
    for other in std::iter::once(ours).chain(flash) {
        let largest = (other - &candle)?.abs()?.max_all()?;
        difference = difference.max(largest.to_scalar::<f32>()?);
    }
    ensure!(difference < 1e-5, "{} {}: {difference}", case.op, case.shape);

    for (name, bound, way) in [("bf16", 0.05, &case.bf16), ("int8", 0.15, &case.int8)] {
        let Some(way) = way else { continue };
        let largest = (way()? - &candle)?.abs()?.max_all()?;
        let largest = largest.to_scalar::<f32>()?;
        ensure!(largest < bound, "{} {name}: {largest}", case.shape);
    }
    let [flash, bf16, int8] = [&case.flash, &case.bf16, &case.int8].map(Option::as_ref);
    let ways = [Some(&case.ours), Some(&case.candle), flash, bf16, int8];
    let there: Vec<&Way> = ways.into_iter().flatten().collect();
    let mut medians = interleaved(&there, rounds)?.into_iter();
    let [ours_us, candle_us, candle_flash_us, bf16_us, int8_us] =
        ways.map(|way| way.and_then(|_| medians.next()));
    let (ours_us, candle_us) = (ours_us.unwrap_or_default(), candle_us.unwrap_or_default());
    Ok(Row {
        op: case.op,
        shape: case.shape.clone(),
        ours_us,
        candle_us,
        ratio: candle_us / ours_us,
        candle_flash_us,
        bf16_us,
        int8_us,
        difference,
    })
}
