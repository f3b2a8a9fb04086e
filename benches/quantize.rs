//! `quantize_dynamic` of a large layer and of BERT-base's layers, by preset.
//!
//! ```text
//! cargo bench --bench quantize [-- --threads N] [--quick] [--json]
//! ```
//!
//! A call quantizes a clone of the float model, whose tensors are shared, and drops it. Every round
//! times each preset once; the table gives medians. `DYNQUANT_ISA` chooses the instruction set.
#![allow(missing_docs)]

use std::process::ExitCode;

use anyhow::{Result, ensure};
use candle_core::{DType, Device, Tensor};
use candle_dynquant::{QConfigSpec, nn, quantize_dynamic};
use candle_dynquant_support::bench::table::{self, Cell, cell, left};
use candle_dynquant_support::bench::{Args, interleaved};
use serde::Serialize;

const PRESETS: [&str; 4] = ["int8", "pytorch", "onnxruntime", "float16"];

/// Medians of the time of a call.
#[derive(Serialize)]
struct Row {
    model: &'static str,
    dtype: &'static str,
    preset: &'static str,
    layers: usize,
    elements: usize,
    ms: f64,
    /// The time of all threads, an element.
    ns_per_element: f64,
}

impl table::Row for Row {
    fn cells(&self, _: &Args) -> Vec<Cell> {
        vec![
            left("model", 16, self.model),
            left("dtype", 5, self.dtype),
            left("preset", 12, self.preset),
            cell("layers", 6, self.layers),
            cell("elements", 11, self.elements),
            cell("ms", 9, format_args!("{:.1}", self.ms)),
            cell("ns element x thread", 19, format_args!("{:.2}", self.ns_per_element)),
        ]
    }
}

fn main() -> Result<ExitCode> {
    let about = "Time quantize_dynamic of float models";
    table::run(about, "quantize_dynamic, whole call", |args, show| {
        let square = [[4096, 4096]];
        measure("4096 x 4096", DType::F32, &square, args, show)?;
        if !args.quick {
            let bert = bert_base();
            measure("BERT-base", DType::F32, &bert, args, show)?;
            measure("BERT-base", DType::BF16, &bert, args, show)?;
        }
        Ok(())
    })
}

/// Outputs and inputs of the 73 `Linear`s of a BERT-base with its pooler.
fn bert_base() -> Vec<[usize; 2]> {
    let (hidden, inner) = (768, 3072);
    let square = [hidden, hidden];
    let layer = [square, square, square, square, [inner, hidden], [hidden, inner]];
    [&layer.repeat(12)[..], &[square]].concat()
}

fn measure(
    model: &'static str,
    dtype: DType,
    shapes: &[[usize; 2]],
    args: &Args,
    show: &mut dyn FnMut(Row),
) -> Result<()> {
    let linear = |&[n, k]: &[usize; 2]| -> Result<nn::Linear> {
        let weight = Tensor::randn(0f32, 0.02, (n, k), &Device::Cpu)?.to_dtype(dtype)?;
        let bias = Tensor::zeros(n, dtype, &Device::Cpu)?;
        Ok(nn::Linear::new(weight, Some(bias)))
    };
    let float = shapes.iter().map(linear).collect::<Result<Vec<_>>>()?;
    let mut specs = Vec::new();
    for preset in PRESETS {
        specs.push(QConfigSpec::preset(preset)?);
    }
    let quantize = |spec| {
        let mut model = float.clone();
        quantize_dynamic(&mut model, spec).map(|report| (model, report))
    };
    for spec in &specs {
        let swapped = quantize(spec)?.1.swapped().count();
        ensure!(swapped == shapes.len(), "swapped {swapped} layers");
    }
    let calls: Vec<_> = specs.iter().map(|spec| || quantize(spec)).collect();
    let elements = shapes.iter().map(|[n, k]| n * k).sum::<usize>();
    for (preset, us) in PRESETS.into_iter().zip(interleaved(&calls, args.rounds())?) {
        show(Row {
            model,
            dtype: dtype.as_str(),
            preset,
            layers: shapes.len(),
            elements,
            ms: us / 1e3,
            ns_per_element: 1e3 * us * args.threads as f64 / elements as f64,
        });
    }
    Ok(())
}
