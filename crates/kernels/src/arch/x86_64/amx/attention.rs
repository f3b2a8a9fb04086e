//! Attention in bfloat16 on tiles.

use std::ptr::null;

use super::tiles::{self, Configuration, Configured, HEIGHT, K_GROUPS, LINE, TileOperands, Tiled};
use crate::arch::x86_64::{avx512, avx512_bf16};
use crate::loops::attention::{self, Attention, Precision, QueryBlock};
use crate::loops::buffer::RowsMut;
use crate::loops::factors::{self, Factors, Rows};
use crate::loops::float_tile::{Left, Right, transpose};
use crate::loops::float_vector::Register;
use crate::loops::product::{Pair, Sink};

/// # Safety
/// The CPU has AMX-BF16 and these features, and no other thread computes a block that overlaps.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")]
pub unsafe fn attend<const CAREFUL: bool>(
    attention: &Attention<'_>,
    block: QueryBlock,
    out: &Sink<'_>,
) -> bool {
    // SAFETY: an `Isa` of AMX exists only where the CPU has these features; tiles are configured
    // until the task is done; blocks of attention are disjoint, and one thread computes each.
    unsafe {
        match attention.precision {
            Precision::Float32 | Precision::Int8 => {
                avx512::attend::<CAREFUL>(attention, block, out)
            }
            Precision::BFloat16 => {
                let _configured = Configured::new(Configuration::of_products(HEIGHT));
                let factors = OnTiles::new(avx512_bf16::register());
                attention::attend::<16, 4, f32, _, CAREFUL>(attention, block, out, factors)
            }
        }
    }
}

/// bfloat16 that tiles multiply: pairs of neighbours, 16 of them in a row of a tile.
///
/// A tile of the left side has the inputs of a row side by side, so that values are transposed. All
/// tiles are whole: what is computed of rows that are not there is not read.
#[derive(Clone, Copy)]
pub struct OnTiles<R>(R);

impl<R> OnTiles<R> {
    /// # Safety
    /// While it is in use, the thread's tiles are configured for products of [`HEIGHT`] rows.
    #[inline(always)]
    pub unsafe fn new(register: R) -> Self {
        #[cfg(test)]
        super::tests::count_part();
        Self(register)
    }
}

impl<const LANES: usize, R: Register<LANES>> Factors<LANES> for OnTiles<R> {
    const INPUTS: usize = 2;
    const TOGETHER: usize = 2 * K_GROUPS;
    const ROWS: usize = HEIGHT;

    #[inline(always)]
    fn register(self) -> impl Register<LANES> {
        self.0
    }

    #[inline(always)]
    fn keys<'a>(self, from: Rows<'a>, size: [usize; 2], room: &'a mut [f32]) -> Left<'a> {
        factors::side_by_side::<LANES, false, R>(from, size, Self::depth(size[1]), room, self.0)
    }

    #[inline(always)]
    fn values<'a>(self, from: Rows<'a>, size: [usize; 2], room: &'a mut [f32]) -> Left<'a> {
        let [rows, columns] = size;
        let depth = Self::depth(rows);
        // Half of the room is enough for keys. Values are pairs of rows in one half, and transposed
        // in the other.
        let (values, pairs) = room.split_at_mut(room.len() / 2);
        let pairs = &mut pairs[..depth * columns];
        for (two, to) in pairs.chunks_exact_mut(columns.max(1)).enumerate() {
            let row = |row| factors::row_of(from, 2 * two + row, size);
            factors::pairs([row(1), row(0)], to, self.0);
        }
        transpose((pairs, columns), RowsMut::of_matrix(values, depth), depth, columns, self.0);
        Left::of_rows(values, columns, depth)
    }

    #[inline(always)]
    fn in_place(self, xs: &mut [f32], width: usize, rows: usize) {
        let all = rows.next_multiple_of(Self::TOGETHER);
        xs[rows * width..all * width].fill(0.);
        for two in 0..all / 2 {
            let (to, from) = (two * width, 2 * two * width);
            for column in (0..width).step_by(LANES) {
                let row = |row: usize| factors::load(&xs[from + row * width + column..], self.0);
                let pairs = self.0.pair(row(1), row(0));
                factors::store(pairs, &mut xs[to + column..], self.0);
            }
        }
    }

    #[inline(always)]
    fn product<const NV: usize>(self, left: Left<'_>, right: Right<'_>) {
        if let Some(keep) = right.keep {
            scale(&mut *right.c, &keep[..right.width], left.rows, self.0);
        }
        // SAFETY: tiles are configured, by the contract of `new`.
        unsafe { product(left, right) };
    }
}

/// Multiplies each row by the factors of its columns.
#[inline(always)]
fn scale<const LANES: usize, R: Register<LANES>>(
    xs: &mut [f32],
    factors: &[f32],
    rows: usize,
    register: R,
) {
    let zero = register.splat(0.);
    for row in xs.chunks_exact_mut(factors.len()).take(rows) {
        let columns = row.as_chunks_mut().0.iter_mut();
        for (x, factor) in columns.zip(factors.as_chunks().0) {
            register.store(register.fma(register.load(x), register.load(factor), zero), x);
        }
    }
}

/// `c = a b`, or `c += a b` if there is something to keep, by whole tiles.
///
/// # Safety
/// Tiles are configured for products of [`HEIGHT`] rows.
#[inline(always)]
unsafe fn product(left: Left<'_>, right: Right<'_>) {
    let Left { rows, depth, .. } = left;
    let width = right.width;
    let all = rows.next_multiple_of(HEIGHT);
    assert!(left.step == 1 && depth.is_multiple_of(K_GROUPS) && width.is_multiple_of(LINE));
    assert!(left.row >= depth && left.values.len() >= all * left.row);
    assert!(right.b.len() >= depth * width && right.c.len() >= all * width);
    let operands = TileOperands {
        lhs: [left.values.as_ptr().cast(); 2],
        lhs_stride: size_of::<f32>() * left.row,
        lhs_stays: false,
        rhs: right.b.as_ptr().cast(),
        rhs_stride: size_of::<f32>() * width,
        ahead: null(),
    };
    let c = right.c.as_mut_ptr().cast::<u8>();
    for column in (0..width).step_by(2 * LINE) {
        for row in (0..all).step_by(2 * HEIGHT) {
            let rows = [row, row + HEIGHT].map(|row| row * operands.lhs_stride);
            let operands = TileOperands {
                lhs: rows.map(|row| operands.lhs[0].wrapping_add(row)),
                rhs: operands.rhs.wrapping_add(size_of::<f32>() * column),
                ..operands
            };
            let shape =
                [1 + usize::from(all - row > HEIGHT), 1 + usize::from(width - column > LINE)];
            let (keep, steps) = (right.keep.is_some(), depth / K_GROUPS);
            let c = c.wrapping_add(row * operands.rhs_stride + size_of::<f32>() * column);
            // SAFETY: tiles are configured; by the assertions the rows and columns of so many tiles
            // are within their slices.
            unsafe { block(shape, operands, c, keep, steps) };
        }
    }
}

/// Tiles of the result, whose rows are as far apart as the right side's.
///
/// # Safety
/// Tiles are configured; there are so many tiles to read from each side, `steps` of them, and to
/// write from `c` on.
#[inline(always)]
unsafe fn block(shape: [usize; 2], operands: TileOperands, c: *mut u8, keep: bool, steps: usize) {
    let stride = operands.rhs_stride;
    let c = std::array::from_fn(|tile| {
        let [row, column] = [tile / shape[1], tile % shape[1]];
        c.wrapping_add(row * HEIGHT * stride + column * size_of::<[f32; LINE]>())
    });
    // SAFETY: tiles are configured, and there are so many to read and to write.
    unsafe {
        if keep {
            tiles::load(shape, c, stride)
        } else {
            tiles::clear()
        }
        if steps > 0 {
            <Pair as Tiled>::multiply(shape, operands, steps);
        }
        tiles::store(shape, c, stride);
    }
}
