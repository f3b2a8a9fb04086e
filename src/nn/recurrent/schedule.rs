//! Which sequences of a batch are active at which step.

use std::borrow::Cow;
use std::ops::Range;

use crate::error::{Error, Result};

/// The active rows of a batch with sequences of different lengths, as PyTorch packs them:
/// sequences from the longest to the shortest, and at each step the first so many of them.
/// Rows of padding do not exist here, so they can influence nothing.
pub(super) struct Schedule {
    pub batch: usize,
    pub steps: usize,
    /// Sequences of the batch, the longest first.
    pub order: Vec<usize>,
    /// How many of them are active at each step.
    active: Vec<usize>,
    /// The first row of each step among all active rows.
    starts: Vec<usize>,
    /// All active rows.
    pub rows: usize,
}

/// How the two outer dimensions of a batch of sequences lie.
#[derive(Clone, Copy)]
pub(super) enum Axes {
    /// `[steps, batch, ..]`
    StepsFirst,
    /// `[batch, steps, ..]`
    BatchFirst,
}

impl Schedule {
    /// `lengths` has one entry a sequence, or is `None` where all have `steps`.
    pub fn new(steps: usize, batch: usize, lengths: Option<&[usize]>) -> Result<Self> {
        // Without sequences no step has anything to do, however many there are.
        let steps = if batch == 0 { 0 } else { steps };
        let wrong = |expected: String, got: String| Error::InvalidArgument {
            what: "lengths",
            expected,
            got,
        };
        let mut order: Vec<usize> = (0..batch).collect();
        let active = match lengths {
            None => vec![batch; steps],
            Some(lengths) if lengths.len() != batch => {
                let got = format!("{} lengths", lengths.len());
                return Err(wrong(format!("one for each of the {batch} sequences"), got));
            }
            Some(lengths) => {
                if let Some(at) = lengths.iter().position(|length| *length > steps) {
                    let got = format!("{} for sequence {at}", lengths[at]);
                    return Err(wrong(
                        format!("at most the {steps} steps of the input"),
                        got,
                    ));
                }
                order.sort_by_key(|sequence| std::cmp::Reverse(lengths[*sequence]));
                let active = |step| lengths.iter().filter(|length| **length > step).count();
                (0..steps).map(active).collect()
            }
        };
        let mut rows = 0;
        let starts = active.iter().map(|active| {
            rows += active;
            rows - active
        });
        Ok(Self {
            batch,
            steps,
            order,
            starts: starts.collect(),
            active,
            rows,
        })
    }

    /// The rows that are active at each step, among all active rows, in the order of steps.
    pub fn rows_of_steps(&self, reverse: bool) -> Vec<Range<usize>> {
        let starts = self.starts.iter().zip(&self.active);
        let mut steps: Vec<_> = starts
            .map(|(start, active)| *start..start + active)
            .collect();
        if reverse {
            steps.reverse();
        }
        steps
    }

    /// Where each active row stands in the batch, as an index over its two outer dimensions.
    fn places(&self, axes: Axes) -> impl Iterator<Item = usize> {
        (0..self.steps).flat_map(move |step| {
            self.order[..self.active[step]]
                .iter()
                .map(move |sequence| match axes {
                    Axes::StepsFirst => step * self.batch + sequence,
                    Axes::BatchFirst => sequence * self.steps + step,
                })
        })
    }

    /// Whether packed rows lie as the batch does.
    fn is_packed(&self, axes: Axes) -> bool {
        let whole = self.rows == self.steps * self.batch;
        whole && (matches!(axes, Axes::StepsFirst) || self.batch <= 1 || self.steps <= 1)
    }

    /// The active rows of `xs`, each `width` long.
    pub fn pack<'a>(&self, xs: &'a [f32], width: usize, axes: Axes) -> Cow<'a, [f32]> {
        if self.is_packed(axes) {
            return Cow::Borrowed(xs);
        }
        let mut packed = Vec::with_capacity(self.rows * width);
        for place in self.places(axes) {
            packed.extend_from_slice(&xs[place * width..][..width]);
        }
        Cow::Owned(packed)
    }

    /// The inverse of [`pack`](Self::pack); rows that are not active are zeros.
    pub fn unpack(&self, packed: Vec<f32>, width: usize, axes: Axes) -> Vec<f32> {
        if self.is_packed(axes) {
            return packed;
        }
        let mut ys = vec![0.; self.batch * self.steps * width];
        if width > 0 {
            for (place, row) in self.places(axes).zip(packed.chunks_exact(width)) {
                ys[place * width..][..width].copy_from_slice(row);
            }
        }
        ys
    }

    /// The states `[batch, width]` of the sequences, the longest first.
    pub fn sort(&self, states: &[f32], width: usize) -> Vec<f32> {
        let rows = self.order.iter().map(|s| &states[s * width..][..width]);
        rows.flatten().copied().collect()
    }

    /// Writes sorted states `[batch, width]` back in the order of the batch.
    pub fn restore(&self, sorted: &[f32], width: usize, states: &mut [f32]) {
        if width > 0 {
            for (sequence, row) in self.order.iter().zip(sorted.chunks_exact(width)) {
                states[sequence * width..][..width].copy_from_slice(row);
            }
        }
    }
}
