//! Bodies of requests and answers, within the limits.

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::app::App;
use crate::error::{Kind, Refusal};
use crate::limits::{Admission, Limits};
use crate::workers::LARGE;

/// A refused body is read and dropped up to this many times the limit: a client that writes before
/// it reads would not see the answer if the connection closed early.
const DRAINED: usize = 8;

impl App {
    /// Admits a request and parses its JSON body, whatever its content type says: `curl -d` sends a
    /// form's. The body must arrive in time, and before the server stops.
    pub async fn receive<T: DeserializeOwned + Send + 'static>(
        &self,
        request: Request,
    ) -> Result<(T, Admission), Refusal> {
        let end = Instant::now() + self.transfer;
        let mut stopping = self.stopping.clone();
        let stated = request.headers().get(CONTENT_LENGTH);
        let stated = stated.and_then(|length| length.to_str().ok()?.parse().ok());
        let mut body = request.into_body();
        let read = tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => Err(Refusal::shutting_down()),
            read = read(&mut body, stated, &self.limits) => read,
            () = sleep_until(end) => {
                let seconds = self.transfer.as_secs();
                let fault = format!("the body: expected all of it within {seconds} s, got a part");
                return Err(Refusal::new(Kind::BodyTooSlow, fault));
            }
        };
        if read.is_err() {
            // A body that is drained late is still refused for the first reason.
            let _ = timeout_at(end, drain(&mut body, self.limits.body_bytes)).await;
        }
        let (bytes, Admission { request, memory }) = read?;
        let length = bytes.len();
        let parse = move || (serde_json::from_slice(&bytes), memory);
        // Parsing a body of this length takes microseconds.
        let (parsed, memory) = if length <= LARGE {
            parse()
        } else {
            self.limits.workers.run(length, |_| parse()).await?
        };
        let parsed = parsed.map_err(|e| malformed(format!("expected JSON for this route: {e}")))?;
        Ok((parsed, Admission { request, memory }))
    }
}

fn malformed(fault: String) -> Refusal {
    Refusal::new(Kind::Invalid, format!("the body: {fault}"))
}

/// Reads the body; each part is counted before it is kept.
async fn read(
    body: &mut Body,
    stated: Option<u64>,
    limits: &Limits,
) -> Result<(Vec<u8>, Admission), Refusal> {
    let mut admission = limits.admit()?;
    let limit = limits.body_bytes;
    let too_large = || {
        let got = stated.map_or("more".to_owned(), |got| got.to_string());
        let message = format!("the body: expected at most {limit} bytes, got {got}");
        Refusal::new(Kind::BodyTooLarge, message)
    };
    if stated.is_some_and(|stated| stated > limit as u64) {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| malformed(error.to_string()))?;
        // Trailers carry no body.
        let Some(part) = frame.data_ref() else {
            continue;
        };
        if part.len() > limit - bytes.len() {
            return Err(too_large());
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
