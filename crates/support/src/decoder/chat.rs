//! Chat templates: how the messages of a conversation become one text.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use candle_dynquant_io::input;
use jiff::{ZonedDateTime, fmt::strtime};
use minijinja::{Environment, Error, ErrorKind};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::apart::Apart;
use super::dumps;
use crate::json::Keys;

/// A message, and who it is from: `system`, `user` or `assistant`; of a pair of texts, `query` or
/// `document`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Message {
    pub role: String,
    pub content: String,
}

/// A template in Jinja, as tokenizers of the Hub have it.
pub struct Template {
    place: Place,
    /// The token that every text begins with, which the template need not write.
    pub begin: Option<String>,
}

/// The place where a template is rendered.
enum Place {
    Here {
        environment: Box<Environment<'static>>,
        /// Special tokens by their names, such as `bos_token`.
        tokens: BTreeMap<String, String>,
    },
    Apart(Apart),
}

const NAME: &str = "chat_template";

/// Instructions of a template, which takes a few hundred for each message.
const FUEL: u64 = 5_000_000;

impl Template {
    /// The text of a folder's template, if it has one: a file of its own, or a key of
    /// `tokenizer_config.json`; of several with names, that called `default`.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn source(dir: &Path) -> Result<Option<String>> {
        const MAX: u64 = 1 << 20;
        let own = dir.join("chat_template.jinja");
        if own.exists() {
            return Ok(Some(input::read_text(&own, MAX)?));
        }
        let config = dir.join("tokenizer_config.json");
        if !config.exists() {
            return Ok(None);
        }
        let keys = Keys::read(&config)?;
        Ok(match keys.get("chat_template") {
            Some(Value::Array(named)) => named
                .iter()
                .find(|template| template["name"] == "default")
                .and_then(|template| template["template"].as_str()),
            own => own.and_then(Value::as_str),
        }
        .map(str::to_owned))
    }

    /// A template that may name the tokens at the beginning and at the end.
    ///
    /// # Errors
    /// When it is not Jinja.
    pub fn new(source: &str, bos: String, eos: String) -> Result<Self> {
        let tokens = [("bos_token", bos), ("eos_token", eos)];
        let tokens = tokens.map(|(name, token)| (name.to_owned(), token));
        Self::naming(source, tokens.into())
    }

    /// A template that may name these special tokens.
    ///
    /// # Errors
    /// When it is not Jinja.
    pub fn naming(source: &str, tokens: BTreeMap<String, String>) -> Result<Self> {
        match Apart::open(source, &tokens)? {
            Some(apart) => Ok(Self {
                place: Place::Apart(apart),
                begin: None,
            }),
            None => Self::here(source, tokens),
        }
    }

    /// A template that is rendered in this process.
    pub fn here(source: &str, tokens: BTreeMap<String, String>) -> Result<Self> {
        let mut environment = Environment::new();
        // As transformers sets it up.
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.set_formatter(dumps::format);
        environment.add_filter("tojson", dumps::to_json);
        environment.add_function("raise_exception", |text: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, text))
        });
        environment.add_function("strftime_now", |format: String| {
            let now = strtime::format(&format, &ZonedDateTime::now());
            now.map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
        });
        environment
            .add_template_owned(NAME, without_marks(source))
            .context("chat template: expected a Jinja template")?;
        let environment = Box::new(environment);
        let place = Place::Here {
            environment,
            tokens,
        };
        Ok(Self { place, begin: None })
    }

    /// The conversation as a text, with the beginning of the assistant's answer if that is asked for.
    ///
    /// # Errors
    /// When the template refuses the messages, or does not come to an end.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        let text = match &self.place {
            Place::Here {
                environment,
                tokens,
            } => Self::render_here(environment, tokens, messages, add_generation_prompt)?,
            Place::Apart(apart) => apart.render(messages, add_generation_prompt)?,
        };
        let begin = self.begin.as_deref();
        let begin = begin.filter(|begin| !text.starts_with(begin));
        Ok(begin.unwrap_or_default().to_owned() + &text)
    }

    fn render_here(
        environment: &Environment<'static>,
        tokens: &BTreeMap<String, String>,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String> {
        // Templates ask whether these are defined, and whether they are none.
        let none = minijinja::Value::from(());
        let values = minijinja::context! {
            messages => messages,
            add_generation_prompt,
            tools => none,
            documents => none,
            ..minijinja::Value::from_serialize(tokens)
        };
        let template = environment.get_template(NAME)?;
        template.render(values).context("chat template")
    }
}

/// A template without the marks of generated text, which have no effect on a conversation: a
/// block `generation` becomes one that is always rendered.
fn without_marks(source: &str) -> String {
    let mut parts = source.split("{%");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let tag = part.split("%}").next().unwrap_or_default();
        let part = match tag.trim_matches(['-', '+', ' ', '\n', '\t']) {
            "generation" => part.replacen("generation", "if true", 1),
            "endgeneration" => part.replacen("endgeneration", "endif", 1),
            _ => part.to_owned(),
        };
        text += "{%";
        text += &part;
    }
    text
}
