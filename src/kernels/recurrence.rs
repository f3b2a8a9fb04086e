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

use std::cell::Cell;
use std::ops::Range;

use super::buffer::{self, Aligned, Shared};
use super::gates::{Gates, Units};
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
    let (m, batch, k) = (first.rows(), first.batch(), first.hh.k());
    let (ih_width, width) = (first.ih.groups(), first.hh.groups());
    let mut room = scratch.room(m + batch, m * ih_width + batch * width);
    let sums = directions.iter().any(|d| d.ih.has_zero_points());
    let inputs = Operands {
        lhs: xs,
        m,
        rhs: first.ih,
        activation: None,
    };
    let (groups, rows) = quantize_rows(inputs, quantizer, sums, room.split_off(m, ih_width));
    let inputs = Lhs { m, groups, rows };
    let (groups, rows, ranges) = room.split_off(batch, width).shared();
    let height = match quantizer.rows {
        Rows::Together => usize::MAX,
        Rows::Apart => SERIAL_STATE.div_ceil(k.max(1)),
    };
    for direction in directions {
        let hh = direction.hh;
        let prepare = |h: &[f32], block: Range<usize>| {
            let operands = Operands {
                lhs: h,
                m: block.len(),
                rhs: hh,
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
            quantize_rows(operands, quantizer, hh.has_zero_points(), room);
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
        steps(direction, inputs, height, prepare, lhs);
    }
}

/// [`recur`] over float16 weights.
///
/// # Panics
/// If the sizes of the operands do not agree.
pub fn recur_f16(xs: &[f32], directions: Vec<Recurrence<'_>>) {
    for direction in directions {
        let k = direction.hh.k();
        let inputs = Lhs {
            m: direction.rows(),
            groups: xs,
            rows: &[],
        };
        let mut before = vec![0.; direction.h.len()];
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
        let height = SERIAL_STATE.div_ceil(k.max(1));
        steps(direction, inputs, height, prepare, lhs);
    }
}

/// What all threads do before any of them goes on.
enum Work {
    /// The products of some rows of the input.
    Input { rows: Range<usize>, grid: Grid },
    /// What is multiplied with the weights of the hidden state, of so many rows.
    Codes { active: usize },
    /// The products of the rows of a step, and the state after it.
    Units {
        rows: Range<usize>,
        /// The first of the rows whose products of the input are there.
        input: usize,
        grid: Grid,
        backwards: bool,
    },
}

/// All there is to do, with the input's products of at most `limit` rows at once, but of one step
/// at least; `of_input` and `of_step` cut products of so many rows.
fn plan(
    steps: &[Range<usize>],
    limit: usize,
    of_input: impl Fn(usize) -> Grid,
    of_step: impl Fn(usize) -> Grid,
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
            work.push(Work::Codes { active });
            work.push(Work::Units {
                rows: rows.clone(),
                input: chunk.start,
                grid,
                // Weights that are larger than the cache would be gone each time if every step
                // began with the first.
                backwards: step % 2 == 1,
            });
        }
    }
    work
}

/// All steps: `prepare` gets the hidden state of a block of rows, at least `height` high, and
/// makes of it what `lhs` gives to the products.
fn steps<'a, G: Group + 'a>(
    recurrence: Recurrence<'_>,
    inputs: Lhs<'_, G>,
    height: usize,
    prepare: impl Fn(&[f32], Range<usize>) + Sync,
    lhs: impl Fn(usize) -> Lhs<'a, G> + Sync,
) {
    let Recurrence { steps, ih, hh, .. } = recurrence;
    let (n, k, gates) = (hh.n(), hh.k(), hh.gates());
    // Panels of the same units in all gates stay together.
    let sets = hh.panels() / gates;
    let cut = |rows: usize, rhs: &Packed| {
        let wanted = parts_of(rows * n * rhs.k(), SERIAL);
        Grid::new(rows, sets, rhs.groups() * size_of::<G>(), wanted)
    };
    let limit = INPUT_BYTES / (n.max(1) * size_of::<f32>());
    let work = plan(steps, limit, |rows| cut(rows, ih), |rows| cut(rows, hh));
    let at_once = work.iter().map(|work| match work {
        Work::Input { rows, .. } => rows.len(),
        _ => 0,
    });
    let mut room = ROOM.take();
    let state = State::new(recurrence, at_once.max().unwrap_or(0), &mut room);

    let blocks = |rows: usize| {
        let blocks = rows.div_ceil(height);
        blocks.min(TASKS_PER_THREAD * parallel::threads())
    };
    let phase = |index: usize| {
        let (tasks, backwards) = match &work[index] {
            Work::Input { grid, .. } => (grid.parts(), false),
            Work::Codes { active } => (blocks(*active), false),
            Work::Units {
                grid, backwards, ..
            } => (grid.parts(), *backwards),
        };
        Phase { tasks, backwards }
    };
    let product = |lhs, rhs, out| Product {
        lhs,
        rhs,
        activation: None,
        out,
    };
    let of_gates = |rows: &Range<usize>, sets: &Range<usize>| Part {
        rows: rows.clone(),
        panels: sets.start * gates..sets.end * gates,
    };
    parallel::for_each_phase(work.len(), phase, |index, task| match &work[index] {
        Work::Input { rows, grid } => {
            let product = product(inputs.of(rows.clone(), ih.groups()), ih, state.ih);
            let Part { rows, panels } = grid.part(task);
            // SAFETY: parts of a grid do not overlap, and each is computed once.
            unsafe { product.compute(of_gates(&rows, &panels)) };
        }
        Work::Codes { active } => {
            let tasks = blocks(*active);
            let block = active * task / tasks..active * (task + 1) / tasks;
            // SAFETY: nobody writes to the hidden state now.
            let h = unsafe { state.h.read(block.start * k..block.end * k) };
            prepare(h, block);
        }
        Work::Units {
            rows: step,
            input,
            grid,
            ..
        } => {
            let product = product(lhs(step.len()), hh, state.hh);
            let Part { rows, panels } = grid.part(task);
            // SAFETY: as above.
            unsafe { product.compute(of_gates(&rows, &panels)) };
            let update = |units| {
                // SAFETY: these units of these rows are in no other part, and their products are
                // there.
                unsafe { state.update(step.start, *input, rows.clone(), units) }
            };
            match &state.units[panels] {
                [first, .., last] if !state.by_panels => update(first.start..last.end),
                units => units.iter().cloned().for_each(update),
            }
        }
    });
    state.give_back();
    room.keep(&ROOM);
}

thread_local! {
    static ROOM: Cell<Aligned> = Cell::default();
}

/// What products are made into, on several threads.
struct State<'a> {
    gates: Gates,
    update: fn(Gates, Units<'_>),
    batch: usize,
    /// Number of units.
    k: usize,
    /// The units of each set of panels.
    units: Vec<Range<usize>>,
    /// Whether products and states lie panel by panel: of one sequence they lie side by side
    /// anyway.
    by_panels: bool,
    /// The input's products of several steps, and the products of one.
    ih: Output<'a>,
    hh: Output<'a>,
    /// The states row by row.
    h: Shared<'a, f32>,
    c: Shared<'a, f32>,
    /// The same panel by panel, or the same.
    own_h: Shared<'a, f32>,
    own_c: Shared<'a, f32>,
    hs: Shared<'a, f32>,
    cs: Shared<'a, f32>,
}

impl<'a> State<'a> {
    /// With room for the input's products of so many rows.
    fn new(recurrence: Recurrence<'a>, inputs: usize, room: &'a mut Aligned) -> Self {
        let (batch, rows) = (recurrence.batch(), recurrence.rows());
        let Recurrence {
            gates,
            ih,
            hh,
            h,
            c,
            hs,
            cs,
            ..
        } = recurrence;
        let (n, k) = (hh.n(), hh.k());
        assert!(hh.gates() == gates.count() && n == gates.count() * k);
        assert!(ih.gates() == gates.count() && ih.n() == n);
        assert!(h.len() >= batch * k && (gates != Gates::Lstm || c.len() >= batch * k));
        assert!(hs.len() == rows * k && (cs.is_empty() || cs.len() == hs.len()));

        let sets = (0..hh.panels()).step_by(gates.count());
        let units = sets.map(|panel| {
            let panel = hh.panel(panel);
            panel.start..panel.start + panel.channels
        });
        let update = hh.isa().instance().update;
        let by_panels = batch > 1;
        let of_own = |state: &[f32]| if by_panels { state.len() } else { 0 };
        let lens = [inputs * n, batch * n, of_own(h), of_own(c)];
        let [ih, hh, own_h, own_c] = room.split(lens);
        let out = |out: &'a mut [f32]| Output::new(buffer::as_uninit(out), n, by_panels);
        let own = |own: &'a mut [f32], state| match by_panels {
            true => Shared::new(own),
            false => state,
        };
        let (h, c) = (Shared::new(h), Shared::new(c));
        let state = Self {
            gates,
            update,
            batch,
            k,
            units: units.collect(),
            by_panels,
            ih: out(ih),
            hh: out(hh),
            h,
            c,
            own_h: own(own_h, h),
            own_c: own(own_c, c),
            hs: Shared::new(hs),
            cs: Shared::new(cs),
        };
        for (row, own) in state.pieces() {
            for (of_rows, of_panels) in [(h, state.own_h), (c, state.own_c)] {
                if of_rows.len() > 0 {
                    // SAFETY: nobody else has a part of them yet.
                    unsafe {
                        let own = of_panels.part(own.clone());
                        own.copy_from_slice(of_rows.read(row.clone()));
                    }
                }
            }
        }
        state
    }

    /// Where units of rows are in a state that lies panel by panel: of one row, or of several
    /// those of one panel.
    fn own(&self, rows: &Range<usize>, units: &Range<usize>) -> Range<usize> {
        let start = units.start * self.batch + rows.start * units.len();
        start..start + rows.len() * units.len()
    }

    /// Each panel's units of each row: where they are row by row, and where panel by panel;
    /// nothing where that is the same.
    fn pieces(&self) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let rows = 0..if self.by_panels { self.batch } else { 0 };
        rows.flat_map(move |row| {
            self.units.iter().map(move |units| {
                let own = self.own(&(row..row + 1), units);
                (row * self.k + units.start..row * self.k + units.end, own)
            })
        })
    }

    /// Updates units of rows of a step, of one row, or of several those of one panel. The step's
    /// rows begin at `step`, and those whose products of the input are there at `input`.
    ///
    /// # Safety
    /// Their products are there, and nobody else uses these units of these rows.
    unsafe fn update(&self, step: usize, input: usize, rows: Range<usize>, units: Range<usize>) {
        let (gates, k) = (self.gates, self.k);
        let of_gates = |of: Output<'a>, first: usize| {
            std::array::from_fn(|gate| match gate < gates.count() {
                // SAFETY: the caller's promise.
                true => unsafe {
                    let columns = gate * k + units.start..gate * k + units.end;
                    &*of.written(first + rows.start..first + rows.end, columns)
                },
                false => &[],
            })
        };
        let own = self.own(&rows, &units);
        // A state that is not there has no units.
        let part = |of: Shared<'a, f32>| match of.len() {
            0 => &mut [],
            // SAFETY: the caller's promise.
            _ => unsafe { of.part(own.clone()) },
        };
        let (h, c) = (part(self.own_h), part(self.own_c));
        let before = Units {
            ih: of_gates(self.ih, step - input),
            hh: of_gates(self.hh, 0),
            h: &mut *h,
            c: &mut *c,
        };
        (self.update)(gates, before);
        let copy = |from: &[f32], to: Shared<'a, f32>, first: usize| {
            for (row, from) in rows.clone().zip(from.chunks_exact(units.len())) {
                let start = (first + row) * k;
                // SAFETY: the caller's promise.
                let to = unsafe { to.part(start + units.start..start + units.end) };
                to.copy_from_slice(from);
            }
        };
        copy(h, self.hs, step);
        if self.by_panels {
            copy(h, self.h, 0);
        }
        if self.cs.len() > 0 {
            copy(c, self.cs, step);
        }
    }

    /// Gives the cell state back row by row; the hidden state was, at each step.
    fn give_back(&self) {
        for (row, own) in self.pieces().filter(|_| self.c.len() > 0) {
            // SAFETY: nobody else has a part of them any more.
            unsafe { self.c.part(row).copy_from_slice(self.own_c.read(own)) };
        }
    }
}

impl Recurrence<'_> {
    fn batch(&self) -> usize {
        self.steps.iter().map(|rows| rows.len()).max().unwrap_or(0)
    }

    fn rows(&self) -> usize {
        self.steps.iter().map(|rows| rows.end).max().unwrap_or(0)
    }
}
