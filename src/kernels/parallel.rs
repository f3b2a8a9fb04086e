//! The one place that decides on which threads a product runs.
//!
//! Starting threads must cost less than a small product takes, some microseconds. So:
//!
//! - inside a rayon pool (the user's, or candle's `Device::with_context`) that pool is used:
//!   its threads are awake;
//! - elsewhere the crate's own [`pool`], whose threads stay awake between the calls of a model
//!   and start in a fraction of a microsecond, where waking a sleeping rayon pool from outside
//!   takes over ten, and candle's barrier pool waits for every one of its threads, also for one
//!   whose core is busy with another program;
//! - the pool serves one caller at a time, so a caller that finds it taken computes on its own
//!   thread: under many concurrent callers all cores are busy anyway.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::pool::{self, Turn};

/// Calls `task` once for each index below `tasks`, on as many threads as are free.
///
/// A thread gets the same indices at every call of the same shape, so that what they read stays
/// in its cache; `backwards` it begins with the last of them.
pub(super) fn for_each(tasks: usize, backwards: bool, task: impl Fn(usize) + Sync) {
    let shares = Shares {
        tasks,
        count: threads().clamp(1, MAX_SHARES),
        backwards,
        taken: Default::default(),
    };
    let work = |thread| shares.take_from(thread, &task);
    if tasks <= 1 {
        work(0);
    } else if let Some(own) = rayon::current_thread_index() {
        let helpers = (rayon::current_num_threads() - 1).min(tasks - 1);
        rayon::scope(|scope| {
            for _ in 0..helpers {
                scope.spawn(|_| work(rayon::current_thread_index().unwrap_or_default()));
            }
            work(own);
        });
    } else if let Some(turn) = Turn::take() {
        turn.execute(work);
    } else {
        work(0);
    }
}

/// The indices of a call in one share a thread.
///
/// A thread takes from its own share, and when that is used up from the others': one that is
/// delayed takes less.
struct Shares {
    tasks: usize,
    count: usize,
    backwards: bool,
    /// How many indices of each share are taken.
    taken: [Taken; MAX_SHARES],
}

/// More threads than this share their shares.
const MAX_SHARES: usize = 16;

/// A counter with a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Taken(AtomicUsize);

impl Shares {
    fn take_from(&self, thread: usize, task: &impl Fn(usize)) {
        for share in (0..self.count).map(|i| (thread + i) % self.count) {
            let start = self.tasks * share / self.count;
            let end = self.tasks * (share + 1) / self.count;
            // To look at another's share is cheaper than to write to it.
            while self.taken[share].0.load(Ordering::Relaxed) < end - start {
                let taken = self.taken[share].0.fetch_add(1, Ordering::Relaxed);
                if taken >= end - start {
                    break;
                }
                task(match self.backwards {
                    true => end - 1 - taken,
                    false => start + taken,
                });
            }
        }
    }
}

/// Calls `task` once with each item, on as many threads as are free.
pub(super) fn for_each_item<T: Send>(items: impl Iterator<Item = T>, task: impl Fn(T) + Sync) {
    let mut items = items.peekable();
    let Some(first) = items.next() else { return };
    if items.peek().is_none() {
        // Nothing to share, nothing to allocate.
        return task(first);
    }
    let items = std::iter::once(first).chain(items);
    let items: Vec<Mutex<Option<T>>> = items.map(|item| Mutex::new(Some(item))).collect();
    for_each(items.len(), false, |index| {
        // Each index comes once: the lock is never waited for, the item always there.
        if let Some(item) = items[index].lock().ok().and_then(|mut item| item.take()) {
            task(item);
        }
    });
}

/// How many threads [`for_each`] would find here, if none of them is busy.
pub(super) fn threads() -> usize {
    match rayon::current_thread_index() {
        Some(_) => rayon::current_num_threads(),
        None => pool::threads(),
    }
}
