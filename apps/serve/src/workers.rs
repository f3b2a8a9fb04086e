//! Threads for work that would delay other clients: parsing and tokenizing.

use std::sync::{Arc, Weak};
use std::thread::available_parallelism;

use crate::error::Refusal;
use crate::places::Places;

/// The size in bytes from which a request is large. The memory of smaller requests is bounded by
/// their number, so that large requests do not crowd them out.
pub const LARGE: usize = 64 << 10;

/// The size in bytes up to which a hop to another thread takes about as long as the work.
const SHORT: usize = 1024;

/// The client that waits for work.
pub struct Client(Weak<()>);

impl Client {
    /// Checks that the client still waits; the refusal is for nobody.
    pub fn check(&self) -> Result<(), Refusal> {
        let is_waiting = self.0.strong_count() > 0;
        is_waiting.then_some(()).ok_or_else(|| Refusal::failed("the client has hung up"))
    }
}

/// The threads of the runtime, in two groups, so that large requests do not delay small ones.
pub struct Workers {
    small: Places,
    /// The permits for work of seconds and of some hundred megabytes, which are few.
    large: Places,
}

impl Workers {
    /// Workers: one per core, and one per two cores for large requests. More would gain nothing.
    pub fn new() -> Self {
        let cores = available_parallelism().map_or(1, usize::from);
        Self { small: Places::new(cores), large: Places::new((cores / 2).max(1)) }
    }

    pub fn count(&self) -> usize {
        self.small.total + self.large.total
    }

    /// Runs work on a number of bytes of a request.
    ///
    /// The work is dropped if its client hangs up before it begins. Once begun it continues, with
    /// all the permits that were moved into `work`, until it ends or sees that its client has gone.
    pub async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&Client) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let waits = Arc::new(());
        let client = Client(Arc::downgrade(&waits));
        if bytes <= SHORT {
            return Ok(work(&client));
        }
        let group = if bytes <= LARGE { &self.small } else { &self.large };
        // A caller that waits here owns the work: it is dropped with the request. The runtime has a
        // thread for each worker, so no work waits in another queue, from which it could not be
        // withdrawn.
        let worker = group.wait().await;
        let work = move || {
            let result = work(&client);
            drop(worker);
            result
        };
        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(|error| Refusal::failed(format!("a thread of the server failed: {error}")))
    }
}

#[cfg(test)]
#[allow(clippy::panic)]
mod tests {
    use super::*;

    /// Work that would never end holds its thread only while somebody waits for it.
    #[tokio::test]
    async fn work_sees_that_its_client_has_gone() {
        let (workers, begun) = (Workers::new(), Arc::new(tokio::sync::Notify::new()));
        let begins = Arc::clone(&begun);
        let work = workers.run(LARGE + 1, move |client: &Client| {
            begins.notify_one();
            while client.check().is_ok() {
                std::thread::yield_now();
            }
        });
        // The work is dropped with `select`.
        tokio::select! {
            _ = work => panic!("it ended by itself"),
            () = begun.notified() => (),
        }
        workers.large.all_free().await;
    }
}
