//! candle-transformers' Llama, of GGUF files.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use anyhow::Result;
use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Content;
use candle_core::{Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use serde_json::Value;

use crate::gguf::Float;
use crate::protocol::{Case, Tensors, contender, take, text};

const FORMATS: [(&str, GgmlDType, &str); 4] = [
    ("Q4_0", GgmlDType::Q4_0, "candle Q4_0"),
    ("Q4_1", GgmlDType::Q4_1, "candle Q4_1"),
    ("Q4_K", GgmlDType::Q4K, "candle Q4_K"),
    ("Q8_0", GgmlDType::Q8_0, "candle Q8_0"),
];

/// The most tokens of a prompt.
const MAX_PROMPT: usize = 512;

/// Models by the names of their contenders.
pub type Models = Vec<(&'static str, Arc<ModelWeights>)>;

/// The models of a case's files, which llama.cpp reads too. Missing files are written.
pub fn models(case: &Value) -> Result<Models> {
    let mut files = Vec::new();
    for (key, dtype, name) in FORMATS {
        if let Some(path) = case["files"][key].as_str() {
            files.push((Path::new(path), dtype, name));
        }
    }
    let mut missing = files.clone();
    missing.retain(|(path, ..)| !path.exists());
    if !missing.is_empty() {
        let float = Float::read(Path::new(text(case, "folder")?))?;
        let float = &float;
        thread::scope(|scope| {
            let write = |(path, dtype, _)| scope.spawn(move || float.write(dtype, path));
            let writers: Vec<_> = missing.into_iter().map(write).collect();
            let mut writers = writers.into_iter();
            writers.try_for_each(|writer| writer.join().expect("no panic"))
        })?;
    }
    let read = |(path, _, name): (&Path, _, _)| {
        let mut file = BufReader::new(File::open(path)?);
        let content = Content::read(&mut file)?;
        let model = ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
        Ok((name, Arc::new(model)))
    };
    files.into_iter().map(read).collect()
}

/// The scores after the last of `ids`, which follow `before`; or after each of `ids` in turn.
pub fn decoder(case: &Value, models: &Models, mut tensors: Tensors) -> Result<Case> {
    let ids = take(&mut tensors, "ids")?;
    // A text is its tokens one by one, as timed; a long prompt takes minutes.
    if case["write"] != 0 || ids.dim(1)? > MAX_PROMPT {
        return Ok(Case::default());
    }
    let before = tensors.remove("before");
    let start = before.as_ref().map_or(Ok(0), |before| before.dim(1))?;
    let mut found = Case::default();
    for (name, model) in models {
        // A copy shares weights, keys and values: each call starts after `before`.
        let mut model = ModelWeights::clone(model);
        if case["every"] == true {
            found.outputs.push((name, every(&mut model, &ids)?));
            continue;
        }
        match &before {
            Some(before) if before.dim(0)? == 1 => drop(model.forward(before, 0)?),
            // candle refuses several sequences of several tokens: "input tensor is not contiguous".
            Some(before) => drop(every(&mut model, before)?),
            None => {}
        }
        let ids = ids.clone();
        let call = move || Ok(model.clone().forward(&ids, start)?.unsqueeze(1)?);
        found.contenders.push((name, contender(call)));
    }
    Ok(found)
}

fn every(model: &mut ModelWeights, ids: &Tensor) -> Result<Tensor> {
    let step = |at| model.forward(&ids.narrow(1, at, 1)?, at);
    let scores: Vec<_> = (0..ids.dim(1)?).map(step).collect::<candle_core::Result<_>>()?;
    Ok(Tensor::stack(&scores, 1)?)
}
