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

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::pool::{self, Line, Turn};

/// Calls `task` once for each index below `tasks`, on as many threads as are free.
///
/// A thread gets the same indices at every call of the same shape, so that what they read stays
/// in its cache; `backwards` it begins with the last of them.
pub(super) fn for_each(tasks: usize, backwards: bool, task: impl Fn(usize) + Sync) {
    let phase = |_| Phase { tasks, backwards };
    for_each_phase(1, phase, || (), |(), _, index| task(index));
}

/// Tasks of which the order is free.
#[derive(Clone, Copy)]
pub(super) struct Phase {
    pub tasks: usize,
    /// Whether a thread begins with the last of those it gets.
    pub backwards: bool,
}

/// Calls `task` once for each phase below `phases` and each index of it, on as many threads as
/// are free; a phase begins when the one before has ended. Each thread has something of its `own`,
/// which its tasks get.
///
/// The threads stay together from the first phase to the last, so that to go on to the next costs
/// one message, where a call a phase would cost two and an invitation. As everywhere, a thread that
/// comes late or not at all is not waited for: what it has not taken, others take.
pub(super) fn for_each_phase<S>(
    phases: usize,
    phase: impl Fn(usize) -> Phase + Sync,
    own: impl Fn() -> S + Sync,
    task: impl Fn(&mut S, usize, usize) + Sync,
) {
    // What nobody can help with comes first, without them.
    let first = (0..phases).find(|index| phase(*index).tasks > 1);
    let first = first.unwrap_or(phases);
    if first > 0 {
        let mut own = own();
        let alone = (0..first).filter(|index| phase(*index).tasks > 0);
        alone.for_each(|index| task(&mut own, index, 0));
    }
    if first == phases {
        return;
    }
    let threads = threads().clamp(1, MAX_SHARES);
    let course = Course {
        phases: first..phases,
        phase,
        own,
        task,
        threads,
        done: Default::default(),
        taken: Default::default(),
    };
    let work = |thread| course.follow(thread);
    if let Some(own) = rayon::current_thread_index() {
        let helpers = (threads - 1).min((course.phase)(first).tasks - 1);
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

/// Phases on their way, the indices of each in one share a thread.
///
/// A thread takes from its own share, and when that is used up and the others are late, from
/// theirs. It counts what it has done on a line of its own and looks at those of others: a phase
/// has ended when all together have done as much as there is in it and in those before. Nobody has
/// to say so, which would be a second message.
struct Course<P, O, T> {
    phases: Range<usize>,
    phase: P,
    own: O,
    task: T,
    threads: usize,
    /// How much has been done in all phases, by the threads of each share.
    done: [Line<AtomicU64>; MAX_SHARES],
    /// Of each share: the last phase in which something was taken of it plus 1, and below it how
    /// much. Who comes too late for a phase finds it taken, or another phase.
    taken: [Line<AtomicU64>; MAX_SHARES],
}

/// More threads than this share their shares.
const MAX_SHARES: usize = 16;

/// Looks at the others before a thread takes from them what they have not taken: what all write
/// to all costs as much as a small task.
const PATIENCE: u32 = 32;

/// Looks before a wait turns into offers of the core: some microseconds.
const LOOKS: u32 = 1_024;

/// A number above another.
fn pack(high: usize, low: usize) -> u64 {
    (high as u64) << 32 | low as u64
}

fn unpack(both: u64) -> (usize, usize) {
    ((both >> 32) as usize, (both & u64::from(u32::MAX)) as usize)
}

impl<S, P, O, T> Course<P, O, T>
where
    P: Fn(usize) -> Phase,
    O: Fn() -> S,
    T: Fn(&mut S, usize, usize),
{
    /// Works at each phase until there is none.
    fn follow(&self, thread: usize) {
        let share = thread % self.threads;
        let done = EndOnPanic(&self.done[share].0);
        let mut own = (self.own)();
        let others = || (1..self.threads).map(|i| (share + i) % self.threads);
        // Where others are late once, they mostly are again.
        let mut patience = PATIENCE;
        // All that is done, as far as this thread has seen, and all there is until a phase ends.
        let (mut seen, mut end) = (0, 0);
        for phase in self.phases.clone() {
            let now = (self.phase)(phase);
            end += now.tasks as u64;
            if end <= seen {
                continue;
            }
            let mut mine = self.take_from(share, phase, now, &mut own);
            if phase + 1 == self.phases.end {
                // Whoever began this waits for all who came.
                others().for_each(|share| _ = self.take_from(share, phase, now, &mut own));
                return;
            }
            let mut looks = 0;
            loop {
                if mine > 0 {
                    done.0.fetch_add(mine, Ordering::Release);
                    mine = 0;
                }
                seen = self.done();
                if seen >= end {
                    break;
                }
                if looks == patience {
                    let taken = others().map(|share| self.take_from(share, phase, now, &mut own));
                    mine = taken.sum();
                    patience = if mine > 0 { 0 } else { PATIENCE };
                }
                pool::pause(&mut looks, LOOKS);
            }
        }
    }

    /// How much is done; what that is, whoever gets the number sees. Nothing of a phase is done
    /// before all of those before it is, so that the number alone says which have ended.
    fn done(&self) -> u64 {
        let lines = self.done[..self.threads].iter();
        lines.map(|line| line.0.load(Ordering::Acquire)).sum()
    }

    /// Does what there is left to take of a share of a phase, and says how much that was.
    fn take_from(&self, share: usize, phase: usize, now: Phase, own: &mut S) -> u64 {
        // A single one is in the first share, the caller's.
        let start = (now.tasks * share).div_ceil(self.threads);
        let end = (now.tasks * (share + 1)).div_ceil(self.threads);
        let taken = &self.taken[share].0;
        let mut mine = 0;
        let mut seen = taken.load(Ordering::Relaxed);
        loop {
            let index = match unpack(seen) {
                (last, index) if last == phase + 1 => index,
                // All before this phase was taken, or this share had no part in it.
                (last, _) if last <= phase => 0,
                _ => return mine,
            };
            if index >= end - start {
                return mine;
            }
            let next = pack(phase + 1, index + 1);
            let order = Ordering::Relaxed;
            match taken.compare_exchange_weak(seen, next, order, order) {
                Err(now) => seen = now,
                Ok(_) => {
                    let index = match now.backwards {
                        true => end - 1 - index,
                        false => start + index,
                    };
                    (self.task)(own, phase, index);
                    mine += 1;
                    seen = taken.load(Ordering::Relaxed);
                }
            }
        }
    }
}

/// Ends all phases where a task panics: who waits for it would wait forever.
struct EndOnPanic<'a>(&'a AtomicU64);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.fetch_or(1 << 58, Ordering::Release);
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

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Numbers of tasks, with phases of none and of one between others.
    fn tasks(phase: usize) -> usize {
        [5, 1, 0, 16, 2, 1, 1, 3, 40][phase % 9]
    }

    fn each_task_once_and_phase_by_phase(phases: usize) {
        let done: Vec<Vec<AtomicUsize>> = (0..phases)
            .map(|phase| (0..tasks(phase)).map(|_| AtomicUsize::new(0)).collect())
            .collect();
        let phase = |phase: usize| Phase {
            tasks: tasks(phase),
            backwards: phase % 2 == 1,
        };
        for_each_phase(
            phases,
            phase,
            || (),
            |(), phase, index| {
                let before = done[..phase].iter().flatten();
                assert!(
                    before
                        .into_iter()
                        .all(|done| done.load(Ordering::Relaxed) == 1)
                );
                done[phase][index].fetch_add(1, Ordering::Relaxed);
            },
        );
        assert!(
            done.iter()
                .flatten()
                .all(|done| done.load(Ordering::Relaxed) == 1)
        );
    }

    #[test]
    fn phases_follow_one_another_on_every_kind_of_thread() {
        let all = || (0..100).for_each(each_task_once_and_phase_by_phase);
        all();
        for threads in [1, 2, 5, 20] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            pool.expect("a pool").install(all);
        }
        thread::scope(|scope| (0..4).for_each(|_| _ = scope.spawn(all)));
    }

    #[test]
    fn a_panic_in_a_phase_ends_all() {
        for at in [0, 1, 3, 8, 16] {
            let phase = |phase: usize| Phase {
                tasks: tasks(phase),
                backwards: false,
            };
            let result = catch_unwind(AssertUnwindSafe(|| {
                for_each_phase(
                    17,
                    phase,
                    || (),
                    |(), phase, _| assert!(phase < at, "on purpose"),
                );
            }));
            assert!(result.is_err());
        }
        each_task_once_and_phase_by_phase(20);
    }
}
