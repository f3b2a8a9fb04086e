//! Resizing of pixels with antialiasing, by the integers of torch's `interpolate` of u8: an axis
//! after the other, columns first, rounded to u8 after each.

/// The formula of weights by distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    Bilinear,
    Bicubic,
}

impl Filter {
    /// The distance of the furthest pixel that counts.
    fn reach(self) -> f64 {
        match self {
            Self::Bilinear => 1.,
            Self::Bicubic => 2.,
        }
    }

    fn weight(self, x: f64) -> f64 {
        const A: f64 = -0.5;
        let x = x.abs();
        match self {
            Self::Bilinear => (1. - x).max(0.),
            Self::Bicubic if x < 1. => ((A + 2.) * x - (A + 3.)) * x * x + 1.,
            Self::Bicubic if x < 2. => (((x - 5.) * x + 8.) * x - 4.) * A,
            Self::Bicubic => 0.,
        }
    }
}

/// The sources of an output along an axis: the first, and the weight of each.
struct Taps {
    first: usize,
    weights: Vec<i32>,
}

/// The taps of each output, with the bits behind the point of weights.
fn taps(filter: Filter, from: usize, to: usize) -> (Vec<Taps>, u32) {
    let scale = from as f64 / to as f64;
    let stretch = scale.max(1.);
    let reach = filter.reach() * stretch;
    let float = |i: usize| {
        let center = scale * (i as f64 + 0.5);
        let first = (center - reach + 0.5).max(0.) as usize;
        let end = ((center + reach + 0.5) as usize).min(from);
        let place = |j: usize| (j as f64 - center + 0.5) / stretch;
        let weights: Vec<f64> = (first..end).map(|j| filter.weight(place(j))).collect();
        let sum: f64 = weights.iter().sum();
        (first, weights.iter().map(|w| w / sum).collect::<Vec<f64>>())
    };
    let all: Vec<_> = (0..to).map(float).collect();
    let most = all.iter().flat_map(|(_, weights)| weights);
    let most = most.fold(0f64, |most, w| most.max(*w));
    // As many bits as leave the largest weight an i16, at most 22.
    let fits = |bits: &u32| 0.5 + most * f64::from(1u32 << (bits + 1)) < f64::from(1 << 15);
    let bits = (0..22).find(|bits| !fits(bits)).unwrap_or(22);
    let code = |w: &f64| (w * f64::from(1u32 << bits)).round() as i32;
    let taps = all
        .into_iter()
        .map(|(first, weights)| Taps { first, weights: weights.iter().map(code).collect() });
    (taps.collect(), bits)
}

/// Resizes the middle axis of `[before, from, inner]` values.
fn along(filter: Filter, xs: &[u8], from: usize, to: usize, inner: usize) -> Vec<u8> {
    if from == to {
        return xs.to_vec();
    }
    let (taps, bits) = taps(filter, from, to);
    let mut ys = Vec::with_capacity(xs.len() / from * to);
    let mut sums = vec![0i32; inner];
    for row in xs.chunks_exact(from * inner) {
        for Taps { first, weights } in &taps {
            sums.fill(1 << (bits - 1));
            for (pixels, weight) in row[first * inner..].chunks_exact(inner).zip(weights) {
                for (sum, pixel) in sums.iter_mut().zip(pixels) {
                    *sum += i32::from(*pixel) * weight;
                }
            }
            ys.extend(sums.iter().map(|sum| (sum >> bits).clamp(0, 255) as u8));
        }
    }
    ys
}

/// Resizes pixels of three values, row by row, to a height and a width.
pub(super) fn resize(filter: Filter, xs: &[u8], from: [usize; 2], to: [usize; 2]) -> Vec<u8> {
    let ([height, width], [rows, columns]) = (from, to);
    let wide = along(filter, xs, width, columns, 3);
    along(filter, &wide, height, rows, columns * 3)
}
