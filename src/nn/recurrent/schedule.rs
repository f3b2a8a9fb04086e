//! Which sequences of a batch are active at which step.

use std::borrow::Cow;
use std::ops::Range;

use crate::error::{Error, Result};

/// The active rows of a batch with sequences of different lengths, as PyTorch packs them:
/// sequences from the longest to the shortest, and at each step a number of the first.
/// Rows of padding do not exist here, so they can influence nothing.
pub(super) struct Schedule {
    pub batch: usize,
    /// Sequences of the batch, the longest first.
    pub order: Vec<usize>,
    /// The active rows of each step, among all active rows.
    steps: Vec<Range<usize>>,
    /// All active rows.
    pub rows: usize,
}

/// The order of the two outer dimensions of a batch of sequences.
#[derive(Clone, Copy, PartialEq, Eq)]
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
        let wrong = |expected: String, got: String| Error::argument("lengths", expected, got);
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
                    return Err(wrong(format!("at most the {steps} steps of the input"), got));
                }
                order.sort_by_key(|sequence| std::cmp::Reverse(lengths[*sequence]));
                let active = |step| lengths.iter().filter(|length| **length > step).count();
                (0..steps).map(active).collect()
            }
        };
        let mut rows = 0;
        let steps = active.iter().map(|active| {
            rows += active;
            rows - active..rows
        });
        Ok(Self { batch, order, steps: steps.collect(), rows })
    }

    /// 1 where a sequence is active and 0 where it is over, `[steps, batch]`; `None` where all have
    /// all steps.
    pub fn mask(&self) -> Option<Vec<u8>> {
        if self.is_whole() {
            return None;
        }
        let mut mask = vec![0; self.steps.len() * self.batch];
        self.places(Axes::StepsFirst).for_each(|place| mask[place] = 1);
        Some(mask)
    }

    /// The rows that are active at each step, among all active rows, in the order of steps.
    pub fn rows_of_steps(&self, reverse: bool) -> Vec<Range<usize>> {
        let mut steps = self.steps.clone();
        if reverse {
            steps.reverse();
        }
        steps
    }

    /// The place of each active row in the batch, as an index over its two outer dimensions.
    fn places(&self, axes: Axes) -> impl Iterator<Item = usize> {
        let steps = self.steps.iter().enumerate();
        steps.flat_map(move |(step, rows)| {
            let active = self.order[..rows.len()].iter();
            active.map(move |sequence| match axes {
                Axes::StepsFirst => step * self.batch + sequence,
                Axes::BatchFirst => sequence * self.steps.len() + step,
            })
        })
    }

    /// Whether all sequences have all steps.
    fn is_whole(&self) -> bool {
        self.rows == self.steps.len() * self.batch
    }

    /// Whether packed rows lie as the batch does.
    fn is_packed(&self, axes: Axes) -> bool {
        let alike = axes == Axes::StepsFirst || self.batch <= 1 || self.steps.len() <= 1;
        self.is_whole() && alike
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
        let mut ys = vec![0.; self.batch * self.steps.len() * width];
        if width > 0 {
            for (place, row) in self.places(axes).zip(packed.chunks_exact(width)) {
                ys[place * width..][..width].copy_from_slice(row);
            }
        }
        ys
    }

    /// States `[.., batch, width]`, of the longest sequence first.
    pub fn sort(&self, states: &[f32], width: usize) -> Vec<f32> {
        let mut sorted = Vec::with_capacity(states.len());
        for states in states.chunks_exact((self.batch * width).max(1)) {
            for sequence in &self.order {
                sorted.extend_from_slice(&states[sequence * width..][..width]);
            }
        }
        sorted
    }

    /// The inverse of [`sort`](Self::sort).
    pub fn restore(&self, sorted: Vec<f32>, width: usize) -> Vec<f32> {
        if self.order.is_sorted() {
            return sorted;
        }
        let mut states = vec![0.; sorted.len()];
        let len = (self.batch * width).max(1);
        for (states, sorted) in states.chunks_exact_mut(len).zip(sorted.chunks_exact(len)) {
            for (sequence, row) in self.order.iter().zip(sorted.chunks_exact(width)) {
                states[sequence * width..][..width].copy_from_slice(row);
            }
        }
        states
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A schedule by its definition: sequences in their order, and the step and the
    /// sequence of each active row.
    fn plain(steps: usize, lengths: &[usize]) -> (Vec<usize>, Vec<[usize; 2]>) {
        let mut order = Vec::new();
        for length in (0..=steps).rev() {
            order.extend((0..lengths.len()).filter(|sequence| lengths[*sequence] == length));
        }
        let mut active = Vec::new();
        for step in 0..steps {
            let sequences = order.iter().filter(|sequence| lengths[**sequence] > step);
            active.extend(sequences.map(|sequence| [step, *sequence]));
        }
        (order, active)
    }

    const CASES: [(usize, &[usize]); 9] = [
        (0, &[]),
        (0, &[0, 0]),
        (1, &[1, 1, 1]),
        (4, &[4]),
        (3, &[2]),
        (3, &[3, 3]),
        (3, &[1, 3, 2, 3]),
        (2, &[0, 2, 0]),
        (5, &[1, 2, 3, 4, 5]),
    ];

    #[test]
    fn rows_are_those_of_the_longest_sequences_step_by_step() -> Result<()> {
        for (steps, lengths) in CASES {
            let (of, batch) = (format!("{steps} {lengths:?}"), lengths.len());
            let (order, active) = plain(steps, lengths);
            let whole = lengths.iter().all(|length| *length == steps);
            let mut schedules = vec![Schedule::new(steps, batch, Some(lengths))?];
            if whole {
                schedules.push(Schedule::new(steps, batch, None)?);
            }
            for schedule in schedules {
                assert_eq!((schedule.batch, schedule.rows), (batch, active.len()), "{of}");
                assert_eq!((schedule.steps.len(), &schedule.order), (steps, &order), "{of}");
                let mut mask = vec![0; steps * batch];
                for [step, sequence] in &active {
                    mask[step * batch + sequence] = 1;
                }
                assert_eq!(schedule.mask(), (!whole).then_some(mask), "{of}");
                // Nothing is copied where all is in place.
                for axes in [Axes::StepsFirst, Axes::BatchFirst] {
                    let in_place = axes == Axes::StepsFirst || batch <= 1 || steps <= 1;
                    assert_eq!(schedule.is_packed(axes), whole && in_place, "{of}");
                }
                let row = |step| active.partition_point(|[of_row, _]| *of_row < step);
                let mut rows: Vec<_> = (0..steps).map(|step| row(step)..row(step + 1)).collect();
                assert_eq!(schedule.rows_of_steps(false), rows, "{of}");
                rows.reverse();
                assert_eq!(schedule.rows_of_steps(true), rows, "{of}");
            }
        }
        // Without sequences the number of steps is 0.
        assert!(Schedule::new(usize::MAX / 2, 0, None)?.steps.is_empty());
        Ok(())
    }

    #[test]
    fn lengths_that_do_not_fit_are_named() {
        let cases: [(&[usize], [&str; 2]); 3] = [
            (&[1], ["each of the 2 sequences", "1 lengths"]),
            (&[1, 2, 3], ["each of the 2 sequences", "3 lengths"]),
            (&[3, 4], ["at most the 3 steps", "4 for sequence 1"]),
        ];
        for (lengths, words) in cases {
            let error = Schedule::new(3, 2, Some(lengths)).err();
            let message = error.expect("they do not fit").to_string();
            for word in words {
                assert!(message.contains(word), "{message:?} lacks {word:?}");
            }
        }
    }
}
