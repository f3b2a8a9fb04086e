//! Float checkpoints quantized, a block of rows at a time.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::DType;
use safetensors::Dtype;

use super::blocks::{BLOCK, SourceWeight, blocks, check_block, quantized_blocks, rows_of_block};
use super::plan::Plan;
use crate::checkpoint::read::{Checkpoint, Entry, Opened, belongs};
use crate::checkpoint::write::{
    Contents, Module, Output, Planned, Writer, WrittenWeight, entry, rewrite,
};
use crate::error::{Error, ErrorKind, Result};
use crate::kernels;
use crate::module::LayerKind;
use crate::qconfig::{IntType, QConfig};
use crate::qparams::QScheme;
use crate::quantize::QConfigSpec;
use crate::tensor::from_f32_vec;
use crate::weight::{Format, QWeight, Zeros};

/// Writes `source` with the layers that a spec quantizes: the same tensors as of a model that is
/// quantized and [saved](crate::checkpoint::save).
///
/// ```no_run
/// use candle_dynquant::{Checkpoint, QConfigSpec, checkpoint};
///
/// let source = Checkpoint::open("path/to/folder")?;
/// checkpoint::quantize(&source, &QConfigSpec::int8(), "path/to/int8", |_bytes| {})?;
/// # Ok::<(), candle_dynquant::Error>(())
/// ```
///
/// The layers are those that the float matrices are taken for, by their names:
///
/// - `name.weight`, of two dimensions, is a Linear, with the exceptions below.
/// - It is an Embedding if it has no bias and the last part of `name` contains `embed`, ends with
///   `_emb`, or is `emb`, `pos`, `wte`, `wpe`, `shared` or `relative_attention_bias`; `embed_out` is
///   a Linear.
/// - It is a `Custom(Conv1D)`, whose weight is `[in, out]`, if its bias is as long as the
///   second dimension and not the first, or a module with the same last part is one, as in
///   GPT-2.
/// - It is a `Custom(Expert)` below `experts`, which are Linears to a rule by name or regex; a
///   `Custom(Router)` below `router`, or as `gate` or `shared_expert_gate` beside `experts`; a
///   `Custom(Norm)` if the last part contains `norm`, a `Custom(Codebook)` if it contains
///   `codebook`; `embed_positions` is a `Custom(Positions)`; below a part that begins with `lora_`
///   it is a `Custom(Adapter)`. These and Conv1Ds stay float.
/// - It is a `Custom(TiedTable)`, which stays float, if it is an Embedding that transformers
///   ties to a head, by `architectures` of `config.json`, or if it is called `shared`, and no
///   Linear has its shape.
/// - `name.weight_ih_l0` and `name.weight_hh_l0` are an LSTM, a GRU or an RNN, by the rows of
///   the weight of the hidden state, and without `_l0` a cell.
///
/// All other tensors, such as weights of convolutions, stay as they are.
///
/// A weight takes 100 MB of memory whatever its size: a weight with a scale for each row is read
/// once, a weight with a single scale by a min-max observer twice. By another observer of the whole
/// weight, such as `Histogram`, it takes three times its f32 elements; a convolution's always does.
/// `progress` is called with the bytes of each tensor when it is done.
///
/// # Errors
/// When a rule of the spec matches no layer, nothing is quantized, a layer is quantized already, a
/// weight cannot be quantized, or `out` cannot be written, is the source, or is a folder with other
/// files. Then nothing is changed.
pub fn quantize(
    source: &Checkpoint,
    spec: &QConfigSpec,
    out: impl AsRef<Path>,
    progress: impl FnMut(u64),
) -> Result<()> {
    Plan::new(source, spec, &[], &[])?.write(source, out, progress)
}

impl Plan {
    /// Writes `source` with the layers of this plan quantized.
    ///
    /// # Errors
    /// As [`quantize`].
    pub fn write(
        &self,
        source: &Checkpoint,
        out: impl AsRef<Path>,
        progress: impl FnMut(u64),
    ) -> Result<()> {
        rewrite(&contents(&source.opened, self)?, out.as_ref(), progress)
    }
}

fn contents<'a>(source: &'a Opened, plan: &'a Plan) -> Result<Contents<'a>> {
    let mut weights = BTreeMap::new();
    let (mut modules, mut ignore) = (Vec::new(), Vec::new());
    for layer in plan.layers() {
        let name = || layer.name.clone();
        let Ok(qconfig) = &layer.qconfig else {
            if layer.is_matrix() && layer.kind != LayerKind::Embedding {
                ignore.push(name());
            }
            continue;
        };
        for tensor in &layer.tensors {
            let weight = SourceWeight::new(source, tensor, &layer.kind);
            let format = format(&layer.kind, qconfig, weight).map_err(|e| e.at(tensor))?;
            let is_linear = layer.is_linear();
            if !layer.is_foreign() && (is_linear || layer.kind == LayerKind::Embedding) {
                modules.push(Module { name: name(), is_linear, format });
                if is_linear && format.half().is_some() {
                    ignore.push(name());
                }
            }
            weights.insert(&**tensor, (weight, qconfig, format));
        }
    }
    let tensors = source.files.tensors().map(|(name, _, _)| {
        let output = match weights.get(name) {
            Some((weight, qconfig, format)) => {
                quantized(*weight, qconfig, *format).map_err(|error| fault(error, source, name))?
            }
            None => Output::Copied,
        };
        Ok((name, vec![output]))
    });
    let formats = weights.iter().map(|(name, (_, _, format))| ((*name).to_owned(), *format));
    Ok(Contents {
        source,
        tensors: tensors.collect::<Result<_>>()?,
        formats: formats.collect(),
        views: BTreeMap::new(),
        attention: source.attention.clone(),
        config: entry(&modules, &ignore, source),
    })
}

/// A weight that is quantized when it is written.
fn quantized<'a>(
    weight: SourceWeight<'a>,
    config: &'a QConfig,
    format: Format,
) -> Result<Output<'a>> {
    let mut has_factors = false;
    if format.groups().is_some() {
        let [_, k] = weight.matrix()?;
        blocks(weight, rows_of_block(k), |_, values| {
            let max = |row: &&[f32]| row.iter().fold(0f32, |max, x| max.max(x.abs()));
            let rows = values.chunks(k.max(1)).filter(|row| kernels::block_factor(max(row)) != 1.);
            let rows: Vec<_> = rows.filter(|_| !has_factors).flatten().copied().collect();
            if !rows.is_empty() {
                let shape = [rows.len() / k, k];
                let rows = from_f32_vec(rows, &shape, DType::F32)?;
                // What is refused in it is refused when it is written, with its place.
                let quantized = QWeight::from_float(&rows, None, config);
                has_factors = quantized.is_ok_and(|rows| rows.has_factors());
            }
            Ok(())
        })?;
    }
    let (_, _, shape) = weight.stored()?;
    let written = WrittenWeight {
        name: weight.name,
        shape,
        format,
        has_factors,
        zeros: match format.codes().map(|codes| codes.qscheme) {
            Some(QScheme::PerChannelAffineFloatQParams) => Zeros::Float(Vec::new()),
            Some(qscheme) if !qscheme.is_symmetric() => Zeros::Int(Vec::new()),
            _ => Zeros::None,
        },
    };
    Ok(written.output(move |write| {
        let quantized = quantized_blocks(weight, config, |block| {
            if format.is_multiplied() {
                check_block(block)?;
            }
            write(block)
        });
        quantized.map_err(|error| fault(error, weight.source, weight.name))
    }))
}

fn format(kind: &LayerKind, qconfig: &QConfig, weight: SourceWeight<'_>) -> Result<Format> {
    let is_table = *kind == LayerKind::Embedding;
    // A weight that cannot be quantized is an error before anything is written.
    let ([_, k], (_, entry, _)) = (weight.matrix()?, weight.stored()?);
    let mut format = Format::from(qconfig);
    if is_table {
        format.activations = None;
    } else if !format.is_multiplied() {
        let expected = "dynamic activations, for a weight that is multiplied";
        return Err(Error::qconfig(expected, qconfig));
    }
    if let Some(groups) = format.groups() {
        groups.blocks()?;
        if groups.dtype == IntType::Int4 && entry.shape.len() > 2 {
            return Err(Error::qconfig("8 bits, for a tensor of several layers", groups));
        }
    }
    if let Some(half) = format.half() {
        let max = half.facts().max;
        blocks(weight, rows_of_block(k), |_, values| {
            format.saturated += values.iter().filter(|value| value.abs() > max).count();
            Ok(())
        })?;
    }
    Ok(format)
}

fn fault(error: Error, source: &Opened, name: &str) -> Error {
    // Of the source or of the output.
    if error.is_in_file() || error.kind() == ErrorKind::Io {
        return error;
    }
    match source.files.find(name) {
        Some((shard, _)) => error.at(name).in_file(&shard.path),
        None => error.at(name),
    }
}

/// Writes `source` with its quantized weights as f32, which any loader reads; attention is in
/// float32 then, too.
///
/// # Errors
/// When a scale is not finite and positive, or `out` cannot be written, is the source, or is a
/// folder with other files. Then nothing is changed.
pub fn dequantize(
    source: &Checkpoint,
    out: impl AsRef<Path>,
    progress: impl FnMut(u64),
) -> Result<()> {
    let source = &source.opened;
    let tensors = source.files.tensors();
    let contents = Contents {
        source,
        tensors: tensors.map(|(name, _, entry)| (name, outputs(source, name, entry))).collect(),
        formats: BTreeMap::new(),
        views: BTreeMap::new(),
        attention: BTreeMap::new(),
        config: None,
    };
    rewrite(&contents, out.as_ref(), progress)
}

fn outputs<'a>(source: &'a Opened, name: &'a str, entry: &'a Entry) -> Vec<Output<'a>> {
    // The tensor has the elements of a view.
    let is_view = source.viewed.contains_key(name);
    if is_view || !source.weights.contains_key(name) {
        let goes = is_view || belongs(&source.weights, name);
        return if goes { Vec::new() } else { vec![Output::Copied] };
    }
    let planned = Planned::new(name, Dtype::F32, &source.shape(name, entry));
    let write = move |to: &mut Writer<'_>| write(source, name, to);
    vec![Output::New(vec![planned], Box::new(write))]
}

fn write(source: &Opened, name: &str, to: &mut Writer<'_>) -> Result<()> {
    for chunk in source.floats(name)?.chunks(BLOCK) {
        let bytes: Vec<u8> = chunk.iter().flat_map(|value| value.to_le_bytes()).collect();
        to.write(name, &bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_output_has_no_place_in_the_source() -> Result<()> {
        let header = br#"{"a.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}"#;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header);
        bytes.extend([0; 16]);
        let source = Checkpoint::from_bytes("a.safetensors", bytes)?;
        let full = Error::io("write")(std::io::ErrorKind::StorageFull.into());
        let error = fault(full, &source.opened, "a.weight").to_string();
        assert!(!error.contains("a.weight") && !error.contains("safetensors"), "{error}");
        Ok(())
    }
}
