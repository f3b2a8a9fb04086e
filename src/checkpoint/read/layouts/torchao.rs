//! torchao's safetensors: an `Int8Tensor` or `IntxUnpackedToInt8Tensor` `a.weight` is
//! `a._weight_qdata` I8, `a._weight_scale` and perhaps `a._weight_zero_point`, as the metadata of
//! the file says.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;

use super::super::files::Files;
use super::super::header::{Encoding, Header, invalid, parse};
use super::layout::{Found, WeightNames, of_module, tensor, unsupported};
use crate::error::{Error, Result};
use crate::qconfig::{DynamicConfig, Granularity};
use crate::words::brief;

/// The key of the metadata that lists the tensors, each of which has a key of its own.
const NAMES: &str = "tensor_names";
/// Affine activations with a scale for each row.
const PER_TOKEN: &str = "int8_asym_per_token";
const FORMAT: &str = "format of torchao";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    #[serde(rename = "_type")]
    kind: String,
    #[serde(default, rename = "_data")]
    data: Data,
    #[serde(default, rename = "_tensor_data_names")]
    parts: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Data {
    /// The type of products, which layers choose.
    #[serde(rename = "dtype")]
    _dtype: Option<TorchDtype>,
    /// How many rows and columns have one scale.
    #[serde(default)]
    block_size: Vec<usize>,
    /// The activations of an `Int8Tensor`.
    act_quant_kwargs: Option<Activations>,
    /// The activations of an `IntxUnpackedToInt8Tensor`, whose codes may have fewer bits.
    activation_quantization: Option<String>,
    target_dtype: Option<TorchDtype>,
}

#[derive(Deserialize)]
struct TorchDtype {
    #[serde(rename = "_data")]
    name: String,
}

#[derive(Deserialize)]
struct Activations {
    #[serde(rename = "_data")]
    data: Settings,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    #[serde(default)]
    granularity: Value,
    /// Activations are symmetric here.
    #[serde(rename = "mapping_type")]
    _mapping: Option<Value>,
}

pub fn find(files: &Files, _: &Value) -> Result<Found> {
    let mut found = Found::default();
    let mut seen = BTreeSet::new();
    for shard in &files.shards {
        let described = described(&shard.header).map_err(|e| e.in_file(&shard.path))?;
        if !described.is_empty() {
            found.metadata.push(NAMES.to_owned());
        }
        for (name, described) in described {
            // Each of several files may describe all tensors.
            if seen.insert(name.clone()) {
                found.metadata.push(name.clone());
                found.weights.extend(weight(files, name, &described)?);
            }
        }
    }
    Ok(found)
}

/// The tensors that the metadata of a file describes, if torchao wrote it.
fn described(header: &Header) -> Result<Vec<(String, Described)>> {
    let Some(names) = header.metadata.get(NAMES) else { return Ok(Vec::new()) };
    let Ok(names) = parse::<BTreeSet<String>>(names.as_bytes()) else { return Ok(Vec::new()) };
    let described = names.into_iter().filter_map(|name| {
        let described = parse(header.metadata.get(&name)?.as_bytes()).map_err(|got| {
            Error::malformed(
                "metadata of torchao",
                format!("a description of the tensor {:?}", brief(&name, 200)),
                got,
            )
        });
        Some(described.map(|described| (name, described)))
    });
    described.collect()
}

fn weight(files: &Files, name: String, described: &Described) -> Result<Option<WeightNames>> {
    match &*described.kind {
        "Tensor" => return Ok(None),
        "Int8Tensor" | "IntxUnpackedToInt8Tensor" => {}
        got => {
            return Err(unsupported(FORMAT, "Int8Tensor or IntxUnpackedToInt8Tensor", &name, got));
        }
    }
    let known = ["qdata", "scale", "zero_point"];
    if let Some(got) = described.parts.iter().find(|part| !known.contains(&&***part)) {
        return Err(unsupported(FORMAT, &known.join(", "), &name, got));
    }
    let (module, last) = name.rsplit_once('.').unwrap_or(("", &name));
    let part = |part: &str| of_module(module, &format!("_{last}_{part}"));
    let (codes, scales) = (part("qdata"), part("scale"));
    let zero_points =
        (described.parts.iter()).any(|part| part == "zero_point").then(|| part("zero_point"));
    let (shape, blocks) = (&tensor(files, &codes)?.shape, &described.data.block_size);
    let counts = &tensor(files, &scales)?.shape;
    let fits = shape.len() == blocks.len()
        && shape.iter().zip(blocks).all(|(size, block)| *block > 0 && size.is_multiple_of(*block))
        // None of these can be larger than the codes' own size.
        && shape.iter().zip(blocks).map(|(size, block)| size / block).product::<usize>()
            == counts.iter().product::<usize>();
    if !fits {
        let expected = format!("scales of blocks {blocks:?} of {shape:?}");
        return Err(invalid(&scales, expected, format!("{counts:?}")));
    }
    let Data { act_quant_kwargs, activation_quantization, target_dtype, .. } = &described.data;
    let activation = match (act_quant_kwargs, activation_quantization.as_deref()) {
        (Some(kwargs), _) => Some(activations(&kwargs.data, &name)?),
        (None, Some(PER_TOKEN)) => Some(DynamicConfig::new(Granularity::PerRow, false)),
        (None, Some(got)) => return Err(unsupported(FORMAT, PER_TOKEN, &name, got)),
        (None, None) => None,
    };
    let is_int4 = target_dtype.as_ref().is_some_and(|dtype| dtype.name == "int4");
    let codes_as = if is_int4 { Encoding::Unpacked } else { Encoding::Plain };
    Ok(Some(WeightNames {
        codes,
        codes_as,
        scales,
        scales_as: Encoding::Plain,
        zero_points,
        activation,
        name,
    }))
}

fn activations(settings: &Settings, weight: &str) -> Result<DynamicConfig> {
    let granularity = &settings.granularity["_type"];
    let granularity = match granularity.as_str() {
        Some("PerRow") => Granularity::PerRow,
        Some("PerTensor") => Granularity::PerTensor,
        _ => {
            let (known, got) = ("activations PerRow or PerTensor", granularity.to_string());
            return Err(unsupported(FORMAT, known, weight, &got));
        }
    };
    Ok(DynamicConfig::new(granularity, false))
}
