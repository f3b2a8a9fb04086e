//! A closure on its caller's stack that other threads may join.
//!
//! A caller opens a job, does it as well as it can, and closes it. A thread that came in time has
//! joined it and is waited for; a late thread is not. So a call never takes longer for having asked
//! for help from a thread whose core is busy, or which the system has put on the caller's own.
//!
//! A caller waits for threads that have joined, for nothing else, and it waits by looking:
//! it takes no other work meanwhile.

use std::any::Any;
use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// A slot in which callers, one at a time, open jobs.
pub struct JobSlot {
    /// The number of the job, whether it can be joined, the threads that may, and how many work at
    /// it.
    state: CacheLine<AtomicU64>,
    /// Whether a caller has the slot.
    taken: AtomicBool,
    /// The closure of the job, which lives while the job is open or a thread works at it.
    job: UnsafeCell<&'static (dyn Fn(usize) + Sync)>,
    panic: Mutex<Option<Panic>>,
}

type Panic = Box<dyn Any + Send>;

/// A value on a cache line without other values.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct CacheLine<T>(pub T);

/// The job can be joined.
const OPEN: u64 = 1 << 31;
/// The unit of the number of threads that may join: the threads with a lower index.
const INVITED: u64 = 1 << 16;
/// The number of threads that work at the job, beside the caller.
const JOINED: u64 = INVITED - 1;
/// The most threads that can be invited: more are not counted.
pub const MAX_INVITED: usize = (OPEN / INVITED - 1) as usize;
/// The unit of the number of the job.
const NEXT: u64 = 1 << 32;

/// Looks before a wait turns into offers of the core.
const LOOKS: u32 = 64;

// SAFETY: `job` is written by the holder of `taken` alone, while no job is open and no thread works
// at one, and read by threads that have joined alone; the closure is `Sync`.
unsafe impl Sync for JobSlot {}

impl JobSlot {
    pub fn new() -> Self {
        Self {
            state: CacheLine(AtomicU64::new(0)),
            taken: AtomicBool::new(false),
            job: UnsafeCell::new(&|_| {}),
            panic: Mutex::new(None),
        }
    }

    /// Runs `work(index)` here and, on threads below `threads` that join in time, `work` of their
    /// index; `invite` asks them to. Runs nothing, and returns false, if another caller has the
    /// slot.
    ///
    /// A panic of any of them is resumed here.
    pub fn execute(
        &self,
        index: usize,
        threads: usize,
        work: &(dyn Fn(usize) + Sync),
        invite: impl FnOnce(),
    ) -> bool {
        if self.taken.swap(true, Ordering::Acquire) {
            return false;
        }
        let state = self.state.0.load(Ordering::Relaxed);
        debug_assert_eq!(state & (OPEN | JOINED), 0);
        // SAFETY: it is called by threads that have joined alone, which are waited for below, while
        // `work` is borrowed.
        let job = unsafe {
            std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(work)
        };
        // SAFETY: this caller alone has the slot, and the last one's job is closed and left.
        unsafe { *self.job.get() = job };
        // In one order with what `invite` reads and what a thread does before it goes to sleep or
        // uses up an invitation: either the thread sees the job, or `invite` sees that it must be
        // asked again.
        let invited = threads.min(MAX_INVITED) as u64 * INVITED;
        let open = (state / NEXT * NEXT).wrapping_add(NEXT) | OPEN | invited;
        self.state.0.store(open, Ordering::SeqCst);
        let result = catch_unwind(AssertUnwindSafe(|| {
            invite();
            work(index);
        }));
        // Also after a panic: the closure is on this stack.
        let mut joined = self.state.0.fetch_and(!OPEN, Ordering::AcqRel) & JOINED;
        let mut looks = 0;
        while joined != 0 {
            pause(&mut looks, LOOKS);
            joined = self.state.0.load(Ordering::Acquire) & JOINED;
        }
        let others = self.panic().take();
        self.taken.store(false, Ordering::Release);
        if let Some(panic) = result.err().or(others) {
            resume_unwind(panic);
        }
        true
    }

    /// The number of the open job, if that thread may join it.
    pub fn open_job(&self, thread: usize, order: Ordering) -> Option<u64> {
        let state = self.state.0.load(order);
        let invited = (state % OPEN / INVITED) as usize;
        (state & OPEN != 0 && thread < invited).then_some(state / NEXT)
    }

    /// Works at the job of that number as that thread, unless it is closed.
    pub fn join(&self, number: u64, thread: usize) {
        let joined = |state| (state / NEXT == number && state & OPEN != 0).then_some(state + 1);
        let state = &self.state.0;
        if state.fetch_update(Ordering::Acquire, Ordering::Relaxed, joined).is_err() {
            return;
        }
        // SAFETY: the caller waits for threads that have joined, so the job stays and its closure
        // lives.
        let job = unsafe { *self.job.get() };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(thread))) {
            self.panic().get_or_insert(panic);
        }
        state.fetch_sub(1, Ordering::Release);
    }

    fn panic(&self) -> impl std::ops::DerefMut<Target = Option<Panic>> {
        self.panic.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Spins for a moment, or, after `many` of them, yields the core.
pub fn pause(looks: &mut u32, many: u32) {
    *looks += 1;
    if *looks < many { spin_loop() } else { thread::yield_now() }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn a_job_is_joined_by_its_number_while_it_is_open() {
        let slot = JobSlot::new();
        let calls = AtomicUsize::new(0);
        let number = AtomicU64::new(0);
        let work = |thread| {
            calls.fetch_add(1, Ordering::Relaxed);
            if thread == 0 {
                let open = slot.open_job(1, Ordering::Relaxed).expect("an open job");
                number.store(open, Ordering::Relaxed);
                slot.join(open + 1, 1);
                slot.join(open - 1, 1);
                slot.join(open, 1);
            }
        };
        for round in 1..=3 {
            assert!(slot.execute(0, 2, &work, || {}));
            assert_eq!(slot.open_job(1, Ordering::Relaxed), None);
            // As a thread that saw the job open and comes too late.
            slot.join(number.load(Ordering::Relaxed), 1);
            assert_eq!(calls.load(Ordering::Relaxed), 2 * round);
        }
    }

    #[test]
    fn one_caller_has_the_slot() {
        let slot = JobSlot::new();
        let within = |_| assert!(!slot.execute(0, 2, &|_| unreachable!("two callers"), || {}));
        assert!(slot.execute(0, 2, &within, || {}));
        assert!(slot.execute(0, 2, &|_| {}, || {}));
    }
}
