//! The product of activations and packed weights: its entry, and how it is cut
//! into parts for several threads.

use std::mem::MaybeUninit;

use super::quantize::{Activations, Codes, Unencoded};
use crate::arch;
use crate::isa::Isa;
use crate::loops::blocks::RowBlock;
use crate::loops::buffer;
use crate::loops::product::{Group, Pair, Part, Product, Row, Sink};
use crate::packed::Element;
use crate::sizes;
use crate::threads::{TASKS_PER_THREAD, Threads};

/// Multiply-adds below which products stay on the caller's thread.
pub const SERIAL_MACS: usize = 550_000;

/// Multiply-adds below which a thread gets one part: to share the last microsecond costs more.
const SMALL: usize = 1_200_000;

/// Activation bytes of a block of rows: half of a common L2. Smaller blocks are not faster.
const ROW_BLOCK_BYTES: usize = 512 << 10;

/// Rows of a thread from which separate rows, for which each thread reads all weights, are faster
/// than separate panels.
const ROWS_APART: usize = 128;

/// The product of the rows of `lhs` and the weights: `[m, n]`, with bias. Dynamic activations are
/// quantized, and the product dequantized; for bfloat16 weights they are rounded.
///
/// A row of dynamic activations that holds a NaN or an infinity is NaN throughout, and changes no
/// other row. The result does not depend on the instruction set or on the number of threads: it
/// equals [`reference::linear`](crate::reference::linear),
/// [`reference::linear_f16`](crate::reference::linear_f16) or
/// [`reference::linear_bf16`](crate::reference::linear_bf16).
///
/// # Panics
/// If there are not `m * k` activations.
pub fn linear(product: Product<'_, f32>) -> Vec<f32> {
    let [out] = linear_each([product]);
    out
}

/// [`linear`] of several independent products, on all threads at once; rows that they share are
/// quantized once.
///
/// # Panics
/// As [`linear`], and if the weights are of several types.
pub fn linear_each<const N: usize>(products: [Product<'_, f32>; N]) -> [Vec<f32>; N] {
    let mut codes = Codes::take();
    let len = |p: Product<'_, f32>| sizes::length("out", &[p.m, p.rhs.n()]);
    // SAFETY: `linear_uninit` writes every element.
    let outs = unsafe {
        buffer::filled_each(products.map(len), |outs| {
            linear_uninit(products, &mut codes, outs);
        })
    };
    codes.keep();
    outs
}

/// [`linear`] into a buffer of `m * n` elements, without any allocation if `codes` is large
/// enough.
///
/// # Panics
/// As [`linear`], and if `out` does not have `m * n` elements.
pub fn linear_into(product: Product<'_, f32>, codes: &mut Codes, out: &mut [f32]) {
    linear_uninit([product], codes, [buffer::as_uninit(out)]);
}

/// Writes every element of `outs`.
fn linear_uninit<const N: usize>(
    products: [Product<'_, f32>; N],
    codes: &mut Codes,
    outs: [&mut [MaybeUninit<f32>]; N],
) {
    let Some(first) = products.first() else {
        return;
    };
    let element = first.rhs.element();
    let threads = Threads::of_caller();
    // Rows without elements, of which any number may exist, are not quantized.
    let is_empty = outs.iter().all(|out| out.is_empty());
    let outs = sinks(products, element, outs);
    if is_empty {
        return;
    }
    match element {
        Element::Float16 => multiply(&threads, &products, &outs, arch::multiply_f16),
        Element::Int8(_) => encoded::<[u8; 4], N>(&threads, products, codes, &outs),
        Element::BFloat16 => encoded::<Pair, N>(&threads, products, codes, &outs),
        Element::Blocks { .. } => encoded::<RowBlock, N>(&threads, products, codes, &outs),
    }
}

/// Checks the operands of the products, with weights of that type, and returns their sinks.
fn sinks<'a, const N: usize>(
    products: [Product<'_, f32>; N],
    element: Element,
    outs: [&'a mut [MaybeUninit<f32>]; N],
) -> [Sink<'a>; N] {
    let mut outs = outs.into_iter();
    products.map(|Product { m, lhs, rhs, .. }| {
        let out = outs.next().unwrap_or_default();
        rhs.check_element(element);
        sizes::check("lhs, [m, k]", lhs, &[m, rhs.k()]);
        sizes::check("out, [m, n]", out, &[m, rhs.n()]);
        Sink::channels(out, rhs.n())
    })
}

/// The products of the groups that activations become, once for rows that products share.
fn encoded<A: Activations, const N: usize>(
    threads: &Threads,
    products: [Product<'_, f32>; N],
    codes: &mut Codes,
    outs: &[Sink<'_>; N],
) {
    let (mut groups, mut rows) = codes.room_of::<A>(
        products.iter().map(|p| p.m).sum(),
        products.iter().map(|p| p.m * p.rhs.row_groups()).sum(),
    );
    // Row sums are needed if any weight has zero points.
    let sums = products.iter().any(|p| p.rhs.has_zero_points());
    let mut codes_of: [(&[A], &[Row]); N] = [(&[], &[]); N];
    for (i, p) in products.iter().enumerate() {
        let same = |other: &Product<'_, f32>| {
            let is_alike = other.m == p.m && other.rhs.splits() == p.rhs.splits();
            std::ptr::eq(other.lhs, p.lhs) && is_alike
        };
        if let Some(shared) = products[..i].iter().position(same) {
            codes_of[i] = codes_of[shared];
            continue;
        }
        let (first, others) = groups.split_at_mut(p.m * p.rhs.row_groups());
        let (first_rows, other_rows) = rows.split_at_mut(p.m);
        (groups, rows) = (others, other_rows);
        let from = Unencoded { threads: Some(threads), rhs: p.rhs, sums, lhs: p.lhs };
        A::write(from, (&mut *first, &mut *first_rows));
        codes_of[i] = (first, first_rows);
    }
    let encoded =
        std::array::from_fn(|i| products[i].with(products[i].m, codes_of[i].0, codes_of[i].1));
    multiply(threads, &encoded, outs, A::KERNEL);
}

/// Computes all parts of all products, each by the `kernel`.
fn multiply<G: Group, const N: usize>(
    threads: &Threads,
    products: &[Product<'_, G>; N],
    outs: &[Sink<'_>; N],
    kernel: unsafe fn(&Product<'_, G>, &Sink<'_>, Part),
) {
    let macs = |p: &Product<'_, G>| p.m.saturating_mul(p.rhs.n()).saturating_mul(p.rhs.k());
    let work = products.iter().map(macs).fold(0, usize::saturating_add);
    let threads = threads.for_multiply_adds(work);
    let count = threads.count();
    let wanted = parts_of(count, work, SERIAL_MACS);
    let filled = products.iter().filter(|p| p.m > 0).count().max(1);
    let grids = products.each_ref().map(|p| {
        let row_bytes = p.rhs.groups() * size_of::<G>();
        let shape = [p.m, p.rhs.panels()];
        Grid::new(p.rhs.isa(), shape, row_bytes, count, filled, wanted)
    });
    let compute = |mut index: usize| {
        for ((product, out), grid) in products.iter().zip(outs).zip(&grids) {
            if index < grid.parts() {
                // SAFETY: parts of a grid do not overlap, and each index comes once.
                return unsafe { kernel(product, out, grid.part(index)) };
            }
            index -= grid.parts();
        }
    };
    // Weights that are read once a call may still be in the cache from the last call.
    let one_pass = grids.iter().all(|grid| grid.blocks <= 1);
    let backwards = one_pass && products.first().is_some_and(|first| first.rhs.turn());
    let parts = grids.iter().map(Grid::parts).sum();
    if work >= SERIAL_MACS {
        threads.for_each(parts, backwards, compute);
    } else if backwards {
        (0..parts).rev().for_each(compute);
    } else {
        (0..parts).for_each(compute);
    }
}

/// A product of `m` rows as a grid of parts: blocks of rows by groups of panels.
#[derive(Clone, Copy)]
pub struct Grid {
    m: usize,
    panels: usize,
    /// Rows and panels of a part.
    height: usize,
    width: usize,
    /// Groups of panels.
    columns: usize,
    /// Blocks of rows.
    blocks: usize,
}

impl Grid {
    /// Splits one of `products` equal products so that together they yield at least `wanted` parts,
    /// if there are as many, for `threads` threads.
    pub fn new(
        isa: Isa,
        [m, panels]: [usize; 2],
        row_bytes: usize,
        threads: usize,
        products: usize,
        wanted: usize,
    ) -> Self {
        if m == 0 || panels == 0 {
            return Self { m: 0, panels: 0, height: 1, width: 1, columns: 0, blocks: 0 };
        }
        // First blocks of rows that fit in L2 (of many rows an equal number for each thread, which
        // then reads rows it quantized itself); then groups of panels, until there are enough
        // parts; then shorter blocks, of whole tiles.
        let tile_rows = isa.registers().tile_rows;
        let wanted = wanted.div_ceil(products);
        let in_l2 = (ROW_BLOCK_BYTES / row_bytes.max(1)).max(tile_rows);
        let mut blocks = m.div_ceil(in_l2);
        if wanted > 1 && m / threads >= ROWS_APART {
            blocks = blocks.next_multiple_of(threads);
        }
        let columns = wanted.div_ceil(blocks).clamp(1, panels);
        let blocks = blocks.max(wanted.div_ceil(columns));
        let height = m.div_ceil(blocks).next_multiple_of(tile_rows);
        // As wide as the thread that gets most panels allows: of 9 parts one of two threads would
        // get 5.
        let widest = panels.div_ceil(columns);
        let most = |width: &usize| {
            let parts = products * blocks * panels.div_ceil(*width);
            parts.div_ceil(threads) * width
        };
        let width = match threads {
            1 => widest,
            _ => (1..=widest).rev().min_by_key(most).unwrap_or(widest),
        };
        Self {
            m,
            panels,
            height,
            width,
            columns: panels.div_ceil(width),
            blocks: m.div_ceil(height),
        }
    }

    pub fn parts(&self) -> usize {
        self.columns * self.blocks
    }

    pub fn part(&self, index: usize) -> Part {
        let row = index / self.columns * self.height;
        let panel = index % self.columns * self.width;
        Part {
            rows: row..self.m.min(row + self.height),
            panels: panel..self.panels.min(panel + self.width),
            step: None,
        }
    }
}

/// The number of parts that `work` multiply-adds are cut into for `threads` threads; one if there
/// are fewer than `serial`.
pub fn parts_of(threads: usize, work: usize, serial: usize) -> usize {
    match threads {
        _ if work < serial => 1,
        1 => 1,
        threads if work < SMALL => threads,
        threads => TASKS_PER_THREAD * threads,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_get_as_many_panels_of_several_products() {
        let isa = Isa::active().unwrap();
        for (products, panels) in [(1, 12), (3, 12), (3, 6), (3, 17), (2, 5)] {
            let grid = Grid::new(isa, [24, panels], 768, 2, products, 8);
            let widths = |index| grid.part(index).panels.len();
            assert_eq!((0..grid.parts()).map(widths).sum::<usize>(), panels);
            // The panels of the thread that gets most of the widest parts.
            let most = (products * grid.parts()).div_ceil(2) * grid.width;
            let excess = most - (products * panels).div_ceil(2);
            assert!(excess <= 1, "{products} x {panels}: {excess} panels more");
        }
    }
}
