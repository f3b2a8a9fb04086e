//! The tools that a chat offers, and which of them the answer calls.

use std::collections::HashSet;
use std::sync::Arc;

use candle_dynquant_decoder::Texts;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::error::{Kind, Refusal};
use crate::generate::{Functions, Grammar};

const LONGEST_NAME: usize = 64;

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "tool_choice: expected \"none\", \"auto\", \"required\" or {\"type\": \"function\", \
                 \"function\": {\"name\": ..}}"
)]
pub enum Choice {
    Word(Word),
    Named(Named),
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Word {
    None,
    Auto,
    Required,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Named {
    #[serde(rename = "type")]
    _type: OfFunction,
    function: Name,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Name {
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OfFunction {
    Function,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tool {
    #[serde(rename = "type")]
    _type: OfFunction,
    function: Function,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Function {
    name: String,
    #[serde(rename = "description")]
    _description: Option<String>,
    parameters: Option<Map<String, Value>>,
    strict: Option<bool>,
}

pub struct Offered {
    /// The tools as the template gets them.
    pub tools: Value,
    pub functions: Arc<Functions>,
    /// The grammar of an answer that has to be calls, or whose calls keep to a schema.
    pub grammar: Option<Grammar>,
}

/// The approximate size of tools in memory.
pub fn bytes(tools: &[Value]) -> usize {
    tools.iter().map(|tool| tool.to_string().len()).sum()
}

/// Checks the tools; `None` if the answer calls none.
pub async fn check(
    app: &App,
    tools: Vec<Value>,
    choice: Option<Choice>,
    parallel: Option<bool>,
) -> Result<Option<Offered>, Refusal> {
    let bytes = bytes(&tools);
    let (word, named) = match choice {
        Some(Choice::Named(Named { function, .. })) => (Word::Required, Some(function.name)),
        Some(Choice::Word(word)) => (word, None),
        None => (Word::Auto, None),
    };
    let checked = tools.iter().enumerate().map(|(index, tool)| checked(index, tool));
    let mut checked = checked.collect::<Result<Vec<_>, _>>()?;
    let mut seen = HashSet::new();
    if let Some(function) = checked.iter().find(|function| !seen.insert(&function.name)) {
        let fault = format!("expected functions of different names, got two {:?}", function.name);
        return Err(Refusal::invalid("tools", fault));
    }
    let is_known = |name: &String| seen.contains(name);
    if (word == Word::Required && seen.is_empty()) || !named.iter().all(is_known) {
        let got = named.map_or("\"required\"".to_owned(), |name| format!("{name:?}"));
        let fault = format!("expected the functions of tools, got {got}");
        return Err(Refusal::invalid("tool_choice", fault));
    }
    if seen.is_empty() || word == Word::None {
        return Ok(None);
    }
    let generator = app.generator()?;
    let format = format(&generator.texts)?;
    let is_single = parallel == Some(false) || named.is_some();
    checked.retain(|function| named.as_ref().is_none_or(|name| *name == function.name));
    let (is_auto, is_strict) = (word == Word::Auto, checked.iter().any(Function::is_strict));
    let parameters = checked.iter().map(|function| function.parameters.clone().into()).collect();
    let schemas = checked.into_iter().map(|function| function.schema(is_auto));
    let (names, schemas) = schemas.unzip();
    let functions = Arc::new(Functions { format, names, parameters, is_single });
    let grammar = if is_strict || !is_auto {
        let (grammars, functions) = (Arc::clone(&generator.grammars), Arc::clone(&functions));
        let work = move |_: &_| grammars.calls(&functions, schemas, is_auto);
        let grammar = app.limits.workers.run(bytes, work).await?;
        Some(grammar.map_err(|fault| Refusal::invalid("tools", fault))?)
    } else {
        None
    };
    Ok(Some(Offered { tools: tools.into(), functions, grammar }))
}

/// Reads a tool, and checks what names and schemas have to be.
fn checked(index: usize, tool: &Value) -> Result<Function, Refusal> {
    let place = format!("tools[{index}]");
    let fault = |fault: String| Refusal::at(Kind::Invalid, "tools", &place, fault);
    let Tool { function, .. } = Tool::deserialize(tool).map_err(|e| fault(e.to_string()))?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let name = &function.name;
    if !(1..=LONGEST_NAME).contains(&name.len()) || !name.chars().all(is_plain) {
        return Err(fault(format!(
            "name: expected 1 to {LONGEST_NAME} letters, digits, _ and -, got {name:?}"
        )));
    }
    let parameters = function.parameters.as_ref();
    let kind = parameters.and_then(|parameters| parameters.get("type"));
    if let Some(got) = kind.filter(|kind| **kind != json!("object")) {
        return Err(fault(format!("parameters: expected a schema of type \"object\", got {got}")));
    }
    Ok(function)
}

impl Function {
    fn is_strict(&self) -> bool {
        self.strict == Some(true)
    }

    /// The name, and the schema of the arguments: if `is_auto`, any object unless it is strict.
    fn schema(self, is_auto: bool) -> (String, Value) {
        let none = || Map::from_iter([("additionalProperties".to_owned(), json!(false))]);
        let mut schema = if is_auto && !self.is_strict() {
            Map::new()
        } else {
            self.parameters.unwrap_or_else(none)
        };
        schema.insert("type".to_owned(), json!("object"));
        (self.name, schema.into())
    }
}

/// The form of calls by the chat template.
fn format(texts: &Texts) -> Result<candle_dynquant_decoder::ToolFormat, Refusal> {
    let template = texts.template.as_ref();
    let got = match template {
        None => "none",
        Some(template) if !template.reads("tools") => "one that does not read tools",
        Some(template) => match template.tool_format {
            Some(format) => return Ok(format),
            None => "another form",
        },
    };
    let fault = format!(
        "expected a chat template with calls as <tool_call>{{\"name\": .., \"arguments\": ..}}</tool_call>, \
         <function=..><parameter=..>, [TOOL_CALLS] [..], [TOOL_CALLS]..[ARGS].. or \
         {{\"name\": .., \"parameters\": ..}}, got {got}"
    );
    Err(Refusal::invalid("tools", fault))
}
