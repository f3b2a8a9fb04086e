//! The modules after a model in a folder of sentence-transformers, listed in `modules.json`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use candle_core::{Device, Tensor};
use candle_dynquant::{Checkpoint, FusedActivation, nn};
use candle_dynquant_io::keys::Table;
use candle_nn::Module as _;
use serde_json::{Map, Value};

use crate::files::{optional_text, text};
use crate::functions::normalized;
use crate::json;
use crate::keys::Keys;
use crate::loaded::Loaded;
use crate::sentence::Sentence;
use crate::tables;

/// A module after the pooling.
#[derive(Clone, Debug)]
pub(crate) enum Module {
    Dense {
        linear: nn::Linear,
        activation: Option<FusedActivation>,
    },
    LayerNorm(nn::LayerNorm),
    Normalize,
    /// Keeps this many leading numbers.
    Cut(usize),
}

/// The modules of a folder, with their folders.
pub(crate) struct Modules {
    /// The folder of a table of words in place of the Transformer and the pooling.
    pub static_embedding: Option<PathBuf>,
    /// The configuration of the pooling.
    pub pooling: PathBuf,
    /// Whether the pooling is SPLADE's.
    pub is_splade: bool,
    /// Whether the model's module always has a head that guesses words.
    guesses_words: bool,
    /// Whether `modules.json` lists the pooling, whose configuration then exists.
    pub lists_pooling: bool,
    /// The file that lists modules without a pooling.
    lacks_pooling: Option<String>,
    /// The modules after the pooling, in order.
    pub others: Vec<(Kind, PathBuf)>,
    /// The score that replaces both, in a reranker that writes texts.
    pub logit_score: Option<PathBuf>,
}

/// A score from the logits of the next token, as in `LogitScore` of sentence-transformers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogitScore {
    /// The token whose logit is the score.
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
    /// Whether the module's folder has weights.
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
/// The file that lists the modules after the model.
pub(crate) const MODULES: &str = "modules.json";
const CONFIG: &str = "config.json";

impl Modules {
    /// The modules of a folder; without `modules.json`, a pooling in its usual place, or none.
    pub fn read(dir: &Path) -> Result<Self> {
        let mut modules = Self {
            static_embedding: None,
            pooling: dir.join("1_Pooling").join(CONFIG),
            is_splade: false,
            guesses_words: false,
            lists_pooling: false,
            lacks_pooling: None,
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
        modules.lacks_pooling = Some(path.clone());
        for (index, entry) in entries.into_iter().enumerate() {
            let keys = Keys::flat(&path, entry, &tables::MODULES)?;
            let type_ = keys.word("type")?.unwrap_or_default();
            let subfolder = keys.word("path")?.filter(|path| path != ".");
            let subfolder = subfolder.unwrap_or_default();
            let folder = dir.join(plain(&path, &subfolder)?);
            if seen.contains(&subfolder) {
                return Err(keys.fault("path", "a separate folder for each module"));
            }
            seen.push(subfolder.clone());
            let name = type_.strip_prefix("sentence_transformers.");
            let name = name.and_then(|name| name.rsplit('.').next());
            let place = index + usize::from(modules.static_embedding.is_some());
            let kind = match (place, name.unwrap_or(&type_)) {
                (0, "StaticEmbedding") => {
                    modules.static_embedding = Some(folder);
                    modules.lacks_pooling = None;
                    continue;
                }
                (0, "Transformer" | "MLMTransformer") => {
                    if !subfolder.is_empty() {
                        return Err(keys.fault("path", "\"\" for the Transformer"));
                    }
                    modules.guesses_words = type_.ends_with("MLMTransformer");
                    continue;
                }
                (1, pooling @ ("Pooling" | "SpladePooling")) => {
                    modules.is_splade = pooling == "SpladePooling";
                    modules.pooling = folder.join(CONFIG);
                    modules.lists_pooling = true;
                    modules.lacks_pooling = None;
                    continue;
                }
                (1, "LogitScore") => {
                    modules.logit_score = Some(folder);
                    modules.lacks_pooling = None;
                    continue;
                }
                (2.., got) if modules.logit_score.is_some() => {
                    bail!("{path}: key \"type\": expected nothing behind LogitScore, got {got:?}")
                }
                (2.., got) if modules.is_splade => {
                    bail!(
                        "{path}: key \"type\": expected nothing behind SpladePooling, got {got:?}"
                    )
                }
                (2.., "Dense") => Kind::Dense,
                (2.., "LayerNorm") => Kind::LayerNorm,
                (2.., "Normalize") => Kind::Normalize,
                // Dropout has no effect outside of training.
                (2.., "Dropout") => continue,
                (0 | 1, got) => {
                    bail!(
                        "{path}: key \"type\": expected Transformer, then Pooling, SpladePooling or \
                         LogitScore, or StaticEmbedding, got {got:?}"
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

    /// Checks that listed modules include one that makes an answer of the tokens' vectors.
    pub fn check(&self, sentence: &Sentence) -> Result<()> {
        ensure!(
            sentence.has_classes || self.lacks_pooling.is_none(),
            "{}: expected Transformer, then Pooling or LogitScore, got no second module",
            self.lacks_pooling.as_deref().unwrap_or_default(),
        );
        ensure!(
            self.is_splade == (self.guesses_words || sentence.guesses_words),
            "{}: expected transformer_task fill-mask with SpladePooling, and no other pooling with it",
            self.pooling.display(),
        );
        Ok(())
    }

    /// The folders of modules, whose configurations and weights determine answers.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        let others = self.others.iter().map(|(_, folder)| &**folder);
        let alone = self.static_embedding.as_deref();
        others.chain(self.logit_score.as_deref()).chain(alone)
    }

    /// The modules after a pooling with `pooled` numbers, and whether they end with a score.
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

/// The folder of a model: below `dir` of a CLIP model that sentence-transformers wrote, else `dir`.
pub(crate) fn model_folder(dir: &Path) -> Result<PathBuf> {
    let path = dir.join(MODULES);
    let entries = optional_text(&path)?.map(|text| json::parse(&text));
    let entries: Vec<Map<String, Value>> = entries
        .transpose()
        .with_context(|| {
            format!(
                "{}: expected the modules of sentence-transformers",
                path.display()
            )
        })?
        .unwrap_or_default();
    let [entry] = entries.as_slice() else {
        return Ok(dir.to_owned());
    };
    let keys = Keys::flat(&path.display().to_string(), entry.clone(), &tables::MODULES)?;
    let is_clip = keys
        .word("type")?
        .is_some_and(|it| it.ends_with(".CLIPModel"));
    if !is_clip {
        return Ok(dir.to_owned());
    }
    let subfolder = keys.word("path")?.unwrap_or_default();
    Ok(dir.join(plain(&path.display().to_string(), &subfolder)?))
}

/// A path within the folder, of at most one component.
fn plain<'a>(path: &str, subfolder: &'a str) -> Result<&'a str> {
    let is_name = Path::new(subfolder)
        .file_name()
        .is_some_and(|name| name == subfolder);
    ensure!(
        subfolder.is_empty() || is_name,
        "{path}: key \"path\": expected the name of a folder, got {subfolder:?}"
    );
    Ok(subfolder)
}

impl Module {
    /// Opens the module of a folder for embeddings of `inputs` numbers under the name `at`.
    fn open(kind: Kind, dir: &Path, inputs: usize, at: &mut String) -> Result<Self> {
        match kind {
            Kind::Normalize => {
                // Releases before 6 write no configuration.
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

    /// The length of an embedding after the module.
    pub fn outputs(&self, inputs: usize) -> usize {
        match self {
            Self::Dense { linear, .. } => linear.weight().dims()[0],
            Self::LayerNorm(_) | Self::Normalize => inputs,
            Self::Cut(size) => inputs.min(*size),
        }
    }

    /// Applies the module to a single embedding, so that no other can influence it.
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
                    // candle's functions, which keep the bits of earlier answers.
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

/// The `config.json` of a module, whose keys must all be known.
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

/// Checks the name of a module's input; returns the name of its output.
fn takes(keys: &Keys, at: &str, default: &str) -> Result<String> {
    let key = "module_input_name";
    let input = keys.word(key)?.unwrap_or_else(|| default.to_owned());
    if input != at {
        return Err(keys.fault(key, at));
    }
    Ok(keys.word("module_output_name")?.unwrap_or(input))
}
