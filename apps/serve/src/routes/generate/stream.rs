//! Answers as a whole, or as server-sent events.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use serde_json::Value;

use super::format::Format;
use crate::body;
use crate::error::{Api, Refusal};
use crate::generate::{Answer, Piece};
use crate::limits::Admission;

/// The answer as a whole, or as a stream, which may state the number of tokens.
pub async fn respond(
    mut answer: Answer,
    mut admission: Admission,
    format: Format,
    stream: Option<bool>,
) -> Result<Response, Refusal> {
    if let Some(states_usage) = stream {
        let begun = vec![false; answer.count()];
        let next = Next::Piece;
        let events = Events { answer, format, states_usage, begun, next, _admission: admission };
        let head = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")];
        return Ok((head, Body::new(events)).into_response());
    }
    let empty = |index| Piece { index, ..Piece::default() };
    let mut texts: Vec<Piece> = (0..answer.count()).map(empty).collect();
    while let Some(piece) = answer.next().await {
        let piece = piece?;
        admission.memory.hold(piece.bytes())?;
        if let Some(text) = texts.get_mut(piece.index) {
            text.text.push_str(&piece.text);
            text.reasoning.push_str(&piece.reasoning);
            text.calls.extend(piece.calls);
            text.logged.extend(piece.logged);
            text.finish = piece.finish;
        }
    }
    body::answer(admission, &format.whole(&texts, answer.counts))
}

/// A stream of events. The request stays admitted until the last is written, or its connection is
/// closed.
struct Events {
    answer: Answer,
    format: Format,
    /// Whether the stream ends with the number of tokens.
    states_usage: bool,
    begun: Vec<bool>,
    next: Next,
    _admission: Admission,
}

#[derive(Clone, Copy)]
enum Next {
    Piece,
    Usage,
    Done,
    Nothing,
}

impl Events {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let data = match self.next {
            Next::Piece => match ready!(self.answer.poll_next(context)) {
                Some(Ok(piece)) => {
                    let begun = self.begun.get_mut(piece.index);
                    let is_first = begun.is_some_and(|begun| !std::mem::replace(begun, true));
                    let mut part = self.format.part(&piece, is_first);
                    if self.states_usage {
                        part["usage"] = Value::Null;
                    }
                    part.to_string()
                }
                Some(Err(error)) => {
                    self.next = Next::Done;
                    error.body(Api::OpenAi).to_string()
                }
                None => {
                    self.next = if self.states_usage { Next::Usage } else { Next::Done };
                    return self.poll(context);
                }
            },
            Next::Usage => {
                self.next = Next::Done;
                self.format.usage(self.answer.counts).to_string()
            }
            Next::Done => {
                self.next = Next::Nothing;
                "[DONE]".to_owned()
            }
            Next::Nothing => return Poll::Ready(None),
        };
        Poll::Ready(Some(format!("data: {data}\n\n").into()))
    }
}

impl HttpBody for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let part = self.poll(context);
        part.map(|part| part.map(|bytes| Ok(Frame::data(bytes))))
    }
}
