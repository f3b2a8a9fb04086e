//! Chat templates: how the messages of a conversation become one text.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use candle_dynquant_io::input;
use serde_json::Value;

use crate::apart::Apart;
use crate::json::Keys;
use crate::source::Source;
use crate::template::{LocalTemplate, Message, Variables};

/// A Jinja template, as in the tokenizers of the Hub.
pub struct Template {
    place: Place,
    /// The token that begins every text, which the template need not write.
    pub begin: Option<String>,
    /// The strings in the code of the template.
    pub(super) literals: Vec<String>,
    /// The variables that it reads, but for those that every template gets.
    variables: BTreeSet<String>,
    /// Whether answers begin with reasoning, between `<think>` and `</think>`.
    pub has_reasoning: bool,
    /// The form of calls of tools, if the template reads `tools` and the form is known.
    pub tool_format: Option<ToolFormat>,
    /// Whether the template writes the calls of earlier messages.
    pub writes_tool_calls: bool,
}

/// The form in which a template has the model call tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `{"name": …, "arguments": {…}}` between `<tool_call>` and `</tool_call>`, as Qwen's models.
    Hermes,
    /// The whole text is `{"name": …, "parameters": {…}}`.
    Llama,
    /// A list of `{"name": …, "arguments": {…}}` behind `[TOOL_CALLS]`.
    Mistral,
    /// The name, `[ARGS]` and the arguments, behind `[TOOL_CALLS]` each, as Mistral's models since
    /// 2025.
    MistralArguments,
    /// `<function=name>` and `<parameter=key>` with a value each, between `<tool_call>` and
    /// `</tool_call>`, as Qwen3-Coder's models.
    Xml,
}

impl ToolFormat {
    /// The form by what the source of a template writes itself.
    fn from_source(source: &str) -> Option<Self> {
        let has = |text| source.contains(text);
        if has("<tool_call>") {
            if has("<function=") && has("<parameter=") {
                Some(Self::Xml)
            } else {
                has("\"arguments").then_some(Self::Hermes)
            }
        } else if has("[TOOL_CALLS]") {
            let format = if has("[ARGS]") { Self::MistralArguments } else { Self::Mistral };
            (!has("[CALL_ID]")).then_some(format)
        } else {
            (has("\"name\": ") && has("\"parameters\": ")).then_some(Self::Llama)
        }
    }
}

enum Place {
    Here(Box<LocalTemplate>),
    Apart(Apart),
}

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
        let read = Source::read(source);
        let (place, variables) = match Apart::open(source, &tokens)? {
            Some((apart, variables)) => (Place::Apart(apart), variables),
            None => {
                let local = LocalTemplate::new(source, tokens)?;
                let variables = local.variables()?;
                (Place::Here(Box::new(local)), variables)
            }
        };
        Ok(Self {
            place,
            begin: None,
            literals: read.literals,
            writes_tool_calls: source.contains("tool_calls"),
            tool_format: ToolFormat::from_source(source).filter(|_| variables.contains("tools")),
            variables,
            has_reasoning: source.contains("</think>"),
        })
    }

    /// Whether the template reads a variable beside those that every template gets.
    pub fn reads(&self, variable: &str) -> bool {
        self.variables.contains(variable)
    }

    /// The conversation as a text, with the beginning of the assistant's answer on request.
    ///
    /// # Errors
    /// When the template refuses the messages, or does not end.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        self.render_with(messages, add_generation_prompt, &Variables::new())
    }

    /// [`render`](Self::render) with further variables, such as `tools` or `enable_thinking`.
    ///
    /// # Errors
    /// As [`render`](Self::render), and when the template does not name a variable.
    pub fn render_with(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        variables: &Variables,
    ) -> Result<String> {
        for name in variables.keys() {
            ensure!(
                self.reads(name),
                "chat template: expected a variable that it reads, got {name:?}"
            );
        }
        let text = match &self.place {
            Place::Here(local) => local.render(messages, add_generation_prompt, variables)?,
            Place::Apart(apart) => apart.render(messages, add_generation_prompt, variables)?,
        };
        let begin = self.begin.as_deref();
        let begin = begin.filter(|begin| !text.starts_with(begin));
        Ok(begin.unwrap_or_default().to_owned() + &text)
    }
}
