//! The range with the minimum expected square error, searched in a histogram of all elements.
//!
//! Every step rounds as torch 2.9.1's does, so that the search compares the same numbers and
//! ends at the same range.

use candle_core::Tensor;

use super::config::{Observer, ObserverConfig, ObserverKind};
use super::formula::QParamsFormula;
use super::values::ranges;
use super::weight_qparams::WeightQParams;
use crate::error::{Error, Result};
use crate::tensor::{Elements, as_f32};

/// PyTorch's `HistogramObserver`: leaves out rare outliers where that lowers the expected
/// square error of all elements.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::observer::{HistogramObserver, Observer, ObserverConfig, ObserverKind};
/// use candle_dynquant::{QDType, QScheme};
///
/// let kind = ObserverKind::Histogram { bins: 2048 };
/// let config = ObserverConfig::new(kind, QDType::QUInt8, QScheme::PerTensorAffine);
/// let mut observer = HistogramObserver::new(&config, 2048)?;
/// let mut values: Vec<f32> = (0..200_000).map(|i| i as f32 / 200_000.).collect();
/// values.push(1.1); // one outlier, near enough to be cut off
/// observer.observe(&Tensor::new(values, &Device::Cpu)?)?;
/// assert_eq!(observer.ranges(), [[0., 1.1]]);
/// assert!(observer.range().is_some_and(|[_, max]| max < 1.01));
/// # Ok::<(), candle_dynquant::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct HistogramObserver {
    formula: QParamsFormula,
    bins: usize,
    seen: Option<BinCounts>,
}

impl HistogramObserver {
    /// An observer that has seen nothing; `config.kind` does not matter. PyTorch's default is 2,048
    /// bins.
    ///
    /// # Errors
    /// When the scheme is per channel, `bins` is 0 or above 2^20, or another argument makes no
    /// sense.
    pub fn new(config: &ObserverConfig, bins: usize) -> Result<Self> {
        // The bounds of finer bins, of which there are 16 each, are numbered in f32.
        if !(1..=1 << 20).contains(&bins) {
            return Err(Error::argument("bins", "1 to 1048576", bins));
        }
        Ok(Self {
            formula: QParamsFormula::pytorch(config, &ObserverKind::Histogram { bins })?,
            bins,
            seen: None,
        })
    }

    /// The number of elements in each bin between the two; counts of earlier, narrower ranges are
    /// spread.
    pub fn histogram(&self) -> Option<&[f32]> {
        self.seen.as_ref().map(|seen| seen.counts.as_slice())
    }

    /// The range with the minimum expected square error, from which scale and zero point follow.
    pub fn range(&self) -> Option<[f32; 2]> {
        self.seen.as_ref().map(BinCounts::search)
    }
}

impl Observer for HistogramObserver {
    fn observe(&mut self, tensor: &Tensor) -> Result<()> {
        let tensor = as_f32(tensor, "observe")?;
        let Some(&[min, max]) = ranges(&tensor, None)?.first() else {
            return Ok(());
        };
        let (new_min, new_max) = match &self.seen {
            None => (min, max),
            Some(seen) => (seen.min.min(min), seen.max.max(max)),
        };
        if !((new_max - new_min) * self.bins as f32).is_finite() {
            let expected = format!("(max - min) * {} bins below f32::MAX", self.bins);
            let got = format!("{new_min} to {new_max}");
            return Err(Error::argument("range of a histogram", expected, got));
        }
        let elements = Elements::new(&tensor);
        let new = BinCounts::counted(elements.as_slice()?, new_min, new_max, self.bins);
        self.seen = Some(match self.seen.take() {
            None => new,
            Some(seen) => seen.merge(new),
        });
        Ok(())
    }

    fn ranges(&self) -> Vec<[f32; 2]> {
        self.seen.iter().map(|seen| [seen.min, seen.max]).collect()
    }

    fn calculate_qparams(&self) -> Result<WeightQParams> {
        self.formula.calculate_qparams(self.range().as_slice())
    }
}

/// Bins that an old bin is cut into before it is spread over new ones.
const UPSAMPLE_RATE: usize = 16;
/// Quantized values: 2^8 for both dtypes, whatever part of them is used.
const DST_BINS: f64 = 256.;

/// Counts in bins of the same width from `min` to `max`.
#[derive(Clone, Debug)]
struct BinCounts {
    counts: Vec<f32>,
    min: f32,
    max: f32,
}

impl BinCounts {
    /// `torch.histc`.
    fn counted(values: &[f32], min: f32, max: f32, bins: usize) -> Self {
        let (left, right) = if min == max { (min - 1., max + 1.) } else { (min, max) };
        let mut counts = vec![0u64; bins];
        for value in values {
            // Far from zero `left` and `right` may still be equal: 0 / 0 is bin 0.
            let bin = (value - left) * bins as f32 / (right - left);
            counts[(bin as usize).min(bins - 1)] += 1;
        }
        Self { counts: counts.into_iter().map(|count| count as f32).collect(), min, max }
    }

    /// Adds the counts of this one to `new`, whose range includes this one's.
    fn merge(self, mut new: Self) -> Self {
        let same = self.min == new.min && self.max == new.max;
        let old = match (same, self.min == self.max) {
            (true, _) => self.counts,
            (false, true) => {
                let bins = self.counts.len();
                let total = sum(&self.counts);
                let one = Self::counted(&[self.min], new.min, new.max, bins);
                one.counts.iter().map(|count| count * total).collect()
            }
            (false, false) => self.spread(new.min, new.max),
        };
        for (new, old) in new.counts.iter_mut().zip(old) {
            *new += old;
        }
        new
    }

    /// The counts in bins of a wider range: each bin is split into finer ones, each counted in the
    /// bin that contains its middle.
    fn spread(&self, min: f32, max: f32) -> Vec<f32> {
        let bins = self.counts.len();
        let fine = bins * UPSAMPLE_RATE;
        let half = 0.5 * ((self.max - self.min) / fine as f32);
        let bounds: Vec<f32> = linspace(min, max, bins + 1).collect();
        let mut counts = vec![0f32; bins];
        for (i, left) in linspace(self.min, self.max, fine + 1).take(fine).enumerate() {
            let middle = left + half;
            let bin = bounds.partition_point(|bound| *bound <= middle);
            let bin = bin.saturating_sub(1).min(bins - 1);
            counts[bin] += self.counts[i / UPSAMPLE_RATE] / UPSAMPLE_RATE as f32;
        }
        counts
    }

    /// Moves the ends of the range inwards, always past the fewer bins, for as long as the
    /// expected error falls.
    fn search(&self) -> [f32; 2] {
        const STEP: f64 = 1e-5;
        let total = f64::from(sum(&self.counts));
        let mut running = 0f64;
        let cumulative = self.counts.iter().map(|count| {
            running += f64::from(*count);
            running as f32
        });
        let cumulative: Vec<f32> = cumulative.collect();

        let (mut alpha, mut beta) = (0f64, 1f64);
        let (mut start, mut end) = (0, self.counts.len() - 1);
        let mut min_error = f32::INFINITY;
        while alpha < beta {
            let (next_alpha, next_beta) = (alpha + STEP, beta - STEP);
            let (mut left, mut right) = (start, end);
            while left < end && cumulative[left] < (next_alpha * total) as f32 {
                left += 1;
            }
            while right > start && cumulative[right] > (next_beta * total) as f32 {
                right -= 1;
            }
            let (mut next_start, mut next_end) = (start, end);
            if left - start > end - right {
                (next_start, alpha) = (left, next_alpha);
            } else {
                (next_end, beta) = (right, next_beta);
            }
            if (next_start, next_end) == (start, end) {
                continue;
            }
            let error = self.quantization_error(next_start, next_end);
            if error > min_error {
                break;
            }
            (min_error, start, end) = (error, next_start, next_end);
        }
        let bin_width = (self.max - self.min) / self.counts.len() as f32;
        [start, end + 1].map(|bin| self.min + bin_width * bin as f32)
    }

    /// The expected square error of all elements, were bins `start` to `end` the range.
    ///
    /// Elements are spread evenly over their bin; a quantized value represents all elements within
    /// half a quantized bin's width around it.
    fn quantization_error(&self, start: usize, end: usize) -> f32 {
        let bin_width = (f64::from(self.max) - f64::from(self.min)) / self.counts.len() as f64;
        let dst_bin_width = bin_width * (end - start + 1) as f64 / DST_BINS;
        if dst_bin_width == 0. {
            return 0.;
        }
        // From here on all is f32, as in a tensor.
        let half_width = (dst_bin_width / 2.) as f32;
        let (bin_width, dst_bin_width) = (bin_width as f32, dst_bin_width as f32);
        let cube = |x: f32| x * x * x;
        let norm = |from: f32, to: f32| (cube(to) - cube(from)) / 3.;
        let whole = norm(-half_width, half_width);
        // The quotient of two f32 is off in f64 by less than what could carry it past an
        // integer up to 255: this is the exact floor.
        let dst_bin = |x: f32| {
            let bin = (f64::from(x) / f64::from(dst_bin_width)).floor();
            bin.clamp(0., DST_BINS - 1.) as f32
        };
        let errors = self.counts.iter().enumerate().map(|(bin, count)| {
            let begin = (bin as f32 - start as f32) * bin_width;
            let end = begin + bin_width;
            let (dst_begin, dst_end) = (dst_bin(begin), dst_bin(end));
            let begin_center = (dst_begin + 0.5) * dst_bin_width;
            let end_center = dst_end * dst_bin_width + half_width;
            let density = count / bin_width;
            let first = density * norm(begin - begin_center, half_width);
            let middle = (dst_end - dst_begin - 1.) * (density * whole);
            let last = density * norm(-half_width, end - end_center);
            first + middle + last
        });
        sum(&errors.collect::<Vec<_>>())
    }
}

/// `torch.linspace`: from the nearer end, each point rounded once.
fn linspace(start: f32, end: f32, count: usize) -> impl Iterator<Item = f32> {
    let step = (end - start) / (count - 1) as f32;
    (0..count).map(move |i| {
        if i < count / 2 {
            step.mul_add(i as f32, start)
        } else {
            (-step).mul_add((count - 1 - i) as f32, end)
        }
    })
}

/// `torch.sum` of contiguous f32: the order of its additions decides the last bits.
///
/// Four rows of eight lanes are summed in parallel. Each has separate sums of blocks and of blocks
/// of blocks, four levels deep, so that numbers of similar size are added.
fn sum(values: &[f32]) -> f32 {
    const LEVELS: usize = 4;
    type Rows = [[f32; 8]; 4];
    let add = |to: &mut Rows, from: &Rows| {
        for (to, from) in to.as_flattened_mut().iter_mut().zip(from.as_flattened()) {
            *to += from;
        }
    };
    let (lanes, rest) = values.as_chunks::<8>();
    let (rows, rest_lanes) = lanes.as_chunks::<4>();
    // The logarithm of the length, rounded up, shared out over the levels.
    let log = rows.len().next_power_of_two().trailing_zeros() as usize;
    let bits = (log / LEVELS).max(4);
    let mut levels = [Rows::default(); LEVELS];
    for (i, row) in (1..).zip(rows) {
        add(&mut levels[0], row);
        let mut level = 1;
        // A full block goes one level up, and on for as long as it fills the next.
        while level < LEVELS && i & ((1 << (bits * level)) - 1) == 0 {
            let full = std::mem::take(&mut levels[level - 1]);
            add(&mut levels[level], &full);
            level += 1;
        }
    }
    let [mut rows, upper @ ..] = levels;
    for level in &upper {
        add(&mut rows, level);
    }
    let [mut lanes, others @ ..] = rows;
    let rest_lanes = rest_lanes.iter();
    for other in rest_lanes.chain(&others) {
        for (lane, other) in lanes.iter_mut().zip(other) {
            *lane += other;
        }
    }
    rest.iter().chain(&lanes).fold(0., |sum, value| sum + value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of torch 2.9.1 on `(i * i % 97) / 7`.
    #[test]
    fn sums_equal_torch() {
        let value = |i: u32| (i * i % 97) as f32 / 7.;
        for (count, expected) in
            [(0, 0.), (5, 4.285_714), (100, 665.857_1), (2_048, 14_009.143), (5_003, 34_316.145)]
        {
            let values: Vec<f32> = (0..count).map(value).collect();
            assert_eq!(sum(&values), expected, "{count}");
        }
        // 2^24 + 1 + 1 + .. stays 2^24 when added one after the other.
        let mut values = vec![1f32; 2_048];
        values[0] = 16_777_216.;
        assert_eq!(sum(&values), 16_779_248.);
    }

    /// Checksums of the bits of what torch 2.9.1 gives.
    #[test]
    fn linspace_equals_torch() {
        for (start, end, count, expected) in [
            (-1., 0.3, 2_049, 3_911_785_100),
            (-0.1234567, 77.7, 32_769, 2_664_704_593),
            (1e-3, 1., 5, 2_936_306_399),
        ] {
            let points = (1u32..).zip(linspace(start, end, count));
            let checksum = points
                .fold(0u32, |sum, (i, point)| sum.wrapping_add(point.to_bits().wrapping_mul(i)));
            assert_eq!(checksum, expected, "{start} to {end}");
        }
    }

    /// Known answers of torch 2.9.1.
    #[test]
    fn errors_equal_torch() {
        let histogram = BinCounts {
            counts: (0..2_048u32).map(|i| (i * i % 97) as f32 / 16.).collect(),
            min: -1.,
            max: 2.3,
        };
        for (start, end, expected) in [
            (0, 2_047, 0.084_259_376),
            (100, 1_900, 10.711_511),
            (5, 2_040, 0.086_459_93),
            (1_000, 1_010, 5_448.343_8),
        ] {
            assert_eq!(histogram.quantization_error(start, end), expected);
        }
    }
}
