//! Bodies of requests and answers, within the limits.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::error::Refusal;
use crate::limits::{Admission, Limits};
use crate::workers::LARGE;

/// A refused body is read and dropped up to this many times the limit: a client that writes before
/// it reads would not see the answer if the connection closed early.
const DRAINED: usize = 8;

/// Admits a request and parses its JSON body, whatever its content type says: `curl -d` sends a
/// form's. The body must arrive within `time`, and before the server is `stopping`.
pub async fn json<T: DeserializeOwned + Send + 'static>(
    request: Request,
    limits: &Limits,
    time: Duration,
    mut stopping: watch::Receiver<bool>,
) -> Result<(T, Admission), Refusal> {
    let end = Instant::now() + time;
    let stated = request.headers().get(CONTENT_LENGTH);
    let stated = stated.and_then(|length| length.to_str().ok()?.parse().ok());
    let mut body = request.into_body();
    let read = tokio::select! {
        biased;
        _ = stopping.wait_for(|stopping| *stopping) => Err(Refusal::shutting_down()),
        read = read(&mut body, stated, limits) => read,
        () = sleep_until(end) => return Err(Refusal::body_too_slow(time.as_secs())),
    };
    match read {
        Ok((bytes, Admission { request, memory })) => {
            let length = bytes.len();
            let parse = move || (serde_json::from_slice(&bytes), memory);
            // Parsing a body of this length takes microseconds.
            let (parsed, memory) = if length <= LARGE {
                parse()
            } else {
                limits.workers.run(length, |_| parse()).await?
            };
            let parsed = parsed.map_err(|error| {
                Refusal::malformed(format!("the body: expected JSON for this route: {error}"))
            })?;
            Ok((parsed, Admission { request, memory }))
        }
        Err(refusal) => {
            // A body that is drained late is still refused for the first reason.
            let _ = timeout_at(end, drain(&mut body, limits.body_bytes)).await;
            Err(refusal)
        }
    }
}

/// Reads the body; each part is counted before it is kept.
async fn read(
    body: &mut Body,
    stated: Option<u64>,
    limits: &Limits,
) -> Result<(Vec<u8>, Admission), Refusal> {
    let mut admission = limits.admit()?;
    let limit = limits.body_bytes;
    if stated.is_some_and(|stated| stated > limit as u64) {
        return Err(Refusal::body_too_large(limit, stated));
    }
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Refusal::malformed(format!("the body: {error}")))?;
        // Trailers carry no body.
        let Some(part) = frame.data_ref() else {
            continue;
        };
        if part.len() > limit - bytes.len() {
            return Err(Refusal::body_too_large(limit, stated));
        }
        admission.memory.hold(part.len())?;
        bytes.extend_from_slice(part);
    }
    Ok((bytes, admission))
}

async fn drain(body: &mut Body, limit: usize) {
    let mut left = limit.saturating_mul(DRAINED);
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, |data| data.len());
        match left.checked_sub(length) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

/// An answer of JSON. The request stays admitted until the last byte is written, or its connection
/// is closed.
pub fn answer(mut admission: Admission, answer: &impl Serialize) -> Result<Response, Refusal> {
    struct JsonAnswer {
        json: Vec<u8>,
        _admission: Admission,
    }

    impl AsRef<[u8]> for JsonAnswer {
        fn as_ref(&self) -> &[u8] {
            &self.json
        }
    }

    let json = serde_json::to_vec(answer);
    let json = json.map_err(|error| Refusal::failed(format!("the answer: {error}")))?;
    admission.memory.becomes(json.len())?;
    let bytes = Bytes::from_owner(JsonAnswer { json, _admission: admission });
    Ok(([(CONTENT_TYPE, "application/json")], bytes).into_response())
}
