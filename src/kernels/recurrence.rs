//! The steps of a recurrent layer, on threads that stay together from the first to the last.
//!
//! ```text
//! for each step
//!   for each block of rows                          a task
//!     ranges and codes of the hidden state
//!   for each stretch of units                       a task
//!     products of the panels of their gates         from the core's own L2, step after step
//!     gates and state                               of few rows: while the sums are in L1
//! ```
//!
//! A thread has the same units at each step. What a thread needs of another is what it makes codes
//! of: a part of the hidden state. Of many rows, gates and state are computed row by row before
//! the codes of the next step: pieces of rows, each a page from the next, would come from memory
//! one by one.

use std::cell::Cell;
use std::ops::Range;

use super::buffer::{self, Aligned, Shared};
use super::gates::{Gates, Units, of_units};
use super::packed::Packed;
use super::parallel::{self, Phase};
use super::quantize::{QuantizedRows, Quantizer, Rows, Scratch, quantize_rows};
use super::split::{Grid, parts_of};
use super::tile::{Group, Lhs, Output, Part, Product};
use super::{Operands, TASKS_PER_THREAD};

/// What the steps of one direction of a layer read, replace and give.
///
/// Each step has the rows of the sequences that are active then, which are the first of the
/// batch.
#[derive(Debug)]
pub struct Recurrence<'a> {
    /// Which recurrence.
    pub gates: Gates,
    /// The rows of each step among those of all steps, in the order of steps.
    pub steps: &'a [Range<usize>],
    /// The input's projection, with its bias: `[rows, gates * hidden]`.
    pub ih: &'a [f32],
    /// The hidden state, `[batch, hidden]`, which is replaced.
    pub h: &'a mut [f32],
    /// The cell state, `[batch, hidden]`, which is replaced; empty unless it is an LSTM.
    pub c: &'a mut [f32],
    /// The hidden state after each step: `[rows, hidden]`.
    pub hs: &'a mut [f32],
    /// The cell state after each step, or empty if it is not wanted.
    pub cs: &'a mut [f32],
}

/// Multiply-adds of a step below which it stays on one thread.
const SERIAL: usize = 100_000;

/// Elements of the hidden state whose codes one task makes, at least.
const SERIAL_STATE: usize = 2_048;

/// All steps, with the hidden state quantized at each of them; `rhs` are its int8 weights, packed
/// by gates.
///
/// # Panics
/// If the sizes of the operands do not agree.
pub fn recur(
    rhs: &Packed,
    recurrence: Recurrence<'_>,
    quantizer: Quantizer<'_>,
    scratch: &mut Scratch,
) {
    let (k, width) = (rhs.k(), rhs.groups());
    let batch = recurrence.batch();
    let (groups, rows, ranges) = scratch.room(batch, batch * width).shared();
    let sums = rhs.has_zero_points();
    let prepare = |h: &[f32], block: Range<usize>| {
        let operands = Operands {
            lhs: h,
            m: block.len(),
            rhs,
            activation: None,
        };
        // SAFETY: each block of rows is prepared once a step, and then nobody reads.
        let room = unsafe {
            QuantizedRows {
                groups: groups.part(block.start * width..block.end * width),
                rows: rows.part(block.clone()),
                ranges: ranges.part(block),
            }
        };
        quantize_rows(operands, quantizer, sums, room);
    };
    let lhs = |active: usize| {
        // SAFETY: while products are computed, nobody prepares.
        unsafe {
            Lhs {
                m: active,
                groups: groups.read(0..active * width),
                rows: rows.read(0..active),
            }
        }
    };
    let height = match quantizer.rows {
        Rows::Together => usize::MAX,
        Rows::Apart => SERIAL_STATE.div_ceil(k.max(1)),
    };
    steps(rhs, recurrence, height, prepare, lhs);
}

/// All steps over float16 weights of the hidden state, packed by gates.
///
/// # Panics
/// If the sizes of the operands do not agree.
pub fn recur_f16(rhs: &Packed, recurrence: Recurrence<'_>) {
    let k = rhs.k();
    let mut before = vec![0.; recurrence.h.len()];
    let before = Shared::new(&mut before);
    let prepare = |h: &[f32], block: Range<usize>| {
        // SAFETY: each block of rows is prepared once a step, and then nobody reads.
        let before = unsafe { before.part(block.start * k..block.end * k) };
        before.copy_from_slice(h);
    };
    let lhs = |active: usize| Lhs {
        m: active,
        // SAFETY: while products are computed, nobody prepares.
        groups: unsafe { before.read(0..active * k) },
        rows: &[],
    };
    steps(
        rhs,
        recurrence,
        SERIAL_STATE.div_ceil(k.max(1)),
        prepare,
        lhs,
    );
}

/// All steps: `prepare` gets the hidden state of a block of rows, at least `height` high, and
/// makes of it what `lhs` gives to the products.
fn steps<'a, G: Group + 'a>(
    rhs: &Packed,
    recurrence: Recurrence<'_>,
    height: usize,
    prepare: impl Fn(&[f32], Range<usize>) + Sync,
    lhs: impl Fn(usize) -> Lhs<'a, G> + Sync,
) {
    let (n, k) = (rhs.n(), rhs.k());
    let (steps, batch) = (recurrence.steps, recurrence.batch());
    let mut room = ROOM.take();
    let [hh] = room.split([batch * n]);
    let state = State::new(rhs, recurrence, hh);
    let threads = parallel::threads();
    let by_rows = batch >= 2 * threads;
    let blocks = |rows: usize| rows.div_ceil(height).min(TASKS_PER_THREAD * threads);
    // By units, the panels of one gate are split, and with them those of the others.
    let panels_of_gate = rhs.panels() / rhs.gates();
    let grid = |active: usize| {
        let wanted = parts_of(active * n * k, SERIAL);
        let panels = if by_rows {
            rhs.panels()
        } else {
            panels_of_gate
        };
        Grid::new(active, panels, rhs.groups() * size_of::<G>(), wanted)
    };
    // Once for all steps alike: to cut a product takes as long as a message to another core.
    let mut grids = Vec::with_capacity(steps.len());
    for (step, rows) in steps.iter().enumerate() {
        let before = step
            .checked_sub(1)
            .filter(|i| steps[*i].len() == rows.len());
        grids.push(before.map_or_else(|| grid(rows.len()), |i| grids[i]));
    }
    let phase = |phase: usize| {
        let (step, phase) = (phase / PHASES, phase % PHASES);
        let active = steps[step].len();
        let tasks = match phase {
            CODES => blocks(active),
            PRODUCTS => grids[step].parts(),
            _ if by_rows => active.min(threads),
            _ => 0,
        };
        Phase {
            tasks,
            // Weights that are larger than the cache would be gone each time if every step began
            // with the first.
            backwards: phase == PRODUCTS && step % 2 == 1,
        }
    };
    parallel::for_each_phase(PHASES * steps.len(), phase, |index, task| {
        let (step, tasks) = (index / PHASES, phase(index).tasks);
        let active = steps[step].len();
        let block = active * task / tasks..active * (task + 1) / tasks;
        match index % PHASES {
            CODES => {
                // SAFETY: nobody writes to the hidden state now.
                let h = unsafe { state.h.read(block.start * k..block.end * k) };
                prepare(h, block);
            }
            PRODUCTS => {
                let product = Product {
                    lhs: lhs(active),
                    rhs,
                    activation: None,
                    out: state.hh,
                };
                let part = grids[step].part(task);
                if by_rows {
                    // SAFETY: parts of a grid do not overlap, and each is computed once a step.
                    return unsafe { product.compute(part) };
                }
                let Part { rows, panels } = part;
                let units = panels.clone().map(|panel| {
                    let panel = rhs.panel(panel);
                    (panel.start, panel.start + panel.channels)
                });
                let units = units.reduce(|all, next| (all.0, next.1));
                for panel in panels {
                    let of_gates = (panel..rhs.panels()).step_by(panels_of_gate);
                    let part = Part {
                        rows: rows.clone(),
                        panels: of_gates,
                    };
                    // SAFETY: as above, and so in each gate.
                    unsafe { product.compute(part) };
                }
                let (start, end) = units.unwrap_or_default();
                for row in rows {
                    // SAFETY: these units of these rows are in no other part, and their products
                    // are there.
                    unsafe { state.update(step, row, start..end) };
                }
            }
            _ => {
                for row in block {
                    // SAFETY: each row is in one block, and all products are there.
                    unsafe { state.update(step, row, 0..k) };
                }
            }
        }
    });
    room.keep(&ROOM);
}

/// Phases of a step: codes of the hidden state, products, and the state after it.
const PHASES: usize = 3;
const CODES: usize = 0;
const PRODUCTS: usize = 1;

thread_local! {
    static ROOM: Cell<Aligned> = Cell::default();
}

/// What products are made into, on several threads.
struct State<'a> {
    gates: Gates,
    update: fn(Gates, Units<'_>),
    /// Units.
    k: usize,
    steps: &'a [Range<usize>],
    ih: &'a [f32],
    /// The products of a step.
    hh: Output<'a>,
    h: Shared<'a, f32>,
    c: Shared<'a, f32>,
    hs: Shared<'a, f32>,
    cs: Shared<'a, f32>,
}

impl<'a> State<'a> {
    fn new(rhs: &Packed, recurrence: Recurrence<'a>, hh: &'a mut [f32]) -> Self {
        let (n, k, batch) = (rhs.n(), rhs.k(), recurrence.batch());
        let Recurrence {
            gates,
            steps,
            ih,
            h,
            c,
            hs,
            cs,
        } = recurrence;
        let rows = steps.iter().map(|rows| rows.end).max().unwrap_or(0);
        assert!(rhs.gates() == gates.count() && n == gates.count() * k);
        assert!(ih.len() == rows * n && hs.len() == rows * k);
        assert!(h.len() >= batch * k && (gates != Gates::Lstm || c.len() >= batch * k));
        assert!(cs.is_empty() || cs.len() == hs.len());
        Self {
            gates,
            update: rhs.isa().instance().update,
            k,
            steps,
            ih,
            hh: Output::new(buffer::as_uninit(hh), n),
            h: Shared::new(h),
            c: Shared::new(c),
            hs: Shared::new(hs),
            cs: Shared::new(cs),
        }
    }

    /// Updates units of a row after a step.
    ///
    /// # Safety
    /// Their products of that step are there, and nobody else uses these units of that row.
    unsafe fn update(&self, step: usize, row: usize, units: Range<usize>) {
        let (gates, k) = (self.gates, self.k);
        let n = gates.count() * k;
        let row_of_all = self.steps[step].start + row;
        // A state that is not there has no units.
        let part = |of: Shared<'a, f32>, row: usize| match of.len() {
            0 => &mut [],
            // SAFETY: the caller's promise.
            _ => unsafe { of.part(row * k + units.start..row * k + units.end) },
        };
        let hh = std::array::from_fn(|gate| match gate < gates.count() {
            // SAFETY: the caller's promise.
            true => unsafe {
                &*self
                    .hh
                    .written(row, gate * k + units.start..gate * k + units.end)
            },
            false => &[],
        });
        let (h, c) = (part(self.h, row), part(self.c, row));
        let ih = &self.ih[row_of_all * n..][..n];
        let before = Units {
            ih: of_units(gates, ih, units.clone()),
            hh,
            h: &mut *h,
            c: &mut *c,
        };
        (self.update)(gates, before);
        part(self.hs, row_of_all).copy_from_slice(h);
        if self.cs.len() > 0 {
            part(self.cs, row_of_all).copy_from_slice(c);
        }
    }
}

impl Recurrence<'_> {
    fn batch(&self) -> usize {
        self.steps.iter().map(|rows| rows.len()).max().unwrap_or(0)
    }
}
