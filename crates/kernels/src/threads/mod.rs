//! The one place that decides on which threads a product runs.
//!
//! Starting threads must cost less than a small product takes, some microseconds. So:
//!
//! - inside a rayon pool (the user's, or candle's `Device::with_context`) [that pool](rayon_pool)
//!   is used: its threads are awake;
//! - elsewhere the crate's own [`pool`], whose threads stay awake between the calls of a model
//!   and start in a fraction of a microsecond, where waking a sleeping rayon pool from outside
//!   takes over ten, and candle's barrier pool waits for every one of its threads, also for one
//!   whose core is busy with another program;
//! - a pool serves one caller at a time, so a caller that finds it taken computes on its own
//!   thread: under many concurrent callers all cores are busy anyway.
//!
//! # Why every call ends
//! There are two waits, and both are for threads that run:
//!
//! - a thread in a [course] waits for tasks of the phase that others have taken. A
//!   task waits for nothing: it cannot ask for threads, since it is [`Sync`] and [`Threads`] is
//!   not. So the thread that has taken it is computing it, wherever it has come from;
//! - a caller waits for threads that have [joined](job) its job, which ends with its last
//!   phase.
//!
//! Neither wait runs anything else on the stack of the thread that waits, and no wait is rayon's.
//! So however users nest their calls, in `par_iter`, `join`, scopes or pools within pools, nothing
//! is suspended on a stack that a thread waits for, and a lock that a caller holds is not asked for
//! by its own thread. A thread that rayon has suspended in the user's own `join` may help a caller,
//! on top of that stack: it holds no task of ours below.

mod course;
mod job;
mod pool;
mod rayon_pool;
mod shared;
#[cfg(test)]
mod watchdog;

use std::marker::PhantomData;
use std::sync::Mutex;

use course::{Course, MAX_SHARES};

pub use job::CacheLine;
pub use pool::{set_default, threads};
pub use shared::Shared;

/// Multiply-adds in the time that one more thread costs a call: 0.07 us on a large machine, at 70 a
/// nanosecond, about what AVX2 computes.
const A_THREAD: usize = 5_000;

/// Tasks per thread: enough that a delayed thread leaves work to the others. More are not faster.
pub const TASKS_PER_THREAD: usize = 4;

/// The right to have work done by several threads.
///
/// It is created where a caller enters the kernels, and handed down to what may spread its work. It
/// is not [`Sync`], so that a task, which is already on several threads, cannot have it: a function
/// without `Threads` stays on its thread.
pub struct Threads {
    most: usize,
    _of_one_thread: PhantomData<*const ()>,
}

const _: () = {
    /// Implemented once for every type, and twice for one that is `Send` or `Sync`: then the
    /// function below is ambiguous, and this does not compile.
    trait OnOneThread<A> {
        fn holds() {}
    }
    struct Send_;
    struct Sync_;
    impl<T> OnOneThread<()> for T {}
    impl<T: Send> OnOneThread<Send_> for T {}
    impl<T: Sync> OnOneThread<Sync_> for T {}
    let _ = <Threads as OnOneThread<_>>::holds;
};

impl Threads {
    /// The threads of the caller of a kernel; not for tasks.
    pub fn of_caller() -> Self {
        Self { most: usize::MAX, _of_one_thread: PhantomData }
    }

    /// The number of threads that need the least time for these multiply-adds, which any number can
    /// share.
    ///
    /// Each thread that joins writes the line with the state of the [job] twice, to say so and to
    /// say that it is done, and a core passes such a line on to one other at a time. On t threads
    /// work that takes one of them the time w is done after about `w / t + c * t`, least at the
    /// root of w / c; `scripts/simulate_start.py` finds c, and what it gains on 64 threads.
    pub fn for_multiply_adds(&self, work: usize) -> Self {
        Self { most: self.most.min((work / A_THREAD).isqrt().max(1)), _of_one_thread: PhantomData }
    }

    /// The number of threads, if none of them is busy.
    pub fn count(&self) -> usize {
        let all = match rayon::current_thread_index() {
            Some(_) => rayon::current_num_threads(),
            None => pool::threads(),
        };
        all.min(self.most)
    }

    /// The number of threads for `work`: the caller's alone if it is less than `serial`.
    pub fn for_work(&self, work: usize, serial: usize) -> usize {
        if work < serial { 1 } else { self.count() }
    }

    /// The number of tasks that elements are cut into; 1 if there are fewer elements than `serial`.
    pub fn tasks(&self, elements: usize, serial: usize) -> usize {
        if elements < serial { 1 } else { TASKS_PER_THREAD * self.count() }
    }

    /// Calls `task` once for each index below `tasks`, on all free threads.
    ///
    /// A thread gets the same indices at every call of the same shape, so that what they read stays
    /// in its cache; `backwards` it begins with the last of them.
    pub fn for_each(&self, tasks: usize, backwards: bool, task: impl Fn(usize) + Sync) {
        self.for_each_phase(1, |_| (tasks, backwards), || (), |(), _, index| task(index));
    }

    /// [`for_each`](Self::for_each) of any number of tasks; where one thread is wanted, the
    /// caller's.
    pub fn spread(&self, wanted: usize, tasks: usize, task: impl Fn(usize) + Sync) {
        if wanted == 1 {
            return (0..tasks).for_each(task);
        }
        // Threads count the tasks that they get in u32.
        let share = tasks.div_ceil(u32::MAX as usize).max(1);
        self.for_each(tasks.div_ceil(share), false, |index| {
            (index * share..tasks.min((index + 1) * share)).for_each(&task);
        });
    }

    /// Calls `task` once for each phase below `phases` and each index of it, on all free threads; a
    /// phase begins when the one before has ended. Each thread has a `state`, which its tasks get.
    /// `phase` gives the number of tasks, and whether a thread begins with the last of those it
    /// gets.
    ///
    /// The threads stay together from the first phase to the last, so that to go on to the next
    /// costs one message, where a call a phase would cost two and an invitation. As everywhere, a
    /// thread that comes late or not at all is not waited for: others take what it has not taken.
    pub fn for_each_phase<S>(
        &self,
        phases: usize,
        phase: impl Fn(usize) -> (usize, bool) + Sync,
        state: impl Fn() -> S + Sync,
        task: impl Fn(&mut S, usize, usize) + Sync,
    ) {
        let tasks = |index: usize| phase(index).0;
        // Leading phases of one task run on the caller's thread.
        let first = (0..phases).find(|index| tasks(*index) > 1);
        let first = first.unwrap_or(phases);
        if first > 0 {
            let mut state = state();
            let alone = (0..first).filter(|index| tasks(*index) > 0);
            alone.for_each(|index| task(&mut state, index, 0));
        }
        if first == phases {
            return;
        }
        // Idle threads still contend for cache lines.
        let most = (first..phases).map(tasks).max();
        let threads = self.count().min(most.unwrap_or(1));
        let helpers = threads.min(MAX_SHARES) - 1;
        let course = Course::new(threads, first..phases, phase, state, task);
        let work = |thread| course.follow(thread);
        match rayon::current_thread_index() {
            Some(index) => rayon_pool::execute(index, helpers, &work),
            None => pool::execute(threads, &work),
        }
    }

    /// Calls `task` once with each item, on all free threads.
    pub fn for_each_item<T: Send>(&self, items: impl Iterator<Item = T>, task: impl Fn(T) + Sync) {
        let mut items = items.peekable();
        let Some(first) = items.next() else { return };
        if items.peek().is_none() {
            // Nothing to share, nothing to allocate.
            return task(first);
        }
        let items = std::iter::once(first).chain(items);
        let items: Vec<Mutex<Option<T>>> = items.map(|item| Mutex::new(Some(item))).collect();
        self.for_each(items.len(), false, |index| {
            // Each index comes once: the lock is never waited for, the item always there.
            if let Some(item) = items[index].lock().ok().and_then(|mut item| item.take()) {
                task(item);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::watchdog::Watchdog;
    use super::*;

    const PHASES: [usize; 9] = [5, 1, 0, 16, 2, 1, 1, 3, 40];

    /// Calls of a test: the first few under Miri, which takes a second for each.
    const fn calls(many: usize) -> usize {
        if cfg!(miri) { 3 } else { many }
    }

    /// Numbers of tasks, with phases of none and of one between others.
    fn phase(index: usize) -> (usize, bool) {
        (PHASES[index % PHASES.len()], index % 2 == 1)
    }

    /// This number of phases, which begin anywhere in [`PHASES`].
    fn each_task_once_and_phase_by_phase(phases: usize) {
        let phase = |index| phase(phases + index);
        let done: Vec<Vec<AtomicUsize>> = (0..phases)
            .map(|index| (0..phase(index).0).map(|_| AtomicUsize::new(0)))
            .map(Iterator::collect)
            .collect();
        let all_once = |phases: &[Vec<AtomicUsize>]| {
            let mut all = phases.iter().flatten();
            all.all(|done| done.load(Ordering::Relaxed) == 1)
        };
        let task = |(): &mut (), phase: usize, index: usize| {
            assert!(all_once(&done[..phase]));
            done[phase][index].fetch_add(1, Ordering::Relaxed);
        };
        Threads::of_caller().for_each_phase(phases, phase, || (), task);
        assert!(all_once(&done));
    }

    fn rayon_pool(threads: usize) -> rayon::ThreadPool {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        pool.expect("a pool")
    }

    #[test]
    fn phases_follow_one_another_on_every_kind_of_thread() {
        let _watchdog = Watchdog::start();
        let all = || (0..calls(100)).for_each(each_task_once_and_phase_by_phase);
        all();
        for threads in [1, 2, 5, 20] {
            rayon_pool(threads).install(all);
        }
        thread::scope(|scope| (0..4).for_each(|_| _ = scope.spawn(all)));
    }

    #[test]
    fn threads_are_those_of_the_caller() {
        assert_eq!(Threads::of_caller().count(), super::pool::threads());
        for threads in [1, 3] {
            let count = rayon_pool(threads).install(|| Threads::of_caller().count());
            assert_eq!(count, threads);
        }
    }

    #[test]
    fn threads_of_a_rayon_pool_come() {
        let start = Instant::now();
        let others = AtomicUsize::new(0);
        let alone = || others.load(Ordering::Relaxed) < 2 && start.elapsed().as_secs() < 30;
        rayon_pool(3).install(|| {
            Threads::of_caller().for_each(3, false, |_| {
                others.fetch_add(1, Ordering::Relaxed);
                while alone() {
                    thread::yield_now();
                }
            });
        });
        assert!(start.elapsed().as_secs() < 30, "the caller worked alone");
    }

    #[test]
    fn each_item_is_taken_once() {
        for items in [0, 1, 2, 50] {
            let taken = std::sync::Mutex::new(Vec::new());
            let take = |item| taken.lock().expect("a list").push(item);
            Threads::of_caller().for_each_item(0..items, take);
            let mut taken = taken.into_inner().expect("a list");
            taken.sort_unstable();
            assert_eq!(taken, (0..items).collect::<Vec<i32>>());
        }
    }

    /// Phases whose `last` task panics, after all tasks that run beside it have begun: on several
    /// threads, if others come.
    fn panic_at(last: usize) {
        let (threads, calls) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let start = Instant::now();
        let start_thread = || _ = threads.fetch_add(1, Ordering::Relaxed);
        let alone = || threads.load(Ordering::Relaxed) < 2;
        let task = |(): &mut (), _: usize, _: usize| {
            while alone() && start.elapsed() < Duration::from_millis(20) {
                thread::yield_now();
            }
            assert_ne!(calls.fetch_add(1, Ordering::Relaxed), last, "on purpose");
        };
        let result = catch_unwind(AssertUnwindSafe(|| {
            Threads::of_caller().for_each_phase(PHASES.len(), phase, start_thread, task);
        }));
        assert!(result.is_err(), "the panic of call {last} got lost");
    }

    #[test]
    fn a_panic_in_any_task_ends_all_phases_and_reaches_the_caller() {
        let watchdog = Watchdog::start();
        let pools = [2, 3, 8].map(rayon_pool);
        for last in 0..calls(PHASES.iter().sum()) {
            watchdog.step(format_args!("a panic in call {last}"));
            panic_at(last);
            pools.iter().for_each(|pool| pool.install(|| panic_at(last)));
        }
        each_task_once_and_phase_by_phase(20);
        pools.iter().for_each(|pool| pool.install(|| each_task_once_and_phase_by_phase(20)));
    }

    #[test]
    fn a_call_within_a_task_ends() {
        let _watchdog = Watchdog::start();
        let nested = || {
            let calls = AtomicUsize::new(0);
            let task = |_| {
                Threads::of_caller().for_each(7, false, |_| {
                    calls.fetch_add(1, Ordering::Relaxed);
                });
            };
            Threads::of_caller().for_each(9, false, task);
            assert_eq!(calls.into_inner(), 63);
        };
        (0..calls(100)).for_each(|_| nested());
        for threads in [1, 2, 5] {
            rayon_pool(threads).install(|| (0..calls(100)).for_each(|_| nested()));
        }
    }

    #[test]
    fn invitations_do_not_pile_up_where_all_threads_are_busy() {
        let pool = rayon_pool(4);
        let _watchdog = Watchdog::start();
        let all_busy = pool.broadcast(|_| {
            (0..calls(10_000)).for_each(|_| Threads::of_caller().for_each(8, false, |_| {}));
            super::rayon_pool::invited()
        });
        assert!(all_busy.iter().all(|invited| *invited < 4), "{all_busy:?}");
    }
}
