//! Requests that are refused or fail, in the formats of both APIs.

use std::borrow::Cow;
use std::fmt;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header::RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
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

/// The reason why a request was refused, or failed.
#[derive(Debug)]
pub struct Refusal {
    kind: RefusalKind,
    message: String,
    /// The part of the request at fault.
    param: Option<Cow<'static, str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefusalKind {
    Invalid,
    Empty,
    BodyTooLarge,
    BodyTooSlow,
    UnknownModel,
    NoSuchRoute,
    WrongMethod,
    TooLong,
    OtherModel,
    Overloaded,
    ShuttingDown,
    Failed,
}

impl Refusal {
    fn new(kind: RefusalKind, message: impl AsRef<str>) -> Self {
        Self { kind, message: cut(message.as_ref(), LONGEST).into_owned(), param: None }
    }

    fn at(self, param: impl Into<Cow<'static, str>>) -> Self {
        let param = Some(param.into());
        Self { param, ..self }
    }

    /// The value at `param` is not understood or not allowed.
    pub fn invalid(param: impl Into<Cow<'static, str>>, message: impl AsRef<str>) -> Self {
        Self::new(RefusalKind::Invalid, message).at(param)
    }

    /// The body does not fit the route.
    pub fn malformed(message: impl AsRef<str>) -> Self {
        Self::new(RefusalKind::Invalid, message)
    }

    /// The list of texts at `param` is empty.
    pub fn empty(param: &'static str) -> Self {
        let message = format!("{param}: expected at least one text, got none");
        Self::new(RefusalKind::Empty, message).at(param)
    }

    /// A text at a place of `param` is empty.
    pub fn empty_text(param: &'static str, place: &str) -> Self {
        let message = format!("{place}: expected a text, got an empty one");
        Self::new(RefusalKind::Empty, message).at(param)
    }

    /// The body is longer than `limit`; `got` is its length, if the request states it.
    pub fn body_too_large(limit: usize, got: Option<u64>) -> Self {
        let got = got.map_or("more".to_owned(), |got| got.to_string());
        let message = format!("the body: expected at most {limit} bytes, got {got}");
        Self::new(RefusalKind::BodyTooLarge, message)
    }

    /// The body did not arrive in time.
    pub fn body_too_slow(seconds: u64) -> Self {
        let message = format!("the body: expected all of it within {seconds} s, got a part");
        Self::new(RefusalKind::BodyTooSlow, message)
    }

    /// The request names another model.
    pub fn unknown_model(known: &[String], got: &str) -> Self {
        let message = format!("model: expected {}, got {got:?}", known.join(" or "));
        Self::new(RefusalKind::UnknownModel, message).at("model")
    }

    /// The path has no route.
    pub fn no_such_route(path: &str) -> Self {
        Self::new(RefusalKind::NoSuchRoute, format!("there is no route {path:?}"))
    }

    /// The path does not take this method.
    pub fn wrong_method(method: &str, path: &str) -> Self {
        let message = format!("{path:?} does not take the method {method}");
        Self::new(RefusalKind::WrongMethod, message)
    }

    /// The request asks for classes, and the model has no classification head.
    pub fn no_classifier() -> Self {
        Self::other_model("the model has no classification head: it answers with embeddings only")
    }

    /// The model is made for another route.
    pub fn other_model(message: &str) -> Self {
        Self::new(RefusalKind::OtherModel, message)
    }

    /// The prompt is longer than the context.
    pub fn too_long(limit: usize, got: usize) -> Self {
        let message = format!("the prompt: expected at most {limit} tokens, got {got}");
        Self::new(RefusalKind::TooLong, message)
    }

    fn overloaded(most: fmt::Arguments<'_>) -> Self {
        Self::new(RefusalKind::Overloaded, format!("overloaded: expected at most {most}"))
    }

    /// The maximum number of requests is being answered.
    pub fn too_many_requests(limit: usize) -> Self {
        Self::overloaded(format_args!("{limit} requests at a time, got one more"))
    }

    /// The maximum number of connections is open.
    pub fn too_many_connections(limit: usize) -> Self {
        Self::overloaded(format_args!("{limit} connections at a time, got one more"))
    }

    /// Bodies and answers take all of their memory.
    pub fn too_many_bytes(limit: usize) -> Self {
        Self::overloaded(format_args!("{limit} bytes of large requests at a time, got more"))
    }

    /// The texts do not fit into the free part of the queue.
    pub fn queue_full(capacity: usize, free: usize, got: usize) -> Self {
        Self::overloaded(format_args!(
            "{free} texts, the room left in the queue of {capacity}, got {got}"
        ))
    }

    /// The server accepts no new requests.
    pub fn shutting_down() -> Self {
        Self::new(RefusalKind::ShuttingDown, "the server is shutting down")
    }

    /// The model did not answer.
    pub fn failed(message: impl AsRef<str>) -> Self {
        Self::new(RefusalKind::Failed, message)
    }

    fn respond(&self, status: StatusCode, body: impl Serialize) -> Response {
        let mut response = (status, Json(body)).into_response();
        if matches!(self.kind, RefusalKind::Overloaded | RefusalKind::ShuttingDown) {
            let second = HeaderValue::from_static("1");
            response.headers_mut().insert(RETRY_AFTER, second);
        }
        response
    }
}

/// A refusal in the format of OpenAI's API.
#[derive(Debug)]
pub struct OpenAi(pub Refusal);

impl From<Refusal> for OpenAi {
    fn from(refusal: Refusal) -> Self {
        Self(refusal)
    }
}

impl OpenAi {
    /// The error as a body, or as an event of a stream.
    pub fn body(&self) -> Value {
        self.status_and_body().1
    }

    fn status_and_body(&self) -> (StatusCode, Value) {
        let request = "invalid_request_error";
        let (status, r#type, code) = match self.0.kind {
            RefusalKind::Invalid | RefusalKind::Empty | RefusalKind::OtherModel => {
                (StatusCode::BAD_REQUEST, request, None)
            }
            RefusalKind::TooLong => {
                (StatusCode::BAD_REQUEST, request, Some("context_length_exceeded"))
            }
            RefusalKind::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, request, None),
            RefusalKind::BodyTooSlow => (StatusCode::REQUEST_TIMEOUT, request, None),
            RefusalKind::UnknownModel => (StatusCode::NOT_FOUND, request, Some("model_not_found")),
            RefusalKind::NoSuchRoute => (StatusCode::NOT_FOUND, request, Some("unknown_url")),
            RefusalKind::WrongMethod => (StatusCode::METHOD_NOT_ALLOWED, request, None),
            RefusalKind::Overloaded => {
                (StatusCode::TOO_MANY_REQUESTS, "requests", Some("rate_limit_exceeded"))
            }
            RefusalKind::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, "server_error", None),
            RefusalKind::Failed => (StatusCode::INTERNAL_SERVER_ERROR, "server_error", None),
        };
        let error = json!({
            "message": self.0.message,
            "type": r#type,
            "param": self.0.param,
            "code": code,
        });
        (status, json!({"error": error}))
    }
}

impl IntoResponse for OpenAi {
    fn into_response(self) -> Response {
        let (status, body) = self.status_and_body();
        self.0.respond(status, body)
    }
}

/// A refusal in the format of text-embeddings-inference.
#[derive(Debug)]
pub struct Tei(pub Refusal);

impl From<Refusal> for Tei {
    fn from(refusal: Refusal) -> Self {
        Self(refusal)
    }
}

impl IntoResponse for Tei {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct Body<'a> {
            error: &'a str,
            error_type: &'a str,
        }
        let (status, error_type) = match self.0.kind {
            RefusalKind::Invalid | RefusalKind::TooLong | RefusalKind::UnknownModel => {
                (StatusCode::UNPROCESSABLE_ENTITY, "Validation")
            }
            RefusalKind::Empty => (StatusCode::BAD_REQUEST, "Empty"),
            RefusalKind::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "Validation"),
            RefusalKind::BodyTooSlow => (StatusCode::REQUEST_TIMEOUT, "Validation"),
            RefusalKind::NoSuchRoute => (StatusCode::NOT_FOUND, "Validation"),
            RefusalKind::WrongMethod => (StatusCode::METHOD_NOT_ALLOWED, "Validation"),
            RefusalKind::Overloaded => (StatusCode::TOO_MANY_REQUESTS, "Overloaded"),
            RefusalKind::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, "Unhealthy"),
            RefusalKind::OtherModel | RefusalKind::Failed => {
                (StatusCode::FAILED_DEPENDENCY, "Backend")
            }
        };
        let body = Body { error: &self.0.message, error_type };
        self.0.respond(status, body)
    }
}
