//! The operands of all steps.

use std::ops::Range;

use crate::loops::gates::Gates;
use crate::packed::{Element, Packed};
use crate::sizes;

/// The operands of the steps of one direction of a layer: its weights, which the kernel takes as
/// `[ih, hh]`, packed by gates, and its states.
///
/// Each step has the rows of the sequences that are active then, which are the first of the
/// batch.
#[derive(Debug)]
pub struct Recurrence<'a, W = [&'a Packed; 2]> {
    /// The kind of recurrence.
    pub gates: Gates,
    /// The rows of each step, counted over all steps in order; rows of successive steps are
    /// adjacent.
    pub steps: &'a [Range<usize>],
    /// The weights of the input, `[gates * hidden, input]`, and of the hidden state,
    /// `[gates * hidden, hidden]`.
    pub weights: W,
    /// The hidden state, `[batch, hidden]`, which is replaced.
    pub h: &'a mut [f32],
    /// The cell state, `[batch, hidden]`, which is replaced; empty unless it is an LSTM.
    pub c: &'a mut [f32],
    /// The hidden state after each step: `[rows, hidden]`.
    pub hs: &'a mut [f32],
    /// The cell state after each step, empty if it is not asked for.
    pub cs: &'a mut [f32],
}

impl Recurrence<'_> {
    /// Checks that the weights are of one type, and that the operands suit each other in size.
    pub fn check(&self, xs: &[f32], element: Element) {
        let (gates, [ih, hh]) = (self.gates, self.weights);
        let (k, n) = (hh.k(), sizes::length("gates", &[gates.count(), hh.k()]));
        for (what, weight) in [("ih", ih), ("hh", hh)] {
            weight.check_element(element);
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
        let has_c = gates != Gates::Lstm || self.c.len() >= states;
        assert!(
            self.h.len() >= states && has_c,
            "h and c: expected {states} elements, [{batch}, {k}], got {} and {}",
            self.h.len(),
            self.c.len()
        );
        // Products have padding: of a gate at most a register.
        let padded = hh.padded_n();
        sizes::length("products of the input", &[rows, padded]);
        sizes::length("products of the state", &[batch, padded]);
    }
}

impl<'a, W> Recurrence<'a, W> {
    /// This recurrence with other weights.
    pub fn with<V>(self, weights: V) -> Recurrence<'a, V> {
        Recurrence {
            weights,
            gates: self.gates,
            steps: self.steps,
            h: self.h,
            c: self.c,
            hs: self.hs,
            cs: self.cs,
        }
    }

    /// Sequences that have a step.
    pub fn batch(&self) -> usize {
        self.steps.iter().map(|rows| rows.len()).max().unwrap_or(0)
    }

    /// Rows of all steps.
    pub fn rows(&self) -> usize {
        self.steps.iter().map(|rows| rows.end).max().unwrap_or(0)
    }
}
