//! The limits on concurrent work.

use crate::error::Refusal;
use crate::options::Options;
use crate::places::{Permit, Places};
use crate::workers::{LARGE, Workers};

/// The limits of requests, and the places that they take; the tokenizer limits tokens.
pub struct Limits {
    /// The most texts of a request.
    pub texts: usize,
    /// The largest body, in bytes.
    pub body_bytes: usize,
    pub connections: Places,
    /// The requests to the model, from their head to the last byte of the answer.
    pub requests: Places,
    /// The bytes of bodies and answers in memory, beyond [`LARGE`] for each request.
    pub bytes: Places,
    /// The texts that are tokenized, wait, or are computed.
    pub queue: Places,
    pub workers: Workers,
}

impl Limits {
    pub fn new(options: &Options) -> Self {
        Self {
            // A request with more texts would never fit into the queue.
            texts: options.max_texts.min(options.queue),
            body_bytes: options.max_body_bytes,
            connections: Places::new(options.max_connections),
            requests: Places::new(options.max_requests),
            bytes: Places::new(options.bytes()),
            queue: Places::new(options.queue),
            workers: Workers::new(),
        }
    }

    /// Admits a request, before its body takes memory.
    pub fn admit(&self) -> Result<Admission, Refusal> {
        let most = self.requests.total;
        let too_many =
            || Refusal::overloaded(format_args!("{most} requests at a time, got one more"));
        Ok(Admission {
            request: self.requests.take(1).ok_or_else(too_many)?,
            memory: Memory { size: 0, held: None, bytes: self.bytes.clone() },
        })
    }

    /// Checks the number of texts of a request, in the field `param`.
    pub fn check_texts(&self, param: &'static str, got: usize) -> Result<(), Refusal> {
        if got == 0 {
            return Err(Refusal::empty(param));
        }
        let most = self.texts;
        let fault = format_args!("expected at most {most} texts, got {got}");
        Refusal::unless(got <= most, param, fault)
    }

    /// Counts the bytes of an answer before it is computed, in place of its request's bytes, whose
    /// texts are in the field `param`.
    pub fn reserve(
        &self,
        memory: &mut Memory,
        param: &'static str,
        bytes: usize,
    ) -> Result<(), Refusal> {
        let total = self.bytes.total;
        let fault = format_args!(
            "expected texts whose answer has at most {total} bytes (--max-bytes), got {bytes}, about"
        );
        Refusal::unless(bytes <= total, param, fault)?;
        memory.becomes(bytes)
    }
}

/// An admitted request.
pub struct Admission {
    /// The place of the request while somebody waits for the answer.
    pub request: Permit,
    pub memory: Memory,
}

/// The bytes of a request in memory; moves with them.
pub struct Memory {
    size: usize,
    /// The permit for the bytes beyond [`LARGE`].
    held: Option<Permit>,
    bytes: Places,
}

impl Memory {
    /// Counts more bytes in memory.
    pub fn hold(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.becomes(self.size + bytes)
    }

    /// Counts work on `bytes` bytes, if these exceed the bytes in memory.
    pub fn at_least(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.becomes(self.size.max(bytes))
    }

    /// Sets the bytes in memory. A single request may exceed the limit if no other is large.
    pub fn becomes(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.size = bytes;
        let total = self.bytes.total;
        let wanted = bytes.saturating_sub(LARGE).min(total);
        let held = self.held.as_ref().map_or(0, Permit::num_permits);
        match &mut self.held {
            Some(permit) if wanted < held => drop(permit.split(held - wanted)),
            none_or_less => {
                let fault = || {
                    let most = format_args!("{total} bytes of large requests at a time, got more");
                    Refusal::overloaded(most)
                };
                let more = self.bytes.take(wanted - held).ok_or_else(fault)?;
                match none_or_less {
                    Some(permit) => permit.merge(more),
                    none => *none = Some(more),
                }
            }
        }
        Ok(())
    }
}
