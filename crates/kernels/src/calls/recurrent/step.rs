//! A single step over the products of all its rows, for a loop that takes steps one by one.

use std::ops::Range;

use crate::arch::op::ops;
use crate::isa::Isa;
use crate::loops::gates::{self, Gates, MAX_GATES, RowUnits};
use crate::sizes;
use crate::threads::Threads;

/// The operands of a step, of one row or of several: `[rows, gates * hidden]` and
/// `[rows, hidden]`.
#[derive(Debug)]
pub struct Step<'a> {
    /// The input's projection, with its bias.
    pub ih: &'a [f32],
    /// The hidden state's projection, with its bias.
    pub hh: &'a [f32],
    /// The hidden state, which is replaced.
    pub h: &'a mut [f32],
    /// The cell state, which is replaced; empty unless it is an LSTM.
    pub c: &'a mut [f32],
}

/// State elements below which a step stays on the caller's thread.
const SERIAL_STATE: usize = 4_096;

/// Updates the state of all rows of a recurrent step with `hidden` elements a row.
///
/// # Panics
/// If `h` has no whole rows, or another operand has a different number of rows.
pub fn update_state(isa: Isa, gates: Gates, hidden: usize, step: Step<'_>) {
    let rows = step.h.len().checked_div(hidden).unwrap_or(0);
    step.check(gates, [rows, hidden]);
    if rows == 0 {
        return;
    }
    let update_part = |part: Step<'_>| {
        let rows = part.rows(gates, hidden);
        rows.for_each(|units| isa.run(update(gates, units)));
    };
    if step.h.len() < SERIAL_STATE || rows == 1 {
        return update_part(step);
    }
    let threads = Threads::of_caller();
    let height = rows.div_ceil(threads.count());
    threads.for_each_item(step.parts(gates, hidden, height), update_part);
}

ops! {
    /// Updates the state of some units of one row.
    pub fn update(gates: Gates, units: RowUnits<'a>) {
        gates::update(gates, units);
    }
}

/// Some units of each gate of a row, which is as long as its gates together.
fn of_units(gates: Gates, row: &[f32], units: Range<usize>) -> [&[f32]; MAX_GATES] {
    let hidden = row.len() / gates.count();
    let of_gate = |gate: usize| row.get(gate * hidden + units.start..gate * hidden + units.end);
    std::array::from_fn(|gate| of_gate(gate).unwrap_or_default())
}

impl<'a> Step<'a> {
    /// Checks that it has `rows` rows of `hidden` elements.
    fn check(&self, gates: Gates, [rows, hidden]: [usize; 2]) {
        let of_gates = [rows, gates.count(), hidden];
        sizes::check("h, [rows, hidden]", self.h, &[rows, hidden]);
        sizes::check("ih, [rows, gates, hidden]", self.ih, &of_gates);
        sizes::check("hh, [rows, gates, hidden]", self.hh, &of_gates);
        match gates {
            Gates::Lstm => sizes::check("c, [rows, hidden]", self.c, &[rows, hidden]),
            _ => sizes::check("c of a layer that is no LSTM", self.c, &[0]),
        }
    }

    /// This step in parts of `height` rows.
    fn parts(self, gates: Gates, hidden: usize, height: usize) -> impl Iterator<Item = Step<'a>> {
        let (wide, narrow) = (height * gates.count() * hidden, height * hidden);
        let mut c = self.c.chunks_mut(narrow);
        let operands = self.ih.chunks(wide).zip(self.hh.chunks(wide));
        let operands = operands.zip(self.h.chunks_mut(narrow));
        operands.map(move |((ih, hh), h)| Step { ih, hh, h, c: c.next().unwrap_or_default() })
    }

    /// All units of each row.
    fn rows(self, gates: Gates, hidden: usize) -> impl Iterator<Item = RowUnits<'a>> {
        let rows = self.parts(gates, hidden, 1);
        rows.map(move |Step { ih, hh, h, c }| RowUnits {
            ih: of_units(gates, ih, 0..hidden),
            hh: of_units(gates, hh, 0..hidden),
            h,
            c,
        })
    }
}
