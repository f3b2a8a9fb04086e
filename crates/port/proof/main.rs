//! Small random models of candle-transformers before and after `dynquant port`: the float port
//! against the original, the quantized port against the float port, the swapped layers, whether a
//! saved model answers the same, and the times of all, in turns. Prints a row of JSON for each
//! model.

mod random;
mod size;
mod turns;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use candle_dynquant::{Checkpoint, checkpoint};
use candle_dynquant_io::print;
use candle_dynquant_support::bert::{Batch, Bert, Config};
use serde_json::json;

use random::{Asked, Named};
use size::Size;
use turns::Run;

/// The layers of a model, as quantizing reports them.
pub struct Found {
    pub found: usize,
    pub swapped: usize,
    /// The layers that are left and the fields that may hold layers.
    pub named: usize,
    /// The matrices that the report accounts for, by their names in the checkpoint.
    pub accounted: BTreeSet<String>,
}

/// Wraps a model to be run repeatedly.
fn run<'a>(mut forward: impl FnMut() -> candle_core::Result<Tensor> + 'a) -> Run<'a> {
    Box::new(move || Ok(forward()?))
}

/// The configuration of a model.
fn config<C: serde::de::DeserializeOwned>(json: serde_json::Value) -> Result<C> {
    Ok(serde_json::from_value(json)?)
}

mod original_models {
    use original::models;
    macro_rules! quantize {
        ($model:expr, $then:expr) => {{
            let _ = (&mut $model, $then);
            None
        }};
    }
    include!("models.rs");
}

mod ported_models {
    use ported::models;
    macro_rules! quantize {
        ($model:expr, $then:expr) => {
            super::quantized(&mut $model, $then)?
        };
    }
    include!("models.rs");
}

/// What to do with a model once it is loaded.
#[derive(Clone, Copy)]
pub enum Then<'a> {
    Nothing,
    Quantize,
    /// Quantizes embeddings too, since a tied head is saved with its table.
    Save(&'a Checkpoint, &'a Path),
}

fn quantized<M: candle_dynquant::Quantizable>(
    model: &mut M,
    then: Then<'_>,
) -> Result<Option<Found>> {
    let mut spec = candle_dynquant::QConfigSpec::int8();
    match then {
        Then::Nothing => return Ok(None),
        Then::Quantize => {}
        Then::Save(source, out) => {
            spec = spec.embeddings();
            candle_dynquant::quantize_dynamic(model, &spec)?;
            checkpoint::save(model, source, out)?;
            return Ok(None);
        }
    }
    let report = candle_dynquant::quantize_dynamic(model, &spec)?;
    if std::env::var_os("PROOF_REPORT").is_some() {
        print::note(&report);
    }
    let swapped = report.swapped().count();
    let left = report.left().count();
    let layers = report.layers.iter();
    Ok(Some(Found {
        found: swapped + left,
        swapped,
        named: left + report.hidden.len(),
        accounted: layers.filter_map(|layer| layer.checkpoint_name.clone()).collect(),
    }))
}

const MODELS: &[&str] = &[
    "bert",
    "distilbert",
    "xlm_roberta",
    "modernbert",
    "debertav2",
    "t5",
    "marian",
    "whisper",
    "vit",
    "dinov2",
    "clip/text_model",
    "openclip/text_model",
    "clip/vision_model",
    "siglip",
    "segformer",
    "segment_anything/image_encoder",
    "segment_anything/tiny_vit",
    "wuerstchen/paella_vq",
    "depth_anything_v2",
    "efficientnet",
    "resnet",
    "convnext",
    "repvgg",
    "mobileone",
    "mimi/transformer",
    "mimi/encodec",
    "llama",
    "tied_llama",
    "qwen2",
    "mixtral",
    "phi",
    "encodec",
    "snac",
    "dac",
];

/// Compares the port's outputs with the original's.
fn check(name: &str) -> Result<serde_json::Value> {
    let size = Size::small();
    let (mut original, _) = original_models::build(name, size, Named::vb(), Then::Nothing)?;
    let (mut float, _) = ported_models::build(name, size, Named::vb(), Then::Nothing)?;
    let (vb, asked) = Named::counted();
    let (mut int8, found) = ported_models::build(name, size, vb, Then::Quantize)?;
    let found = found.ok_or_else(|| anyhow::anyhow!("not quantized"))?;
    let (difference, largest, sqnr) = random::compared(&original()?, &float()?, &int8()?)?;
    let saved = match saved(name, size, &asked) {
        Ok(same) => json!(same),
        Err(error) => json!(format!("{error:#}").lines().next()),
    };
    let asked = asked.lock().map_err(|_| anyhow::anyhow!("poisoned"))?;
    let matrices: Vec<_> =
        asked.iter().filter(|(_, dims)| dims.len() == 2).map(|(name, _)| name).collect();
    let silent: Vec<_> = matrices
        .iter()
        .filter(|name| {
            let layer = name.rsplit_once('.').map_or("", |(layer, _)| layer);
            !found.accounted.contains(layer)
        })
        .collect();
    Ok(json!({
        "model": name, "found": found.found, "swapped": found.swapped, "named": found.named,
        "matrices": matrices.len(), "silent": silent,
        "float_difference": difference, "largest": largest, "sqnr_db": sqnr, "saved": saved,
    }))
}

/// Whether the quantized model gives the same bits after it is written as a checkpoint and read
/// back by its `load`.
fn saved(name: &str, size: &Size, asked: &Asked) -> Result<bool> {
    let dir = tempfile::tempdir()?;
    let [float, int8] = ["float", "int8"].map(|name| dir.path().join(name));
    random::write(asked, &float)?;
    let source = Checkpoint::open(&float)?;
    let load = |checkpoint: &Checkpoint, then: Then<'_>| -> Result<Vec<u32>> {
        let vb = checkpoint.var_builder(DType::F32, &Device::Cpu);
        let ys = ported_models::build(name, size, vb, then)?.0()?;
        let ys = ys.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>()?;
        Ok(ys.into_iter().map(f32::to_bits).collect())
    };
    let before = load(&source, Then::Save(&source, &int8))?;
    std::fs::remove_file(&float)?;
    drop(source);
    let int8 = Checkpoint::open(&int8)?;
    anyhow::ensure!(int8.tensors().any(|tensor| tensor.quantized), "all is float");
    Ok(load(&int8, Then::Nothing)? == before)
}

/// The milliseconds of the original, of the port in f32 and in int8, and for BERT of the model in
/// examples/bert, written by hand for speed, in int8.
fn time(name: &str, size: &Size) -> Result<serde_json::Value> {
    let (original, _) = original_models::build(name, size, Named::vb(), Then::Nothing)?;
    let (float, _) = ported_models::build(name, size, Named::vb(), Then::Nothing)?;
    let (int8, _) = ported_models::build(name, size, Named::vb(), Then::Quantize)?;
    let mut runs = vec![original, float, int8];
    if name == "bert" {
        runs.push(by_hand(size)?);
    }
    let times = turns::medians(runs)?;
    Ok(json!({
        "size": size.name, "original_ms": times[0], "float_ms": times[1], "int8_ms": times[2],
        "by_hand_ms": times.get(3),
    }))
}

fn by_hand(size: &Size) -> Result<Run<'static>> {
    let config = Config {
        vocab_size: size.vocab,
        hidden_size: size.hidden,
        num_hidden_layers: size.layers,
        num_attention_heads: size.heads,
        intermediate_size: size.inner,
        max_position_embeddings: 512,
        type_vocab_size: 2,
        layer_norm_eps: 1e-12,
        hidden_act: candle_dynquant::FusedActivation::Gelu,
        pad_token_id: 0,
        labels: Vec::new(),
        says_classifier: false,
    };
    let mut model = Bert::load(&config, false, Named::vb())?;
    candle_dynquant::quantize_dynamic(&mut model, &candle_dynquant::QConfigSpec::int8())?;
    let batch = Batch { ids: size.ids(size.len)?, mask: size.mask()?.to_dtype(DType::F32)? };
    Ok(run(move || model.hidden(&batch)))
}

/// `proof [--size NAME] [MODEL..]`: all models if none is named.
fn main() -> Result<()> {
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    let mut size = Size::named("minilm")?;
    if let Some(at) = names.iter().position(|name| name == "--size") {
        anyhow::ensure!(at + 1 < names.len(), "--size wants a name");
        size = Size::named(&names[at + 1])?;
        names.drain(at..at + 2);
    }
    if names.is_empty() {
        names = MODELS.iter().map(|name| (*name).to_owned()).collect();
    }
    for name in &names {
        let row = check(name).and_then(|mut row| {
            let times = time(name, &size)?;
            if let (Some(row), Some(times)) = (row.as_object_mut(), times.as_object()) {
                row.extend(times.clone());
            }
            Ok(row)
        });
        print::data(row.unwrap_or_else(|e| json!({"model": name, "error": format!("{e:#}")})))?;
    }
    Ok(())
}
