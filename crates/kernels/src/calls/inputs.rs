//! The inputs of a weight as sums of their products, which tell the errors that cost most and those
//! that offset each other.

use crate::arch::op::ops;
use crate::isa::Isa;
use crate::loops::dots;
use crate::loops::feedback::Feedback;
use crate::sizes;
use crate::threads::Threads;

/// Rows of inputs whose products are added at once: so many of a block of columns stay in a cache.
const DEPTH: usize = 128;

/// Rows of the sums that a task computes.
const HEIGHT: usize = 32;

/// Columns that are decomposed together.
const WIDTH: usize = 64;

/// Rows of each side of a tile.
const ROWS: usize = 4;
const COLUMNS: usize = 2;

/// Multiply-adds below which sums stay on the caller's thread.
const SERIAL_MACS: usize = 1_000_000;

/// `X^T X` of the inputs `X`, `[rows, k]`, in f64: the lower triangle, row by row.
#[derive(Clone, Debug)]
pub struct InputProducts {
    k: usize,
    sums: Vec<f64>,
    /// Rows that are to be added, fewer than [`DEPTH`].
    pending: Vec<f32>,
}

/// The factor `L` of `L L^T = X^T X`, by which errors are fed back: see
/// [`pack_blocks`](crate::pack_blocks).
#[derive(Clone, Debug)]
pub struct InputFactor {
    /// The elements below the diagonal, row by row; each column divided by its diagonal element.
    rows: Vec<f32>,
    /// The squares of the diagonal, divided by their mean.
    squares: Vec<f32>,
}

/// The place of a row in a lower triangle.
const fn start(row: usize) -> usize {
    row * (row + 1) / 2
}

impl InputProducts {
    /// The sums before the first inputs.
    pub fn new(k: usize) -> Self {
        Self { k, sums: vec![0.; start(k)], pending: Vec::new() }
    }

    /// Bytes of the sums for `k` inputs.
    pub const fn bytes(k: usize) -> usize {
        start(k) * size_of::<f64>()
    }

    /// Adds the products of these inputs, `[rows, k]`, all finite.
    ///
    /// # Panics
    /// If `inputs` is not whole rows.
    pub fn add(&mut self, isa: Isa, inputs: &[f32]) {
        let k = self.k;
        let rows = inputs.len().checked_div(k).unwrap_or(0);
        sizes::check("inputs, [rows, k]", inputs, &[rows, k]);
        let (mut rest, full) = (inputs, DEPTH * k);
        while self.pending.len() + rest.len() >= full && !rest.is_empty() {
            let (now, later) = rest.split_at(full - self.pending.len());
            self.pending.extend_from_slice(now);
            self.add_pending(isa);
            rest = later;
        }
        self.pending.extend_from_slice(rest);
    }

    /// Adds the products of the rows that wait for it.
    fn add_pending(&mut self, isa: Isa) {
        let k = self.k;
        let mut columns = vec![0.; DEPTH * k];
        for (row, inputs) in self.pending.chunks_exact(k.max(1)).enumerate() {
            for (column, x) in inputs.iter().enumerate() {
                columns[column * DEPTH + row] = f64::from(*x);
            }
        }
        self.pending.clear();
        let blocks = blocks(&mut self.sums, 0, k);
        spread(k * k * DEPTH / 2, blocks, |(first, sums)| {
            isa.run(add_products(first, sums, &columns));
        });
    }

    /// The factor, with `damping` times the mean of the diagonal added to that; `None` if there is
    /// none even so.
    pub fn factor(mut self, isa: Isa, damping: f64) -> Option<InputFactor> {
        let k = self.k;
        self.add_pending(isa);
        let diagonal = |sums: &[f64], i: usize| sums[start(i + 1) - 1];
        let mean = (0..k).map(|i| diagonal(&self.sums, i)).sum::<f64>() / k.max(1) as f64;
        // Inputs that are always 0 tell nothing: then all count the same.
        let add = if mean > 0. { damping * mean } else { 1. };
        for i in 0..k {
            self.sums[start(i + 1) - 1] += add;
        }
        decompose(isa, k, &mut self.sums)?;
        let diagonal: Vec<f64> = (0..k).map(|i| diagonal(&self.sums, i)).collect();
        let squares = diagonal.iter().map(|x| x * x);
        let mean = squares.clone().sum::<f64>() / k.max(1) as f64;
        let mut rows = Vec::with_capacity(start(k.saturating_sub(1)));
        for row in 0..k {
            let elements = &self.sums[start(row)..][..row];
            rows.extend(elements.iter().zip(&diagonal).map(|(x, by)| (x / by) as f32));
        }
        let squares = squares.map(|square| (square / mean) as f32).collect();
        Some(InputFactor { rows, squares })
    }
}

impl InputFactor {
    /// The number of inputs.
    pub fn len(&self) -> usize {
        self.squares.len()
    }

    /// Whether the number of inputs is 0.
    pub fn is_empty(&self) -> bool {
        self.squares.is_empty()
    }

    /// # Panics
    /// If the factor is not of `k` inputs.
    pub(super) fn feedback(&self, k: usize) -> Feedback<'_> {
        sizes::check("squares, [k]", &self.squares, &[k]);
        let Self { rows, squares } = self;
        Feedback { rows, squares }
    }
}

/// The rows from `first` to `end` of a lower triangle, in blocks with the numbers of their first.
fn blocks(sums: &mut [f64], first: usize, end: usize) -> Vec<(usize, &mut [f64])> {
    let mut rest = &mut sums[start(first)..start(end)];
    let mut blocks = Vec::new();
    for first in (first..end).step_by(HEIGHT) {
        let len = start(end.min(first + HEIGHT)) - start(first);
        let (block, after) = std::mem::take(&mut rest).split_at_mut(len);
        blocks.push((first, block));
        rest = after;
    }
    blocks
}

/// Calls `task` with each block: the last, which are the longest, first.
fn spread<T: Send>(macs: usize, blocks: Vec<T>, task: impl Fn(T) + Sync) {
    let blocks = blocks.into_iter().rev();
    if macs < SERIAL_MACS {
        blocks.for_each(task);
    } else {
        Threads::of_caller().for_each_item(blocks, task);
    }
}

/// The number after the last row of a block.
#[inline(always)]
fn rows_end(first: usize, sums: &[f64]) -> usize {
    let mut end = first;
    while start(end) - start(first) < sums.len() {
        end += 1;
    }
    end
}

/// Calls `take` with the rows and columns of each tile that reaches into the triangle. At an edge
/// the last one comes again.
#[inline(always)]
fn each_tile(
    first: usize,
    end: usize,
    [from, to]: [usize; 2],
    mut take: impl FnMut([usize; ROWS], [usize; COLUMNS]),
) {
    for column in (from..to).step_by(COLUMNS) {
        let columns = std::array::from_fn(|j| (column + j).min(to - 1));
        for row in (first..end).step_by(ROWS) {
            if row + ROWS > column {
                take(std::array::from_fn(|i| (row + i).min(end - 1)), columns);
            }
        }
    }
}

/// The elements of a tile that are in the triangle, each once.
#[inline(always)]
fn within(
    rows: [usize; ROWS],
    columns: [usize; COLUMNS],
    tile: [[f64; COLUMNS]; ROWS],
) -> impl Iterator<Item = ([usize; 2], f64)> {
    let all = (0..ROWS).flat_map(|i| (0..COLUMNS).map(move |j| (i, j)));
    let once = all.filter(move |&(i, j)| {
        (i == 0 || rows[i] != rows[i - 1]) && (j == 0 || columns[j] != columns[j - 1])
    });
    once.map(move |(i, j)| ([rows[i], columns[j]], tile[i][j])).filter(|([i, j], _)| i >= j)
}

/// Replaces the lower triangle of a matrix by its Cholesky factor, some columns after the
/// others; `None` if it has none.
fn decompose(isa: Isa, k: usize, sums: &mut [f64]) -> Option<()> {
    for from in (0..k).step_by(WIDTH) {
        let to = k.min(from + WIDTH);
        // The rest that earlier columns leave of the first rows, then their own factor.
        let mut left = vec![0.; from * (to - from)];
        for (row, left) in (from..to).zip(left.chunks_exact_mut(from.max(1))) {
            left.copy_from_slice(&sums[start(row)..][..from]);
        }
        for (first, sums) in blocks(sums, from, to) {
            isa.run(subtract(first, sums, &left, [from, to]));
        }
        let mut triangle = Vec::with_capacity(start(to - from));
        for row in from..to {
            let solved = &mut sums[start(row)..][from..=row];
            isa.run(solve(solved, &triangle));
            let last = solved.len() - 1;
            let square = solved[last];
            if !(square > 0. && square.is_finite()) {
                return None;
            }
            solved[last] = square.sqrt();
            triangle.extend_from_slice(solved);
        }
        let macs = (k - to) * (to - from) * (from + (to - from) / 2);
        spread(macs, blocks(sums, to, k), |(first, sums)| {
            isa.run(subtract(first, sums, &left, [from, to]));
            let mut at = 0;
            for row in first..rows_end(first, sums) {
                let solved = &mut sums[at..][from..to];
                isa.run(solve(solved, &triangle));
                at += row + 1;
            }
        });
    }
    Some(())
}

ops! {
    /// Adds the products of columns of [`DEPTH`] inputs to a block of rows.
    fn add_products(first: usize, sums: &'a mut [f64], columns: &'a [f64]) {
        let column = |i: usize| &columns[i * DEPTH..][..DEPTH];
        let end = rows_end(first, sums);
        each_tile(first, end, [0, end], |rows, columns| {
            let tile = dots::tile(rows.map(column), columns.map(column));
            for ([i, j], sum) in within(rows, columns, tile) {
                sums[start(i) - start(first) + j] += sum;
            }
        });
    }

    /// Subtracts from columns of a block of rows the products with what is left of those columns.
    fn subtract(first: usize, sums: &'a mut [f64], left: &'a [f64], columns: [usize; 2]) {
        let from = columns[0];
        if from == 0 {
            return;
        }
        let end = rows_end(first, sums);
        each_tile(first, end, columns, |rows, columns| {
            let row = |i: usize| &sums[start(i) - start(first)..][..from];
            let left = |i: usize| &left[(i - from) * from..][..from];
            let tile = dots::tile(rows.map(row), columns.map(left));
            for ([i, j], sum) in within(rows, columns, tile) {
                sums[start(i) - start(first) + j] -= sum;
            }
        });
    }

    /// Solves for a row of the factor by the rows above it; a last element on the diagonal, which
    /// no row above has, keeps its square.
    fn solve(row: &'a mut [f64], triangle: &'a [f64]) {
        for i in 0..row.len() {
            let (before, rest) = row.split_at_mut(i);
            match triangle.get(start(i)..start(i + 1)) {
                Some(above) => rest[0] = (rest[0] - dots::dot(before, &above[..i])) / above[i],
                None => rest[0] -= dots::dot(before, before),
            }
        }
    }
}
