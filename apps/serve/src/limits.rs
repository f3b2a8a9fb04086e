//! The limits on concurrent work.

use crate::error::Refusal;
use crate::options::Options;
use crate::places::{Permit, Places};
use crate::workers::{LARGE, Workers};

/// The limits of requests, and the places that they take. The tokenizer limits the tokens of a
/// text.
pub struct Limits {
    /// The most texts of a request.
    pub texts: usize,
    /// The largest body, in bytes.
    pub body_bytes: usize,
    /// Connections.
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
    /// The limits of the command line.
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
        let request = self.requests.take(1);
        let too_many = || Refusal::too_many_requests(self.requests.total);
        Ok(Admission {
            request: request.ok_or_else(too_many)?,
            memory: Memory { size: 0, held: None, bytes: self.bytes.clone() },
        })
    }

    /// Checks the number of texts of a request, in the field `param`.
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

    /// Counts the bytes of an answer before it is computed, in place of its request's bytes, whose
    /// texts are in the field `param`.
    pub fn reserve(
        &self,
        memory: &mut Memory,
        param: &'static str,
        bytes: usize,
    ) -> Result<(), Refusal> {
        let total = self.bytes.total;
        if bytes > total {
            let message = format!(
                "{param}: expected texts whose answer has at most {total} bytes (--max-bytes), \
                 got {bytes}, about"
            );
            return Err(Refusal::invalid(param, message));
        }
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

    /// Sets the number of bytes in memory. A single request may exceed the limit if no other is
    /// large.
    pub fn becomes(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.size = bytes;
        let total = self.bytes.total;
        let wanted = bytes.saturating_sub(LARGE).min(total);
        let held = self.held.as_ref().map_or(0, Permit::num_permits);
        match &mut self.held {
            Some(permit) if wanted < held => drop(permit.split(held - wanted)),
            none_or_less => {
                let more = self.bytes.take(wanted - held);
                let more = more.ok_or_else(|| Refusal::too_many_bytes(total))?;
                match none_or_less {
                    Some(permit) => permit.merge(more),
                    none => *none = Some(more),
                }
            }
        }
        Ok(())
    }
}
