//! Answers as a whole, or as server-sent events.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use serde_json::Value;

use super::format::Format;
use super::request::StreamUsage;
use crate::body;
use crate::error::{OpenAi, Refusal};
use crate::generate::{Answer, Piece};
use crate::limits::Admission;

/// The answer in the requested form.
pub async fn respond(
    answer: Answer,
    admission: Admission,
    format: Format,
    stream: Option<StreamUsage>,
) -> Result<Response, Refusal> {
    match stream {
        None => whole(answer, admission, &format).await,
        Some(usage) => {
            let events = Events {
                begun: vec![false; answer.count()],
                answer,
                format,
                usage,
                next: Next::Piece,
                _admission: admission,
            };
            let head = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")];
            Ok((head, Body::new(events)).into_response())
        }
    }
}

async fn whole(
    mut answer: Answer,
    mut admission: Admission,
    format: &Format,
) -> Result<Response, Refusal> {
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
    usage: StreamUsage,
    /// Whether a piece of each text has been sent.
    begun: Vec<bool>,
    next: Next,
    _admission: Admission,
}

/// The part that is sent next.
#[derive(Clone, Copy)]
enum Next {
    Piece,
    Usage,
    Done,
    Nothing,
}

impl Events {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut part = match self.next {
            Next::Piece => match std::task::ready!(self.answer.poll_next(context)) {
                Some(Ok(piece)) => {
                    let begun = self.begun.get_mut(piece.index);
                    let is_first = begun.is_some_and(|begun| !std::mem::replace(begun, true));
                    self.format.part(&piece, is_first)
                }
                Some(Err(error)) => {
                    self.next = Next::Done;
                    return Poll::Ready(Some(event(&OpenAi(error).body())));
                }
                None => {
                    self.next = Next::Usage;
                    return self.poll(context);
                }
            },
            Next::Usage => {
                self.next = Next::Done;
                if self.usage == StreamUsage::Left {
                    return self.poll(context);
                }
                return Poll::Ready(Some(event(&self.format.usage(self.answer.counts))));
            }
            Next::Done => {
                self.next = Next::Nothing;
                return Poll::Ready(Some(Bytes::from_static(b"data: [DONE]\n\n")));
            }
            Next::Nothing => return Poll::Ready(None),
        };
        if self.usage == StreamUsage::Stated {
            part["usage"] = Value::Null;
        }
        Poll::Ready(Some(event(&part)))
    }
}

fn event(data: &Value) -> Bytes {
    format!("data: {data}\n\n").into()
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
