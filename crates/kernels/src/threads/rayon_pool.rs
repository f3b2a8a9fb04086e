//! The threads of the rayon pool that a caller is in: they are awake.
//!
//! Rayon's own ways to share work, `scope` and `join`, wait by running whatever else the pool has
//! to do, on top of the caller's stack: another piece of the user's iterator, which may want a lock
//! that the caller holds, or a whole request. So nothing here waits for rayon. An invitation is a
//! separate job of rayon, which is never waited for: a thread that finds it in time joins the
//! [job](super::job) of its sender, and one that comes too late finds nothing to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::job::{JobSlot, MAX_INVITED};

/// A thread that sends invitations.
struct Host {
    slot: JobSlot,
    /// Invitations that no thread has found yet. They hold for the next job as well, so that they
    /// do not pile up in a pool whose threads are all busy.
    invited: AtomicUsize,
}

thread_local! {
    static HOST: Arc<Host> = Arc::new(Host { slot: JobSlot::new(), invited: AtomicUsize::new(0) });
}

/// Runs `work(index)` here, on the thread with that index, and `work` of their index on up to
/// `helpers` other threads, if they come in time.
pub fn execute(index: usize, helpers: usize, work: &(dyn Fn(usize) + Sync)) {
    let as_host = |host: &Arc<Host>| {
        let invite = || host.invite(helpers);
        host.slot.execute(index, MAX_INVITED, work, invite)
    };
    // A thread that is about to end has no slot any more.
    if !HOST.try_with(as_host).unwrap_or(false) {
        work(index);
    }
}

impl Host {
    fn invite(self: &Arc<Self>, helpers: usize) {
        let invited = self.invited.load(Ordering::SeqCst);
        let more = helpers.saturating_sub(invited);
        self.invited.fetch_add(more, Ordering::Relaxed);
        for _ in 0..more {
            let host = Arc::clone(self);
            rayon::spawn(move || host.accept());
        }
    }

    fn accept(&self) {
        self.invited.fetch_sub(1, Ordering::SeqCst);
        let Some(index) = rayon::current_thread_index() else {
            return;
        };
        if let Some(number) = self.slot.open_job(index, Ordering::SeqCst) {
            self.slot.join(number, index);
        }
    }
}

/// How many invitations of this thread have not been found yet.
#[cfg(test)]
pub fn invited() -> usize {
    HOST.with(|host| host.invited.load(Ordering::SeqCst))
}
