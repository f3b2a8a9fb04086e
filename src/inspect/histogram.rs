//! Histograms of values whose range is not known before.

use serde::Serialize;

const BINS: usize = 128;

/// Counts of values in bins of one width over `[-bound, bound)`, where the bound is the smallest
/// power of two that holds all of them: it grows as they come, by taking bins together in pairs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Histogram {
    pub(crate) bound: f32,
    /// The counts, from `-bound` on.
    pub(crate) counts: Vec<u64>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { bound: f32::MIN_POSITIVE, counts: vec![0; BINS] }
    }
}

impl Histogram {
    /// Adds values; those that are not finite are not counted.
    pub(super) fn add(&mut self, values: &[f32]) {
        let finite = values.iter().filter(|value| value.is_finite());
        let greatest = finite.clone().fold(0f32, |max, value| max.max(value.abs()));
        // Below the greatest power of two there is a bound for all but the last binade.
        while self.bound <= greatest && self.bound < f32::MAX / 2. {
            self.grow();
        }
        let half = (BINS / 2) as f32;
        for value in finite {
            let bin = (value / self.bound * half).floor() + half;
            self.counts[(bin as usize).min(BINS - 1)] += 1;
        }
    }

    fn grow(&mut self) {
        let mut counts = vec![0; BINS];
        for (bin, count) in self.counts.iter().enumerate() {
            counts[BINS / 4 + bin / 2] += count;
        }
        self.counts = counts;
        self.bound *= 2.;
    }

    pub(super) fn width(&self) -> f32 {
        self.bound / (BINS / 2) as f32
    }

    /// The middle of each bin that lies between the first and the last that are not empty, and its
    /// count.
    pub fn bins(&self) -> Vec<(f32, u64)> {
        let first = self.counts.iter().position(|count| *count > 0).unwrap_or(0);
        let last = self.counts.iter().rposition(|count| *count > 0);
        let bins = self.counts.iter().enumerate().skip(first);
        let bins = bins.take(last.map_or(0, |last| last + 1 - first));
        let half = (BINS / 2) as f32;
        bins.map(|(bin, count)| ((bin as f32 - half + 0.5) * self.width(), *count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extremes_are_counted_and_what_is_not_finite_is_not() {
        let mut histogram = Histogram::default();
        histogram.add(&[f32::NAN, f32::INFINITY, f32::MAX, f32::MIN, 0., -0., f32::MIN_POSITIVE]);
        assert_eq!(histogram.counts.iter().sum::<u64>(), 5);
        assert_eq!(histogram.bound, 2f32.powi(127));
        assert_eq!((histogram.counts[0], histogram.counts[BINS - 1]), (1, 1));
        assert!(histogram.bins().iter().all(|(middle, _)| middle.is_finite()));
        assert!(Histogram::default().bins().is_empty());
    }
}
