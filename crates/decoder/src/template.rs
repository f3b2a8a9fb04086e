//! A chat template rendered in this process.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use anyhow::{Context, Result};
use jiff::{ZonedDateTime, fmt::strtime};
use minijinja::{Environment, Error, ErrorKind};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::dumps;
use crate::source::{DIVISOR, Source, TUPLE};

/// A message and its author: `system`, `user`, `assistant` or `tool`; in a pair of texts, `query` or
/// `document`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Message {
    /// The author.
    pub role: String,
    /// The text.
    pub content: String,
    /// Further fields that a template may read, such as `tool_calls`.
    #[serde(flatten)]
    pub fields: Variables,
}

impl Message {
    /// A message by an author.
    pub fn new(role: &str, content: &str) -> Self {
        Self { role: role.to_owned(), content: content.to_owned(), fields: Variables::new() }
    }
}

/// Further variables of a template by name, such as `tools` or `enable_thinking`.
pub type Variables = Map<String, Value>;

const NAME: &str = "chat_template";

/// The variables of every template, and of blocks.
const GIVEN: [&str; 6] =
    ["messages", "add_generation_prompt", "documents", "loop", "self", "caller"];

/// The most instructions of a rendering; a template takes a few hundred for each message.
const FUEL: u64 = 5_000_000;

/// A template with its special tokens by name, such as `bos_token`.
pub struct LocalTemplate {
    environment: Environment<'static>,
    tokens: BTreeMap<String, String>,
}

impl LocalTemplate {
    pub fn new(source: &str, tokens: BTreeMap<String, String>) -> Result<Self> {
        let mut environment = Environment::new();
        // The settings of transformers.
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.set_formatter(dumps::format);
        environment.add_filter("tojson", dumps::to_json);
        environment.add_filter("string", dumps::string);
        environment.add_filter("join", dumps::join);
        environment.add_test("iterable", dumps::is_iterable);
        environment.add_test("sequence", dumps::is_sequence);
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
        let Source { text, .. } = Source::read(&without_marks(&source));
        environment
            .add_template_owned(NAME, text)
            .context("chat template: expected a Jinja template")?;
        Ok(Self { environment, tokens })
    }

    pub fn variables(&self) -> Result<BTreeSet<String>> {
        let template = self.environment.get_template(NAME)?;
        let mut names: BTreeSet<String> =
            template.undeclared_variables(false).into_iter().collect();
        let is_function =
            |name: &String| self.environment.globals().any(|(known, _)| known == name);
        names.retain(|name| {
            !GIVEN.contains(&&**name) && !is_function(name) && !self.tokens.contains_key(name)
        });
        Ok(names)
    }

    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        variables: &Variables,
    ) -> Result<String> {
        // Templates test whether these are defined, and whether they are none.
        let none = minijinja::Value::from(());
        let tokens = self.tokens.iter();
        let tokens = tokens.map(|(name, token)| (name.clone(), token.clone().into()));
        let variables = variables.clone().into_iter();
        let others: Variables =
            iter::once(("tools".to_owned(), Value::Null)).chain(variables).chain(tokens).collect();
        let values = minijinja::context! {
            messages => messages,
            add_generation_prompt,
            documents => none,
            ..minijinja::Value::from_serialize(&others)
        };
        let template = self.environment.get_template(NAME)?;
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
