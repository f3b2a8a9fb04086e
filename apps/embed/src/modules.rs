//! What follows a model in a folder of sentence-transformers, as `modules.json` lists it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device, Tensor};
use candle_dynquant::{Checkpoint, FusedActivation, nn};
use candle_nn::Module as _;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::folder::{optional_text, text};
use crate::functions::normalized;
use crate::json;

/// A module behind the pooling.
#[derive(Clone, Debug)]
pub(crate) enum Module {
    Dense {
        linear: nn::Linear,
        activation: Option<FusedActivation>,
    },
    LayerNorm(nn::LayerNorm),
    Normalize,
}

/// The modules of a folder, with the folders of their own.
pub(crate) struct Modules {
    /// The configuration of the pooling.
    pub pooling: PathBuf,
    /// Those behind it, in order.
    pub others: Vec<(Kind, PathBuf)>,
    /// In place of both, for a reranker that writes texts.
    pub logit_score: Option<PathBuf>,
}

/// A score from the logits of the next token, as sentence-transformers' `LogitScore` has it.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct LogitScore {
    /// The token whose logit it is.
    #[serde(rename = "true_token_id")]
    pub yes: u32,
    /// The token whose logit is subtracted.
    #[serde(rename = "false_token_id")]
    pub no: Option<u32>,
}

impl LogitScore {
    pub fn open(dir: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct File {
            #[serde(flatten)]
            score: LogitScore,
            module_input_name: Option<String>,
        }
        let path = dir.join(CONFIG);
        let file: File = config(&path, "the tokens of a score")?;
        takes(&path, LOGITS, file.module_input_name.as_deref())?;
        Ok(file.score)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Dense,
    LayerNorm,
    Normalize,
}

impl Kind {
    /// Whether its folder has weights.
    #[cfg(feature = "hub")]
    pub fn has_weights(self) -> bool {
        self != Self::Normalize
    }
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    type_: String,
    path: String,
}

/// The name of the embedding between modules.
const EMBEDDING: &str = "sentence_embedding";
/// Of the logits of the next token.
const LOGITS: &str = "causal_logits";
/// Which modules follow the model.
pub(crate) const MODULES: &str = "modules.json";
const CONFIG: &str = "config.json";

impl Modules {
    /// Of a folder, which without `modules.json` has a pooling in its usual place, or none.
    pub fn read(dir: &Path) -> Result<Self> {
        let mut modules = Self {
            pooling: dir.join("1_Pooling").join(CONFIG),
            others: Vec::new(),
            logit_score: None,
        };
        let path = dir.join(MODULES);
        let Some(text) = optional_text(&path)? else {
            return Ok(modules);
        };
        let path = path.display().to_string();
        let entries: Vec<Entry> = json::parse(&text)
            .with_context(|| format!("{path}: expected the modules of sentence-transformers"))?;
        for (index, Entry { type_, path: own }) in entries.into_iter().enumerate() {
            let name = type_.rsplit('.').next().unwrap_or(&type_);
            let kind = match (index, name) {
                (0, "Transformer") => None,
                (1, "Pooling") => None,
                (1, "LogitScore") => {
                    modules.logit_score = Some(dir.join(plain(&path, &own)?));
                    continue;
                }
                (2.., got) if modules.logit_score.is_some() => {
                    bail!("{path}: key \"type\": expected nothing behind LogitScore, got {got:?}")
                }
                (2.., "Dense") => Some(Kind::Dense),
                (2.., "LayerNorm") => Some(Kind::LayerNorm),
                (2.., "Normalize") => Some(Kind::Normalize),
                // It does nothing but in training.
                (2.., "Dropout") => continue,
                (0 | 1, got) => {
                    bail!(
                        "{path}: key \"type\": expected Transformer, then Pooling or LogitScore, got {got:?}"
                    )
                }
                (_, got) => bail!(
                    "{path}: key \"type\": expected Dense, LayerNorm, Normalize or Dropout behind \
                     Transformer and Pooling, got {got:?}"
                ),
            };
            let folder = dir.join(plain(&path, &own)?);
            match kind {
                Some(kind) => modules.others.push((kind, folder)),
                None if index == 1 => modules.pooling = folder.join(CONFIG),
                None => ensure!(
                    own.is_empty(),
                    "{path}: key \"path\": expected \"\" for the Transformer, got {own:?}"
                ),
            }
        }
        Ok(modules)
    }

    /// The files of modules that decide on answers, weights aside: their folders and
    /// configurations.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        let others = self.others.iter().map(|(_, folder)| &**folder);
        others.chain(self.logit_score.as_deref())
    }
}

/// A path within the folder, of one name at most.
fn plain<'a>(path: &str, own: &'a str) -> Result<&'a str> {
    let is_name = Path::new(own).file_name().is_some_and(|name| name == own);
    ensure!(
        own.is_empty() || is_name,
        "{path}: key \"path\": expected the name of a folder, got {own:?}"
    );
    Ok(own)
}

impl Module {
    /// The module of a folder that takes embeddings of so many numbers.
    pub fn open(kind: Kind, dir: &Path, inputs: usize) -> Result<Self> {
        match kind {
            Kind::Normalize => Self::normalize(dir),
            Kind::LayerNorm => Self::layer_norm(dir, inputs),
            Kind::Dense => Self::dense(dir, inputs),
        }
    }

    fn normalize(dir: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct File {
            module_input_name: Option<String>,
        }
        let path = dir.join(CONFIG);
        if path.exists() {
            let file: File = config(&path, "a normalization")?;
            takes(&path, EMBEDDING, file.module_input_name.as_deref())?;
        }
        Ok(Self::Normalize)
    }

    fn layer_norm(dir: &Path, inputs: usize) -> Result<Self> {
        #[derive(Deserialize)]
        struct File {
            dimension: usize,
        }
        const EPS: f64 = 1e-5;
        let path = dir.join(CONFIG);
        let file: File = config(&path, "a layer norm")?;
        check(&path, "dimension", inputs, file.dimension)?;
        let vb = Checkpoint::open(dir)?.var_builder(DType::F32, &Device::Cpu);
        let norm = nn::layer_norm(inputs, EPS, vb.pp("norm"))
            .with_context(|| format!("{}: expected the weights of a layer norm", dir.display()))?;
        Ok(Self::LayerNorm(norm))
    }

    fn dense(dir: &Path, inputs: usize) -> Result<Self> {
        #[derive(Deserialize)]
        struct File {
            in_features: usize,
            out_features: usize,
            bias: Option<bool>,
            activation_function: Option<String>,
            /// The name of its input, since release 6.
            module_input_name: Option<String>,
        }
        let path = dir.join(CONFIG);
        let file: File = config(&path, "a dense layer")?;
        check(&path, "in_features", inputs, file.in_features)?;
        ensure!(
            file.out_features > 0,
            "{}: key \"out_features\": expected a positive number, got 0",
            path.display(),
        );
        takes(&path, EMBEDDING, file.module_input_name.as_deref())?;
        let name = file.activation_function.as_deref().unwrap_or("Tanh");
        let activation = match name.rsplit('.').next().unwrap_or(name) {
            "Identity" => None,
            "Tanh" => Some(FusedActivation::Tanh),
            "ReLU" => Some(FusedActivation::Relu),
            "GELU" => Some(FusedActivation::Gelu),
            "SiLU" => Some(FusedActivation::Silu),
            "Sigmoid" => Some(FusedActivation::Sigmoid),
            got => bail!(
                "{}: key \"activation_function\": expected Identity, Tanh, ReLU, GELU, SiLU or \
                 Sigmoid, got {got:?}",
                path.display(),
            ),
        };
        let vb = Checkpoint::open(dir)?.var_builder(DType::F32, &Device::Cpu);
        let bias = file.bias.unwrap_or(true);
        let linear = nn::linear_b(inputs, file.out_features, bias, vb.pp("linear"))
            .with_context(|| format!("{}: expected the weights of a dense layer", dir.display()))?;
        Ok(Self::Dense { linear, activation })
    }

    /// The length of an embedding behind it.
    pub fn outputs(&self, inputs: usize) -> usize {
        match self {
            Self::Dense { linear, .. } => linear.weight().dims()[0],
            Self::LayerNorm(_) | Self::Normalize => inputs,
        }
    }

    /// Of one embedding, so that no other can influence it.
    pub fn apply(&self, embedding: Vec<f32>) -> Result<Vec<f32>> {
        let size = embedding.len();
        let xs = |embedding| Tensor::from_vec(embedding, (1, size), &Device::Cpu);
        let ys = match self {
            Self::Normalize => return Ok(normalized(embedding)),
            Self::LayerNorm(norm) => norm.forward(&xs(embedding)?)?,
            Self::Dense { linear, activation } => {
                let ys = linear.forward(&xs(embedding)?)?;
                match activation {
                    None => ys,
                    // candle's own functions, whose bits have been those of answers before.
                    Some(FusedActivation::Tanh) => ys.tanh()?,
                    Some(FusedActivation::Relu) => ys.relu()?,
                    Some(FusedActivation::Gelu) => ys.gelu_erf()?,
                    Some(other) => other.forward(&ys)?,
                }
            }
        };
        Ok(ys.flatten_all()?.to_vec1()?)
    }
}

fn config<T: DeserializeOwned>(path: &Path, what: &str) -> Result<T> {
    let expected = || {
        format!(
            "{}: expected {what} of sentence-transformers",
            path.display()
        )
    };
    json::parse(&text(path)?).with_context(expected)
}

fn check(path: &Path, key: &str, inputs: usize, got: usize) -> Result<()> {
    ensure!(
        got == inputs,
        "{}: key {key:?}: expected {inputs}, as many as come in, got {got}",
        path.display(),
    );
    Ok(())
}

fn takes(path: &Path, expected: &str, input: Option<&str>) -> Result<()> {
    let input = input.unwrap_or(expected);
    ensure!(
        input == expected,
        "{}: key \"module_input_name\": expected {expected}, got {input:?}",
        path.display(),
    );
    Ok(())
}
