//! All steps of a direction as phases of tasks.

use std::ops::Range;

use crate::calls::linear::{Grid, parts_of};
use crate::packed::Packed;
use crate::threads::TASKS_PER_THREAD;

/// Multiply-adds of a step below which it stays on one thread.
const SERIAL_MACS: usize = 100_000;

/// Min elements of the hidden state that one task quantizes.
const CODES_PER_TASK: usize = if cfg!(miri) { 4 } else { 2_048 };

/// Bytes of the input's products that are computed at once: they stay in the caches until their
/// steps have used them. From 0.5 to 4 MB the size makes no difference.
const INPUT_BYTES: usize = 1 << 20;

/// A phase: all threads finish it before any begins the next.
pub enum Work {
    /// The products of some rows of the input.
    Input { rows: Range<usize>, grid: Grid },
    /// The codes of the hidden state before a step, in blocks of its active rows.
    Codes { step: usize, active: usize, blocks: usize },
    /// The products of a step, and the state after it.
    Units {
        step: usize,
        /// First of the rows whose products of the input are there.
        input: usize,
        /// Whether each thread quantizes the hidden state for itself.
        private: bool,
        grid: Grid,
    },
}

impl Work {
    /// The number of tasks, and whether a thread begins with the last of those it gets.
    pub fn phase(&self) -> (usize, bool) {
        match self {
            Self::Input { grid, .. } => (grid.parts(), false),
            Self::Codes { blocks, .. } => (*blocks, false),
            // Weights that are larger than the cache would be gone each time if every step began
            // with the first.
            Self::Units { step, grid, .. } => (grid.parts(), step % 2 == 1),
        }
    }
}

/// The operands by which the work of a direction is cut into tasks.
pub struct StepPlan<'a> {
    pub ih: &'a Packed,
    pub hh: &'a Packed,
    /// Bytes of a group of activations.
    pub group_bytes: usize,
    pub threads: usize,
    /// Whether rows are quantized independently.
    pub apart: bool,
}

impl StepPlan<'_> {
    /// The phases of all steps, with the input's products of at most [`INPUT_BYTES`] at once, but
    /// of one step at least.
    pub fn work(&self, steps: &[Range<usize>]) -> Vec<Work> {
        let limit = INPUT_BYTES / (self.hh.n().max(1) * size_of::<f32>());
        let mut work = Vec::with_capacity(2 * steps.len() + 1);
        // Cut once for equal steps: cutting a product takes as long as a message to another core.
        let mut last: Option<(usize, Grid)> = None;
        let mut next = 0;
        while next < steps.len() {
            let (first, mut chunk) = (next, steps[next].clone());
            next += 1;
            while next < steps.len() && chunk.len() + steps[next].len() <= limit {
                chunk.start = chunk.start.min(steps[next].start);
                chunk.end = chunk.end.max(steps[next].end);
                next += 1;
            }
            work.push(Work::Input { rows: chunk.clone(), grid: self.grid(chunk.len(), self.ih) });
            for (step, rows) in steps.iter().enumerate().take(next).skip(first) {
                let active = rows.len();
                let grid = match last {
                    Some((alike, grid)) if alike == active => grid,
                    _ => self.grid(active, self.hh),
                };
                last = Some((active, grid));
                let blocks = self.blocks(active);
                if blocks > 1 {
                    work.push(Work::Codes { step, active, blocks });
                }
                work.push(Work::Units { step, input: chunk.start, private: blocks <= 1, grid });
            }
        }
        work
    }

    /// Cuts the products of `rows` rows by the panels of the same units of all gates.
    fn grid(&self, rows: usize, rhs: &Packed) -> Grid {
        let sets = self.hh.panels() / self.hh.gates();
        let work = rows.saturating_mul(self.hh.n()).saturating_mul(rhs.k());
        let wanted = parts_of(self.threads, work, SERIAL_MACS);
        let row_bytes = rhs.groups() * self.group_bytes;
        Grid::new(rhs.isa(), [rows, sets], row_bytes, self.threads, 1, wanted)
    }

    /// The number of blocks of active rows, each quantized by one task; threads share several.
    pub fn blocks(&self, rows: usize) -> usize {
        if self.apart {
            let blocks = (rows * self.hh.k()).div_ceil(CODES_PER_TASK);
            blocks.min(TASKS_PER_THREAD * self.threads).min(rows)
        } else {
            1
        }
    }
}
