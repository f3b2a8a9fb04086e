//! Pairs of texts as messages of a chat: what rerankers take that write texts.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use candle_dynquant_support::decoder::{Message, Template};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::folder::{SENTENCE, TOKENIZER_CONFIG, optional_text};
use crate::json;

/// The text that a pair becomes, as sentence-transformers has the folder's chat template make it.
pub(crate) struct PairTemplate {
    template: Template,
    system: Option<Message>,
    add_generation_prompt: bool,
}

impl PairTemplate {
    /// That of a folder; a prompt is a message of the system.
    pub fn read(dir: &Path, prompt: &str) -> Result<Self> {
        let source = Template::source(dir)?.with_context(|| {
            let folder = dir.display();
            format!("{folder}: expected chat_template.jinja for pairs of texts, got no such file")
        })?;
        let [bos, eos] = special_tokens(dir)?;
        let template = Template::new(&source, bos, eos);
        let prompt = Some(prompt).filter(|prompt| !prompt.is_empty());
        Ok(Self {
            template: template.with_context(|| dir.display().to_string())?,
            system: prompt.map(|prompt| message("system", prompt)),
            add_generation_prompt: add_generation_prompt(&dir.join(SENTENCE))?,
        })
    }

    /// The text of a pair.
    pub fn text(&self, query: &str, document: &str) -> Result<String> {
        let pair = [message("query", query), message("document", document)];
        let messages: Vec<Message> = self.system.iter().cloned().chain(pair).collect();
        self.template.render(&messages, self.add_generation_prompt)
    }
}

fn message(role: &str, content: &str) -> Message {
    Message {
        role: role.to_owned(),
        content: content.to_owned(),
    }
}

/// What `sentence_bert_config.json` gives the template; other settings of it are refused.
fn add_generation_prompt(path: &Path) -> Result<bool> {
    #[derive(Default, Deserialize)]
    struct File {
        #[serde(default)]
        modality_config: BTreeMap<String, Modality>,
        #[serde(default)]
        processing_kwargs: Settings,
    }
    #[derive(Deserialize)]
    struct Modality {
        format: Option<String>,
    }
    #[derive(Default, Deserialize)]
    struct Settings {
        #[serde(default)]
        chat_template: BTreeMap<String, Value>,
    }
    let file: File = match optional_text(path)? {
        None => File::default(),
        Some(text) => json::parse(&text).with_context(|| {
            let path = path.display();
            format!("{path}: expected the sentence configuration of sentence-transformers")
        })?,
    };
    let path = path.display();
    for format in file
        .modality_config
        .values()
        .filter_map(|it| it.format.as_ref())
    {
        ensure!(
            format == "flat",
            "{path}: key \"format\": expected \"flat\", messages whose content is a text, got {format:?}"
        );
    }
    let mut generates = false;
    for (key, value) in &file.processing_kwargs.chat_template {
        match (key.as_str(), value) {
            ("add_generation_prompt", Value::Bool(value)) => generates = *value,
            ("restore_suffix", Value::Bool(true)) => (),
            _ => anyhow::bail!(
                "{path}: key \"chat_template\": expected add_generation_prompt, true or false, got {key:?}: {value}"
            ),
        }
    }
    Ok(generates)
}

/// The tokens at the beginning and the end, which a template may name.
fn special_tokens(dir: &Path) -> Result<[String; 2]> {
    let path = dir.join(TOKENIZER_CONFIG);
    let keys: Map<String, Value> = match optional_text(&path)? {
        None => Map::new(),
        Some(text) => json::parse(&text)
            .with_context(|| format!("{}: expected a JSON object", path.display()))?,
    };
    let token = |key| {
        let value = keys.get(key).unwrap_or(&Value::Null);
        let text = value.as_str().or_else(|| value.get("content")?.as_str());
        text.unwrap_or_default().to_owned()
    };
    Ok(["bos_token", "eos_token"].map(token))
}
