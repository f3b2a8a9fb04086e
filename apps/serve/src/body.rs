//! Bodies of requests, within a limit.

use std::error::Error;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::CONTENT_LENGTH;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use tower_http::timeout::TimeoutError;

use crate::error::Refusal;

/// How long the next part of a body may take.
pub const PART_TIMEOUT: Duration = Duration::from_secs(30);

/// Of a body that is too large, as many times the limit are read and dropped: a client that writes before
/// it reads would not see the answer on a connection that is closed in between.
const DRAINED: usize = 8;

/// Reads a body of JSON, whatever its content type says: `curl -d` states that of a form.
pub async fn json<T: DeserializeOwned>(request: Request, limit: usize) -> Result<T, Refusal> {
    let stated = request.headers().get(CONTENT_LENGTH);
    let stated = stated.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let mut body = request.into_body();
    if stated.is_some_and(|stated| stated > limit as u64) {
        drain(&mut body, limit).await;
        return Err(Refusal::body_too_large(limit, stated));
    }
    let bytes = match Limited::new(&mut body, limit).collect().await {
        Ok(collected) => collected.to_bytes(),
        Err(error) if is::<LengthLimitError>(&*error) => {
            drain(&mut body, limit).await;
            return Err(Refusal::body_too_large(limit, stated));
        }
        Err(error) if is::<TimeoutError>(&*error) => {
            return Err(Refusal::body_too_slow(PART_TIMEOUT.as_secs()));
        }
        Err(error) => return Err(Refusal::malformed(format!("the body: {error}"))),
    };
    serde_json::from_slice(&bytes).map_err(|error| {
        Refusal::malformed(format!("the body: expected JSON for this route: {error}"))
    })
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

/// Whether the error, or one that caused it, is an `E`.
fn is<E: Error + 'static>(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<E>() {
            return true;
        }
        cause = error.source();
    }
    false
}
