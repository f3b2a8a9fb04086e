//! Requests that are not answered with a result, in the words of both APIs.

use std::borrow::Cow;
use std::fmt;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header::RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};

/// Bytes of a message. It may quote the input, which can be as long as a body, and nobody may read
/// it.
const LONGEST: usize = 1000;

/// The beginning of a text, `most` bytes of it.
pub fn cut(text: &str, most: usize) -> Cow<'_, str> {
    match text.get(..text.floor_char_boundary(most)) {
        Some(beginning) if beginning.len() < text.len() => format!("{beginning}..").into(),
        _ => text.into(),
    }
}

/// Why a request is refused, or could not be answered.
#[derive(Debug)]
pub struct Refusal {
    kind: Kind,
    message: String,
    /// The part of the request that is at fault.
    param: Option<Cow<'static, str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
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
    fn new(kind: Kind, message: impl AsRef<str>) -> Self {
        Self {
            kind,
            message: cut(message.as_ref(), LONGEST).into_owned(),
            param: None,
        }
    }

    fn at(self, param: impl Into<Cow<'static, str>>) -> Self {
        let param = Some(param.into());
        Self { param, ..self }
    }

    /// The request says something at `param` that is not understood or not allowed.
    pub fn invalid(param: impl Into<Cow<'static, str>>, message: impl AsRef<str>) -> Self {
        Self::new(Kind::Invalid, message).at(param)
    }

    /// The body is not what the route takes.
    pub fn malformed(message: impl AsRef<str>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    /// There are no texts at `param`.
    pub fn empty(param: &'static str) -> Self {
        let message = format!("{param}: expected at least one text, got none");
        Self::new(Kind::Empty, message).at(param)
    }

    /// There is an empty text at a place of `param`.
    pub fn empty_text(param: &'static str, place: &str) -> Self {
        let message = format!("{place}: expected a text, got an empty one");
        Self::new(Kind::Empty, message).at(param)
    }

    /// The body has more bytes than `limit`; how many, where the request says it.
    pub fn body_too_large(limit: usize, got: Option<u64>) -> Self {
        let got = got.map_or("more".to_owned(), |got| got.to_string());
        let message = format!("the body: expected at most {limit} bytes, got {got}");
        Self::new(Kind::BodyTooLarge, message)
    }

    /// The body did not arrive in time.
    pub fn body_too_slow(seconds: u64) -> Self {
        let message = format!("the body: expected all of it within {seconds} s, got a part");
        Self::new(Kind::BodyTooSlow, message)
    }

    /// Another model is asked for.
    pub fn unknown_model(known: &[String], got: &str) -> Self {
        let message = format!("model: expected {}, got {got:?}", known.join(" or "));
        Self::new(Kind::UnknownModel, message).at("model")
    }

    /// There is no such path.
    pub fn no_such_route(path: &str) -> Self {
        Self::new(Kind::NoSuchRoute, format!("there is no route {path:?}"))
    }

    /// The path takes another method.
    pub fn wrong_method(method: &str, path: &str) -> Self {
        let message = format!("{path:?} does not take the method {method}");
        Self::new(Kind::WrongMethod, message)
    }

    /// Classes are asked of a model that has none.
    pub fn no_classifier() -> Self {
        Self::other_model("the model has no classification head: it answers with embeddings only")
    }

    /// The model does something else than the route.
    pub fn other_model(message: &str) -> Self {
        Self::new(Kind::OtherModel, message)
    }

    /// The prompt leaves no room in the context.
    pub fn too_long(limit: usize, got: usize) -> Self {
        let message = format!("the prompt: expected at most {limit} tokens, got {got}");
        Self::new(Kind::TooLong, message)
    }

    fn overloaded(most: fmt::Arguments<'_>) -> Self {
        Self::new(
            Kind::Overloaded,
            format!("overloaded: expected at most {most}"),
        )
    }

    /// The maximum number of requests is being answered.
    pub fn too_many_requests(limit: usize) -> Self {
        Self::overloaded(format_args!("{limit} requests at a time, got one more"))
    }

    /// The maximum number of connections is open.
    pub fn too_many_connections(limit: usize) -> Self {
        Self::overloaded(format_args!("{limit} connections at a time, got one more"))
    }

    /// Bodies and answers take as much memory as they may.
    pub fn too_many_bytes(limit: usize) -> Self {
        Self::overloaded(format_args!(
            "{limit} bytes of large requests at a time, got more"
        ))
    }

    /// The texts do not fit into the queue as it is now.
    pub fn queue_full(capacity: usize, free: usize, got: usize) -> Self {
        Self::overloaded(format_args!(
            "{free} texts, the room left in the queue of {capacity}, got {got}"
        ))
    }

    /// The server takes nothing new.
    pub fn shutting_down() -> Self {
        Self::new(Kind::ShuttingDown, "the server is shutting down")
    }

    /// The model did not answer.
    pub fn failed(message: impl AsRef<str>) -> Self {
        Self::new(Kind::Failed, message)
    }

    fn respond(&self, status: StatusCode, body: impl Serialize) -> Response {
        let mut response = (status, Json(body)).into_response();
        if matches!(self.kind, Kind::Overloaded | Kind::ShuttingDown) {
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
    /// The error as it is in a body, or in an event of a stream.
    pub fn body(&self) -> Value {
        self.status_and_body().1
    }

    fn status_and_body(&self) -> (StatusCode, Value) {
        let request = "invalid_request_error";
        let (status, r#type, code) = match self.0.kind {
            Kind::Invalid | Kind::Empty | Kind::OtherModel => {
                (StatusCode::BAD_REQUEST, request, None)
            }
            Kind::TooLong => (
                StatusCode::BAD_REQUEST,
                request,
                Some("context_length_exceeded"),
            ),
            Kind::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, request, None),
            Kind::BodyTooSlow => (StatusCode::REQUEST_TIMEOUT, request, None),
            Kind::UnknownModel => (StatusCode::NOT_FOUND, request, Some("model_not_found")),
            Kind::NoSuchRoute => (StatusCode::NOT_FOUND, request, Some("unknown_url")),
            Kind::WrongMethod => (StatusCode::METHOD_NOT_ALLOWED, request, None),
            Kind::Overloaded => (
                StatusCode::TOO_MANY_REQUESTS,
                "requests",
                Some("rate_limit_exceeded"),
            ),
            Kind::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, "server_error", None),
            Kind::Failed => (StatusCode::INTERNAL_SERVER_ERROR, "server_error", None),
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
            Kind::Invalid | Kind::TooLong | Kind::UnknownModel => {
                (StatusCode::UNPROCESSABLE_ENTITY, "Validation")
            }
            Kind::Empty => (StatusCode::BAD_REQUEST, "Empty"),
            Kind::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "Validation"),
            Kind::BodyTooSlow => (StatusCode::REQUEST_TIMEOUT, "Validation"),
            Kind::NoSuchRoute => (StatusCode::NOT_FOUND, "Validation"),
            Kind::WrongMethod => (StatusCode::METHOD_NOT_ALLOWED, "Validation"),
            Kind::Overloaded => (StatusCode::TOO_MANY_REQUESTS, "Overloaded"),
            Kind::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, "Unhealthy"),
            Kind::OtherModel | Kind::Failed => (StatusCode::FAILED_DEPENDENCY, "Backend"),
        };
        let body = Body {
            error: &self.0.message,
            error_type,
        };
        self.0.respond(status, body)
    }
}
