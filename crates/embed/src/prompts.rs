//! The contents of `config_sentence_transformers.json`: the prompts before texts, and the function
//! of scores.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, ensure};
use serde::Deserialize;

use crate::config::unread;
use crate::files::optional_text;
use crate::keys::{Keys, parse};
use crate::modules::Modules;
use crate::tables;

/// The file of prompts and of what else sentence-transformers reads of all modules.
pub(crate) const SETTINGS: &str = "config_sentence_transformers.json";

/// The prompts before texts, by their names in a folder of sentence-transformers.
///
/// ```
/// use dynquant_embed::Encoder;
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/reference/encoders/bert");
/// let encoder = Encoder::open(folder.as_ref(), None)?;
/// assert_eq!(encoder.prompts.query(), "query the ");
/// assert_eq!(encoder.prompts.default_prompt(), "");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Prompts {
    #[serde(default)]
    prompts: BTreeMap<String, Option<String>>,
    default_prompt_name: Option<String>,
    /// The activation function of a reranker, since release 6.
    pub(crate) activation_fn: Option<String>,
    /// The number of leading values kept of an embedding.
    #[serde(skip)]
    pub(crate) truncate_dim: Option<usize>,
}

impl Prompts {
    /// Reads the prompts of a folder, with notes on keys that nothing reads.
    pub(crate) fn read(dir: &Path, modules: &Modules, notes: &mut Vec<String>) -> Result<Self> {
        let path = dir.join(SETTINGS);
        let Some(text) = optional_text(&path)? else {
            return Ok(Self::default());
        };
        let path = path.display().to_string();
        let expected = "the prompts of sentence-transformers";
        let map = parse(&path, &text, expected)?;
        let (keys, unknown) = Keys::flat_with(&path, map, &tables::PROMPTS)?;
        let is_late = modules.late.is_some();
        let is_read = |key: &String| is_late && tables::LATE.treatment(key).is_some();
        let unknown = unknown.into_iter().filter(|key| !is_read(key));
        notes.extend(unread(&path, unknown.collect()));
        let key = "model_type";
        let fits = match keys.word(key)?.as_deref() {
            None => true,
            Some("SparseEncoder") => modules.is_splade,
            Some("ColBERT" | "MultiVectorEncoder") => is_late,
            Some(_) => !is_late,
        };
        if !fits {
            return Err(keys.fault(key, "the type of model that modules.json makes"));
        }
        let mut prompts: Self = parse(&path, &text, expected)?;
        prompts.truncate_dim = keys.number("truncate_dim")?;
        if let Some(name) = &prompts.default_prompt_name {
            ensure!(
                prompts.prompts.contains_key(name),
                "{path}: key \"default_prompt_name\": expected one of {}, got {name:?}",
                match prompts.names() {
                    names if names.is_empty() => "\"prompts\", which has none".to_owned(),
                    names => names,
                },
            );
        }
        Ok(prompts)
    }

    /// Makes the prompt of a task the default: in these, else in `config.json`.
    pub(crate) fn choose(&mut self, task: Option<&str>, config: &Keys) -> Result<()> {
        let key = "task_instructions";
        let prompts: Option<BTreeMap<String, String>> =
            config.optional(key, "an object with the prompt of each task")?;
        if let Some(task) = task {
            let prompt = prompts.and_then(|mut all| all.remove(task));
            self.prompts.entry(task.to_owned()).or_insert(prompt);
            self.default_prompt_name = Some(task.to_owned());
        }
        Ok(())
    }

    /// Adds empty prompts of queries and documents, by which these can be told apart.
    pub(crate) fn with_sides(mut self) -> Self {
        for name in ["query", "document"] {
            self.prompts.entry(name.to_owned()).or_default();
        }
        self
    }

    pub(crate) fn set(&mut self, name: &str, prompt: &str) {
        self.prompts.insert(name.to_owned(), Some(prompt.to_owned()));
    }

    fn names(&self) -> String {
        let names: Vec<String> = self.prompts.keys().map(|name| format!("{name:?}")).collect();
        names.join(", ")
    }

    /// The prompt of that name.
    ///
    /// # Errors
    /// When the prompt does not exist; the text lists the prompts.
    pub fn named(&self, name: &str) -> Result<&str, String> {
        let prompt = self.prompts.get(name).ok_or_else(|| match self.prompts.len() {
            0 => format!("the model has no prompts, got {name:?}"),
            _ => format!("expected one of {}, got {name:?}", self.names()),
        })?;
        Ok(prompt.as_deref().unwrap_or_default())
    }

    /// The prompt for questions: `query`, else the default.
    pub fn query(&self) -> &str {
        self.first(&["query"])
    }

    /// The prompt for texts to be searched: the first existing of `document`, `passage` and
    /// `corpus`, else the default.
    pub fn document(&self) -> &str {
        self.first(&["document", "passage", "corpus"])
    }

    /// The default prompt of the folder, else an empty prompt.
    pub fn default_prompt(&self) -> &str {
        self.first(&[])
    }

    /// The first existing prompt of `names`, else the default, else an empty prompt.
    fn first(&self, names: &[&str]) -> &str {
        let named = names.iter().find_map(|name| self.prompts.get(*name));
        let default = || self.prompts.get(self.default_prompt_name.as_deref()?);
        let prompt = named.or_else(default).and_then(Option::as_deref);
        prompt.unwrap_or_default()
    }
}
