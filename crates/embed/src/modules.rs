//! The modules after a model in a folder of sentence-transformers, listed in `modules.json`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use candle_core::{Device, Tensor};
use candle_dynquant::{Checkpoint, FusedActivation, nn};
use candle_dynquant_io::keys::Table;
use candle_nn::Module as _;
use serde_json::{Map, Value};

use crate::files::{CONFIG, optional_text, text};
use crate::functions::normalized;
use crate::keys::{Keys, is_architecture, parse};
use crate::loaded::Loaded;
use crate::sentence::Sentence;
use crate::tables;

/// A module after the pooling.
#[derive(Clone, Debug)]
pub(crate) enum Module {
    Dense {
        linear: nn::Linear,
        activation: Option<FusedActivation>,
        residual: Residual,
    },
    LayerNorm(nn::LayerNorm),
    Normalize,
    /// Keeps this many leading numbers.
    Cut(usize),
}

/// The residual that is added to the outputs of a dense layer.
#[derive(Clone, Debug)]
pub(crate) enum Residual {
    Nothing,
    Inputs,
    Product(Box<nn::Linear>),
}

/// The modules of a folder, with their folders.
#[derive(Default)]
pub(crate) struct Modules {
    /// The folder of a table of words in place of the Transformer and the pooling.
    pub static_embedding: Option<PathBuf>,
    /// The configuration of the pooling.
    pub pooling: PathBuf,
    /// Whether the pooling is SPLADE's.
    pub is_splade: bool,
    /// Whether the model's module always has a head that guesses words.
    guesses_words: bool,
    /// Whether the first module is that of Jina embeddings v3.
    pub takes_tasks: bool,
    /// Whether `modules.json` lists the pooling, whose configuration then exists.
    pub lists_pooling: bool,
    /// The file that lists modules without a pooling.
    lacks_pooling: Option<String>,
    /// The modules after the pooling, in order.
    pub others: Vec<(Kind, PathBuf)>,
    /// The score that replaces both, in a reranker that writes texts.
    pub logit_score: Option<PathBuf>,
    /// The tool whose settings late interaction has, which replaces the pooling.
    pub late: Option<Tool>,
}

/// The tools whose folders are for a vector of each token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    PyLate,
    /// The folder of `MultiVectorMask`.
    SentenceTransformers(PathBuf),
    Stanford,
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
    /// Leaves out tokens: see `LateSettings`.
    Mask,
}

impl Kind {
    /// Whether the module's folder has weights.
    #[cfg(feature = "hub")]
    pub fn has_weights(self) -> bool {
        matches!(self, Self::Dense | Self::LayerNorm)
    }
}

/// The name of the embedding between modules.
const EMBEDDING: &str = "sentence_embedding";
/// The name of the vectors of tokens between modules.
const TOKENS: &str = "token_embeddings";
/// The name of the logits of the next token.
const LOGITS: &str = "causal_logits";
/// The name of a reranker's score.
const SCORES: &str = "scores";
/// The type in Jina embeddings v3, of Python in the folder: a Transformer with adapters for tasks.
pub(crate) const JINA_V3: &str = "custom_st.Transformer";
/// The file that lists the modules after the model.
pub(crate) const MODULES: &str = "modules.json";
const EXPECTED: &str = "the modules of sentence-transformers";

impl Modules {
    /// The modules of a folder; without `modules.json`, a pooling in its usual place, or none.
    pub fn read(dir: &Path) -> Result<Self> {
        let pooling = dir.join("1_Pooling").join(CONFIG);
        let mut modules = Self { pooling, ..Self::default() };
        let path = dir.join(MODULES);
        let Some(text) = optional_text(&path)? else {
            if is_architecture(dir, "HF_ColBERT")? {
                modules.late = Some(Tool::Stanford);
            }
            return Ok(modules);
        };
        let path = path.display().to_string();
        let entries: Vec<Map<String, Value>> = parse(&path, &text, EXPECTED)?;
        let mut seen = Vec::new();
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
            if let Some(kind) =
                modules.kind((&path, &keys), (index, &type_), &subfolder, &folder)?
            {
                modules.others.push((kind, folder));
            }
        }
        let count = seen.len() + usize::from(modules.static_embedding.is_some());
        modules.lacks_pooling = (count < 2).then_some(path);
        Ok(modules)
    }

    /// The kind of a module behind the pooling; takes note of one that stands before.
    fn kind(
        &mut self,
        (path, keys): (&str, &Keys),
        (index, type_): (usize, &str),
        subfolder: &str,
        folder: &Path,
    ) -> Result<Option<Kind>> {
        let name = type_.strip_prefix("sentence_transformers.");
        let name = name.or(type_.strip_prefix("pylate.models."));
        let name = name.and_then(|name| name.rsplit('.').next());
        let place = index + usize::from(self.static_embedding.is_some());
        Ok(Some(match (place, name.unwrap_or(type_)) {
            (0, "StaticEmbedding") => {
                self.static_embedding = Some(folder.to_owned());
                return Ok(None);
            }
            (0, "Transformer" | "MLMTransformer" | JINA_V3) => {
                if !subfolder.is_empty() {
                    return Err(keys.fault("path", "\"\" for the Transformer"));
                }
                self.guesses_words = type_.ends_with("MLMTransformer");
                self.takes_tasks = type_ == JINA_V3;
                return Ok(None);
            }
            (1, pooling @ ("Pooling" | "SpladePooling")) => {
                self.is_splade = pooling == "SpladePooling";
                self.pooling = folder.join(CONFIG);
                self.lists_pooling = true;
                return Ok(None);
            }
            (1, "LogitScore") => {
                self.logit_score = Some(folder.to_owned());
                return Ok(None);
            }
            (1.., "MultiVectorMask") if place == 1 || self.late == Some(Tool::PyLate) => {
                self.late = Some(Tool::SentenceTransformers(folder.to_owned()));
                Kind::Mask
            }
            (1, "Dense") => {
                self.late = Some(Tool::PyLate);
                Kind::Dense
            }
            (2.., got) if self.logit_score.is_some() || self.is_splade => {
                let last = if self.is_splade { "SpladePooling" } else { "LogitScore" };
                bail!("{path}: key \"type\": expected nothing behind {last}, got {got:?}")
            }
            (2.., "Dense") => Kind::Dense,
            (2.., got) if self.late == Some(Tool::PyLate) => {
                bail!("{path}: key \"type\": expected Dense or MultiVectorMask, got {got:?}")
            }
            (2.., "LayerNorm") => Kind::LayerNorm,
            (2.., "Normalize") => Kind::Normalize,
            // Dropout has no effect outside of training.
            (2.., "Dropout") => return Ok(None),
            (0 | 1, got) => {
                bail!(
                    "{path}: key \"type\": expected Transformer, then Pooling, SpladePooling, \
                     LogitScore, Dense or MultiVectorMask, or StaticEmbedding, got {got:?}"
                )
            }
            (_, got) => bail!(
                "{path}: key \"type\": expected Dense, LayerNorm, Normalize or Dropout behind \
                 Transformer and Pooling, got {got:?}"
            ),
        }))
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
        ensure!(
            matches!(self.late, Some(Tool::SentenceTransformers(_)))
                || (sentence.lengths == [None; 2] && sentence.expansion.is_none()),
            "sentence_bert_config.json: expected query_length, document_length and query_expansion \
             with MultiVectorMask, got no such module"
        );
        Ok(())
    }

    /// The folders of modules, whose configurations and weights determine answers.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        let others = self.others.iter().map(|(_, folder)| &**folder);
        let alone = self.static_embedding.as_deref();
        others.chain(self.logit_score.as_deref()).chain(alone)
    }

    /// The modules after a pooling with `pooled` numbers, or after the vectors of tokens, and
    /// whether they end with a score.
    pub fn behind(&self, pooled: usize) -> Result<(Vec<Module>, bool)> {
        let start = self.late.as_ref().map_or(EMBEDDING, |_| TOKENS);
        let (mut size, mut at) = (pooled, start.to_owned());
        let mut behind = Vec::new();
        for (kind, folder) in &self.others {
            if *kind == Kind::Mask {
                continue;
            }
            let module = Module::open(*kind, folder, size, start, &mut at)?;
            size = module.outputs(size);
            ensure!(
                at == start || (start == EMBEDDING && at == SCORES && size == 1),
                "{}: key \"module_output_name\": expected {start}, or {SCORES} of 1 number, \
                 got {at:?} of {size}",
                folder.join(CONFIG).display(),
            );
            behind.push(module);
        }
        if matches!(self.late, Some(Tool::PyLate | Tool::Stanford)) {
            behind.push(Module::Normalize);
        }
        Ok((behind, at == SCORES))
    }
}

/// The folder of a model: below `dir` of a CLIP model that sentence-transformers wrote, else `dir`.
pub(crate) fn model_folder(dir: &Path) -> Result<PathBuf> {
    let path = dir.join(MODULES);
    let text = optional_text(&path)?;
    let path = path.display().to_string();
    let entries = text.map(|text| parse(&path, &text, EXPECTED));
    let entries: Vec<Map<String, Value>> = entries.transpose()?.unwrap_or_default();
    let [entry] = entries.as_slice() else {
        return Ok(dir.to_owned());
    };
    let keys = Keys::flat(&path, entry.clone(), &tables::MODULES)?;
    let is_clip = keys.word("type")?.is_some_and(|it| it.ends_with(".CLIPModel"));
    if !is_clip {
        return Ok(dir.to_owned());
    }
    let subfolder = keys.word("path")?.unwrap_or_default();
    Ok(dir.join(plain(&path, &subfolder)?))
}

/// A path within the folder, of at most one component.
fn plain<'a>(path: &str, subfolder: &'a str) -> Result<&'a str> {
    let is_name = Path::new(subfolder).file_name().is_some_and(|name| name == subfolder);
    ensure!(
        subfolder.is_empty() || is_name,
        "{path}: key \"path\": expected the name of a folder, got {subfolder:?}"
    );
    Ok(subfolder)
}

impl Module {
    /// Opens the module of a folder for `inputs` numbers under the name `at`, by default `start`.
    fn open(kind: Kind, dir: &Path, inputs: usize, start: &str, at: &mut String) -> Result<Self> {
        match kind {
            Kind::LayerNorm => Self::layer_norm(dir, inputs, at),
            Kind::Dense => Self::dense(dir, inputs, start, at),
            Kind::Normalize | Kind::Mask => {
                // Releases before 6 write no configuration.
                if dir.join(CONFIG).exists() {
                    *at = takes(&config(dir, &tables::NORMALIZE)?, at, EMBEDDING)?;
                }
                Ok(Self::Normalize)
            }
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

    fn dense(dir: &Path, inputs: usize, start: &str, at: &mut String) -> Result<Self> {
        let keys = config(dir, &tables::DENSE)?;
        check(&keys, "in_features", inputs)?;
        let outputs = keys.size("out_features")?;
        *at = takes(&keys, at, start)?;
        let key = "activation_function";
        let name = keys.word(key)?;
        let name = name.as_deref().unwrap_or("torch.nn.modules.activation.Tanh");
        let name = name.strip_prefix("torch.nn.").and_then(|it| it.rsplit('.').next());
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
        let linear = |name, bias| {
            nn::linear_b(inputs, outputs, bias, loaded.var_builder().pp(name)).with_context(|| {
                format!("{}: expected the weights of a dense layer", dir.display())
            })
        };
        let residual = if !keys.flag("use_residual", false)? {
            Residual::Nothing
        } else if inputs == outputs {
            Residual::Inputs
        } else {
            Residual::Product(Box::new(linear("residual", false)?))
        };
        let linear = linear("linear", bias)?;
        loaded.check(&dir.display())?;
        Ok(Self::Dense { linear, activation, residual })
    }

    /// The length of an embedding after the module.
    pub fn outputs(&self, inputs: usize) -> usize {
        match self {
            Self::Dense { linear, .. } => linear.weight().dims()[0],
            Self::LayerNorm(_) | Self::Normalize => inputs,
            Self::Cut(size) => inputs.min(*size),
        }
    }

    /// Applies the module to the embedding of a text, or to the vectors of its tokens, `rows` in
    /// all, so that no other text can influence them.
    pub fn apply(&self, values: Vec<f32>, rows: usize) -> Result<Vec<f32>> {
        let size = values.len() / rows.max(1);
        let each = |change: &dyn Fn(&[f32]) -> Vec<f32>| {
            let rows = values.chunks_exact(size.max(1)).map(change);
            Ok(rows.collect::<Vec<_>>().concat())
        };
        let xs = || Tensor::from_slice(&values, (rows, size), &Device::Cpu);
        let ys = match self {
            Self::Normalize => return each(&|row| normalized(row.to_vec())),
            Self::Cut(size) => return each(&|row| row[..row.len().min(*size)].to_vec()),
            Self::LayerNorm(norm) => norm.forward(&xs()?)?,
            Self::Dense { linear, activation, residual } => {
                let xs = xs()?;
                let ys = linear.forward(&xs)?;
                let ys = match activation {
                    None => ys,
                    // candle's functions, which keep the bits of earlier answers.
                    Some(FusedActivation::Tanh) => ys.tanh()?,
                    Some(FusedActivation::Relu) => ys.relu()?,
                    Some(FusedActivation::Gelu) => ys.gelu_erf()?,
                    Some(other) => other.forward(&ys)?,
                };
                match residual {
                    Residual::Nothing => ys,
                    Residual::Inputs => (ys + xs)?,
                    Residual::Product(linear) => (ys + linear.forward(&xs)?)?,
                }
            }
        };
        Ok(ys.flatten_all()?.to_vec1()?)
    }
}

/// The `config.json` of a module, whose keys must all be known.
pub(crate) fn config(dir: &Path, table: &Table) -> Result<Keys> {
    let path = dir.join(CONFIG);
    let text = text(&path)?;
    let expected = "a module of sentence-transformers";
    Keys::flat_text(&path.display().to_string(), &text, expected, table)
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
