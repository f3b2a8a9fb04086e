//! Threads that wait for work and that nobody waits for.
//!
//! A caller publishes a job, does it as well as it can, and closes it. A thread that came in
//! time has joined it and is waited for; one that did not come is not. So a call never takes
//! longer for having asked for help from a thread whose core is busy, or which the system has
//! put on the caller's own.
//!
//! A thread waits awake for a while, since the next call of a model mostly follows within
//! microseconds and to wake a sleeper costs as much as a small product: first it spins, then it
//! offers its core to others between looks, then it sleeps. To spin all the time would take
//! half a core from a caller that the system has put on the same one.

use std::any::Any;
use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long a thread spins after its last job.
const SPIN: Duration = Duration::from_micros(50);

/// How long it stays awake, offering its core to others.
const AWAKE: Duration = Duration::from_micros(500);

/// Looks between two glances at the clock, and before a wait turns into offers of the core.
const LOOKS: u32 = 64;

/// More workers have no bit in [`Shared::asleep`].
const MAX_WORKERS: usize = 63;

/// The pool of the process.
static POOL: LazyLock<Pool> = LazyLock::new(Pool::start);

struct Pool {
    shared: &'static Shared,
    workers: Vec<Thread>,
}

struct Shared {
    /// The number of the job, whether it can be joined, and how many work at it.
    state: Line<AtomicU64>,
    /// A bit for each worker that has to be woken up.
    asleep: Line<AtomicU64>,
    /// Whether a caller has the pool.
    taken: AtomicBool,
    job: UnsafeCell<Job>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A value with a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct Line<T>(pub T);

/// The job can be joined.
const OPEN: u64 = 1 << 31;
/// Who works at the job, beside the caller.
const JOINED: u64 = OPEN - 1;
/// One in the number of the job.
const NEXT: u64 = 1 << 32;

/// A closure on its caller's stack.
#[derive(Clone, Copy)]
struct Job {
    closure: *const (),
    /// # Safety
    /// `closure` is the one that this was made for, and lives.
    call: unsafe fn(*const (), usize),
}

// SAFETY: `job` is written by the holder of `taken` alone, while no job is open and nobody
// works at one, and read by workers that have joined alone; `closure` is `Sync`.
unsafe impl Sync for Shared {}

/// The right to give the workers a job, given back on drop.
pub(super) struct Turn(&'static Pool);

impl Turn {
    /// Takes the pool, unless somebody has it or it has no workers.
    pub fn take() -> Option<Self> {
        let pool = &*POOL;
        let free = !pool.workers.is_empty() && !pool.shared.taken.swap(true, Ordering::Acquire);
        // Lazily: a turn that is made and dropped would give back somebody else's.
        free.then(|| Self(pool))
    }

    /// Runs `work(0)` here and, on the workers that come in time, `work` of 1 and up.
    ///
    /// A panic of any of them ends up here.
    pub fn execute<F: Fn(usize) + Sync>(self, work: F) {
        /// # Safety
        /// `closure` is an `F` that lives.
        unsafe fn call<F: Fn(usize)>(closure: *const (), worker: usize) {
            // SAFETY: the caller's promise.
            unsafe { (*closure.cast::<F>())(worker) }
        }
        let Pool { shared, workers } = self.0;
        let state = shared.state.0.load(Ordering::Relaxed);
        debug_assert_eq!(state & (OPEN | JOINED), 0);
        // SAFETY: this turn is the only one, and the last one's job is closed and left.
        unsafe {
            *shared.job.get() = Job {
                closure: (&raw const work).cast(),
                call: call::<F>,
            };
        }
        // In one order with what a worker does before it goes to sleep: either it sees the job,
        // or its bit is seen here.
        let open = state.wrapping_add(NEXT) | OPEN;
        shared.state.0.store(open, Ordering::SeqCst);
        let open = Open(shared);
        let mut asleep = shared.asleep.0.load(Ordering::SeqCst);
        if asleep != 0 {
            asleep = shared.asleep.0.swap(0, Ordering::SeqCst);
        }
        while asleep != 0 {
            workers[asleep.trailing_zeros() as usize].unpark();
            asleep &= asleep - 1;
        }
        work(0);
        drop(open);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.shared.taken.store(false, Ordering::Release);
    }
}

/// An open job; on drop, by a panic as well, it is closed and left by all before its closure ends.
struct Open(&'static Shared);

impl Drop for Open {
    fn drop(&mut self) {
        let state = &self.0.state.0;
        let mut joined = state.fetch_and(!OPEN, Ordering::AcqRel) & JOINED;
        let mut looks = 0;
        while joined != 0 {
            pause(&mut looks, LOOKS);
            joined = state.load(Ordering::Acquire) & JOINED;
        }
        let panic = self.0.panic.lock().map(|mut panic| panic.take());
        if let Ok(Some(panic)) = panic
            && !thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}

/// Lets a moment pass; after so many of them, lets others have the core.
pub(super) fn pause(looks: &mut u32, many: u32) {
    *looks += 1;
    match *looks < many {
        true => spin_loop(),
        false => thread::yield_now(),
    }
}

impl Pool {
    /// As many threads as candle's own pool has; fewer if the system has no more.
    fn start() -> Self {
        let shared = Box::leak(Box::new(Shared {
            state: Line(AtomicU64::new(0)),
            asleep: Line(AtomicU64::new(0)),
            taken: AtomicBool::new(false),
            job: UnsafeCell::new(Job {
                closure: std::ptr::null(),
                call: |_, _| {},
            }),
            panic: Mutex::new(None),
        }));
        let shared: &'static Shared = shared;
        let count = candle_core::utils::barrier_pool().n_workers();
        let workers = (0..count.min(MAX_WORKERS)).map_while(|worker| {
            let thread = thread::Builder::new().name(format!("dynquant-{worker}"));
            let handle = thread.spawn(move || shared.serve(worker));
            handle.ok().map(|handle| handle.thread().clone())
        });
        let workers = workers.collect();
        Self { shared, workers }
    }
}

/// How many threads work at a job, if all come: the workers and the caller.
pub(super) fn threads() -> usize {
    POOL.workers.len() + 1
}

impl Shared {
    fn serve(&self, worker: usize) -> ! {
        let mut last = 0;
        loop {
            let number = self.next(worker, last);
            last = number;
            if !self.join(number) {
                continue;
            }
            // SAFETY: who has joined is waited for, so the job stays and its closure lives.
            let job = unsafe { *self.job.get() };
            // SAFETY: as above; `call` was made for this closure.
            let work = || unsafe { (job.call)(job.closure, worker + 1) };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(work))
                && let Ok(mut first) = self.panic.lock()
            {
                first.get_or_insert(panic);
            }
            self.state.0.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for an open job with another number than `last`.
    fn next(&self, worker: usize, last: u64) -> u64 {
        let found = |order| {
            let state = self.state.0.load(order);
            (state & OPEN != 0 && state / NEXT != last).then_some(state / NEXT)
        };
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

    /// Joins the job of that number, unless it is closed.
    fn join(&self, number: u64) -> bool {
        let joined = |state| (state / NEXT == number && state & OPEN != 0).then_some(state + 1);
        let state = &self.state.0;
        state
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, joined)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// The pool, as soon as no other test has it.
    fn turn() -> Option<Turn> {
        (threads() > 1).then(|| {
            loop {
                match Turn::take() {
                    Some(turn) => return turn,
                    None => thread::yield_now(),
                }
            }
        })
    }

    #[test]
    fn whoever_joins_does_so_once_and_is_waited_for() {
        for round in 0..2_000 {
            let Some(turn) = turn() else { return };
            let (began, ended) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
            turn.execute(|worker| {
                began.lock().expect("a list").push(worker);
                (0..round).for_each(|_| spin_loop());
                ended.fetch_add(1, Ordering::Relaxed);
            });
            let began = began.into_inner().expect("a list");
            let unique: HashSet<_> = began.iter().copied().collect();
            assert!(unique.contains(&0) && unique.iter().all(|worker| *worker < threads()));
            assert_eq!(
                (unique.len(), ended.into_inner()),
                (began.len(), began.len())
            );
        }
    }

    #[test]
    fn workers_come_awake_and_asleep() {
        let Some(_) = turn() else { return };
        for rest in [Duration::ZERO, 2 * AWAKE] {
            thread::sleep(rest);
            let others = AtomicUsize::new(0);
            // Somebody comes, unless the system gives nobody else a core for a second.
            let start = Instant::now();
            turn().expect("a pool").execute(|worker| {
                others.fetch_add(usize::from(worker > 0), Ordering::Relaxed);
                while others.load(Ordering::Relaxed) == 0 && start.elapsed().as_secs() < 30 {
                    thread::yield_now();
                }
            });
            assert!(others.into_inner() > 0, "after {rest:?}");
        }
    }

    #[test]
    fn a_panic_of_a_worker_or_of_the_caller_leaves_the_pool_usable() {
        for by_caller in [true, false] {
            let Some(turn) = turn() else { return };
            let start = Instant::now();
            let others = AtomicUsize::new(0);
            let result = catch_unwind(AssertUnwindSafe(|| {
                turn.execute(|worker| {
                    others.fetch_add(usize::from(worker > 0), Ordering::Relaxed);
                    while others.load(Ordering::Relaxed) == 0 && start.elapsed().as_secs() < 30 {
                        thread::yield_now();
                    }
                    assert_eq!(worker == 0, !by_caller, "on purpose");
                });
            }));
            assert!(result.is_err());
        }
        let Some(turn) = turn() else { return };
        turn.execute(|_| {});
    }
}
