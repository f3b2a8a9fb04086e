//! Pairs of texts as chat messages, for rerankers that generate text.

use std::path::Path;

use anyhow::{Context, Result};
use candle_dynquant_decoder::{Message, Template};
use serde_json::{Map, Value};

use crate::files::{TOKENIZER_CONFIG, optional_text};
use crate::keys::parse;

/// A template that turns a pair into a text, as sentence-transformers does with the folder's chat
/// template.
pub(crate) struct PairTemplate {
    template: Template,
    system: Option<Message>,
    add_generation_prompt: bool,
}

impl PairTemplate {
    /// The template of a folder; a prompt becomes a system message.
    pub fn read(dir: &Path, prompt: &str, add_generation_prompt: bool) -> Result<Self> {
        let source = Template::source(dir)?.with_context(|| {
            let folder = dir.display();
            format!("{folder}: expected chat_template.jinja for pairs of texts, got no such file")
        })?;
        let [bos, eos] = special_tokens(dir)?;
        let template = Template::new(&source, bos, eos);
        let prompt = Some(prompt).filter(|prompt| !prompt.is_empty());
        Ok(Self {
            template: template.with_context(|| dir.display().to_string())?,
            system: prompt.map(|prompt| Message::new("system", prompt)),
            add_generation_prompt,
        })
    }

    pub fn text(&self, query: &str, document: &str) -> Result<String> {
        let pair = [Message::new("query", query), Message::new("document", document)];
        let messages: Vec<Message> = self.system.iter().cloned().chain(pair).collect();
        self.template.render(&messages, self.add_generation_prompt)
    }
}

/// The tokens at the beginning and the end, which a template may name.
fn special_tokens(dir: &Path) -> Result<[String; 2]> {
    let path = dir.join(TOKENIZER_CONFIG);
    let keys: Map<String, Value> = match optional_text(&path)? {
        None => Map::new(),
        Some(text) => parse(&path.display().to_string(), &text, "a JSON object")?,
    };
    let token = |key| {
        let value = keys.get(key).unwrap_or(&Value::Null);
        let text = value.as_str().or_else(|| value.get("content")?.as_str());
        text.unwrap_or_default().to_owned()
    };
    Ok(["bos_token", "eos_token"].map(token))
}
