//! The dense layers of sentence-transformers behind the pooling, which `modules.json` names.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device, Tensor};
use candle_dynquant::{Checkpoint, nn};
use candle_nn::Module;
use serde::Deserialize;

use crate::config;
use crate::folder::{MODULES, optional_text, text};

/// A layer that embeddings go through.
#[derive(Clone, Debug)]
pub(crate) struct Dense {
    linear: nn::Linear,
    activation: Activation,
}

/// The name of the embedding between modules.
const EMBEDDING: &str = "sentence_embedding";

#[derive(Clone, Copy, Debug)]
enum Activation {
    Identity,
    Tanh,
    Relu,
    Gelu,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    type_: String,
    path: String,
}

#[derive(Deserialize)]
struct File {
    in_features: usize,
    out_features: usize,
    #[serde(default = "yes")]
    bias: bool,
    activation_function: Option<String>,
    /// The name of its input, since release 6.
    module_input_name: Option<String>,
}

fn yes() -> bool {
    true
}

/// The folders of the dense layers, in order; none without `modules.json`.
pub(crate) fn folders(dir: &Path) -> Result<Vec<PathBuf>> {
    let path = dir.join(MODULES);
    let Some(text) = optional_text(&path)? else {
        return Ok(Vec::new());
    };
    let path = path.display();
    let entries: Vec<Entry> = config::parse(&text)
        .with_context(|| format!("{path}: expected the modules of sentence-transformers"))?;
    let (mut found, mut normalized) = (Vec::new(), false);
    for Entry { type_, path: own } in entries {
        match type_.rsplit('.').next().unwrap_or(&type_) {
            "Transformer" | "Pooling" => {}
            "Normalize" => normalized = true,
            "Dense" => {
                let plain = Path::new(&own)
                    .file_name()
                    .is_some_and(|name| name == &*own);
                ensure!(
                    plain,
                    "{path}: key \"path\": expected the name of a folder, got {own:?}"
                );
                ensure!(
                    !normalized,
                    "{path}: expected Normalize behind {own:?}, got it before"
                );
                found.push(dir.join(own));
            }
            got => bail!(
                "{path}: key \"type\": expected Transformer, Pooling, Dense or Normalize, got {got:?}"
            ),
        }
    }
    Ok(found)
}

impl Dense {
    /// The layer of a folder, which takes embeddings of so many numbers.
    pub fn open(dir: &Path, inputs: usize) -> Result<Self> {
        let path = dir.join("config.json");
        let file: File = config::parse(&text(&path)?).with_context(|| {
            format!(
                "{}: expected the dense layer of sentence-transformers",
                path.display()
            )
        })?;
        let path = path.display();
        ensure!(
            file.in_features == inputs,
            "{path}: key \"in_features\": expected {inputs}, as many as come in, got {}",
            file.in_features
        );
        ensure!(
            file.out_features > 0,
            "{path}: key \"out_features\": expected a positive number, got 0"
        );
        let input = file.module_input_name.as_deref().unwrap_or(EMBEDDING);
        ensure!(
            input == EMBEDDING,
            "{path}: key \"module_input_name\": expected {EMBEDDING}, got {input:?}"
        );
        let name = file.activation_function.as_deref().unwrap_or("Tanh");
        let activation = match name.rsplit('.').next().unwrap_or(name) {
            "Identity" => Activation::Identity,
            "Tanh" => Activation::Tanh,
            "ReLU" => Activation::Relu,
            "GELU" => Activation::Gelu,
            got => bail!(
                "{path}: key \"activation_function\": expected Identity, Tanh, ReLU or GELU, got {got:?}"
            ),
        };
        let vb = Checkpoint::open(dir)?.var_builder(DType::F32, &Device::Cpu);
        let linear = nn::linear_b(inputs, file.out_features, file.bias, vb.pp("linear"))
            .with_context(|| format!("{}: expected the weights of a dense layer", dir.display()))?;
        Ok(Self { linear, activation })
    }

    /// The length of an embedding behind it.
    pub fn outputs(&self) -> usize {
        self.linear.weight().dims()[0]
    }

    /// Of one embedding, so that no other can influence it.
    pub fn apply(&self, embedding: Vec<f32>) -> Result<Vec<f32>> {
        let size = embedding.len();
        let xs = Tensor::from_vec(embedding, (1, size), &Device::Cpu)?;
        let ys = self.linear.forward(&xs)?;
        let ys = match self.activation {
            Activation::Identity => ys,
            Activation::Tanh => ys.tanh()?,
            Activation::Relu => ys.relu()?,
            Activation::Gelu => ys.gelu_erf()?,
        };
        Ok(ys.flatten_all()?.to_vec1()?)
    }
}
