//! The one place that decides on which threads a product runs.
//!
//! Starting threads must cost less than a small product takes, some microseconds. So:
//!
//! - inside a rayon pool (the user's, or candle's `Device::with_context`) that pool is used:
//!   its threads are awake;
//! - elsewhere candle's barrier pool, whose threads spin between calls and start in a fraction
//!   of a microsecond, where waking a sleeping rayon pool from outside takes over ten;
//! - the barrier pool serves one caller at a time, so a caller that finds it taken computes on
//!   its own thread: under many concurrent callers all cores are busy anyway;
//! - the barrier pool waits for each of its threads, also for one whose core is busy with
//!   another program, which takes milliseconds. A pool that is late again and again is left
//!   alone for many times the time it was late, so that waiting costs little.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use candle_core::utils::barrier_pool;

/// Set while a caller of ours holds the barrier pool.
static BARRIER_POOL_TAKEN: AtomicBool = AtomicBool::new(false);

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
        None => barrier_pool().n_workers() + 1,
    }
}

/// When time began for [`PAUSED_UNTIL`].
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Nanoseconds since [`START`] until which the barrier pool is left alone.
static PAUSED_UNTIL: AtomicU64 = AtomicU64::new(0);

/// Calls of the barrier pool, of which every [`CHECKED`]th is timed.
static CALLS: AtomicU32 = AtomicU32::new(0);
const CHECKED: u32 = 2;

/// Calls in a row that the barrier pool was late for.
static LATE_CALLS: AtomicU32 = AtomicU32::new(0);

/// A wait that is no lateness.
const PATIENCE: Duration = Duration::from_micros(200);

/// Calls in a row that may be late: the first after a rest has to wake the threads up.
const LATE_CALLS_ALLOWED: u32 = 1;

/// How many times its lateness a late pool is left alone.
const PAUSE: u32 = 50;

/// The right to use the barrier pool, given back on drop, by a panic as well.
struct Turn;

impl Turn {
    /// Takes the pool, unless somebody has it or it is left alone.
    fn take() -> Option<Self> {
        let paused_until = PAUSED_UNTIL.load(Ordering::Relaxed);
        if paused_until > 0 && START.elapsed().as_nanos() < paused_until.into() {
            return None;
        }
        let taken = BARRIER_POOL_TAKEN.swap(true, Ordering::Acquire);
        // Lazily: a turn that is made and dropped would give back somebody else's.
        (!taken).then(|| Self)
    }

    /// Runs `work` on all threads of the pool and the caller's, and notes how late they are.
    fn execute(self, work: impl Fn(usize) + Sync) {
        let pool = barrier_pool();
        // The clock costs more than a small product can spare: while all is well it is read
        // once in a while.
        let checked = CALLS
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(CHECKED);
        if !checked && LATE_CALLS.load(Ordering::Relaxed) == 0 {
            return pool.execute(work);
        }
        let own_nanos = AtomicU64::new(0);
        let start = Instant::now();
        pool.execute(|thread| {
            work(thread);
            if thread == pool.n_workers() {
                own_nanos.store(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
            }
        });
        let own = Duration::from_nanos(own_nanos.into_inner());
        let late = start.elapsed().saturating_sub(own);
        // With several tasks a thread, the last to end is no later than the others' share.
        if late <= PATIENCE.max(own) {
            LATE_CALLS.store(0, Ordering::Relaxed);
        } else if LATE_CALLS.fetch_add(1, Ordering::Relaxed) >= LATE_CALLS_ALLOWED {
            // One more late call is enough for the next pause.
            LATE_CALLS.store(LATE_CALLS_ALLOWED, Ordering::Relaxed);
            let until = START.elapsed() + PAUSE * late;
            PAUSED_UNTIL.store(until.as_nanos() as u64, Ordering::Relaxed);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        BARRIER_POOL_TAKEN.store(false, Ordering::Release);
    }
}
