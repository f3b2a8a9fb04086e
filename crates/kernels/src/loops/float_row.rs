//! The products of a row of floats and of weights where they are, `[channels, inputs]`.

use super::float_vector::Register;
use super::number::filled_up;

/// The sums of a product, each of every eighth input.
pub const SUMS: usize = 8;

/// The most inputs of a part.
const INPUTS: usize = 384;

/// Channels that are multiplied at once: as many sums as hide the latency of an fma.
const CHANNELS: usize = 8;

/// The inputs of a part, of `k` in all: their sums are added to the result before the next are
/// multiplied.
pub fn part_of(k: usize) -> usize {
    k.div_ceil(k.div_ceil(INPUTS).max(1)).next_multiple_of(SUMS).max(1)
}

/// Computes the products of a row and of channels, without bias; `NV` registers are [`SUMS`] sums.
#[inline(always)]
pub fn multiply_row<const LANES: usize, const NV: usize>(
    row: &[f32],
    weights: &[f32],
    out: &mut [f32],
    register: impl Register<LANES>,
) {
    const { assert!(LANES * NV == SUMS) };
    let (k, part) = (row.len(), part_of(row.len()));
    assert!(weights.len() >= out.len() * k);
    let load = |from: &[f32; SUMS]| -> [_; NV] {
        let (lanes, _) = from.as_chunks::<LANES>();
        std::array::from_fn(|v| register.load(&lanes[v]))
    };
    let add = |sums: &mut [_; NV], x: [_; NV], w: [_; NV]| {
        for v in 0..NV {
            sums[v] = register.fma(x[v], w[v], sums[v]);
        }
    };
    for (first, out) in (0..).step_by(CHANNELS).zip(out.chunks_mut(CHANNELS)) {
        // Channels past the end repeat the last one.
        let last = out.len() - 1;
        let place: [_; CHANNELS] = std::array::from_fn(|c| (first + c.min(last)) * k);
        let starts = place.map(|place| weights.as_ptr().wrapping_add(place));
        // The sum of nothing: neutral, as 0 is not.
        let mut totals = [-0f32; CHANNELS];
        for start in (0..k).step_by(part) {
            let inputs = &row[start..k.min(start + part)];
            let (chunks, rest) = inputs.as_chunks::<SUMS>();
            let mut sums = [[register.splat(0.); NV]; CHANNELS];
            for (i, x) in chunks.iter().enumerate() {
                let x = load(x);
                for (sum, weights) in sums.iter_mut().zip(starts) {
                    // SAFETY: a channel has as many weights as the row has inputs; an array of
                    // floats has the alignment of its elements.
                    add(sum, x, load(unsafe { &*weights.add(start + i * SUMS).cast() }));
                }
            }
            if !rest.is_empty() {
                // The product of fillers is -0, which no sum shows.
                let filled = |values: &[f32], filler| load(&filled_up(values, filler));
                let x = filled(rest, -0.);
                let at = start + inputs.len() - rest.len();
                for (sum, place) in sums.iter_mut().zip(place) {
                    add(sum, x, filled(&weights[place + at..][..rest.len()], 0.));
                }
            }
            for (total, sums) in totals.iter_mut().zip(sums) {
                let mut lanes = [[0f32; LANES]; NV];
                for v in 0..NV {
                    register.store(sums[v], &mut lanes[v]);
                }
                let sums = &lanes.as_flattened()[..SUMS.min(inputs.len())];
                let (all, others) = match start {
                    0 => (sums[0], &sums[1..]),
                    _ => (*total, sums),
                };
                *total = others.iter().fold(all, |total, sum| total + sum);
            }
        }
        out.copy_from_slice(&totals[..=last]);
    }
}
