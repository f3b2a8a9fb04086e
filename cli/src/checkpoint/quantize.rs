//! `dynquant quantize` and `dynquant dequantize`.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use candle_dynquant::checkpoint::{self, Plan, PlannedLayer, TensorInfo};
use candle_dynquant::{Checkpoint, LeftReason, QConfigSpec, WeightConfig};
use candle_dynquant_io::print;

use super::progress::Progress;
use super::table::{megabytes, table};
use super::{DequantizeArgs, QuantizeArgs};

pub fn run(args: &QuantizeArgs) -> Result<()> {
    let source = Checkpoint::open(&args.source)?;
    let plan = Plan::new(&source, &spec(args)?, &args.linear, &args.embedding)?;
    let tensors: BTreeMap<_, _> = source.tensors().map(|t| (t.name.clone(), t)).collect();
    if args.dry_run {
        return Ok(print::line(dry_run(&plan, &tensors))?);
    }
    let output = args.output.as_ref().context("no output")?;
    let before = tensors.values().map(|tensor| tensor.bytes).sum();
    {
        let mut progress = Progress::new(before);
        checkpoint::quantize(&source, &plan, output, |bytes| progress.add(bytes))?;
    }
    let after = Checkpoint::open(output)?
        .tensors()
        .map(|tensor| tensor.bytes)
        .sum();
    let swapped = plan.layers().iter().filter(|layer| layer.qconfig.is_some());
    print::line(format_args!(
        "{}: {} of {} layers quantized, {} -> {}",
        print::on_one_line(&output.display().to_string()),
        swapped.count(),
        plan.layers().len(),
        megabytes(before),
        megabytes(after),
    ))?;
    for layer in plan.layers() {
        if let Some(reason @ LeftReason::AccumulatorOverflow { .. }) = &layer.left {
            let name = print::on_one_line(&layer.name);
            print::line(format_args!("{name}: {reason}"))?;
        }
    }
    Ok(())
}

pub fn dequantize(args: &DequantizeArgs) -> Result<()> {
    let source = Checkpoint::open(&args.source)?;
    let bytes = source.tensors().map(|tensor| tensor.bytes).sum();
    let mut progress = Progress::new(bytes);
    checkpoint::dequantize(&source, &args.output, |bytes| progress.add(bytes))?;
    Ok(())
}

fn spec(args: &QuantizeArgs) -> Result<QConfigSpec> {
    let spec = match &args.spec {
        Some(path) => QConfigSpec::from_file(path)?,
        None => QConfigSpec::preset(&args.preset)?,
    };
    let spec = if args.embeddings {
        spec.embeddings()
    } else {
        spec
    };
    let spec = match args.min_params {
        Some(elements) => spec.min_params(elements),
        None => spec,
    };
    let exclude = |spec: QConfigSpec, name: &String| spec.exclude(name.as_str());
    Ok(args.exclude.iter().fold(spec, exclude))
}

/// Each layer and what it becomes, then the tensors that are none of them, counted.
fn dry_run(plan: &Plan, tensors: &BTreeMap<String, TensorInfo>) -> String {
    let header = ["layer", "kind", "shape", "is", "becomes"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    let (mut before, mut after) = (0, 0);
    for layer in plan.layers() {
        for (i, tensor) in layer.tensors.iter().enumerate() {
            let info = &tensors[tensor];
            before += info.bytes;
            after += bytes_after(layer, info);
            let name = if i == 0 { &layer.name } else { "" };
            rows.push(vec![
                name.to_owned(),
                layer.kind.to_string(),
                format!("{:?}", info.shape),
                info.dtype.clone(),
                becomes(layer),
            ]);
        }
    }
    let all: u64 = tensors.values().map(|tensor| tensor.bytes).sum();
    let layers = plan
        .layers()
        .iter()
        .flat_map(|layer| &layer.tensors)
        .count();
    let rest = tensors.len() - layers;
    format!(
        "{}\n{rest} other tensors are copied\n{} -> {}",
        table(&rows),
        megabytes(all),
        megabytes(all - before + after),
    )
}

/// The configuration that a layer gets, or why it stays.
fn becomes(layer: &PlannedLayer) -> String {
    match (&layer.qconfig, &layer.left) {
        (Some(qconfig), _) if layer.is_tensor() => {
            format!("{qconfig}; this library's VarBuilder reads it, transformers does not")
        }
        (Some(qconfig), _) => qconfig.to_string(),
        (None, Some(reason)) => reason.to_string(),
        (None, None) => "the same".into(),
    }
}

fn bytes_after(layer: &PlannedLayer, info: &TensorInfo) -> u64 {
    let elements = info.shape.iter().product::<usize>() as u64;
    let rows = info.shape.first().map_or(0, |rows| *rows as u64);
    match layer.qconfig.as_ref().map(|qconfig| &qconfig.weight) {
        None => info.bytes,
        Some(WeightConfig::Int8(config)) => {
            let scales = if config.qscheme.is_per_channel() {
                rows
            } else {
                1
            };
            use candle_dynquant::QScheme::PerChannelAffineFloatQParams;
            elements
                + scales
                    * match config.qscheme {
                        PerChannelAffineFloatQParams => 12,
                        qscheme if qscheme.is_symmetric() => 4,
                        _ => 5,
                    }
        }
        Some(_) => 2 * elements,
    }
}
