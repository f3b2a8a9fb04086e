//! A decoder of random weights: reading a prompt, and a token at a time, by preset.
//!
//! ```text
//! cargo bench --bench decoder [-- --threads N] [--quick] [--json]
//! ```
//!
//! Sizes are SmolLM2-135M's and, without `--quick`, TinyLlama's, which take 6 GB of memory. Each
//! token is read after the one before, as in writing; the table gives medians. `GB/s` is the rate
//! at which a token reads the weights of all products.
#![allow(missing_docs)]

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use candle_core::{DType, Device, Result as CandleResult, Shape, Tensor};
use candle_dynquant::ops::Precision;
use candle_dynquant::{LayerKind, QConfigSpec, quantize_dynamic};
use candle_dynquant_decoder::{Config, Decoder};
use candle_dynquant_support::bench::table::{self, Cell, cell};
use candle_dynquant_support::bench::{Args, median};
use candle_dynquant_support::weight_bytes;
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use mimalloc::MiMalloc;
use serde::Serialize;

/// The allocator of the examples.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const SMOLLM2: &str = r#"{"model_type": "llama", "vocab_size": 49152, "hidden_size": 576,
    "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "max_position_embeddings": 8192, "tie_word_embeddings": true}"#;
const TINYLLAMA: &str = r#"{"model_type": "llama", "vocab_size": 32000, "hidden_size": 2048,
    "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
    "num_key_value_heads": 4, "max_position_embeddings": 4096}"#;

/// The milliseconds of a call, and the tokens that it reads.
#[derive(Serialize)]
struct Row {
    model: &'static str,
    preset: &'static str,
    case: String,
    ms: f64,
    weight_mb: f64,
    gb_s: f64,
}

impl table::Row for Row {
    fn cells(&self, _: &Args) -> Vec<Cell> {
        vec![
            cell("model", 10, self.model),
            cell("preset", 12, self.preset),
            cell("case", 22, &self.case),
            cell("ms", 9, format_args!("{:.2}", self.ms)),
            cell("MB", 9, format_args!("{:.0}", self.weight_mb)),
            cell("GB/s", 6, format_args!("{:.0}", self.gb_s)),
        ]
    }
}

fn main() -> Result<ExitCode> {
    let about = "Time a decoder of random weights by preset: prompts, and token by token";
    let title = "Decoder, whole calls, logits of the last token";
    table::run(about, title, |args, show| {
        let mut models = vec![("SmolLM2", SMOLLM2)];
        if !args.quick {
            models.push(("TinyLlama", TINYLLAMA));
        }
        for (name, config) in models {
            let config = Config::parse(name, config)?;
            let vb = VarBuilder::from_backend(Box::new(Weights), DType::F32, Device::Cpu);
            let float = Decoder::load(&config, vb)?;
            for preset in ["int8", "int8_groups", "int4"] {
                let mut model = float.clone();
                let spec = QConfigSpec::preset(preset)?;
                quantize_dynamic(&mut model, &spec.kind(LayerKind::Attention, Precision::Int8))?;
                measure(name, preset, &model, args, show)?;
            }
        }
        Ok(())
    })
}

fn measure(
    name: &'static str,
    preset: &'static str,
    model: &Decoder,
    args: &Args,
    show: &mut dyn FnMut(Row),
) -> Result<()> {
    // All weights except the embedding table.
    let weight_mb = weight_bytes(model, |layer| layer.kind() == LayerKind::Linear)? as f64 / 1e6;
    let mut show = |case: String, ms: f64| {
        show(Row { model: name, preset, case, ms, weight_mb, gb_s: weight_mb / ms });
    };
    let ids = |sequences: usize, tokens: usize| {
        let ids = (0..sequences * tokens).map(|i| (i * 7919 % 30_000) as u32);
        Tensor::from_iter(ids, &Device::Cpu)?.reshape((sequences, tokens))
    };
    for tokens in [16, 128, 512] {
        let ids = ids(1, tokens)?;
        let rounds = if args.quick { 3 } else { 5 };
        let ms = median_ms(rounds, || model.next(&ids, &mut model.cache()))?;
        show(format!("prompt of {tokens}"), ms);
    }
    for (sequences, before) in [(1, 128), (1, 2048), (16, 128)] {
        let mut cache = model.cache();
        model.next(&ids(sequences, before)?, &mut cache)?;
        let next = ids(sequences, 1)?;
        let rounds = if args.quick { 15 } else { 31 };
        let ms = median_ms(rounds, || model.next(&next, &mut cache))?;
        show(format!("{sequences} x token after {before}"), ms);
    }
    Ok(())
}

fn median_ms(rounds: usize, mut call: impl FnMut() -> CandleResult<Tensor>) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..rounds {
        let start = Instant::now();
        call()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(median(times))
}

/// Random weights for every name and shape; norms are ones.
struct Weights;

impl SimpleBackend for Weights {
    fn get(
        &self,
        shape: Shape,
        _: &str,
        _: Init,
        dtype: DType,
        device: &Device,
    ) -> CandleResult<Tensor> {
        match shape.dims() {
            [_, inputs] => {
                let bound = (3. / *inputs as f64).sqrt();
                Tensor::rand(-bound as f32, bound as f32, shape, device)?.to_dtype(dtype)
            }
            _ => Tensor::ones(shape, dtype, device),
        }
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> CandleResult<Tensor> {
        candle_core::bail!("{name}: expected a shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        name.ends_with("weight")
    }
}
