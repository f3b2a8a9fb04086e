//! The one place that decides on which threads a product runs.
//!
//! Starting threads must cost less than a small product takes, some microseconds. So:
//!
//! - inside a rayon pool (the user's, or candle's `Device::with_context`) that pool is used:
//!   its threads are awake;
//! - elsewhere candle's barrier pool, whose threads spin between calls and start in a fraction
//!   of a microsecond, where waking a sleeping rayon pool from outside takes over ten;
//! - the barrier pool serves one caller at a time, so a caller that finds it taken computes on
//!   its own thread: under many concurrent callers all cores are busy anyway.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use candle_core::utils::barrier_pool;

/// Set while a caller of ours holds the barrier pool.
static BARRIER_POOL_TAKEN: AtomicBool = AtomicBool::new(false);

/// Calls `task` once for each index below `tasks`, on as many threads as are free.
pub(super) fn for_each(tasks: usize, task: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    // A shared cursor: a thread that is delayed takes fewer tasks.
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= tasks {
                break;
            }
            task(index);
        }
    };
    if tasks <= 1 {
        work();
    } else if rayon::current_thread_index().is_some() {
        let helpers = (rayon::current_num_threads() - 1).min(tasks - 1);
        rayon::scope(|scope| {
            for _ in 0..helpers {
                scope.spawn(|_| work());
            }
            work();
        });
    } else if let Some(_turn) = Turn::take() {
        barrier_pool().execute(|_| work());
    } else {
        work();
    }
}

/// Calls `task` once with each item, on as many threads as are free.
pub(super) fn for_each_item<T: Send>(items: impl Iterator<Item = T>, task: impl Fn(T) + Sync) {
    let items: Vec<Mutex<Option<T>>> = items.map(|item| Mutex::new(Some(item))).collect();
    for_each(items.len(), |index| {
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
        None => barrier_pool().n_workers() + 1,
    }
}

/// The right to use the barrier pool, given back on drop, by a panic as well.
struct Turn;

impl Turn {
    fn take() -> Option<Self> {
        let taken = BARRIER_POOL_TAKEN.swap(true, Ordering::Acquire);
        (!taken).then_some(Self)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        BARRIER_POOL_TAKEN.store(false, Ordering::Release);
    }
}
