//! How products are cut into parts for several threads.

use crate::kernels::arch::Multiply;
use crate::kernels::isa::Isa;
use crate::kernels::loops::product::{Part, Pass, Product};
use crate::kernels::threads::{TASKS_PER_THREAD, Threads};

/// Multiply-adds below which products stay on the caller's thread.
const SERIAL_MACS: usize = 550_000;

/// Multiply-adds below which a thread gets one part: to share the last microsecond costs more.
const SMALL: usize = 1_200_000;

/// Activation bytes of a block of rows: half of a common L2.
const ROW_BLOCK_BYTES: usize = 512 << 10;

/// Rows of a thread from which it is faster with rows of its own, although each thread then reads
/// all weights.
const ROWS_APART: usize = 128;

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
    /// Cuts into at least `wanted` parts for so many threads, if there are as many.
    pub fn new(
        isa: Isa,
        threads: usize,
        m: usize,
        panels: usize,
        row_bytes: usize,
        wanted: usize,
    ) -> Self {
        if m == 0 || panels == 0 {
            return Self {
                m: 0,
                panels: 0,
                height: 1,
                width: 1,
                columns: 0,
                blocks: 0,
            };
        }
        // Rows in blocks that fit in L2, and of many rows as many for each thread, so that it finds
        // what it wrote itself; then panels apart, until there are parts enough; then shorter
        // blocks, of whole tiles.
        let tile_rows = isa.registers().tile_rows;
        let in_l2 = (ROW_BLOCK_BYTES / row_bytes.max(1)).max(tile_rows);
        let mut blocks = m.div_ceil(in_l2);
        if wanted > 1 && m / threads >= ROWS_APART {
            blocks = blocks.next_multiple_of(threads);
        }
        let columns = wanted.div_ceil(blocks).clamp(1, panels);
        let blocks = blocks.max(wanted.div_ceil(columns));
        let height = m.div_ceil(blocks).next_multiple_of(tile_rows);
        let width = panels.div_ceil(columns);
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
            pass: Pass::Once,
        }
    }
}

/// Computes all parts of all products.
pub fn multiply<G: Multiply, const N: usize>(threads: &Threads, products: &[Product<'_, G>; N]) {
    let macs = |p: &Product<'_, G>| p.lhs.m.saturating_mul(p.rhs.n()).saturating_mul(p.rhs.k());
    let work = products.iter().map(macs).fold(0, usize::saturating_add);
    let count = threads.count();
    let wanted = parts_of(count, work, SERIAL_MACS).div_ceil(N);
    let grids = products.each_ref().map(|p| {
        let row_bytes = p.rhs.groups() * size_of::<G>();
        let (isa, m, panels) = (p.rhs.isa(), p.lhs.m, p.rhs.panels());
        Grid::new(isa, count, m, panels, row_bytes, wanted)
    });
    let compute = |mut index: usize| {
        for (product, grid) in products.iter().zip(&grids) {
            if index < grid.parts() {
                // SAFETY: parts of a grid do not overlap, and each index comes once.
                return unsafe { G::multiply(product, grid.part(index)) };
            }
            index -= grid.parts();
        }
    };
    // Weights that are read once a call may still be in the cache from the last one.
    let one_pass = grids.iter().all(|grid| grid.blocks <= 1);
    let backwards = one_pass && products.first().is_some_and(|first| first.rhs.turn());
    let parts = grids.iter().map(Grid::parts).sum();
    match work < SERIAL_MACS {
        true if backwards => (0..parts).rev().for_each(compute),
        true => (0..parts).for_each(compute),
        false => threads.for_each(parts, backwards, compute),
    }
}

/// The number of parts that `work` multiply-adds are cut into for so many threads; one if they are
/// fewer than `serial`.
pub fn parts_of(threads: usize, work: usize, serial: usize) -> usize {
    match threads {
        _ if work < serial => 1,
        1 => 1,
        threads if work < SMALL => threads,
        threads => TASKS_PER_THREAD * threads,
    }
}
