//! The factors of attention's products in bfloat16: f32 that are rounded, or pairs of bfloat16 in the place of
//! an f32, where an instruction set multiplies pairs.
//!
//! The first of a pair is in the upper half, which `vdpbf16ps` adds first: sums have the order in which an `fma`
//! takes one rounded f32 after another, and the same bits.

use super::convert::factor;
use super::float_tile::Register;

/// Rows of a matrix somewhere in a slice, with the distance from one to the next.
pub type Rows<'a> = (&'a [f32], usize);

/// Writes `rows` rows of keys as factors, pairs being of neighbours; the last one of a row without neighbour is with 0.
/// Returns how many there are in a row.
#[inline(always)]
pub fn of_keys<const LANES: usize, R: Register<LANES>>(
    (from, stride): Rows<'_>,
    [rows, columns]: [usize; 2],
    to: &mut [f32],
    register: R,
) -> usize {
    if const { !R::PAIRED } {
        round_rows((from, stride), columns, &mut to[..rows * columns]);
        return columns;
    }
    let width = columns.div_ceil(2);
    for (row, to) in to[..rows * width]
        .chunks_exact_mut(width.max(1))
        .enumerate()
    {
        let from = &from[row * stride..][..columns];
        let whole = columns / (2 * LANES) * LANES;
        for column in (0..whole).step_by(LANES) {
            let at = |half| load(&from[2 * column + half * LANES..], register);
            store(
                register.pair_neighbours(at(0), at(1)),
                &mut to[column..],
                register,
            );
        }
        let (twos, last) = from[2 * whole..].as_chunks::<2>();
        let rest = &mut to[whole..];
        for ([first, second], to) in twos.iter().zip(&mut *rest) {
            *to = pair(*first, *second);
        }
        if let ([last], Some(to)) = (last, rest.last_mut()) {
            *to = pair(*last, 0.);
        }
    }
    width
}

/// Writes `rows` rows of values as factors, pairs being of two rows; a last one without another is with zeros.
#[inline(always)]
pub fn of_values<const LANES: usize, R: Register<LANES>>(
    (from, stride): Rows<'_>,
    [rows, columns]: [usize; 2],
    to: &mut [f32],
    register: R,
) {
    if const { !R::PAIRED } {
        return round_rows((from, stride), columns, &mut to[..rows * columns]);
    }
    let rows_to = to.chunks_exact_mut(columns.max(1)).take(rows.div_ceil(2));
    for (of_two, to) in rows_to.enumerate() {
        let first = &from[2 * of_two * stride..][..columns];
        if 2 * of_two + 1 == rows {
            for (to, first) in to.iter_mut().zip(first) {
                *to = pair(*first, 0.);
            }
            return;
        }
        let second = &from[(2 * of_two + 1) * stride..][..columns];
        let whole = columns / LANES * LANES;
        for column in (0..whole).step_by(LANES) {
            let [first, second] = [first, second].map(|row| load(&row[column..], register));
            store(register.pair(first, second), &mut to[column..], register);
        }
        for column in whole..columns {
            to[column] = pair(first[column], second[column]);
        }
    }
}

/// Makes factors of queries or of weights in place, `[rows, width]`, pairs being of two rows; for a last one without
/// another there is room for one of zeros. Returns how many rows they are then.
#[inline(always)]
pub fn in_place<const LANES: usize, R: Register<LANES>>(
    xs: &mut [f32],
    width: usize,
    rows: usize,
    register: R,
) -> usize {
    if const { !R::PAIRED } {
        for x in &mut xs[..rows * width] {
            *x = f32::from_bits(factor(*x));
        }
        return rows;
    }
    if !rows.is_multiple_of(2) {
        xs[rows * width..][..width].fill(0.);
    }
    let twos = rows.div_ceil(2);
    for two in 0..twos {
        for column in (0..width).step_by(LANES) {
            let at = |row: usize| row * width + column;
            let [first, second] = [2 * two, 2 * two + 1].map(|row| load(&xs[at(row)..], register));
            store(register.pair(first, second), &mut xs[at(two)..], register);
        }
    }
    twos
}

/// Writes each row of a matrix, rounded.
#[inline(always)]
fn round_rows((from, stride): Rows<'_>, columns: usize, to: &mut [f32]) {
    for (row, to) in to.chunks_exact_mut(columns.max(1)).enumerate() {
        for (x, to) in from[row * stride..][..columns].iter().zip(to) {
            *to = f32::from_bits(factor(*x));
        }
    }
}

/// Two factors in the place of an f32, which it is not.
#[inline(always)]
fn pair(first: f32, second: f32) -> f32 {
    f32::from_bits(factor(first) | factor(second) >> 16)
}

#[inline(always)]
fn load<const LANES: usize, R: Register<LANES>>(xs: &[f32], register: R) -> R::V {
    register.load(xs.first_chunk().unwrap_or(&[0.; LANES]))
}

#[inline(always)]
fn store<const LANES: usize, R: Register<LANES>>(values: R::V, to: &mut [f32], register: R) {
    if let Some(to) = to.first_chunk_mut() {
        register.store(values, to);
    }
}
