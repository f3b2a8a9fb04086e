//! Phases of tasks, on threads that stay together from the first to the last.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::job::{CacheLine, pause};

/// Phases on their way, the indices of each in one share a thread.
///
/// A thread takes tasks from its share, and when that is used up and the others are late, from
/// their shares. It counts its finished tasks on a separate line and reads the lines of the others:
/// a phase has ended when the sum reaches the number of tasks up to its end. No thread has to
/// announce it, which would be a second message.
pub struct Course<P, O, T> {
    phases: Range<usize>,
    /// The number of tasks of a phase, and whether a thread begins with the last of those it gets.
    phase: P,
    state: O,
    task: T,
    threads: usize,
    /// How much has been done in all phases, by the threads of each share.
    done: [CacheLine<AtomicU64>; MAX_SHARES],
    /// The tasks taken from each share: the last phase in which some were, plus 1, and below it
    /// their number. A thread that comes too late for a phase finds it taken, or another phase.
    taken: [CacheLine<AtomicU64>; MAX_SHARES],
}

/// The most shares; more threads have shares in common.
pub const MAX_SHARES: usize = 16;

/// Looks at the others before a thread takes tasks from their shares: lines that all threads write
/// cost as much as a small task.
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
    P: Fn(usize) -> (usize, bool),
    O: Fn() -> S,
    T: Fn(&mut S, usize, usize),
{
    /// These phases in shares for `threads` threads; each thread has a `state`, which its tasks get
    /// beside the phase and the index.
    pub fn new(threads: usize, phases: Range<usize>, phase: P, state: O, task: T) -> Self {
        Self {
            phases,
            phase,
            state,
            task,
            threads: threads.clamp(1, MAX_SHARES),
            done: Default::default(),
            taken: Default::default(),
        }
    }

    /// Works at each phase until there is none.
    pub fn follow(&self, thread: usize) {
        let share = thread % self.threads;
        let end = EndOnPanic(&self.done[share].0);
        self.each_phase(share, &self.done[share].0);
        std::mem::forget(end);
    }

    fn each_phase(&self, share: usize, done: &AtomicU64) {
        let mut state = (self.state)();
        let others = || (1..self.threads).map(|i| (share + i) % self.threads);
        // Where others are late once, they mostly are again.
        let mut patience = PATIENCE;
        // Finished tasks, as far as this thread has seen, and the tasks up to the end of a phase.
        let (mut seen, mut end) = (0, 0);
        for phase in self.phases.clone() {
            let (tasks, _) = (self.phase)(phase);
            end += tasks as u64;
            if end <= seen {
                continue;
            }
            let mut mine = self.take_from(share, phase, &mut state);
            if phase + 1 == self.phases.end {
                // The caller waits for all threads that came.
                others().for_each(|share| _ = self.take_from(share, phase, &mut state));
                return;
            }
            let mut looks = 0;
            loop {
                if mine > 0 {
                    done.fetch_add(mine, Ordering::Release);
                    mine = 0;
                }
                seen = self.done();
                if seen >= end {
                    break;
                }
                if looks == patience {
                    let taken = others().map(|share| self.take_from(share, phase, &mut state));
                    mine = taken.sum();
                    patience = if mine > 0 { 0 } else { PATIENCE };
                }
                pause(&mut looks, LOOKS);
            }
        }
    }

    /// The number of finished tasks; the Acquire load makes their results visible. No task of a
    /// phase is done before all of those before it are: the number alone says which have ended.
    fn done(&self) -> u64 {
        let lines = self.done[..self.threads].iter();
        lines.map(|line| line.0.load(Ordering::Acquire)).sum()
    }

    /// Does the tasks left in a share of a phase; returns how many they were.
    fn take_from(&self, share: usize, phase: usize, state: &mut S) -> u64 {
        let (tasks, backwards) = (self.phase)(phase);
        // A single task is in the first share, the caller's.
        let start = (tasks * share).div_ceil(self.threads);
        let end = (tasks * (share + 1)).div_ceil(self.threads);
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
                    let index = if backwards { end - 1 - index } else { start + index };
                    (self.task)(state, phase, index);
                    mine += 1;
                    seen = taken.load(Ordering::Relaxed);
                }
            }
        }
    }
}

/// Ends all phases, unless it is forgotten: a thread that waits for a panicked thread would wait
/// for ever.
struct EndOnPanic<'a>(&'a AtomicU64);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(1 << 58, Ordering::Release);
    }
}
