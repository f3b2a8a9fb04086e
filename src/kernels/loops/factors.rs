//! The factors of attention's products in bfloat16: f32 that are rounded, or pairs of bfloat16 in the place of
//! an f32, where an instruction set multiplies pairs.
//!
//! The first of a pair is in the upper half, which `vdpbf16ps` adds first: sums have the order in which an `fma`
//! takes one rounded f32 after another, and the same bits.

use super::convert::factor;
use super::float_tile::Register;

/// Writes each row of a matrix, rounded.
#[inline(always)]
pub fn round_rows((from, stride): (&[f32], usize), columns: usize, to: &mut [f32]) {
    for (row, to) in to.chunks_exact_mut(columns).enumerate() {
        for (x, to) in from[row * stride..][..columns].iter().zip(to) {
            *to = f32::from_bits(factor(*x));
        }
    }
}

/// Writes each row of a matrix as pairs of its neighbours; a last one without neighbour is with 0.
#[inline(always)]
pub fn pair_columns((from, stride): (&[f32], usize), columns: usize, to: &mut [f32]) {
    for (row, to) in to.chunks_exact_mut(columns.div_ceil(2)).enumerate() {
        let (twos, last) = from[row * stride..][..columns].as_chunks::<2>();
        for ([first, second], to) in twos.iter().zip(&mut *to) {
            *to = pair(*first, *second);
        }
        if let ([last], Some(to)) = (last, to.last_mut()) {
            *to = pair(*last, 0.);
        }
    }
}

/// Writes pairs of a matrix's rows; a last one without another is with zeros.
#[inline(always)]
pub fn pair_rows((from, stride): (&[f32], usize), [rows, columns]: [usize; 2], to: &mut [f32]) {
    for (of_two, to) in to.chunks_exact_mut(columns).enumerate() {
        let first = &from[2 * of_two * stride..][..columns];
        if 2 * of_two + 1 == rows {
            for (to, first) in to.iter_mut().zip(first) {
                *to = pair(*first, 0.);
            }
            return;
        }
        let second = &from[(2 * of_two + 1) * stride..][..columns];
        for (to, (first, second)) in to.iter_mut().zip(first.iter().zip(second)) {
            *to = pair(*first, *second);
        }
    }
}

/// Makes factors of queries in place, `[rows, width]`, with room for another row; returns how many rows they are
/// then.
#[inline(always)]
pub fn of_queries(xs: &mut [f32], width: usize, rows: usize, paired: bool) -> usize {
    if !paired {
        round(&mut xs[..rows * width]);
        return rows;
    }
    of_twos(xs, width, rows, |to, second| {
        for (to, second) in to.iter_mut().zip(second) {
            *to = pair(*to, *second);
        }
    })
}

/// The same of weights, none of which is subnormal.
#[inline(always)]
pub fn of_weights<const LANES: usize, R: Register<LANES>>(
    xs: &mut [f32],
    width: usize,
    rows: usize,
    register: R,
) -> usize {
    if const { !R::PAIRED } {
        round(&mut xs[..rows * width]);
        return rows;
    }
    of_twos(xs, width, rows, |to, second| {
        let (to, _) = to.as_chunks_mut::<LANES>();
        for (to, second) in to.iter_mut().zip(second.as_chunks::<LANES>().0) {
            let [first, second] = [&*to, second].map(|values| register.load(values));
            register.store(register.pair(first, second), to);
        }
    })
}

#[inline(always)]
fn round(xs: &mut [f32]) {
    for x in xs {
        *x = f32::from_bits(factor(*x));
    }
}

/// Calls `join` with each two of the first `rows`, the last with zeros if it has no other, and keeps the first of
/// the two: the next row of the result. Returns how many those are.
#[inline(always)]
fn of_twos(xs: &mut [f32], width: usize, rows: usize, join: impl Fn(&mut [f32], &[f32])) -> usize {
    if !rows.is_multiple_of(2) {
        xs[rows * width..][..width].fill(0.);
    }
    let twos = rows.div_ceil(2);
    for two in 0..twos {
        let (first, second) = xs[2 * two * width..][..2 * width].split_at_mut(width);
        join(first, second);
        if two > 0 {
            xs.copy_within(2 * two * width..(2 * two + 1) * width, two * width);
        }
    }
    twos
}

/// Two factors in the place of an f32, which it is not.
#[inline(always)]
fn pair(first: f32, second: f32) -> f32 {
    f32::from_bits(factor(first) | factor(second) >> 16)
}
