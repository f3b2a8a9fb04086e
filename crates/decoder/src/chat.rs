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

use crate::apart::Apart;
use crate::dumps;
use crate::json::Keys;
use crate::source::{DIVISOR, Source, TUPLE};

/// A message and its author: `system`, `user` or `assistant`; in a pair of texts, `query` or
/// `document`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Message {
    /// The author.
    pub role: String,
    /// The text.
    pub content: String,
}

/// A Jinja template, as in the tokenizers of the Hub.
pub struct Template {
    place: Place,
    /// The token that begins every text, which the template need not write.
    pub begin: Option<String>,
    /// The strings in the code of the template.
    pub(super) literals: Vec<String>,
}

/// The place where a template is rendered.
enum Place {
    Here {
        environment: Box<Environment<'static>>,
        /// Special tokens by name, such as `bos_token`.
        tokens: BTreeMap<String, String>,
    },
    Apart(Apart),
}

const NAME: &str = "chat_template";

/// The most instructions of a rendering; a template takes a few hundred for each message.
const FUEL: u64 = 5_000_000;

impl Template {
    /// The text of a folder's template, if it has one: the file `chat_template.jinja`, or a key of
    /// `tokenizer_config.json`, in a list the template named `default`.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn source(dir: &Path) -> Result<Option<String>> {
        const MAX: u64 = 1 << 20;
        let file = dir.join("chat_template.jinja");
        if file.exists() {
            return Ok(Some(input::read_text(&file, MAX)?));
        }
        let config = dir.join("tokenizer_config.json");
        if !config.exists() {
            return Ok(None);
        }
        let keys = Keys::read(&config)?;
        let named = match keys.get("chat_template") {
            None | Some(Value::Null) => None,
            Some(Value::Array(named)) => {
                let default = named.iter().find(|template| template["name"] == "default");
                default.map(|template| &template["template"])
            }
            Some(Value::Object(named)) => named.get("default"),
            text => text,
        };
        let fault = || keys.fault("chat_template", "a template, or several with names");
        let text = named.map(|template| template.as_str().with_context(fault));
        Ok(text.transpose()?.map(str::to_owned))
    }

    /// A template with the tokens at the beginning and at the end.
    ///
    /// # Errors
    /// When the source is not Jinja.
    pub fn new(source: &str, bos: String, eos: String) -> Result<Self> {
        let tokens = [("bos_token", bos), ("eos_token", eos)];
        let tokens = tokens.map(|(name, token)| (name.to_owned(), token));
        Self::naming(source, tokens.into())
    }

    /// A template with these special tokens.
    ///
    /// # Errors
    /// When the source is not Jinja.
    pub fn naming(source: &str, tokens: BTreeMap<String, String>) -> Result<Self> {
        match Apart::open(source, &tokens)? {
            Some(apart) => Ok(Self {
                place: Place::Apart(apart),
                begin: None,
                literals: Source::read(source).literals,
            }),
            None => Self::here(source, tokens),
        }
    }

    /// A template that is rendered in this process.
    pub fn here(source: &str, tokens: BTreeMap<String, String>) -> Result<Self> {
        let mut environment = Environment::new();
        // The settings of transformers.
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.set_formatter(dumps::format);
        environment.add_filter("tojson", dumps::to_json);
        environment.add_function(TUPLE, dumps::tuple);
        environment.add_function(DIVISOR, || -> Result<i64, Error> {
            let expected = "expected a whole number from 1 on behind % and //";
            Err(Error::new(ErrorKind::InvalidOperation, expected))
        });
        environment.add_function("raise_exception", |text: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, text))
        });
        environment.add_function("strftime_now", |format: String| {
            let now = strtime::format(&format, &ZonedDateTime::now());
            now.map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
        });
        // Jinja reads every end of a line as \n.
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        let Source { text, literals } = Source::read(&without_marks(&source));
        environment
            .add_template_owned(NAME, text)
            .context("chat template: expected a Jinja template")?;
        let environment = Box::new(environment);
        let place = Place::Here {
            environment,
            tokens,
        };
        let begin = None;
        Ok(Self {
            place,
            begin,
            literals,
        })
    }

    /// The conversation as a text, with the beginning of the assistant's answer on request.
    ///
    /// # Errors
    /// When the template refuses the messages, or does not end.
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
        // Templates test whether these are defined, and whether they are none.
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

/// The template without marks of generated text, which have no effect on a conversation: a block
/// `generation` becomes a block that is always rendered.
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
