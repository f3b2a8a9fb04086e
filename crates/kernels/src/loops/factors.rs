//! The factors of attention: f32 as they are, or bfloat16 in the form that an instruction
//! multiplies.
//!
//! In bfloat16 a sum has the order of AMX's tiles on every instruction set, and so the same bits:
//! of each 32 inputs the products of the even and of the odd ones are summed separately, from 0 on,
//! one `fma` after another; both sums together are added to what there is. The inputs that are
//! missing in the last 32 are zeros.

use std::hint::black_box;

use super::convert::factor;
use super::float_tile::{self, Left, Right};
use super::float_vector::Register;

/// Rows of a matrix somewhere in a slice, with the distance from one to the next.
pub type Rows<'a> = (&'a [f32], usize);

/// A form of factors, and the products of matrices of them.
///
/// The left sides are of rows: keys, whose inputs are in a row, and values, whose inputs are in a
/// column. The right sides have a row for each input: queries and weights.
pub trait Factors<const LANES: usize>: Copy {
    /// Inputs that fill an f32.
    const INPUTS: usize;
    /// Inputs that are multiplied together: there are zeros behind the last ones.
    const TOGETHER: usize;
    /// Rows that are computed together: sides and results have room for more than there are.
    const ROWS: usize = 1;

    fn register(self) -> impl Register<LANES>;

    /// The factor of a number, as f32.
    fn rounded(x: f32) -> f32 {
        f32::from_bits(factor(x))
    }

    /// The number of f32 that this many inputs fill.
    #[inline(always)]
    fn depth(inputs: usize) -> usize {
        inputs.next_multiple_of(Self::TOGETHER) / Self::INPUTS
    }

    /// How many f32 factors of keys or values, `[rows, columns]`, need.
    #[inline(always)]
    fn room(rows: usize, columns: usize) -> usize {
        rows.next_multiple_of(Self::TOGETHER) * columns.next_multiple_of(Self::TOGETHER)
    }

    /// The factors of keys, `[rows, columns]`.
    fn keys<'a>(self, from: Rows<'a>, size: [usize; 2], room: &'a mut [f32]) -> Left<'a>;

    /// The factors of values, `[rows, columns]`, as a left side of `columns` rows.
    fn values<'a>(self, from: Rows<'a>, size: [usize; 2], room: &'a mut [f32]) -> Left<'a>;

    /// Makes factors of queries or weights in place, `[rows, width]`; there is room for all rows
    /// that are multiplied together.
    fn in_place(self, xs: &mut [f32], width: usize, rows: usize);

    /// The product of factors, with at most `NV` registers of columns at a time.
    fn product<const NV: usize>(self, left: Left<'_>, right: Right<'_>);
}

/// f32, used where they are.
#[derive(Clone, Copy)]
pub struct Float32s<R>(pub R);

impl<const LANES: usize, R: Register<LANES>> Factors<LANES> for Float32s<R> {
    const INPUTS: usize = 1;
    const TOGETHER: usize = 1;

    #[inline(always)]
    fn register(self) -> impl Register<LANES> {
        self.0
    }

    fn rounded(x: f32) -> f32 {
        x
    }

    #[inline(always)]
    fn room(_: usize, _: usize) -> usize {
        0
    }

    #[inline(always)]
    fn keys<'a>(
        self,
        (values, row): Rows<'a>,
        [rows, depth]: [usize; 2],
        _: &'a mut [f32],
    ) -> Left<'a> {
        Left {
            values,
            row,
            // If it knew that this is 1, the compiler would unroll the loop, for which there are
            // too few registers.
            step: black_box(1),
            rows,
            depth,
        }
    }

    #[inline(always)]
    fn values<'a>(
        self,
        (values, step): Rows<'a>,
        [depth, rows]: [usize; 2],
        _: &'a mut [f32],
    ) -> Left<'a> {
        Left { values, row: 1, step, rows, depth }
    }

    #[inline(always)]
    fn in_place(self, _: &mut [f32], _: usize, _: usize) {}

    #[inline(always)]
    fn product<const NV: usize>(self, left: Left<'_>, right: Right<'_>) {
        float_tile::product::<LANES, NV>(left, right, self.0);
    }
}

/// bfloat16 that registers multiply: rounded f32, or two in the place of an f32 where an
/// instruction multiplies pairs.
///
/// That instruction, `vdpbf16ps`, adds the products of a pair to one sum, the upper half first. So
/// the first and the third of four inputs are a pair, the first in the upper half, as are the
/// second and the fourth.
#[derive(Clone, Copy)]
pub struct BFloat16s<R>(pub R);

impl<const LANES: usize, R: Register<LANES>> Factors<LANES> for BFloat16s<R> {
    const INPUTS: usize = if R::PAIRED { 2 } else { 1 };
    const TOGETHER: usize = 2 * <Self as Factors<LANES>>::INPUTS;

    #[inline(always)]
    fn register(self) -> impl Register<LANES> {
        self.0
    }

    #[inline(always)]
    fn keys<'a>(self, from: Rows<'a>, size: [usize; 2], room: &'a mut [f32]) -> Left<'a> {
        side_by_side::<LANES, true, R>(from, size, Self::depth(size[1]), room, self.0)
    }

    #[inline(always)]
    fn values<'a>(
        self,
        from: Rows<'a>,
        [rows, columns]: [usize; 2],
        room: &'a mut [f32],
    ) -> Left<'a> {
        let depth = Self::depth(rows);
        let to = &mut room[..depth * columns];
        let groups = to.chunks_exact_mut((2 * columns).max(1));
        for (group, to) in groups.enumerate() {
            let row = |row| row_of(from, group * Self::TOGETHER + row, [rows, columns]);
            let (even, odd) = to.split_at_mut(columns);
            if const { R::PAIRED } {
                pairs([row(0), row(2)], even, self.0);
                pairs([row(1), row(3)], odd, self.0);
            } else {
                round(row(0), even);
                round(row(1), odd);
            }
        }
        Left { values: to, row: 1, step: columns, rows: columns, depth }
    }

    #[inline(always)]
    fn in_place(self, xs: &mut [f32], width: usize, rows: usize) {
        let all = rows.next_multiple_of(Self::TOGETHER);
        xs[rows * width..all * width].fill(0.);
        if const { !R::PAIRED } {
            for x in &mut xs[..rows * width] {
                *x = f32::from_bits(factor(*x));
            }
            return;
        }
        for group in 0..all / Self::TOGETHER {
            let (to, from) = (2 * group * width, 4 * group * width);
            for column in (0..width).step_by(LANES) {
                let row = |row: usize| load(&xs[from + row * width + column..], self.0);
                let (a, b, c, d) = (row(0), row(1), row(2), row(3));
                store(self.0.pair(a, c), &mut xs[to + column..], self.0);
                store(self.0.pair(b, d), &mut xs[to + width + column..], self.0);
            }
        }
    }

    #[inline(always)]
    fn product<const NV: usize>(self, left: Left<'_>, right: Right<'_>) {
        float_tile::product_of_bf16::<LANES, NV>(left, right, self.0);
    }
}

/// A left side with a row of `depth` factors for each row of `from`: rounded, or in pairs by
/// [`pairs_of_row`].
#[inline(always)]
pub fn side_by_side<'a, const LANES: usize, const ALTERNATE: bool, R: Register<LANES>>(
    from: Rows<'_>,
    size: [usize; 2],
    depth: usize,
    room: &'a mut [f32],
    register: R,
) -> Left<'a> {
    let rows = size[0];
    for (row, to) in room.chunks_exact_mut(depth.max(1)).take(rows).enumerate() {
        let from = row_of(from, row, size);
        if const { R::PAIRED } {
            pairs_of_row::<LANES, ALTERNATE, R>(from, to, register);
        } else {
            round(from, to);
        }
    }
    Left::of_rows(room, rows, depth)
}

/// A row of a matrix of `rows` by `columns`; empty behind the last.
#[inline(always)]
pub fn row_of((from, stride): Rows<'_>, row: usize, [rows, columns]: [usize; 2]) -> &[f32] {
    if row < rows { &from[row * stride..][..columns] } else { &[] }
}

/// Writes a row, rounded, and zeros behind it.
#[inline(always)]
fn round(from: &[f32], to: &mut [f32]) {
    let (rounded, behind) = to.split_at_mut(from.len());
    for (x, to) in from.iter().zip(rounded) {
        *to = f32::from_bits(factor(*x));
    }
    behind.fill(0.);
}

/// Writes the pairs of two rows, the first row in the upper half; an empty row counts as zeros.
#[inline(always)]
pub fn pairs<const LANES: usize, R: Register<LANES>>(
    [first, second]: [&[f32]; 2],
    to: &mut [f32],
    register: R,
) {
    let both = first.len().min(second.len());
    let whole = both / LANES * LANES;
    for column in (0..whole).step_by(LANES) {
        let [first, second] = [first, second].map(|row| load(&row[column..], register));
        store(register.pair(first, second), &mut to[column..], register);
    }
    let at = |row: &[f32], column: usize| row.get(column).copied().unwrap_or_default();
    for (column, to) in to.iter_mut().enumerate().skip(whole) {
        *to = pair(at(first, column), at(second, column));
    }
}

/// Writes the pairs of a row, of each four inputs alternating ones or neighbours, and pairs of
/// zeros behind them.
#[inline(always)]
pub fn pairs_of_row<const LANES: usize, const ALTERNATE: bool, R: Register<LANES>>(
    from: &[f32],
    to: &mut [f32],
    register: R,
) {
    let mut rest = from;
    for to in to.chunks_mut(LANES) {
        let (inputs, behind) = rest.split_at(rest.len().min(2 * LANES));
        rest = behind;
        let mut padded = [[0.; LANES]; 2];
        let [low, high] = match inputs.as_chunks().0 {
            [low, high] => [low, high],
            _ => {
                padded.as_flattened_mut()[..inputs.len()].copy_from_slice(inputs);
                [&padded[0], &padded[1]]
            }
        };
        let mut pairs = register.round(register.load(low), register.load(high));
        if const { ALTERNATE } {
            pairs = register.alternate(pairs);
        }
        match to.first_chunk_mut() {
            Some(to) => register.store(pairs, to),
            None => {
                let mut line = [0.; LANES];
                register.store(pairs, &mut line);
                to.copy_from_slice(&line[..to.len()]);
            }
        }
    }
}

/// Two factors in the place of an f32, which it is not.
#[inline(always)]
pub fn pair(first: f32, second: f32) -> f32 {
    f32::from_bits(factor(first) | factor(second) >> 16)
}

#[inline(always)]
pub fn load<const LANES: usize, R: Register<LANES>>(xs: &[f32], register: R) -> R::V {
    register.load(xs.first_chunk().unwrap_or(&[0.; LANES]))
}

#[inline(always)]
pub fn store<const LANES: usize, R: Register<LANES>>(values: R::V, to: &mut [f32], register: R) {
    if let Some(to) = to.first_chunk_mut() {
        register.store(values, to);
    }
}
