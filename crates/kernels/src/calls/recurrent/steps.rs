//! The phases of all steps, each a task of a thread.

use std::cell::Cell;
use std::ops::Range;

use super::operands::Recurrence;
use super::plan::{StepPlan, Work};
use super::state::{RecurrentState, Set};
use crate::calls::quantize::Codes;
use crate::loops::buffer::Aligned;
use crate::loops::product::{Group, Part, Product, Row, Sink};
use crate::packed::{Element, Packed};
use crate::threads::{Shared, Threads};

thread_local! {
    static MEMORY: Cell<Aligned> = Cell::default();
}

/// Runs all steps, with products by the `kernel`. `codes` quantizes rows of the hidden state: any
/// of them, or all of them together if they share a scale.
pub fn run<G: Group>(
    threads: &Threads,
    recurrence: Recurrence<'_>,
    inputs: (&[G], &[Row]),
    kernel: unsafe fn(&Product<'_, G>, &Sink<'_>, Part),
    codes: impl Fn(&[f32], (&mut [G], &mut [Row])) + Sync,
) {
    let (steps, [ih, hh]) = (recurrence.steps, recurrence.weights);
    let share_scale = matches!(hh.element(), Element::Int8(config) if !config.per_row);
    let plan = StepPlan {
        ih,
        hh,
        group_bytes: size_of::<G>(),
        threads: threads.count(),
        apart: !share_scale,
    };
    let work = plan.work(steps);
    let at_once = work.iter().map(|work| match work {
        Work::Input { rows, .. } => rows.len(),
        _ => 0,
    });
    let max_rows = |shared: bool| {
        let rows = steps.iter().map(|rows| rows.len());
        let rows = rows.filter(|rows| (plan.blocks(*rows) > 1) == shared);
        rows.max().unwrap_or(0)
    };
    let (shared, private) = (max_rows(true), max_rows(false));
    let (mut memory, mut room) = (Aligned::take(&MEMORY), Codes::default());
    let width = hh.row_groups();
    let (shared_groups, shared_rows) = room.room(shared, shared * width);
    let steps = StepTasks {
        steps,
        ih,
        hh,
        inputs,
        state: RecurrentState::new(recurrence, at_once.max().unwrap_or(0), &mut memory),
        groups: Shared::new(shared_groups),
        rows: Shared::new(shared_rows),
        codes,
        kernel,
    };
    let phase = |index: usize| work[index].phase();
    let thread_codes = || {
        let mut codes = Codes::default();
        codes.room(private, private * width);
        ThreadCodes { codes, step: None }
    };
    threads.for_each_phase(work.len(), phase, thread_codes, |codes, index, task| {
        match &work[index] {
            Work::Input { rows, grid } => steps.input(rows, grid.part(task)),
            Work::Codes { step, active, blocks } => {
                steps.codes(*step, active * task / blocks..active * (task + 1) / blocks)
            }
            Work::Units { step, input, private, grid } => {
                steps.units(*step, *input, private.then_some(codes), grid.part(task))
            }
        }
    });
    // SAFETY: all threads have left the phases, and each part of the states went with its task.
    unsafe { steps.state.give_back() };
    memory.keep(&MEMORY);
}

/// The codes of a hidden state before a step, of a single thread.
struct ThreadCodes<G> {
    codes: Codes<G>,
    step: Option<usize>,
}

/// The operands of all tasks: read by all, or written in disjoint parts.
struct StepTasks<'a, G, C> {
    steps: &'a [Range<usize>],
    ih: &'a Packed,
    hh: &'a Packed,
    inputs: (&'a [G], &'a [Row]),
    state: RecurrentState<'a>,
    /// The codes of a hidden state that threads share, before a step.
    groups: Shared<'a, G>,
    rows: Shared<'a, Row>,
    codes: C,
    /// Computes a part of a product.
    kernel: unsafe fn(&Product<'_, G>, &Sink<'_>, Part),
}

impl<G: Group, C: Fn(&[f32], (&mut [G], &mut [Row])) + Sync> StepTasks<'_, G, C> {
    /// Computes a part of the products of some rows of the input.
    fn input(&self, rows: &Range<usize>, part: Part) {
        let (width, (groups, of_rows)) = (self.ih.row_groups(), self.inputs);
        let lhs = &groups[rows.start * width..rows.end * width];
        let of_rows = of_rows.get(rows.clone()).unwrap_or_default();
        self.multiply((lhs, of_rows), self.ih, self.state.ih, part);
    }

    /// Quantizes a block of the hidden state before a step.
    fn codes(&self, step: usize, block: Range<usize>) {
        let width = self.hh.row_groups();
        let groups = block.start * width..block.end * width;
        // SAFETY: the blocks of a step do not overlap and each index comes once; the codes are read
        // in the next phase.
        let room = unsafe { (self.groups.part(groups), self.rows.part(block.clone())) };
        (self.codes)(self.h_before(step, block), room);
    }

    /// Computes a part of the products of a step and updates its state. The codes of the hidden
    /// state are shared unless they are `private` to the thread.
    fn units(&self, step: usize, input: usize, private: Option<&mut ThreadCodes<G>>, part: Part) {
        let active = self.steps[step].len();
        let width = self.hh.row_groups();
        let lhs = match private {
            // SAFETY: they are written in the phase before, and not in this one.
            None => unsafe {
                let groups = self.groups.read(0..active * width);
                (groups, self.rows.read(0..active))
            },
            Some(private) => {
                let (groups, rows) = private.codes.room(active, active * width);
                if private.step != Some(step) {
                    (self.codes)(self.h_before(step, 0..active), (&mut *groups, &mut *rows));
                    private.step = Some(step);
                }
                (&*groups, &*rows)
            }
        };
        let (rows, sets) = (part.rows.clone(), part.panels.clone());
        let part = Part { step: Some(step), ..part };
        self.multiply(lhs, self.hh, self.state.hh, part);
        let start = self.steps[step].start;
        let update = |set: &Set| {
            // SAFETY: this set of these rows is in no other part of the step, and its products come
            // from this task and from a phase that has ended.
            unsafe { (self.state).update(step, (start, start - input), rows.clone(), set) };
        };
        match &self.state.sets[sets] {
            // Sets of one sequence are adjacent.
            [first, .., last] if self.state.batch == 1 => update(&first.to(last)),
            sets => sets.iter().for_each(update),
        }
    }

    /// Computes a part of a product whose panels are sets, one a gate.
    fn multiply(&self, lhs: (&[G], &[Row]), rhs: &Packed, out: Sink<'_>, part: Part) {
        let product = Product::of_groups(part.rows.end, lhs.0, lhs.1, rhs);
        let gates = self.hh.gates();
        let panels = part.panels.start * gates..part.panels.end * gates;
        // SAFETY: parts of a grid do not overlap, and each index of a phase comes once.
        unsafe { (self.kernel)(&product, &out, Part { panels, ..part }) };
    }

    /// Rows of the hidden state before a step.
    fn h_before(&self, step: usize, rows: Range<usize>) -> &[f32] {
        let k = self.hh.k();
        // SAFETY: this one of the two buffers is written again in the next step.
        unsafe { self.state.h[step % 2].read(rows.start * k..rows.end * k) }
    }
}
