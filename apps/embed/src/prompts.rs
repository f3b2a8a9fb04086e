//! What `config_sentence_transformers.json` says: the prompts that texts begin with, and the
//! function of scores.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::folder::optional_text;
use crate::json;

/// Prompts by name, and more, as the file has them.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Prompts {
    #[serde(default)]
    prompts: BTreeMap<String, Option<String>>,
    default_prompt_name: Option<String>,
    /// Of a reranker, since release 6.
    pub activation_fn: Option<String>,
}

impl Prompts {
    pub fn read(dir: &Path) -> Result<Self> {
        let path = dir.join("config_sentence_transformers.json");
        let Some(text) = optional_text(&path)? else {
            return Ok(Self::default());
        };
        let path = path.display();
        let prompts: Self = json::parse(&text)
            .with_context(|| format!("{path}: expected the prompts of sentence-transformers"))?;
        if let Some(name) = &prompts.default_prompt_name {
            ensure!(
                prompts.prompts.contains_key(name),
                "{path}: key \"default_prompt_name\": expected one of {}, got {name:?}",
                prompts.names(),
            );
        }
        Ok(prompts)
    }

    pub fn set(&mut self, name: &str, prompt: &str) {
        self.prompts
            .insert(name.to_owned(), Some(prompt.to_owned()));
    }

    fn names(&self) -> String {
        let names: Vec<String> = self
            .prompts
            .keys()
            .map(|name| format!("{name:?}"))
            .collect();
        names.join(", ")
    }

    /// A prompt by its name.
    pub fn named(&self, name: &str) -> Result<&str> {
        let prompt = self.prompts.get(name);
        let prompt = prompt
            .with_context(|| format!("prompt: expected one of {}, got {name:?}", self.names()))?;
        Ok(prompt.as_deref().unwrap_or_default())
    }

    /// The first of these that there is, else the default, else none.
    pub fn first(&self, names: &[&str]) -> &str {
        let own = names.iter().find_map(|name| self.prompts.get(*name));
        let default = || self.prompts.get(self.default_prompt_name.as_deref()?);
        let prompt = own.or_else(default).and_then(Option::as_deref);
        prompt.unwrap_or_default()
    }
}
