//! The crate's own threads.
//!
//! A thread waits awake for a while, since the next call of a model mostly follows within
//! microseconds and to wake a sleeper costs as much as a small product: first it spins, then it
//! offers its core to others between looks, then it sleeps. To spin all the time would take
//! half a core from a caller that the system has put on the same one.

use std::hint::spin_loop;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::job::{CacheLine, JobSlot};

/// How long a thread spins after its last job.
const SPIN: Duration = Duration::from_micros(50);

/// How long it stays awake, offering its core to others.
const AWAKE: Duration = Duration::from_micros(500);

/// Looks between two glances at the clock.
const LOOKS: u32 = 64;

/// Max threads for each core that the process may use, where more are asked for: 32 would take
/// three times as long as one.
const PER_CORE: usize = 4;

/// The most workers: each has a bit in [`Pool::asleep`].
const MAX_WORKERS: usize = 63;

/// The pool of the process.
static POOL: LazyLock<&Pool> = LazyLock::new(|| Pool::start(wanted()));

struct Pool {
    slot: JobSlot,
    /// A bit for each worker that has to be woken up.
    asleep: CacheLine<AtomicU64>,
    /// Set when all of them are started.
    workers: OnceLock<Vec<Thread>>,
}

/// Runs `work(0)` here and, on the workers below `threads` that come in time, `work` of 1 and up,
/// unless another caller has them.
pub fn execute(threads: usize, work: &(dyn Fn(usize) + Sync)) {
    if POOL.workers().is_empty() || !POOL.execute(threads, work) {
        work(0);
    }
}

/// How many threads work at a job, if all come: the workers and the caller.
pub fn threads() -> usize {
    POOL.workers().len() + 1
}

/// Tells how many threads there are where `CANDLE_NUM_THREADS` does not say it: as many as the
/// program that calls the kernels computes with.
static DEFAULT: OnceLock<fn() -> usize> = OnceLock::new();

/// Sets the function that tells how many threads there are, before the first call that uses them;
/// later it has no effect.
pub fn set_default(threads: fn() -> usize) {
    // An error says that it was set.
    _ = DEFAULT.set(threads);
}

/// The number of threads that `CANDLE_NUM_THREADS` or else [`DEFAULT`] says, but no more than the
/// process has cores for. Candle's own pool is not asked: that would start it, and it panics where
/// a thread cannot be started.
fn wanted() -> usize {
    let asked = number(std::env::var("CANDLE_NUM_THREADS").ok().as_deref());
    let cores = thread::available_parallelism().map_or(usize::MAX, NonZero::get);
    match asked {
        Some(threads) => threads.min(cores.saturating_mul(PER_CORE)),
        None => DEFAULT.get().map_or(cores, |threads| threads().min(cores)),
    }
}

/// The value of a variable, if it is a number of threads.
fn number(value: Option<&str>) -> Option<usize> {
    value?.parse().ok().filter(|threads| *threads > 0)
}

impl Pool {
    /// A pool of this number of threads, the caller's included, or fewer if the system has no more.
    fn start(threads: usize) -> &'static Self {
        let pool: &'static Self = Box::leak(Box::new(Self {
            slot: JobSlot::new(),
            asleep: CacheLine(AtomicU64::new(0)),
            workers: OnceLock::new(),
        }));
        let workers = (0..MAX_WORKERS.min(threads - 1)).map_while(|worker| {
            let thread = thread::Builder::new().name(format!("dynquant-{worker}"));
            let handle = thread.spawn(move || pool.serve(worker));
            handle.ok().map(|handle| handle.thread().clone())
        });
        pool.workers.get_or_init(|| workers.collect());
        pool
    }

    fn workers(&self) -> &[Thread] {
        self.workers.get().map_or(&[], Vec::as_slice)
    }

    /// Runs `work` on that many threads; returns false if another caller has them.
    fn execute(&self, threads: usize, work: &(dyn Fn(usize) + Sync)) -> bool {
        let wake = || self.wake(threads - 1);
        self.slot.execute(0, threads, work, wake)
    }

    /// Wakes the sleeping threads among the first `workers`, after a job was opened.
    fn wake(&self, workers: usize) {
        let asleep = &self.asleep.0;
        let first = (1 << workers.min(MAX_WORKERS)) - 1;
        let mut sleepers = asleep.load(Ordering::SeqCst) & first;
        if sleepers != 0 {
            sleepers = asleep.fetch_and(!first, Ordering::SeqCst) & first;
        }
        bits(sleepers).for_each(|worker| self.workers()[worker].unpark());
    }

    fn serve(&self, worker: usize) -> ! {
        let mut last = 0;
        loop {
            last = self.next(worker, last);
            self.slot.join(last, worker + 1);
        }
    }

    /// Waits for an open job with another number than `last`.
    fn next(&self, worker: usize, last: u64) -> u64 {
        let open = |order| self.slot.open_job(worker + 1, order);
        let found = |order| open(order).filter(|number| *number != last);
        loop {
            let start = Instant::now();
            let mut waited = Duration::ZERO;
            while waited < AWAKE {
                for _ in 0..LOOKS {
                    if let Some(number) = found(Ordering::Relaxed) {
                        return number;
                    }
                    spin_loop();
                }
                if waited > SPIN {
                    thread::yield_now();
                }
                waited = start.elapsed();
            }
            self.asleep.0.fetch_or(1 << worker, Ordering::SeqCst);
            match found(Ordering::SeqCst) {
                // A token that comes for a bit that stays set makes the next sleep a short one.
                Some(number) => return number,
                None => thread::park(),
            }
        }
    }
}

/// The bits that are set.
fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let first = (set != 0).then(|| set.trailing_zeros() as usize);
        set &= set.wrapping_sub(1);
        first
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Runs `work` on the pool as soon as no other test has it; runs nothing without workers.
    fn with_workers(work: impl Fn(usize) + Sync) {
        while threads() > 1 {
            if POOL.execute(threads(), &work) {
                return;
            }
            thread::yield_now();
        }
    }

    #[test]
    fn a_thread_joins_once_and_is_waited_for() {
        for round in 0..if cfg!(miri) { 30 } else { 2_000 } {
            let (began, ended) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
            with_workers(|worker| {
                began.lock().expect("a list").push(worker);
                (0..round).for_each(|_| spin_loop());
                ended.fetch_add(1, Ordering::Relaxed);
            });
            let began = began.into_inner().expect("a list");
            let unique: HashSet<_> = began.iter().copied().collect();
            assert!(unique.contains(&0) || threads() == 1);
            assert!(unique.iter().all(|worker| *worker < threads()));
            assert_eq!((unique.len(), ended.into_inner()), (began.len(), began.len()));
        }
    }

    #[test]
    fn there_are_as_many_threads_as_cores() {
        let values = [None, Some("three"), Some("0"), Some("3")];
        assert_eq!(values.map(number), [None, None, None, Some(3)]);
        if std::env::var_os("CANDLE_NUM_THREADS").is_none() {
            let cores = thread::available_parallelism().map_or(usize::MAX, NonZero::get);
            assert_eq!(threads(), cores.min(MAX_WORKERS + 1));
        }
    }

    #[test]
    fn bits_are_those_that_are_set() {
        assert_eq!(bits(0b1011).collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!(bits(u64::MAX >> 1).count(), MAX_WORKERS);
    }

    /// How many of `asked` threads do not come to a job, unless the system gives one no core for as
    /// long.
    fn missing(asked: usize, execute: impl FnOnce(&(dyn Fn(usize) + Sync))) -> usize {
        let (others, start) = (AtomicUsize::new(0), Instant::now());
        let missing = || asked - 1 - others.load(Ordering::Relaxed);
        execute(&|thread| {
            assert!(thread < asked);
            others.fetch_add(usize::from(thread > 0), Ordering::Relaxed);
            while missing() > 0 && start.elapsed().as_secs() < 30 {
                thread::yield_now();
            }
        });
        missing()
    }

    #[test]
    fn all_workers_come_awake_and_asleep() {
        for rest in [Duration::ZERO, 2 * AWAKE] {
            thread::sleep(rest);
            assert_eq!(missing(threads(), |work| with_workers(work)), 0, "after {rest:?}");
        }
    }

    #[test]
    fn of_many_threads_those_work_that_are_asked() {
        let pool = Pool::start(if cfg!(miri) { 8 } else { 64 });
        for rest in [Duration::ZERO, 2 * AWAKE] {
            thread::sleep(rest);
            for asked in [1, 2, 5] {
                let missing = missing(asked, |work| assert!(pool.execute(asked, work)));
                assert_eq!(missing, 0, "{asked} after {rest:?}");
            }
        }
    }

    #[test]
    fn work_is_shared_while_no_other_caller_has_the_workers() {
        let start = Instant::now();
        let others = AtomicUsize::new(usize::from(threads() == 1));
        while others.load(Ordering::Relaxed) == 0 && start.elapsed().as_secs() < 30 {
            let call = Instant::now();
            execute(threads(), &|worker| {
                others.fetch_add(usize::from(worker > 0), Ordering::Relaxed);
                while others.load(Ordering::Relaxed) == 0 && call.elapsed().as_millis() < 50 {
                    thread::yield_now();
                }
            });
        }
        assert!(others.into_inner() > 0);
    }

    #[test]
    fn a_panic_of_a_worker_or_of_the_caller_leaves_the_pool_usable() {
        for by_caller in [true, false] {
            let start = Instant::now();
            let others = AtomicUsize::new(0);
            let result = catch_unwind(AssertUnwindSafe(|| {
                with_workers(|worker| {
                    others.fetch_add(usize::from(worker > 0), Ordering::Relaxed);
                    while others.load(Ordering::Relaxed) == 0 && start.elapsed().as_secs() < 30 {
                        thread::yield_now();
                    }
                    assert_eq!(worker == 0, !by_caller, "on purpose");
                });
            }));
            assert!(result.is_err() || threads() == 1);
        }
        with_workers(|_| {});
    }
}
