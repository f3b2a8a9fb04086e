//! The products of a recurrence, and the states they become.

use std::ops::Range;

use super::operands::Recurrence;
use super::step::update;
use crate::isa::Isa;
use crate::loops::buffer::{self, Aligned};
use crate::loops::gates::{Gates, RowUnits};
use crate::loops::product::Sink;
use crate::threads::Shared;

/// Units that a panel of each gate computes.
pub struct Set {
    units: Range<usize>,
    /// The units with padding, in whole vector registers.
    padded: Range<usize>,
}

impl Set {
    /// The sets from this one to `last`, as one.
    pub fn to(&self, last: &Self) -> Self {
        Self { units: self.units.start..last.units.end, padded: self.padded.start..last.padded.end }
    }
}

/// The products and states of all sequences, on several threads, with the padding of panels, so
/// that no register is filled in part.
pub struct RecurrentState<'a> {
    gates: Gates,
    isa: Isa,
    pub batch: usize,
    /// The number of units, without padding and with it.
    k: usize,
    padded: usize,
    pub sets: Vec<Set>,
    /// The input's products of several steps, and the products of one.
    pub ih: Sink<'a>,
    pub hh: Sink<'a>,
    /// The hidden state before a step and after it, row by row, double-buffered: a slow thread may
    /// still read the old one while others write the new.
    pub h: [Shared<'a, f32>; 2],
    /// The states stored set by set: `[batch, padded units]` each.
    stored_h: Shared<'a, f32>,
    stored_c: Shared<'a, f32>,
    /// The states after each step, row by row.
    hs: Shared<'a, f32>,
    cs: Shared<'a, f32>,
    /// The caller's states.
    last_h: Shared<'a, f32>,
    last_c: Shared<'a, f32>,
}

impl<'a> RecurrentState<'a> {
    /// The state of a checked recurrence, with memory for the products of `inputs` rows of the
    /// input.
    pub fn new(recurrence: Recurrence<'a>, inputs: usize, memory: &'a mut Aligned) -> Self {
        let batch = recurrence.batch();
        let Recurrence { gates, weights: [_, hh], h, c, hs, cs, .. } = recurrence;
        let (k, isa) = (hh.k(), hh.isa());
        // Sequences of no steps have no part in this.
        let (h, c) = (&mut h[..batch * k], c.get_mut(..batch * k).unwrap_or_default());
        let sets = (0..hh.panels()).step_by(gates.count()).map(|panel| {
            let panel = hh.panel(panel);
            Set {
                units: panel.start..panel.start + panel.channels,
                padded: panel.start..panel.start + panel.sums.len(),
            }
        });
        let n = hh.padded_n();
        let padded_len = batch * n / gates.count();
        let stored_c = if c.is_empty() { 0 } else { padded_len };
        let lens = [inputs * n, batch * n, h.len(), h.len(), padded_len, stored_c];
        let [ih, hh, even, odd, stored_h, stored_c] = memory.split(lens);
        even.copy_from_slice(h);
        odd.copy_from_slice(h);
        // With one sequence, the units of a thread lie side by side within a gate, row by row.
        let of_inputs = match batch {
            0 | 1 => Sink::padded,
            _ => Sink::panels,
        };
        let state = Self {
            gates,
            isa,
            batch,
            k,
            padded: n / gates.count(),
            sets: sets.collect(),
            ih: of_inputs(buffer::as_uninit(ih), n),
            hh: Sink::panels(buffer::as_uninit(hh), n),
            h: [Shared::new(even), Shared::new(odd)],
            stored_h: Shared::new(stored_h),
            stored_c: Shared::new(stored_c),
            hs: Shared::new(hs),
            cs: Shared::new(cs),
            last_h: Shared::new(h),
            last_c: Shared::new(c),
        };
        // SAFETY: the phases have not begun, so no thread has a part of them.
        unsafe { state.each_piece(|given, stored| stored.copy_from_slice(given)) };
        state
    }

    /// The range of rows of a set in the states that are stored set by set.
    fn stored(&self, rows: &Range<usize>, set: &Set) -> Range<usize> {
        let (start, width) = (set.padded.start * self.batch, set.padded.len());
        start + rows.start * width..start + rows.end * width
    }

    /// Calls `f` with the units of each row and set, in the caller's states and in those stored
    /// set by set.
    ///
    /// # Safety
    /// No thread has a part of them.
    unsafe fn each_piece(&self, f: impl Fn(&mut [f32], &mut [f32])) {
        let states = [(self.last_h, self.stored_h), (self.last_c, self.stored_c)];
        for (given, stored) in states.into_iter().filter(|(given, _)| given.len() > 0) {
            for row in 0..self.batch {
                for Set { units, padded } in &self.sets {
                    let first = row * self.k;
                    let start = padded.start * self.batch + row * padded.len();
                    // SAFETY: pieces of different rows or sets do not overlap, and no phase runs,
                    // so no thread has a part of them.
                    let pieces = unsafe {
                        (
                            given.part(first + units.start..first + units.end),
                            stored.part(start..start + units.len()),
                        )
                    };
                    f(pieces.0, pieces.1);
                }
            }
        }
    }

    /// Updates a set of rows of a step. `first` are the step's first row and its place among those
    /// whose products of the input are there.
    ///
    /// # Safety
    /// The products of these rows are there, and no other thread uses this set of these rows.
    pub unsafe fn update(&self, step: usize, first: (usize, usize), rows: Range<usize>, set: &Set) {
        let (gates, k) = (self.gates, self.k);
        let of_gates = |products: Sink<'a>, first: usize| {
            std::array::from_fn(|gate| {
                if gate >= gates.count() {
                    return &[][..];
                }
                let rows = first + rows.start..first + rows.end;
                let start = gate * self.padded;
                // SAFETY: the products were computed before; a step's parts of rows and sets are
                // disjoint, and one task has each.
                unsafe {
                    &*products.written(rows, start + set.padded.start..start + set.padded.end)
                }
            })
        };
        let stored = self.stored(&rows, set);
        // A state that is not there has no units.
        let part = |states: Shared<'a, f32>| match states.len() {
            0 => &mut [],
            // SAFETY: a step's parts of rows and sets are disjoint, and one task has each.
            _ => unsafe { states.part(stored.clone()) },
        };
        let (h, c) = (part(self.stored_h), part(self.stored_c));
        let units = RowUnits {
            ih: of_gates(self.ih, first.1),
            hh: of_gates(self.hh, 0),
            h: &mut *h,
            c: &mut *c,
        };
        self.isa.run(update(gates, units));
        let copy = |from: &[f32], to: Shared<'a, f32>, first: usize| {
            for (row, from) in rows.clone().zip(from.chunks_exact(set.padded.len())) {
                let start = (first + row) * k;
                // SAFETY: this set of these rows is this thread's; of the two hidden states, this
                // one is read in the next step.
                let to = unsafe { to.part(start + set.units.start..start + set.units.end) };
                to.copy_from_slice(&from[..set.units.len()]);
            }
        };
        copy(h, self.h[(step + 1) % 2], 0);
        copy(h, self.hs, first.0);
        if self.cs.len() > 0 {
            copy(c, self.cs, first.0);
        }
    }

    /// Gives the states back to the caller.
    ///
    /// # Safety
    /// No thread has a part of them any more.
    pub unsafe fn give_back(self) {
        // SAFETY: the phases have ended, so no thread has a part of them.
        unsafe { self.each_piece(|given, stored| given.copy_from_slice(stored)) };
    }
}
