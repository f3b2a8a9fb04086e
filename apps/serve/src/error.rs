//! Requests that are refused or fail, in the formats of both APIs.

use std::borrow::Cow;
use std::fmt::{Arguments, Display};

use axum::http::{HeaderValue, StatusCode, header::RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::{Value, json};

/// The longest message, in bytes: it may quote an input as long as a body, and nobody may read it.
const LONGEST: usize = 1000;

/// The beginning of a text, `most` bytes of it.
pub fn cut(text: &str, most: usize) -> Cow<'_, str> {
    match text.get(..text.floor_char_boundary(most)) {
        Some(beginning) if beginning.len() < text.len() => format!("{beginning}..").into(),
        _ => text.into(),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    OpenAi,
    /// text-embeddings-inference's.
    Tei,
}

impl Api {
    pub fn of(path: &str) -> Self {
        let is_openai = path.starts_with("/v1/") || path == "/embeddings";
        if is_openai { Self::OpenAi } else { Self::Tei }
    }
}

#[derive(Clone, Debug)]
pub struct Refusal {
    kind: Kind,
    message: String,
    param: Option<Cow<'static, str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Invalid,
    Empty,
    BodyTooLarge,
    BodyTooSlow,
    UnknownModel,
    NoSuchRoute,
    WrongMethod,
    /// The prompt is longer than the context.
    TooLong,
    /// The model is made for another route.
    OtherModel,
    Overloaded,
    ShuttingDown,
    /// The model did not answer.
    Failed,
}

impl Kind {
    /// The status, the type and the code in OpenAI's API, and the status and the type in
    /// text-embeddings-inference.
    fn formats(self) -> (u16, &'static str, Option<&'static str>, u16, &'static str) {
        const REQUEST: &str = "invalid_request_error";
        match self {
            Self::Invalid => (400, REQUEST, None, 422, "Validation"),
            Self::Empty => (400, REQUEST, None, 400, "Empty"),
            Self::BodyTooLarge => (413, REQUEST, None, 413, "Validation"),
            Self::BodyTooSlow => (408, REQUEST, None, 408, "Validation"),
            Self::UnknownModel => (404, REQUEST, Some("model_not_found"), 422, "Validation"),
            Self::NoSuchRoute => (404, REQUEST, Some("unknown_url"), 404, "Validation"),
            Self::WrongMethod => (405, REQUEST, None, 405, "Validation"),
            Self::TooLong => (400, REQUEST, Some("context_length_exceeded"), 422, "Validation"),
            Self::OtherModel => (400, REQUEST, None, 424, "Backend"),
            Self::Overloaded => (429, "requests", Some("rate_limit_exceeded"), 429, "Overloaded"),
            Self::ShuttingDown => (503, "server_error", None, 503, "Unhealthy"),
            Self::Failed => (500, "server_error", None, 424, "Backend"),
        }
    }
}

impl Refusal {
    pub fn new(kind: Kind, message: impl AsRef<str>) -> Self {
        Self { kind, message: cut(message.as_ref(), LONGEST).into_owned(), param: None }
    }

    /// A fault of kind `kind` at `place`, within the field `param`.
    pub fn at(
        kind: Kind,
        param: impl Into<Cow<'static, str>>,
        place: &str,
        fault: impl Display,
    ) -> Self {
        Self { param: Some(param.into()), ..Self::new(kind, format!("{place}: {fault}")) }
    }

    /// The value of the field `param` is not understood or not allowed.
    pub fn invalid(param: impl Into<Cow<'static, str>>, fault: impl Display) -> Self {
        let param = param.into();
        Self::at(Kind::Invalid, param.clone(), &param, fault)
    }

    /// Refuses a request in which a condition on the field `param` does not hold.
    pub fn unless(holds: bool, param: &'static str, fault: Arguments<'_>) -> Result<(), Self> {
        if holds { Ok(()) } else { Err(Self::invalid(param, fault)) }
    }

    pub fn empty(param: &'static str) -> Self {
        Self::at(Kind::Empty, param, param, "expected at least one text, got none")
    }

    /// More work at a time than a limit allows.
    pub fn overloaded(most: Arguments<'_>) -> Self {
        Self::new(Kind::Overloaded, format!("overloaded: expected at most {most}"))
    }

    pub fn shutting_down() -> Self {
        Self::new(Kind::ShuttingDown, "the server is shutting down")
    }

    pub fn failed(message: impl AsRef<str>) -> Self {
        Self::new(Kind::Failed, message)
    }

    pub fn no_thread() -> Self {
        Self::failed("the model's thread has ended")
    }

    /// The error as a body, or as an event of a stream.
    pub fn body(&self, api: Api) -> Value {
        let (_, kind, code, _, tei) = self.kind.formats();
        match api {
            Api::OpenAi => json!({"error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": code,
            }}),
            Api::Tei => json!({"error": self.message, "error_type": tei}),
        }
    }

    pub fn respond(&self, api: Api) -> Response {
        let (openai, _, _, tei, _) = self.kind.formats();
        let status = StatusCode::from_u16(if api == Api::OpenAi { openai } else { tei });
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(self.body(api))).into_response();
        if matches!(self.kind, Kind::Overloaded | Kind::ShuttingDown) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// A placeholder, for which the router puts the answer in the format of the route.
impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        Extension(self).into_response()
    }
}
