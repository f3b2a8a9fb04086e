//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use candle_dynquant_decoder::{Message, Texts, Variables};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::super::rest::{Entries, Rest};
use super::format::{Endpoint, Format};
use super::request::{Common, STRUCTURED, ask, at_most};
use super::stream::respond;
use super::tools::{self, Choice, OfFunction};
use crate::app::App;
use crate::error::{Refusal, cut};
use crate::generate::Form;
use crate::workers::Client;

/// The most log probabilities of a token.
const MOST_TOP: usize = 20;

/// The bytes that a message counts beside its content: the template adds some, at least a token.
const MESSAGE: usize = 64;

/// The field with the form of an answer in OpenAI's API.
const FORMAT: &str = "response_format";

/// The variable with the tools.
const TOOLS: &str = "tools";

#[derive(Deserialize)]
struct ChatRequest {
    messages: Vec<Said>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
    chat_template_kwargs: Option<Kwargs>,
    response_format: Option<ResponseFormat>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Choice>,
    parallel_tool_calls: Option<bool>,
    #[serde(flatten)]
    common: Common,
}

/// The variables of the chat template, each given once.
#[derive(Default)]
struct Kwargs(Variables);

impl<'de> Deserialize<'de> for Kwargs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut variables = Variables::new();
        let take = |name, value| {
            let before = variables.insert(name, value);
            before.map(|_| "duplicate field in chat_template_kwargs".to_owned())
        };
        let expected = "variables of the chat template";
        deserializer.deserialize_map(Entries { expected, take })?;
        Ok(Self(variables))
    }
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum ResponseFormat {
    // With braces, or further fields were passed over.
    Text {},
    JsonObject {},
    JsonSchema { json_schema: JsonSchema },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonSchema {
    schema: Value,
    /// The answer keeps to the schema in any case.
    #[serde(rename = "name")]
    _name: Option<String>,
    #[serde(rename = "description")]
    _description: Option<String>,
    #[serde(rename = "strict")]
    _strict: Option<bool>,
}

impl ResponseFormat {
    /// The schema of the answer, if it is JSON.
    fn schema(self) -> Option<Value> {
        match self {
            Self::Text {} => None,
            Self::JsonObject {} => Some(json!({"type": "object"})),
            Self::JsonSchema { json_schema } => Some(json_schema.schema),
        }
    }
}

/// A message, as a text or in parts.
#[derive(Deserialize)]
struct Said {
    role: String,
    content: Option<Content>,
    tool_calls: Option<Vec<SaidCall>>,
    tool_call_id: Option<String>,
    name: Option<String>,
    reasoning_content: Option<String>,
    #[serde(flatten)]
    rest: Rest,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SaidCall {
    id: String,
    #[serde(rename = "type")]
    _type: OfFunction,
    function: SaidFunction,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SaidFunction {
    name: String,
    arguments: String,
}

impl SaidCall {
    fn bytes(&self) -> usize {
        MESSAGE + self.id.len() + self.function.name.len() + self.function.arguments.len()
    }

    /// The call as templates get it: with the arguments as an object.
    fn value(self) -> Result<Value, Refusal> {
        let SaidFunction { name, arguments } = self.function;
        let object = serde_json::from_str::<Map<String, Value>>(&arguments).map_err(|_| {
            let got = cut(&arguments, 100);
            let fault = format_args!("arguments of {name:?}: expected a JSON object, got {got}");
            Refusal::invalid("messages", fault)
        })?;
        let function = json!({"name": name, "arguments": object});
        Ok(json!({"id": self.id, "type": "function", "function": function}))
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string, or a list of parts of type \"text\"")]
enum Content {
    Text(String),
    Parts(Vec<TextPart>),
}

#[derive(Deserialize)]
struct TextPart {
    r#type: TextType,
    text: String,
    #[serde(flatten)]
    rest: Rest,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum TextType {
    Text,
}

impl Content {
    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Parts(parts) => parts.iter().map(|part| MESSAGE + part.text.len()).sum(),
        }
    }
}

impl Said {
    fn bytes(&self) -> usize {
        let calls = self.tool_calls.iter().flatten().map(SaidCall::bytes);
        let texts = [&self.tool_call_id, &self.name, &self.reasoning_content];
        let texts = texts.into_iter().flatten().map(String::len);
        let content = self.content.as_ref().map_or(0, Content::bytes);
        MESSAGE + content + calls.chain(texts).sum::<usize>()
    }

    fn message(self) -> Result<Message, Refusal> {
        let fault = |expected: &str, got: &str| {
            Refusal::invalid("messages", format_args!("expected {expected}, got {got}"))
        };
        let (role, names) = match self.role.as_str() {
            "assistant" => {
                ("assistant", "\"role\", \"content\", \"tool_calls\" and \"reasoning_content\"")
            }
            "tool" => ("tool", "\"role\", \"content\", \"tool_call_id\" and \"name\""),
            "user" => ("user", "\"role\" and \"content\""),
            // The latter is the newer name of the role.
            "system" | "developer" => ("system", "\"role\" and \"content\""),
            got => {
                let expected = "role system, developer, user, assistant or tool";
                return Err(fault(expected, &format!("{got:?}")));
            }
        };
        let (is_assistant, is_tool) = (role == "assistant", role == "tool");
        let calls = self.tool_calls.filter(|calls| !calls.is_empty());
        let mut fields = Variables::new();
        for (key, value, is_allowed) in [
            ("reasoning_content", self.reasoning_content, is_assistant),
            ("tool_call_id", self.tool_call_id, is_tool),
            ("name", self.name, is_tool),
        ] {
            let Some(value) = value else { continue };
            if !is_allowed {
                return Err(fault(names, &format!("{key:?}")));
            }
            fields.insert(key.to_owned(), value.into());
        }
        if is_tool && !fields.contains_key("tool_call_id") {
            return Err(fault("\"tool_call_id\" in a message of a tool", "none"));
        }
        if !is_assistant && calls.is_some() {
            return Err(fault(names, "\"tool_calls\""));
        }
        let only = |names, rest: &Rest| match rest.first() {
            None => Ok(()),
            Some(got) => Err(fault(names, &format!("{got:?}"))),
        };
        only(names, &self.rest)?;
        let text = |TextPart { r#type, text, rest }: TextPart| match r#type {
            TextType::Text => only("\"type\" and \"text\"", &rest).map(|()| text),
        };
        let content = match self.content {
            Some(Content::Text(text)) => text,
            Some(Content::Parts(parts)) => parts.into_iter().map(text).collect::<Result<_, _>>()?,
            None if calls.is_some() => String::new(),
            None => return Err(fault("\"content\"", "none")),
        };
        if let Some(calls) = calls {
            let calls = calls.into_iter().map(SaidCall::value);
            let calls: Vec<Value> = calls.collect::<Result<_, _>>()?;
            fields.insert("tool_calls".to_owned(), calls.into());
        }
        Ok(Message { role: role.to_owned(), content, fields })
    }
}

/// `POST /v1/chat/completions`: an answer to messages, by the model's chat template.
pub async fn chat(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    let (request, admission) = app.receive::<ChatRequest>(request).await?;
    app.generator()?;
    let (is_logged, top) = (request.logprobs.unwrap_or(false), request.top_logprobs);
    if !is_logged && top.unwrap_or(0) > 0 {
        return Err(Refusal::invalid("top_logprobs", "expected \"logprobs\": true beside it"));
    }
    at_most(MOST_TOP, "top_logprobs", top)?;
    let top = is_logged.then(|| top.unwrap_or(0));
    let mut common = request.common;
    let structured = common.structured_outputs.take();
    let mut asked = common.check(&app, top)?;
    let tools = request.tools.unwrap_or_default();
    let tool_bytes = tools::bytes(&tools);
    let (choice, parallel) = (request.tool_choice, request.parallel_tool_calls);
    let mut offered = tools::check(&app, tools, choice, parallel).await?;
    let response = request.response_format.and_then(ResponseFormat::schema);
    let forms = [(FORMAT, response.map(Form::Json)), (STRUCTURED, structured)];
    for (field, form) in forms {
        let Some(form) = form else { continue };
        if offered.is_some() || asked.grammar.is_some() {
            let other = if offered.is_some() { "tools" } else { FORMAT };
            let fault = format!("expected none beside {other}, got a form");
            return Err(Refusal::invalid(field, fault));
        }
        asked.keep_to(&app, field, form).await?;
    }
    let (said, most) = (request.messages, app.generator()?.context);
    match said.len() {
        0 => return Err(Refusal::empty("messages")),
        got if got > most => {
            let fault = format!("expected at most {most}, the model's tokens, got {got}");
            return Err(Refusal::invalid("messages", fault));
        }
        _ => (),
    }
    let Kwargs(variables) = request.chat_template_kwargs.unwrap_or_default();
    let bytes = said.iter().map(Said::bytes).sum::<usize>() + tool_bytes;
    let bytes = bytes + Value::from(variables.clone()).to_string().len();
    let tools = offered.as_mut().map(|offered| offered.tools.take());
    let encode = move |texts: &Texts, _: &Client| {
        let messages = said.into_iter().map(Said::message);
        let messages: Vec<Message> = messages.collect::<Result<_, _>>()?;
        Ok(vec![encode(texts, &messages, variables, tools)?])
    };
    if let Some(offered) = &mut offered {
        asked.grammar = offered.grammar.take();
    }
    let (mut answer, admission) = ask(&app, admission, &asked, (1, bytes), encode).await?;
    if asked.grammar.as_ref().is_none_or(|grammar| grammar.has_text) {
        answer.separate_reasoning();
    }
    if let Some(offered) = offered {
        answer.separate_calls(&offered.functions);
    }
    let format = Format::new(Endpoint::Chat, &app, &asked);
    respond(answer, admission, format, asked.stream).await
}

/// The tokens of messages. Only the template may write special tokens, contents may not.
fn encode(
    texts: &Texts,
    messages: &[Message],
    mut variables: Variables,
    tools: Option<Value>,
) -> Result<Vec<u32>, Refusal> {
    let Some(template) = &texts.template else {
        let fault = "the model has no chat template: ask /v1/completions";
        return Err(Refusal::invalid("messages", fault));
    };
    let is_wrong = |name: &&String| *name == TOOLS || !template.reads(name);
    if let Some(name) = variables.keys().find(is_wrong) {
        let fault = format_args!("expected variables of the chat template, got {name:?}");
        return Err(Refusal::invalid("chat_template_kwargs", fault));
    }
    let has_calls = |message: &Message| message.fields.contains_key("tool_calls");
    if !template.writes_tool_calls && messages.iter().any(has_calls) {
        let fault = "expected none with \"tool_calls\", which the chat template does not read";
        return Err(Refusal::invalid("messages", fault));
    }
    variables.extend(tools.map(|tools| (TOOLS.to_owned(), tools)));
    let tokens = texts.chat_with(messages, true, &variables);
    tokens.map_err(|error| Refusal::invalid("messages", format_args!("{error:#}")))
}
