//! All steps of a recurrent layer, on threads that stay together from the first to the last.
//!
//! ```text
//! ranges and codes of the whole input              once for both directions
//! for each chunk of steps
//!   for each stretch of units                      a task
//!     products of the input                        in the caches until the chunk has used them
//!   for each step
//!     for each block of rows                       a task
//!       ranges and codes of the hidden state
//!     for each stretch of units                    a task
//!       products of the panels of their gates      from the core's own L2, step after step
//!       gates and state                            while the products are in its L1 or L2
//! ```
//!
//! A thread has the same units throughout. What it needs of another is what codes are made of: a
//! part of the hidden state.
//!
//! The products and states of a batch lie panel by panel, so that what a thread computes of them
//! is one stretch of memory. Pieces of rows, each a page from the next, would come one by one.

mod state;

use std::cell::Cell;
use std::ops::Range;

use state::{Set, State};

use super::buffer::Aligned;
use super::course::Phase;
use super::gates::Gates;
use super::packed::Packed;
use super::parallel::Threads;
use super::product::{Group, Lhs, Output, Part, Pass, Product, Row};
use super::quantize::{QuantizedRows, Quantizer, Rows, Scratch, quantize_alone, quantize_rows};
use super::rows::Range as ValueRange;
use super::split::{Grid, parts_of};
use super::{Operands, TASKS_PER_THREAD};
use crate::sizes;

/// What the steps of one direction of a layer read, replace and give.
///
/// Each step has the rows of the sequences that are active then, which are the first of the
/// batch.
#[derive(Debug)]
pub struct Recurrence<'a> {
    /// Which recurrence.
    pub gates: Gates,
    /// The rows of each step among those of all steps, in the order of steps; those of steps
    /// that follow one another lie side by side.
    pub steps: &'a [Range<usize>],
    /// Weights of the input, `[gates * hidden, input]`, packed by gates.
    pub ih: &'a Packed,
    /// Weights of the hidden state, `[gates * hidden, hidden]`, packed by gates.
    pub hh: &'a Packed,
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

/// Bytes of the input's products that are there at once: they stay in the caches until their
/// steps have used them.
const INPUT_BYTES: usize = 1 << 20;

/// All steps of both directions of a layer, or of its only one, over int8 weights: `xs`, the input
/// of all steps, `[rows, input]`, is quantized once, the hidden state at each step.
///
/// # Panics
/// If the sizes of the operands do not agree.
pub fn recur(
    xs: &[f32],
    directions: Vec<Recurrence<'_>>,
    quantizer: Quantizer<'_>,
    scratch: &mut Scratch,
) {
    let Some(first) = directions.first() else {
        return;
    };
    directions.iter().for_each(|d| d.check::<[u8; 4]>(xs));
    let sums = directions.iter().any(|d| d.ih.has_zero_points());
    let inputs = Operands {
        lhs: xs,
        m: first.rows(),
        rhs: first.ih,
        activation: None,
    };
    let threads = Threads::of_caller();
    let room = scratch.room(inputs.m, inputs.m * inputs.rhs.groups());
    let (groups, rows) = quantize_rows(&threads, inputs, quantizer, sums, room);
    let inputs = Lhs {
        m: inputs.m,
        groups,
        rows,
    };
    for direction in directions {
        let hh = direction.hh;
        let codes = |h: &[f32], room: QuantizedRows<'_>| {
            let operands = Operands {
                lhs: h,
                m: room.rows.len(),
                rhs: hh,
                activation: None,
            };
            quantize_alone(operands, quantizer, hh.has_zero_points(), room);
        };
        let apart = quantizer.rows == Rows::Apart;
        steps(&threads, direction, inputs, apart, codes);
    }
}

/// [`recur`] over float16 weights.
///
/// # Panics
/// If the sizes of the operands do not agree.
pub fn recur_f16(xs: &[f32], directions: Vec<Recurrence<'_>>) {
    let threads = Threads::of_caller();
    for direction in directions {
        direction.check::<f32>(xs);
        let inputs = Lhs {
            m: direction.rows(),
            groups: xs,
            rows: &[],
        };
        let copy = |h: &[f32], room: QuantizedRows<'_, f32>| room.groups.copy_from_slice(h);
        steps(&threads, direction, inputs, true, copy);
    }
}

/// What all threads do before any of them goes on.
enum Work {
    /// The products of some rows of the input.
    Input { rows: Range<usize>, grid: Grid },
    /// The codes of the hidden state before a step, where they are more than each thread makes
    /// for itself.
    Codes { step: usize },
    /// The products of a step, and the state after it.
    Units {
        step: usize,
        /// The first of the rows whose products of the input are there.
        input: usize,
        grid: Grid,
    },
}

/// All there is to do, with the input's products of at most `limit` rows at once, but of one step
/// at least; `of_input` and `of_step` cut products of so many rows, `shared` says whether codes of
/// so many are shared.
fn plan(
    steps: &[Range<usize>],
    limit: usize,
    of_input: impl Fn(usize) -> Grid,
    of_step: impl Fn(usize) -> Grid,
    shared: impl Fn(usize) -> bool,
) -> Vec<Work> {
    let mut work = Vec::with_capacity(2 * steps.len() + 1);
    // Once for all steps alike: to cut a product takes as long as a message to another core.
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
        work.push(Work::Input {
            rows: chunk.clone(),
            grid: of_input(chunk.len()),
        });
        for (step, rows) in steps.iter().enumerate().take(next).skip(first) {
            let active = rows.len();
            let grid = match last {
                Some((alike, grid)) if alike == active => grid,
                _ => of_step(active),
            };
            last = Some((active, grid));
            if shared(active) {
                work.push(Work::Codes { step });
            }
            work.push(Work::Units {
                step,
                input: chunk.start,
                grid,
            });
        }
    }
    work
}

/// What a thread has for itself: the codes of a hidden state, before a step.
struct Own<G> {
    room: Room<G>,
    step: Option<usize>,
}

/// Room for the codes of rows of so many groups.
struct Room<G> {
    width: usize,
    groups: Vec<G>,
    rows: Vec<Row>,
    ranges: Vec<ValueRange>,
}

impl<G: Group> Room<G> {
    fn new(rows: usize, width: usize) -> Self {
        Self {
            width,
            groups: vec![G::ZERO; rows * width],
            rows: vec![Row::PLAIN; rows],
            ranges: vec![ValueRange::EMPTY; rows],
        }
    }

    fn of(&mut self, rows: usize) -> QuantizedRows<'_, G> {
        QuantizedRows {
            groups: &mut self.groups[..rows * self.width],
            rows: &mut self.rows[..rows],
            ranges: &mut self.ranges[..rows],
        }
    }

    fn lhs(&self, rows: usize) -> Lhs<'_, G> {
        Lhs {
            m: rows,
            groups: &self.groups[..rows * self.width],
            rows: &self.rows[..rows],
        }
    }
}

fn product<'a, G>(lhs: Lhs<'a, G>, rhs: &'a Packed, out: Output<'a>) -> Product<'a, G> {
    Product {
        lhs,
        rhs,
        activation: None,
        out,
    }
}

/// All steps: `codes` makes of rows of the hidden state what is multiplied, of any of them, or if
/// they are not `apart` of all at once.
fn steps<G: Group>(
    threads: &Threads,
    recurrence: Recurrence<'_>,
    inputs: Lhs<'_, G>,
    apart: bool,
    codes: impl Fn(&[f32], QuantizedRows<'_, G>) + Sync,
) {
    let Recurrence { steps, ih, hh, .. } = recurrence;
    let (n, k, gates, width) = (hh.n(), hh.k(), hh.gates(), hh.groups());
    // Panels of the same units in all gates stay together.
    let sets = hh.panels() / gates;
    let count = threads.count();
    let cut = |rows: usize, rhs: &Packed| {
        let work = rows.saturating_mul(n).saturating_mul(rhs.k());
        let wanted = parts_of(count, work, SERIAL);
        let row_bytes = rhs.groups() * size_of::<G>();
        Grid::new(rhs.isa(), count, rows, sets, row_bytes, wanted)
    };
    // Blocks of rows whose codes are made apart.
    let blocks = |rows: usize| match apart {
        false => 1,
        true => {
            let blocks = (rows * k).div_ceil(SERIAL_STATE);
            blocks.min(TASKS_PER_THREAD * count).min(rows)
        }
    };
    let shared = |rows: usize| blocks(rows) > 1;
    let limit = INPUT_BYTES / (n.max(1) * size_of::<f32>());
    let work = plan(
        steps,
        limit,
        |rows| cut(rows, ih),
        |rows| cut(rows, hh),
        shared,
    );
    let at_once = work.iter().map(|work| match work {
        Work::Input { rows, .. } => rows.len(),
        _ => 0,
    });
    let mut memory = MEMORY.take();
    let state = State::new(recurrence, at_once.max().unwrap_or(0), &mut memory);
    let most = |which: bool| {
        let rows = steps.iter().map(|rows| rows.len());
        rows.filter(|rows| shared(*rows) == which)
            .max()
            .unwrap_or(0)
    };
    let mut room = Room::new(most(true), width);
    let (all_groups, all_rows, all_ranges) = room.of(most(true)).shared();

    let phase = |index: usize| {
        let (tasks, backwards) = match &work[index] {
            Work::Input { grid, .. } => (grid.parts(), false),
            Work::Codes { step } => (blocks(steps[*step].len()), false),
            // Weights that are larger than the cache would be gone each time if every step began
            // with the first.
            Work::Units { step, grid, .. } => (grid.parts(), step % 2 == 1),
        };
        Phase { tasks, backwards }
    };
    let own = || Own {
        room: Room::new(most(false), width),
        step: None,
    };
    let of_gates = |rows: &Range<usize>, sets: &Range<usize>, pass| Part {
        pass,
        rows: rows.clone(),
        panels: sets.start * gates..sets.end * gates,
    };
    // SAFETY: the hidden state before a step is not written until the next.
    let h_before = |step: usize, rows: Range<usize>| unsafe {
        state.h[step % 2].read(rows.start * k..rows.end * k)
    };
    threads.for_each_phase(work.len(), phase, own, |own, index, task| {
        match &work[index] {
            Work::Input { rows, grid } => {
                let product = product(inputs.of(rows.clone(), ih.groups()), ih, state.ih);
                let Part { rows, panels, .. } = grid.part(task);
                // SAFETY: parts of a grid do not overlap, and each is computed once.
                unsafe { product.compute(of_gates(&rows, &panels, Pass::Once)) };
            }
            Work::Codes { step } => {
                let active = steps[*step].len();
                let tasks = blocks(active);
                let block = active * task / tasks..active * (task + 1) / tasks;
                // SAFETY: each block has one task, and now nobody reads.
                let room = unsafe {
                    QuantizedRows {
                        groups: all_groups.part(block.start * width..block.end * width),
                        rows: all_rows.part(block.clone()),
                        ranges: all_ranges.part(block.clone()),
                    }
                };
                codes(h_before(*step, block), room);
            }
            Work::Units { step, input, grid } => {
                let active = steps[*step].len();
                let lhs = match shared(active) {
                    // SAFETY: now nobody writes.
                    true => unsafe {
                        Lhs {
                            m: active,
                            groups: all_groups.read(0..active * width),
                            rows: all_rows.read(0..active),
                        }
                    },
                    false => {
                        if own.step != Some(*step) {
                            codes(h_before(*step, 0..active), own.room.of(active));
                            own.step = Some(*step);
                        }
                        own.room.lhs(active)
                    }
                };
                let product = product(lhs, hh, state.hh);
                let Part { rows, panels, .. } = grid.part(task);
                let pass = match step % 2 {
                    0 => Pass::Forth,
                    _ => Pass::Back,
                };
                // SAFETY: as of the input's.
                unsafe { product.compute(of_gates(&rows, &panels, pass)) };
                let first = (steps[*step].start, steps[*step].start - input);
                let update = |set: &Set| {
                    // SAFETY: this set of these rows is in no other part, and its products are
                    // there.
                    unsafe { state.update(*step, first, rows.clone(), set) };
                };
                match &state.sets[panels] {
                    // Of one sequence they lie side by side.
                    [first, .., last] if state.batch == 1 => update(&first.to(last)),
                    sets => sets.iter().for_each(update),
                }
            }
        }
    });
    // SAFETY: all threads have left.
    unsafe { state.give_back() };
    memory.keep(&MEMORY);
}

thread_local! {
    static MEMORY: Cell<Aligned> = Cell::default();
}

impl Recurrence<'_> {
    /// Checks that the operands are those of products of `G`s, and have the sizes of each other.
    fn check<G: Group>(&self, xs: &[f32]) {
        let Self { gates, ih, hh, .. } = self;
        let (k, n) = (hh.k(), sizes::length("gates", &[gates.count(), hh.k()]));
        for (what, weight) in [("ih", ih), ("hh", hh)] {
            weight.check_element(G::ELEMENT);
            let got = (weight.gates(), weight.n(), weight.isa());
            let expected = (gates.count(), n, hh.isa());
            assert!(
                got == expected,
                "{what}: expected gates, channels and instruction set {expected:?}, got {got:?}"
            );
        }
        let (batch, rows) = (self.batch(), self.rows());
        sizes::check("xs, [rows, input]", xs, &[rows, ih.k()]);
        sizes::check("hs, [rows, hidden]", self.hs, &[rows, k]);
        if !self.cs.is_empty() {
            sizes::check("cs, [rows, hidden]", self.cs, &[rows, k]);
        }
        // States of more sequences than have a step are left as they are.
        let states = sizes::length("h, [batch, hidden]", &[batch, k]);
        let has_c = *gates != Gates::Lstm || self.c.len() >= states;
        assert!(
            self.h.len() >= states && has_c,
            "h and c: expected {states} elements, [{batch}, {k}], got {} and {}",
            self.h.len(),
            self.c.len()
        );
        // What the products are made into has padding: of a gate at most a register.
        let padded = hh.padded_n();
        sizes::length("products of the input", &[rows, padded]);
        sizes::length("products of the state", &[batch, padded]);
    }

    fn batch(&self) -> usize {
        self.steps.iter().map(|rows| rows.len()).max().unwrap_or(0)
    }

    fn rows(&self) -> usize {
        self.steps.iter().map(|rows| rows.end).max().unwrap_or(0)
    }
}
