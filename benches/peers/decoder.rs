//! Decoders in 4 and in 8 bits, with attention in 8.

use std::path::Path;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use candle_core::{DType, Device, Tensor};
use candle_dynquant::ops::Precision;
use candle_dynquant::{Checkpoint, LayerKind, QConfigSpec, checkpoint, quantize_dynamic};
use candle_dynquant_decoder::{Config, Decoder, Folder, GenerationConfig, Generator};
use candle_dynquant_support::weight_bytes;
use serde_json::{Value, json};

use crate::protocol::{Case, Tensors, contender, size, take, text};

/// Models by the names of their contenders.
pub type Models = Vec<(&'static str, Arc<Decoder>)>;

/// The models of a case: of its file, as stored; or of its folder, the first of which is saved.
pub fn models(case: &Value) -> Result<Models> {
    if let Some(file) = case["stored"].as_str() {
        let mut model = Folder::open(Path::new(file), None)?.load()?;
        quantize_dynamic(&mut model, &attention(QConfigSpec::new()))?;
        return Ok(vec![("ours", Arc::new(model))]);
    }
    let folder = Path::new(text(case, "folder")?);
    let source = Checkpoint::open(folder)?;
    let float = load(folder, &source)?;
    let specs = [("ours", QConfigSpec::int4()), ("our int8", QConfigSpec::int8())];
    let mut models = Vec::new();
    for (name, spec) in specs {
        let mut model = float.clone();
        quantize_dynamic(&mut model, &attention(spec))?;
        models.push((name, Arc::new(model)));
    }
    checkpoint::save(&*models[0].1, &source, text(case, "saved")?)?;
    Ok(models)
}

fn attention(spec: QConfigSpec) -> QConfigSpec {
    spec.kind(LayerKind::Attention, Precision::Int8)
}

fn load(folder: &Path, source: &Checkpoint) -> Result<Decoder> {
    let config = Config::read(&folder.join("config.json"))?;
    Decoder::load(&config, source.var_builder(DType::F32, &Device::Cpu))
}

/// The scores after the last of `ids`, which follow `before`; or after each of `ids`; or the tokens
/// of a text behind `ids`.
pub fn decoder(case: &Value, models: &Models, mut tensors: Tensors) -> Result<Case> {
    let ids = take(&mut tensors, "ids")?;
    if case["write"] != 0 {
        let prompt = ids.flatten_all()?.to_dtype(DType::U32)?.to_vec1()?;
        return writers(case, models, &prompt);
    }
    let before = tensors.remove("before");
    let every = case["every"] == true;
    let mut found = Case::default();
    for (name, model) in models {
        let mut cache = model.cache();
        if let Some(before) = &before {
            model.next(before, &mut cache)?;
        }
        let (start, cache) = (cache.len(), Mutex::new(cache));
        let (model, ids) = (model.clone(), ids.clone());
        let call = move || {
            let mut cache = cache.lock().expect("no panic");
            let scores = if every {
                model.all(&ids, &mut cache)?
            } else {
                model.next(&ids, &mut cache)?.unsqueeze(1)?
            };
            cache.truncate(start);
            Ok(scores)
        };
        found.contenders.push((name, contender(call)));
    }
    Ok(found)
}

/// The most likely tokens behind a prompt, with guesses and without.
fn writers(case: &Value, models: &Models, prompt: &[u32]) -> Result<Case> {
    let mut folder = Folder::open(Path::new(text(case, "file")?), None)?;
    folder.ends.clear();
    // For as long as the process, which has few cases.
    let folder: &Folder = Box::leak(Box::new(folder));
    let config =
        GenerationConfig { max_tokens: size(case, "write")?, ..GenerationConfig::default() };
    let mut found = Case::default();
    for ((name, plain), (_, model)) in
        [("ours", "our int4, no guesses"), ("our int8", "our int8, no guesses")]
            .into_iter()
            .zip(models)
    {
        let decoder: &Decoder = Box::leak(Box::new(Decoder::clone(model)));
        let generator: &Generator<'_> = Box::leak(Box::new(Generator::new(decoder, folder)?));
        for (name, drafts) in [(name, config.drafts), (plain, 0)] {
            let prompt = prompt.to_vec();
            let config = GenerationConfig { drafts, ..config };
            let call = move || {
                let pieces = generator.generate(&prompt, &config)?;
                let tokens = pieces.map(|piece| Ok(piece?.token as f32));
                let tokens = tokens.collect::<Result<Vec<_>>>()?;
                Ok(Tensor::new(tokens, &Device::Cpu)?)
            };
            found.contenders.push((name, contender(call)));
        }
    }
    Ok(found)
}

/// Answers `{"op": "memory", "folder": .., "sequences": .., "tokens": ..}`, in a process that has
/// done nothing else: bytes that are resident once the model of the folder has read that many
/// tokens, and bytes of its weights, keys and values.
pub fn memory(request: &Value) -> Result<Value> {
    let folder = Path::new(text(request, "folder")?);
    let model = load(folder, &Checkpoint::open(folder)?)?;
    let (sequences, tokens) = (size(request, "sequences")?, size(request, "tokens")?);
    let ids = Tensor::ones((sequences, tokens), DType::U32, &Device::Cpu)?;
    let mut cache = model.cache();
    model.next(&ids, &mut cache)?;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kb = line.and_then(|line| line.split_whitespace().next());
    let kb: usize = kb.context("no VmRSS")?.parse()?;
    Ok(
        json!({ "resident": 1024 * kb, "weights": weight_bytes(&model, |_| true)?, "cache": cache.bytes() }),
    )
}
