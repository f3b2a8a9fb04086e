//! `POST /v1/chat/completions`.

use std::fmt;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use candle_dynquant_decoder::{Message, Texts, Variables};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::{Value, json};

use super::super::rest::Rest;
use super::format::{Api, Format};
use super::request::{Common, ask};
use super::stream::respond;
use crate::app::App;
use crate::error::{OpenAi, Refusal};
use crate::workers::Client;

/// The most log probabilities of a token.
const MOST_TOP: usize = 20;

/// The bytes that a message counts beside its content: the template adds some, at least a token.
const MESSAGE: usize = 64;

#[derive(serde::Deserialize)]
struct ChatRequest {
    messages: Vec<Said>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
    chat_template_kwargs: Option<Kwargs>,
    response_format: Option<ResponseFormat>,
    #[serde(flatten)]
    common: Common,
}

/// The variables of the chat template, each given once.
#[derive(Default)]
struct Kwargs(Variables);

impl<'de> Deserialize<'de> for Kwargs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = Kwargs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("variables of the chat template")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Kwargs, A::Error> {
                let mut variables = Variables::new();
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    if variables.insert(name, value).is_some() {
                        return Err(A::Error::custom("duplicate field in chat_template_kwargs"));
                    }
                }
                Ok(Kwargs(variables))
            }
        }

        deserializer.deserialize_map(Pairs)
    }
}

/// The form of the answer.
#[derive(serde::Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum ResponseFormat {
    // With braces, or further fields were passed over.
    Text {},
    JsonObject {},
    JsonSchema { json_schema: JsonSchema },
}

#[derive(serde::Deserialize)]
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
#[derive(serde::Deserialize)]
struct Said {
    role: String,
    content: Content,
    #[serde(flatten)]
    rest: Rest,
}

#[derive(serde::Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string, or a list of parts of type \"text\""
)]
enum Content {
    Text(String),
    Parts(Vec<TextPart>),
}

#[derive(serde::Deserialize)]
struct TextPart {
    r#type: TextType,
    text: String,
    #[serde(flatten)]
    rest: Rest,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum TextType {
    Text,
}

impl Content {
    /// The length of the text.
    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Parts(parts) => parts.iter().map(|part| MESSAGE + part.text.len()).sum(),
        }
    }
}

impl Said {
    fn message(self) -> Result<Message, Refusal> {
        let role = match self.role.as_str() {
            "system" | "user" | "assistant" => self.role,
            // The newer name of the system role.
            "developer" => "system".to_owned(),
            got => {
                let message = format!(
                    "messages: expected role system, developer, user or assistant, got {got:?}"
                );
                return Err(Refusal::invalid("messages", message));
            }
        };
        let only = |names, rest: &Rest| match rest.first() {
            None => Ok(()),
            Some(got) => {
                let message = format!("messages: expected {names}, got {got:?}");
                Err(Refusal::invalid("messages", message))
            }
        };
        only("\"role\" and \"content\"", &self.rest)?;
        let text = |TextPart { r#type, text, rest }: TextPart| match r#type {
            TextType::Text => only("\"type\" and \"text\"", &rest).map(|()| text),
        };
        let content = match self.content {
            Content::Text(text) => text,
            Content::Parts(parts) => parts.into_iter().map(text).collect::<Result<_, _>>()?,
        };
        Ok(Message { role, content })
    }
}

/// `POST /v1/chat/completions`: an answer to messages, by the model's chat template.
pub async fn chat(State(app): State<Arc<App>>, request: Request) -> Result<Response, OpenAi> {
    let (request, admission) = app.receive::<ChatRequest>(request).await?;
    app.generator()?;
    let top = match (request.logprobs.unwrap_or(false), request.top_logprobs) {
        (false, None | Some(0)) => None,
        (false, Some(_)) => {
            let message = "top_logprobs: expected \"logprobs\": true beside it";
            return Err(Refusal::invalid("top_logprobs", message).into());
        }
        (true, Some(got)) if got > MOST_TOP => {
            let message = format!("top_logprobs: expected at most {MOST_TOP}, got {got}");
            return Err(Refusal::invalid("top_logprobs", message).into());
        }
        (true, top) => Some(top.unwrap_or(0)),
    };
    let mut asked = request.common.check(&app, top)?;
    if let Some(schema) = request.response_format.and_then(ResponseFormat::schema) {
        let (grammars, bytes) = (&app.generator()?.grammars, schema.to_string().len());
        let grammars = Arc::clone(grammars);
        let grammar = app
            .limits
            .workers
            .run(bytes, move |_| grammars.json(schema));
        let fault =
            |error| Refusal::invalid("response_format", format!("response_format: {error}"));
        asked.grammar = Some(grammar.await?.map_err(fault)?);
    }
    let (said, most) = (request.messages, app.generator()?.context);
    match said.len() {
        0 => return Err(Refusal::empty("messages").into()),
        got if got > most => {
            let message =
                format!("messages: expected at most {most}, the model's tokens, got {got}");
            return Err(Refusal::invalid("messages", message).into());
        }
        _ => (),
    }
    let Kwargs(variables) = request.chat_template_kwargs.unwrap_or_default();
    let bytes = said.iter().map(|said| MESSAGE + said.content.bytes());
    let bytes = bytes.sum::<usize>() + Value::from(variables.clone()).to_string().len();
    let encode = move |texts: &Texts, _: &Client| {
        let messages = said.into_iter().map(Said::message);
        let messages: Vec<Message> = messages.collect::<Result<_, _>>()?;
        Ok(vec![encode(texts, &messages, &variables)?])
    };
    let (mut answer, admission) = ask(&app, admission, &asked, (1, bytes), encode).await?;
    // The grammar is of the whole text.
    if asked.grammar.is_none() {
        answer.separate_reasoning();
    }
    let format = Format::new(Api::Chat, &app, &asked);
    Ok(respond(answer, admission, format, asked.stream).await?)
}

/// The tokens of messages. Only the template may write special tokens, contents may not.
fn encode(texts: &Texts, messages: &[Message], variables: &Variables) -> Result<Vec<u32>, Refusal> {
    let Some(template) = &texts.template else {
        let message = "messages: the model has no chat template: ask /v1/completions";
        return Err(Refusal::invalid("messages", message));
    };
    if let Some(name) = variables.keys().find(|name| !template.reads(name)) {
        let param = "chat_template_kwargs";
        let message = format!("{param}: expected variables of the chat template, got {name:?}");
        return Err(Refusal::invalid(param, message));
    }
    let tokens = texts.chat_with(messages, true, variables);
    tokens.map_err(|error| Refusal::invalid("messages", format!("messages: {error:#}")))
}
