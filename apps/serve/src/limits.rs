//! Limits of requests, and of how many run at a time.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::Refusal;
use crate::options::Options;

/// The limits of requests. That of a text's tokens is the tokenizer's.
pub struct Limits {
    /// Texts of a request.
    pub texts: usize,
    /// Bytes of a body.
    pub body_bytes: usize,
    /// Requests at a time.
    pub requests: usize,
    free: Arc<Semaphore>,
}

impl Limits {
    /// Those of the command line.
    pub fn new(options: &Options) -> Self {
        Self {
            // More would never find room in the queue.
            texts: options.max_texts.min(options.queue),
            body_bytes: options.max_body_bytes,
            requests: options.max_requests,
            free: Arc::new(Semaphore::new(options.max_requests)),
        }
    }

    /// Lets a request in, before its body takes memory, until the permit is dropped.
    pub fn admit(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        let permit = Arc::clone(&self.free).try_acquire_owned();
        permit.map_err(|_| Refusal::too_many_requests(self.requests))
    }

    /// Checks the number of texts of a request, which came under the name `param`.
    pub fn check_texts(&self, param: &'static str, got: usize) -> Result<(), Refusal> {
        match got {
            0 => Err(Refusal::empty(param)),
            _ if got > self.texts => Err(Refusal::invalid(
                param,
                format!("{param}: expected at most {} texts, got {got}", self.texts),
            )),
            _ => Ok(()),
        }
    }
}
