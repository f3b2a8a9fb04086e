//! What follows a model in a folder of sentence-transformers, as `modules.json` lists it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use candle_core::{Device, Tensor};
use candle_dynquant::{Checkpoint, FusedActivation, nn};
use candle_dynquant_io::keys::Table;
use candle_nn::Module as _;
use serde_json::{Map, Value};

use crate::folder::{optional_text, text};
use crate::functions::normalized;
use crate::json;
use crate::keys::Keys;
use crate::loaded::Loaded;
use crate::tables;

/// A module behind the pooling.
#[derive(Clone, Debug)]
pub(crate) enum Module {
    Dense {
        linear: nn::Linear,
        activation: Option<FusedActivation>,
    },
    LayerNorm(nn::LayerNorm),
    Normalize,
    /// Keeps so many numbers, the first ones.
    Cut(usize),
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
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogitScore {
    /// The token whose logit it is.
    pub yes: u32,
    /// The token whose logit is subtracted.
    pub no: Option<u32>,
}

impl LogitScore {
    pub fn open(dir: &Path) -> Result<Self> {
        let keys = config(dir, &tables::LOGIT_SCORE)?;
        takes(&keys, LOGITS, LOGITS)?;
        let token = |key| keys.optional(key, "a token id");
        let yes = token("true_token_id")?;
        Ok(Self {
            yes: yes.ok_or_else(|| keys.fault("true_token_id", "a token id"))?,
            no: token("false_token_id")?,
        })
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

/// The name of the embedding between modules.
const EMBEDDING: &str = "sentence_embedding";
/// The name of the logits of the next token.
const LOGITS: &str = "causal_logits";
/// The name of a reranker's score.
const SCORES: &str = "scores";
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
        let entries: Vec<Map<String, Value>> = json::parse(&text)
            .with_context(|| format!("{path}: expected the modules of sentence-transformers"))?;
        let mut seen = Vec::new();
        for (index, entry) in entries.into_iter().enumerate() {
            let keys = Keys::flat(&path, entry, &tables::MODULES)?;
            let type_ = keys.word("type")?.unwrap_or_default();
            let own = keys.word("path")?.unwrap_or_default();
            let folder = dir.join(plain(&path, &own)?);
            if seen.contains(&own) {
                return Err(keys.fault("path", "a folder of its own for each module"));
            }
            seen.push(own.clone());
            let name = type_.strip_prefix("sentence_transformers.");
            let name = name.and_then(|name| name.rsplit('.').next());
            let kind = match (index, name.unwrap_or(&type_)) {
                (0, "Transformer") if own.is_empty() => continue,
                (0, "Transformer") => return Err(keys.fault("path", "\"\" for the Transformer")),
                (1, "Pooling") => {
                    modules.pooling = folder.join(CONFIG);
                    continue;
                }
                (1, "LogitScore") => {
                    modules.logit_score = Some(folder);
                    continue;
                }
                (2.., got) if modules.logit_score.is_some() => {
                    bail!("{path}: key \"type\": expected nothing behind LogitScore, got {got:?}")
                }
                (2.., "Dense") => Kind::Dense,
                (2.., "LayerNorm") => Kind::LayerNorm,
                (2.., "Normalize") => Kind::Normalize,
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
            modules.others.push((kind, folder));
        }
        Ok(modules)
    }

    /// The files of modules that decide on answers, weights aside: their folders and
    /// configurations.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        let others = self.others.iter().map(|(_, folder)| &**folder);
        others.chain(self.logit_score.as_deref())
    }

    /// The modules behind a pooling with so many numbers, and whether they end with a score.
    pub fn behind(&self, pooled: usize) -> Result<(Vec<Module>, bool)> {
        let (mut size, mut at) = (pooled, EMBEDDING.to_owned());
        let mut behind = Vec::new();
        for (kind, folder) in &self.others {
            let module = Module::open(*kind, folder, size, &mut at)?;
            size = module.outputs(size);
            ensure!(
                at == EMBEDDING || (at == SCORES && size == 1),
                "{}: key \"module_output_name\": expected {EMBEDDING}, or {SCORES} of 1 number, \
                 got {at:?} of {size}",
                folder.join(CONFIG).display(),
            );
            behind.push(module);
        }
        Ok((behind, at == SCORES))
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
    /// The module of a folder that takes embeddings of so many numbers, by the name that they have.
    fn open(kind: Kind, dir: &Path, inputs: usize, at: &mut String) -> Result<Self> {
        match kind {
            Kind::Normalize => {
                // Releases before 6 write none.
                if dir.join(CONFIG).exists() {
                    *at = takes(&config(dir, &tables::NORMALIZE)?, at, EMBEDDING)?;
                }
                Ok(Self::Normalize)
            }
            Kind::LayerNorm => Self::layer_norm(dir, inputs, at),
            Kind::Dense => Self::dense(dir, inputs, at),
        }
    }

    fn layer_norm(dir: &Path, inputs: usize, at: &str) -> Result<Self> {
        const EPS: f64 = 1e-5;
        let keys = config(dir, &tables::LAYER_NORM)?;
        takes(&keys, at, EMBEDDING)?;
        check(&keys, "dimension", inputs)?;
        let loaded = Loaded::new(Checkpoint::open(dir)?);
        let norm = nn::layer_norm(inputs, EPS, loaded.var_builder().pp("norm"))
            .with_context(|| format!("{}: expected the weights of a layer norm", dir.display()))?;
        loaded.check(&dir.display())?;
        Ok(Self::LayerNorm(norm))
    }

    fn dense(dir: &Path, inputs: usize, at: &mut String) -> Result<Self> {
        let keys = config(dir, &tables::DENSE)?;
        check(&keys, "in_features", inputs)?;
        let outputs = keys.size("out_features")?;
        *at = takes(&keys, at, EMBEDDING)?;
        let key = "activation_function";
        let name = keys.word(key)?;
        let name = name
            .as_deref()
            .unwrap_or("torch.nn.modules.activation.Tanh");
        let name = name
            .strip_prefix("torch.nn.")
            .and_then(|it| it.rsplit('.').next());
        let activation = match name {
            Some("Identity") => None,
            Some("Tanh") => Some(FusedActivation::Tanh),
            Some("ReLU") => Some(FusedActivation::Relu),
            Some("GELU") => Some(FusedActivation::Gelu),
            Some("SiLU") => Some(FusedActivation::Silu),
            Some("Sigmoid") => Some(FusedActivation::Sigmoid),
            _ => {
                let expected = "torch's Identity, Tanh, ReLU, GELU, SiLU or Sigmoid";
                return Err(keys.fault(key, expected));
            }
        };
        let loaded = Loaded::new(Checkpoint::open(dir)?);
        let bias = keys.flag("bias", true)?;
        let linear = nn::linear_b(inputs, outputs, bias, loaded.var_builder().pp("linear"))
            .with_context(|| format!("{}: expected the weights of a dense layer", dir.display()))?;
        loaded.check(&dir.display())?;
        Ok(Self::Dense { linear, activation })
    }

    /// The length of an embedding behind it.
    pub fn outputs(&self, inputs: usize) -> usize {
        match self {
            Self::Dense { linear, .. } => linear.weight().dims()[0],
            Self::LayerNorm(_) | Self::Normalize => inputs,
            Self::Cut(size) => inputs.min(*size),
        }
    }

    /// Of one embedding, so that no other can influence it.
    pub fn apply(&self, mut embedding: Vec<f32>) -> Result<Vec<f32>> {
        let size = embedding.len();
        let xs = |embedding| Tensor::from_vec(embedding, (1, size), &Device::Cpu);
        let ys = match self {
            Self::Normalize => return Ok(normalized(embedding)),
            Self::Cut(size) => {
                embedding.truncate(*size);
                return Ok(embedding);
            }
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

/// The `config.json` of a module, whose keys are all known.
fn config(dir: &Path, table: &Table) -> Result<Keys> {
    let path = dir.join(CONFIG);
    let map = json::parse(&text(&path)?);
    let path = path.display().to_string();
    let map = map.with_context(|| format!("{path}: expected a module of sentence-transformers"))?;
    Keys::flat(&path, map, table)
}

fn check(keys: &Keys, key: &str, inputs: usize) -> Result<()> {
    if keys.size(key)? == inputs {
        return Ok(());
    }
    Err(keys.fault(key, &format!("{inputs}, as many as come in")))
}

/// Checks the name that a module's input has; returns that of its output.
fn takes(keys: &Keys, at: &str, default: &str) -> Result<String> {
    let key = "module_input_name";
    let input = keys.word(key)?.unwrap_or_else(|| default.to_owned());
    if input != at {
        return Err(keys.fault(key, at));
    }
    Ok(keys.word("module_output_name")?.unwrap_or(input))
}
