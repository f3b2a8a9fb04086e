//! Reads a model's files together and checks them: configuration, tokenizer and weights.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use candle_core::Tensor;
use candle_dynquant::{Checkpoint, Equalization, Quantizable, equalize, quantize_dynamic};
use candle_dynquant_io::input;
use candle_nn::{Module as _, VarBuilder};

use crate::config::{Config, Texts};
use crate::files::{
    ADAPTER, ARTIFACT, CONFIG, MAX_TOKENIZER, TOKENIZER, TOKENIZER_CONFIG, TOKENS, optional_text,
    read, text,
};
use crate::keys::is_architecture;
use crate::late::LateSettings;
use crate::lexical::{self, Lexical};
use crate::loaded::Loaded;
use crate::model::Model;
use crate::models::{Answers, Architecture, Network, Rows, TASKS, adapted, static_config};
use crate::modules::{JINA_V3, LogitScore, MODULES, Module, Modules, model_folder};
use crate::pairs::PairTemplate;
use crate::preset::Preset;
use crate::prompts::{Prompts, SETTINGS};
use crate::sentence::{self, Sentence};
use crate::tokenizer::{Tokenizer, each};
use crate::tokens::{Direction, Input};

/// The files of a folder that determine the answers, besides `*.safetensors` and the modules'
/// files.
const TEXTS: [&str; 6] = [ARTIFACT, CONFIG, TOKENIZER, TOKENIZER_CONFIG, MODULES, SETTINGS];
/// The architectures that classify tokens.
const OF_TOKENS: &str = "ForTokenClassification";
/// The files of the embedded model: configuration, tokenizer and weights.
#[cfg(feature = "embedded")]
fn embedded() -> Result<[&'static [u8]; 3]> {
    Ok([
        include_bytes!("../../../assets/bert/config.json"),
        include_bytes!("../../../assets/bert/tokenizer.json"),
        include_bytes!("../../../assets/bert/model.safetensors"),
    ])
}

#[cfg(not(feature = "embedded"))]
fn embedded() -> Result<[&'static [u8]; 3]> {
    anyhow::bail!("expected a model, got none: the feature \"embedded\" has one")
}

/// Everything needed to answer texts.
pub struct Encoder {
    /// The name of the folder, or of the embedded model.
    pub name: String,
    /// The parameters of the model.
    pub config: Config,
    /// The conversion of texts to tokens.
    pub tokenizer: Tokenizer,
    /// The conversion of tokens to answers.
    pub model: Model,
    /// The format of the weights: the name of a preset, or `quantized` for a quantized folder.
    pub dtype: String,
    /// The prompts in the folder.
    pub prompts: Prompts,
}

impl Encoder {
    /// The classifier of Debian packages in `assets/bert`, which the feature `embedded` builds into
    /// the program.
    ///
    /// # Errors
    /// When the program lacks that feature, or the model cannot be quantized.
    pub fn embedded(preset: Preset) -> Result<Self> {
        let [config, tokenizer, weights] = embedded()?;
        let config = std::str::from_utf8(config)?;
        let (name, weights) = ("assets/bert", weights.to_vec());
        let encoder = Self::of_bytes(name, config, tokenizer, weights, Some(preset))?;
        Ok(Self { name: "debian-sections".to_owned(), ..encoder })
    }

    /// Whether a folder's model makes embeddings or classes: some architectures also generate text.
    pub fn is_folder(dir: &Path) -> bool {
        let mut tasks = ["ForSequenceClassification", OF_TOKENS, "HF_ColBERT"].into_iter();
        let is_task = |task| is_architecture(dir, task).unwrap_or(false);
        dir.join(MODULES).is_file() || tasks.any(is_task)
    }

    /// Whether the model is a reranker: it scores pairs of texts by a head of one class.
    pub fn is_reranker(&self) -> bool {
        self.classes() == 1
    }

    /// The number of classes of the head; 0 without a head.
    pub(crate) fn classes(&self) -> usize {
        if self.model.is_classifier() { self.config.labels.len() } else { 0 }
    }

    /// Reports the keys in the files that nothing reads.
    #[cfg(feature = "program")]
    pub(crate) fn tell_notes(&self) {
        let notes = &self.config.notes;
        notes.iter().for_each(candle_dynquant_io::print::note);
    }

    /// Opens a model from the contents of a Hugging Face folder's files, as in a browser. Weights
    /// have the format of `model.safetensors`, float or quantized, and are not quantized further;
    /// `name` is for error messages.
    ///
    /// # Errors
    /// When a file is malformed, or inconsistent with the others.
    pub fn from_bytes(
        name: &str,
        config: &str,
        tokenizer: &[u8],
        weights: Vec<u8>,
    ) -> Result<Self> {
        Self::of_bytes(name, config, tokenizer, weights, None)
    }

    fn of_bytes(
        name: &str,
        config: &str,
        tokenizer: &[u8],
        weights: Vec<u8>,
        preset: Option<Preset>,
    ) -> Result<Self> {
        let path = format!("{name}/model.safetensors");
        let loaded = Loaded::new(Checkpoint::from_bytes(&path, weights)?);
        let config = Config::parse(&Texts {
            name,
            config,
            weights: Some(loaded.bytes()),
            ..Texts::default()
        })?;
        let tokenizer = Tokenizer::parse(&format!("{name}/tokenizer.json"), tokenizer, &config)?;
        let loaded = loaded.without(config.others());
        let answers = Answers::Classes(config.labels.len());
        let network = load(&config, answers, None, loaded.var_builder());
        let network = network.with_context(|| name.to_owned())?;
        loaded.check(&name)?;
        let is_quantized = loaded.is_quantized();
        let (network, dtype) = by_preset(network, is_quantized, preset, Preset::NONE, name)?;
        Ok(Self {
            name: name.to_owned(),
            model: Model::new(network, &config, Vec::new(), false)?,
            config,
            tokenizer,
            dtype,
            prompts: Prompts::default(),
        })
    }

    /// Reads a Hugging Face folder. Float weights are quantized by `preset`, [`Preset::default()`] if it
    /// is `None`; for a folder that is already quantized, `preset` must be `None`.
    ///
    /// # Errors
    /// When a file is missing, malformed, or inconsistent with the others.
    pub fn open(dir: &Path, preset: Option<Preset>) -> Result<Self> {
        Self::open_with(dir, preset, None, None, true)
    }

    /// Reads a folder as [`open`](Self::open) does, with the adapters of a task, and equalizes a float
    /// model by `texts` first; with the head of bge-m3 if `is_lexical` and the folder has it.
    pub(crate) fn open_with(
        dir: &Path,
        preset: Option<Preset>,
        task: Option<&str>,
        texts: Option<&[String]>,
        is_lexical: bool,
    ) -> Result<Self> {
        let dir = &*model_folder(dir)?;
        let mut files = Files::read(dir)?;
        files.prompts.choose(task, &files.config.keys)?;
        let mut tokenizer = files.tokenizer()?;
        if is_lexical && !files.modules.is_splade {
            files.open_lexical(&tokenizer)?;
        }
        let (behind, is_scored) = files.finish()?;
        let mut network = files.network(task)?;
        let Files { name, modules, loaded, mut config, prompts, late, .. } = files;
        let is_quantized = loaded.is_quantized();
        if let Some(texts) = texts {
            ensure!(
                !is_quantized,
                "{name}: expected float weights to equalize, got quantized ones"
            );
            equalize_norms(&mut network, &tokenizer, texts).context("equalize")?;
        }
        // The default preset is for products, of which a table of words has none.
        let default =
            if modules.static_embedding.is_some() { Preset::NONE } else { Preset::default() };
        let (network, dtype) = by_preset(network, is_quantized, preset, default, &name)?;
        let model = Model::new(network, &config, behind, is_scored);
        let model = model.with_context(|| name.clone())?;
        let (hidden, most) = (late.and_then(|it| it.hidden()), model.most_hidden());
        ensure!(
            hidden.is_none_or(|length| length <= most),
            "{name}: expected queries of at most {most} tokens, since none attends to those that \
             are appended, got {}",
            hidden.unwrap_or_default(),
        );
        if model.is_classifier() {
            tokenizer.begin_pairs(prompts.default_prompt())?;
        }
        let most = model.most_tokens();
        if most < config.max_tokens {
            config.max_tokens = most;
            tokenizer.limit(most)?;
        }
        Ok(Self { name: folder_name(dir), model, config, tokenizer, dtype, prompts })
    }
}

/// Checks that a path is a folder, whose weights need no adapter.
fn check_dir(dir: &Path) -> Result<()> {
    ensure!(
        dir.is_dir(),
        "{}: expected a folder with config.json, tokenizer.json and model.safetensors, got {}",
        dir.display(),
        if dir.exists() { "a file" } else { "no such folder" },
    );
    ensure!(
        !dir.join(ADAPTER).exists(),
        "{}: expected weights that an adapter is merged into, got the adapter",
        dir.join(ADAPTER).display(),
    );
    Ok(())
}

/// The contents of a folder's files, besides the weights of the model.
struct Files<'a> {
    dir: &'a Path,
    name: String,
    modules: Modules,
    loaded: Loaded,
    config: Config,
    prompts: Prompts,
    add_generation_prompt: bool,
    late: Option<LateSettings>,
}

impl<'a> Files<'a> {
    fn read(dir: &'a Path) -> Result<Self> {
        check_dir(dir)?;
        let name = dir.display().to_string();
        let modules = Modules::read(dir)?;
        let is_bare = modules.static_embedding.is_some();
        let config = (!is_bare).then(|| text(&dir.join(CONFIG))).transpose()?;
        let checkpoint = Checkpoint::open(modules.static_embedding.as_deref().unwrap_or(dir))?;
        let config = match config {
            Some(config) => config,
            None => static_config(&checkpoint, &name)?,
        };
        let mut notes = checkpoint.notes().to_vec();
        let loaded = Loaded::new(checkpoint);
        let pooling = if is_bare || modules.late.is_some() {
            None
        } else if modules.lists_pooling {
            Some(text(&modules.pooling)?)
        } else {
            optional_text(&modules.pooling)?
        };
        let mut sentence = Sentence::read(dir)?;
        let add_generation_prompt = sentence.add_generation_prompt;
        let checked = modules.check(&sentence);
        checked.with_context(|| name.clone())?;
        let late = LateSettings::read(dir, &modules, &sentence, &mut notes)?;
        if let Some(most) = late.as_ref().and_then(LateSettings::most) {
            sentence.max_tokens =
                Some((format!("{name}: the length of queries or documents"), most));
        }
        // sentence-transformers reads nothing but tokenizer.json beside a table of words.
        let of_tokens = TOKENS.iter().filter(|_| !is_bare).filter_map(|file| {
            let path = dir.join(file);
            let text = optional_text(&path).transpose()?;
            Some(text.map(|text| (path.display().to_string(), text)))
        });
        let mut config = Config::parse(&Texts {
            name: &name,
            config: &config,
            is_splade: modules.is_splade,
            is_late: late.is_some(),
            pooling: pooling.map(|text| (modules.pooling.display().to_string(), text)),
            sentence,
            tokenizer: (!is_bare)
                .then(|| optional_text(&dir.join(TOKENIZER_CONFIG)))
                .transpose()?
                .flatten()
                .as_deref(),
            tokens: of_tokens.collect::<Result<_>>()?,
            weights: Some(loaded.bytes()),
        })?;
        ensure!(
            !modules.takes_tasks || config.keys.get(TASKS).is_some(),
            "{name}: {MODULES}: key \"type\": expected a module of sentence-transformers, or of Jina's with \
             {TASKS} in {CONFIG}, got {JINA_V3:?}"
        );
        config.notes.extend(notes);
        let loaded = loaded.without(config.others());
        let mut prompts = Prompts::read(dir, &modules, &mut config.notes)?;
        if late.is_some() {
            prompts = prompts.with_sides();
        }
        Ok(Self { dir, name, modules, loaded, config, prompts, add_generation_prompt, late })
    }

    /// The tokenizer, which also limits the tokens of a text.
    fn tokenizer(&mut self) -> Result<Tokenizer> {
        let (modules, config) = (&self.modules, &mut self.config);
        let weights = modules.static_embedding.as_deref().unwrap_or(self.dir);
        let path = weights.join(TOKENIZER);
        let place = path.display().to_string();
        let mut tokenizer = Tokenizer::parse(&place, &read(&path, MAX_TOKENIZER)?, config)?;
        config.max_tokens = tokenizer.max_tokens();
        if modules.logit_score.is_some() {
            config.labels = vec!["LABEL_0".to_owned()];
            let prompt = self.prompts.default_prompt();
            let template = PairTemplate::read(self.dir, prompt, self.add_generation_prompt)?;
            tokenizer.write_pairs(template)?;
        }
        if let Some(mut late) = self.late.clone() {
            late.name(&config.tokenizer.named);
            let tested = tokenizer.set_late(late);
            tested.with_context(|| format!("{place}: queries and documents"))?;
        }
        Ok(tokenizer)
    }

    /// Reads the head of bge-m3, if the folder has it.
    fn open_lexical(&mut self, tokenizer: &Tokenizer) -> Result<()> {
        let config = &mut self.config;
        let keys = ["cls_token", "eos_token", "pad_token", "unk_token"];
        let skipped = tokenizer.ids(&config.tokenizer.named, &keys);
        config.lexical = Lexical::open(self.dir, config.hidden_size, config.vocab_size, skipped)?;
        Ok(())
    }

    /// The model with the head that the files ask for.
    fn network(&self, task: Option<&str>) -> Result<Network> {
        let config = &self.config;
        let score = self.modules.logit_score.as_deref().map(LogitScore::open);
        let projection = self.late.as_ref().and_then(|late| late.projection);
        let labels = config.labels.len();
        let answers = match (score.transpose()?, projection) {
            (Some(score), _) => Answers::Score(score),
            (None, Some(size)) => Answers::Vectors(size),
            (None, None) if config.splade.is_some() => Answers::Words,
            (None, None) if config.keys.is_architecture(OF_TOKENS) => Answers::TokenClasses(labels),
            (None, None) => Answers::Classes(labels),
        };
        let network = load(config, answers, task, self.loaded.var_builder());
        let network = network.with_context(|| self.name.clone())?;
        self.loaded.check(&self.name)?;
        Ok(network)
    }

    /// The modules after the pooling, without a final normalization, which is the caller's; and
    /// whether they end in a reranker's score.
    fn finish(&mut self) -> Result<(Vec<Module>, bool)> {
        let config = &mut self.config;
        let projection = self.late.as_ref().and_then(|late| late.projection);
        let pooled = projection.unwrap_or(config.embedding_size);
        let (mut behind, is_scored) = self.modules.behind(pooled)?;
        if is_scored {
            config.labels = vec!["LABEL_0".to_owned()];
            return Ok((behind, true));
        }
        config.embedding_size = behind.iter().fold(pooled, |size, it| it.outputs(size));
        match self.prompts.truncate_dim {
            // sentence-transformers cuts the normalized vector, and does not normalize again.
            Some(size) if size < config.embedding_size => {
                config.embedding_size = size;
                behind.push(Module::Cut(size));
            }
            _ if self.late.is_some() => (),
            _ => {
                let last = behind.pop_if(|last| matches!(last, Module::Normalize));
                config.normalize = last.is_some();
            }
        }
        Ok((behind, false))
    }
}

/// The BLAKE3 hash, in hexadecimal, of the files of a folder that determine the answers, or of the
/// embedded model without a folder.
///
/// # Errors
/// When a file cannot be read.
pub(crate) fn digest(dir: Option<&Path>) -> Result<String> {
    let mut all = blake3::Hasher::new();
    let Some(dir) = dir else {
        for bytes in embedded()? {
            all.update(blake3::hash(bytes).as_bytes());
        }
        return Ok(all.finalize().to_string());
    };
    let dir = &*model_folder(dir)?;
    let reading = || format!("{}: expected a readable folder", dir.display());
    let mut names: Vec<PathBuf> = TEXTS
        .iter()
        .chain(&TOKENS)
        .chain(&sentence::FILES)
        .chain(&lexical::FILES)
        .map(PathBuf::from)
        .collect();
    let relative = |path: &Path| path.strip_prefix(dir).unwrap_or(path).to_owned();
    let modules = Modules::read(dir)?;
    names.push(relative(&modules.pooling));
    names.extend(modules.folders().map(|folder| relative(folder).join(CONFIG)));
    names.extend((modules.static_embedding.iter()).map(|folder| relative(folder).join(TOKENIZER)));
    let folders = modules.folders().filter(|folder| folder.is_dir());
    for folder in std::iter::once(dir).chain(folders) {
        for entry in fs::read_dir(folder).with_context(reading)? {
            let name = relative(folder).join(entry.with_context(reading)?.file_name());
            if name.extension().is_some_and(|it| it == "safetensors") {
                names.push(name);
            }
        }
    }
    names.sort();
    names.dedup();
    for name in names {
        let path = dir.join(&name);
        if path.is_file() {
            let mut hasher = blake3::Hasher::new();
            (input::open(&path).and_then(|file| hasher.update_reader(file).map(|_| ())))
                .with_context(|| format!("{}: expected a readable file", path.display()))?;
            all.update(name.as_os_str().as_encoded_bytes());
            all.update(hasher.finalize().as_bytes());
        }
    }
    Ok(all.finalize().to_string())
}

fn load(
    config: &Config,
    answers: Answers,
    task: Option<&str>,
    vb: VarBuilder<'_>,
) -> Result<Network> {
    let vb = adapted(&config.keys, task, vb)?;
    let network = Architecture::find(&config.keys)?.load(&config.keys, &config.sizes, answers, vb);
    network.context("expected the weights that config.json describes")
}

/// Moves range from the outputs of norms to weights, as measured on `texts`.
fn equalize_norms(network: &mut Network, tokenizer: &Tokenizer, texts: &[String]) -> Result<()> {
    ensure!(!texts.is_empty(), "expected texts of the kind that the model is for, got none");
    let cut = Some(Direction::Right);
    let tokens = each(texts, |text| tokenizer.encode(Input::Text(text), cut))?;
    let rows = Rows::new(tokens.iter());
    let report = equalize(network, &Equalization::default(), |network| {
        let hidden = network.forward(&rows)?;
        // All outputs are computed: a layer that is not reached would keep norms from being
        // equalized.
        let mut outputs = vec![hidden.flatten_all()?];
        if let Some(head) = network.head.as_ref().or(network.of_tokens.as_ref()) {
            outputs.push(head.forward(&hidden)?.flatten_all()?);
        }
        if let Some(projection) = &network.pooled_projection {
            outputs.push(projection.forward(&hidden)?.flatten_all()?);
        }
        Tensor::cat(&outputs, 0)
    })?;
    ensure!(
        !report.pairs.is_empty(),
        "expected norms that can be equalized, got {} that cannot",
        report.left.len()
    );
    Ok(())
}

/// A float model in a preset, or a quantized one, with the name of its format.
pub(crate) fn by_preset<N: Quantizable>(
    mut network: N,
    is_quantized: bool,
    preset: Option<Preset>,
    default: Preset,
    name: &str,
) -> Result<(N, String)> {
    match (is_quantized, preset) {
        (true, None) => Ok((network, "quantized".to_owned())),
        (true, Some(preset)) => anyhow::bail!(
            "{name}: expected float weights for the preset {preset}, got quantized ones; leave the preset out"
        ),
        (false, preset) => {
            let preset = preset.unwrap_or(default);
            if let Some(spec) = preset.spec()? {
                quantize_dynamic(&mut network, &spec)?;
            }
            Ok((network, preset.to_string()))
        }
    }
}

/// The last component of the path, also for `.` and `..`; for a snapshot in the cache of the
/// Hugging Face hub, the name of the model.
pub(crate) fn folder_name(dir: &Path) -> String {
    let absolute = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let name = |path: &Path| {
        let name = path.file_name().unwrap_or(path.as_os_str());
        name.to_string_lossy().into_owned()
    };
    if let Some(snapshots) = absolute.parent().filter(|it| it.ends_with("snapshots"))
        && let Some(model) = snapshots.parent().map(name)
        && let Some(model) = model.strip_prefix("models--")
    {
        return model.replacen("--", "/", 1);
    }
    name(&absolute)
}
