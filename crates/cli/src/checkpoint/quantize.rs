//! `dynquant quantize`, `presets` and `dequantize`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use candle_dynquant::checkpoint::{self, Plan, PlannedLayer, TensorInfo};
use candle_dynquant::{Checkpoint, LayerKind, LeftReason, QConfig, QConfigSpec};
use candle_dynquant_io::print;

use super::args::{DequantizeArgs, QuantizeArgs};
use super::progress::Progress;
use super::readers;
use super::table::{megabytes, table};

pub fn run(args: &QuantizeArgs) -> Result<()> {
    let source = Checkpoint::open(&args.source)?;
    let tensors: BTreeMap<_, _> = source.tensors().map(|t| (t.name.clone(), t)).collect();
    source.notes().iter().for_each(print::note);
    let mut spec = spec(args, &tensors)?;
    let kinds = args.kinds(&tensors);
    let new_plan = |spec: &QConfigSpec| Plan::of_kinds(&source, spec, &kinds);
    let mut plan = new_plan(&spec)?;
    let mut notes: Vec<_> = readers::note(&args.source, &plan).into_iter().collect();
    let partial = partial_groups(&plan, &tensors);
    if let [(first, _), ..] = &partial[..] {
        let becomes = if args.spec.is_none() {
            for (name, int8) in &partial {
                spec = spec.name(name.as_str(), int8.clone());
            }
            plan = new_plan(&spec)?;
            "are int8 per channel, as transformers"
        } else {
            "have a shorter group at the end, and transformers"
        };
        notes.push(format!(
            "inputs are not a multiple of the group size in {} of the layers, such as {}: they {becomes} reads whole groups only",
            partial.len(),
            print::on_one_line(first),
        ));
    }
    if args.dry_run {
        print::line(dry_run(&plan, &tensors))?;
        return Ok(notes.into_iter().try_for_each(print::line)?);
    }
    let output = args.output.as_ref().context("no output")?;
    let before = tensors.values().map(|tensor| tensor.bytes).sum();
    {
        let mut progress = Progress::new(before);
        plan.write(&source, output, |bytes| progress.add(bytes))?;
    }
    let written = Checkpoint::open(output)?;
    let after = written.tensors().map(|tensor| tensor.bytes).sum();
    let swapped = plan.layers().iter().filter(|layer| layer.qconfig.is_ok());
    print::line(format_args!(
        "{}: {} of {} layers quantized, {} -> {}",
        print::on_one_line(&output.display().to_string()),
        swapped.count(),
        plan.layers().len(),
        megabytes(before),
        megabytes(after),
    ))?;
    for layer in plan.layers() {
        let is_told = |reason: &LeftReason| {
            let tied = layer.kind == LayerKind::custom("TiedTable");
            matches!(reason, LeftReason::AccumulatorOverflow { .. }) || args.embeddings && tied
        };
        if let Err(reason) = &layer.qconfig
            && is_told(reason)
        {
            let name = print::on_one_line(&layer.name);
            print::line(format_args!("{name}: {reason}"))?;
        }
    }
    for (name, half, count) in written.clamped() {
        let name = print::on_one_line(name);
        let weights = if count == 1 { "weight" } else { "weights" };
        print::line(format_args!(
            "{name}: {count} {weights} beyond the range of {half} clamped to it"
        ))?;
    }
    print::line(left(&plan, &tensors, after))?;
    Ok(notes.into_iter().try_for_each(print::line)?)
}

pub fn presets(name: Option<&str>) -> Result<()> {
    match name {
        Some(name) => print::part(QConfigSpec::preset(name)?)?,
        None => print::line(QConfigSpec::PRESETS.join("\n"))?,
    }
    Ok(())
}

pub fn dequantize(args: &DequantizeArgs) -> Result<()> {
    let source = Checkpoint::open(&args.source)?;
    source.notes().iter().for_each(print::note);
    let bytes = source.tensors().map(|tensor| tensor.bytes).sum();
    let mut progress = Progress::new(bytes);
    checkpoint::dequantize(&source, &args.output, |bytes| progress.add(bytes))?;
    Ok(())
}

/// The most lines about matrices that stay float.
const MAX_LEFT: usize = 12;
/// The last parts of the names of heads that a model ties to its embedding, so that they have no
/// tensor.
const TIED_HEADS: [&str; 6] =
    ["lm_head", "embed_out", "proj_out", "decoder", "vocab_projector", "output_projection"];

/// Whether a module is in the model but has no weight to quantize: a norm, or a tied head.
fn is_float_anyway(
    name: &str,
    args: &QuantizeArgs,
    tensors: &BTreeMap<String, TensorInfo>,
) -> bool {
    let prefix = format!("{name}.");
    let mut below = tensors.values().filter(|t| t.name.starts_with(&prefix));
    let mut convolutions = [&args.conv1d, &args.conv2d, &args.conv_transpose1d].into_iter();
    let most = convolutions.find_map(|names| names.first().and(Some(4)));
    let is_float = |tensor: &TensorInfo| !(2..=most.unwrap_or(2)).contains(&tensor.shape.len());
    match below.next() {
        None => TIED_HEADS.contains(&name.rsplit('.').next().unwrap_or(name)),
        Some(first) => is_float(first) && below.all(is_float),
    }
}

fn spec(args: &QuantizeArgs, tensors: &BTreeMap<String, TensorInfo>) -> Result<QConfigSpec> {
    let mut spec = match &args.spec {
        Some(path) => QConfigSpec::from_file(path)?,
        None => QConfigSpec::preset(&args.preset)?,
    };
    if args.embeddings {
        spec = spec.embeddings();
    }
    if let Some(elements) = args.min_params {
        spec = spec.min_params(elements);
    }
    for name in &args.exclude {
        if !is_float_anyway(name, args, tensors) {
            spec = spec.exclude(name.as_str());
        }
    }
    Ok(spec)
}

/// The Linears and Embeddings whose last group is shorter, each with its int8 configuration.
fn partial_groups(plan: &Plan, tensors: &BTreeMap<String, TensorInfo>) -> Vec<(String, QConfig)> {
    let is_partial = |layer: &&PlannedLayer| {
        let inputs = tensors[&layer.tensors[0]].shape.last().copied();
        let is_matrix = [LayerKind::Linear, LayerKind::Embedding].contains(&layer.kind);
        let size = match &layer.qconfig {
            Ok(QConfig::Groups(groups)) if is_matrix => groups.group_size,
            _ => None,
        };
        inputs.zip(size).is_some_and(|(inputs, size)| !inputs.is_multiple_of(size))
    };
    let int8 = |layer: &PlannedLayer| {
        let is_table = layer.kind == LayerKind::Embedding;
        let int8 = if is_table { QConfig::table() } else { QConfig::int8() };
        (layer.name.clone(), int8)
    };
    plan.layers().iter().filter(is_partial).map(int8).collect()
}

/// The matrices that stay float, equal matrices of several layers on one line, and their share of
/// the bytes after quantization.
fn left(plan: &Plan, tensors: &BTreeMap<String, TensorInfo>, after: u64) -> String {
    let quantized = plan.layers().iter().filter(|layer| layer.qconfig.is_ok());
    let quantized: BTreeSet<&String> = quantized.flat_map(|layer| &layer.tensors).collect();
    let mut found: BTreeMap<(String, &[usize]), (usize, u64)> = BTreeMap::new();
    let is_left =
        |tensor: &&TensorInfo| tensor.shape.len() > 1 && !quantized.contains(&tensor.name);
    for tensor in tensors.values().filter(is_left) {
        let part = |part: &'_ str| match part.parse::<u64>() {
            Ok(_) => "*".to_owned(),
            Err(_) => part.to_owned(),
        };
        let name: Vec<String> = tensor.name.split('.').map(part).collect();
        let (count, bytes) = found.entry((name.join("."), &tensor.shape)).or_default();
        *count += 1;
        *bytes += tensor.bytes;
    }
    let share = |bytes: u64| format!("{:.1} %", 100. * bytes as f64 / after.max(1) as f64);
    let all: u64 = found.values().map(|(_, bytes)| bytes).sum();
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by_key(|(_, (_, bytes))| std::cmp::Reverse(*bytes));
    let rest = found.split_off(found.len().min(MAX_LEFT));
    let row = |name, shapes, bytes| vec![name, shapes, megabytes(bytes), share(bytes)];
    let rows = found.into_iter().map(|((name, shape), (count, bytes))| {
        row(format!("  {name}"), format!("{shape:?} x {count}"), bytes)
    });
    let mut rows: Vec<_> = rows.collect();
    if !rest.is_empty() {
        let bytes = rest.iter().map(|(_, (_, bytes))| bytes).sum();
        let names = format!("  {} other names", rest.len());
        rows.push(row(names, String::new(), bytes));
    }
    if rows.is_empty() {
        "no matrix stays float".into()
    } else {
        format!(
            "matrices that stay float: {}, {} of the bytes\n{}",
            megabytes(all),
            share(all),
            table(&rows)
        )
    }
}

/// Each layer with its configuration, and the number of other tensors.
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
    let layers = plan.layers().iter().flat_map(|layer| &layer.tensors);
    let rest = tensors.len() - layers.count();
    let after = all - before + after;
    format!(
        "{}\n{rest} other tensors are copied\n{} -> {}\n{}",
        table(&rows),
        megabytes(all),
        megabytes(after),
        left(plan, tensors, after),
    )
}

/// The configuration of a layer, or why it stays float.
fn becomes(layer: &PlannedLayer) -> String {
    match &layer.qconfig {
        Ok(qconfig) if layer.is_foreign() => {
            format!("{qconfig}; this library's VarBuilder reads it, transformers does not")
        }
        Ok(qconfig) => qconfig.to_string(),
        Err(reason) => reason.to_string(),
    }
}

fn bytes_after(layer: &PlannedLayer, info: &TensorInfo) -> u64 {
    let elements = info.shape.iter().product::<usize>() as u64;
    // A convolution has a scale for each tap and output.
    let inputs = match layer.kind {
        LayerKind::ConvTranspose1d => info.shape.first(),
        LayerKind::Conv1d | LayerKind::Conv2d => info.shape.get(1),
        _ => info.shape.last(),
    };
    let rows = inputs.and_then(|inputs| elements.checked_div(*inputs as u64));
    let rows = rows.unwrap_or(0);
    match &layer.qconfig {
        Err(_) => info.bytes,
        Ok(QConfig::Int8 { weight: config, .. } | QConfig::Table(config)) => {
            use candle_dynquant::QScheme::PerChannelAffineFloatQParams;
            let qscheme = config.qscheme;
            let scales = if qscheme.is_per_channel() { rows } else { 1 };
            let bytes = match qscheme {
                PerChannelAffineFloatQParams => 12,
                qscheme if qscheme.is_symmetric() => 4,
                _ => 5,
            };
            elements + scales * bytes
        }
        Ok(QConfig::Groups(groups)) => match info.shape[..] {
            [ref rows @ .., k] => groups.bytes([rows.iter().product(), k]) as u64,
            [] => elements,
        },
        Ok(_) => 2 * elements,
    }
}
