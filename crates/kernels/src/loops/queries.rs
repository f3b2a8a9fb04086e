//! The operands of attention, and the blocks of queries that it is cut into.

use std::ops::Range;

use super::float_tile::COLUMNS;

/// The operands of attention.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// The queries, of as many keys.
    pub queries: Queries<'a>,
    /// `[batch, kv_heads, keys, head_dim]`.
    pub k: Heads<'a>,
    /// `[batch, kv_heads, keys, value_dim]`.
    pub v: Heads<'a>,
    /// Precision of the factors of both products.
    pub precision: Precision,
}

/// The precision of the factors that attention multiplies: queries by keys, weights by values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Precision {
    /// f32.
    #[default]
    Float32,
    /// bfloat16, with sums in f32.
    BFloat16,
    /// Codes of 8 bits with a scale a row, with sums in i32.
    Int8,
}

impl Precision {
    /// The most queries of a task: several blocks, if factors of the keys and values are made once
    /// for all of them; else short tasks, so that no thread waits long for another's last one.
    pub(crate) fn queries_of_task(self) -> usize {
        if self == Self::BFloat16 { 4 * QUERIES } else { QUERIES }
    }
}

/// The queries of attention, and what they see.
#[derive(Clone, Copy, Debug)]
pub struct Queries<'a> {
    /// `[batch, heads, queries, head_dim]`.
    pub q: Heads<'a>,
    /// Added to the scores, `[batch, heads, queries, keys]`.
    pub mask: Option<Heads<'a>>,
    /// Whether a query sees only the keys up to its position; the last query has the last key's.
    pub causal: bool,
    /// Factor of the scores before the mask is added.
    pub scale: f32,
    /// Sequences.
    pub batch: usize,
    /// Heads of queries in each sequence.
    pub heads: usize,
    /// Heads of keys and values; each serves the same number of neighbouring heads of q.
    pub kv_heads: usize,
}

impl<'a> Attention<'a> {
    /// Attention of queries to these keys and values.
    pub fn new(queries: Queries<'a>, k: Heads<'a>, v: Heads<'a>, precision: Precision) -> Self {
        Self { queries, k, v, precision }
    }

    /// How many keys a query sees, by its index.
    #[inline(always)]
    pub fn seen(&self, query: usize) -> usize {
        self.queries.seen(query, self.k.rows)
    }
}

impl Queries<'_> {
    /// How many of `keys` a query sees, by its index.
    #[inline(always)]
    pub fn seen(&self, query: usize, keys: usize) -> usize {
        if self.causal { (query + 1 + keys).saturating_sub(self.q.rows) } else { keys }
    }
}

/// A matrix for each head of each sequence; elements of a row are neighbours.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a, T = f32> {
    /// The elements of all matrices.
    pub values: Values<'a, T>,
    /// Distances from one sequence, head and row to the next, within a page if there are pages.
    pub strides: [usize; 3],
    /// Rows of a matrix.
    pub rows: usize,
    /// Columns of a matrix.
    pub columns: usize,
}

/// The elements of matrices.
#[derive(Clone, Copy, Debug)]
pub enum Values<'a, T> {
    /// All matrices, somewhere in a slice.
    Whole(&'a [T]),
    /// Successive [`PAGE`] rows of all matrices, a slice for each page.
    Pages(&'a [&'a [T]]),
}

/// Rows of a page: the keys that attention takes at a time.
pub const PAGE: usize = KEYS;

impl<'a, T> Heads<'a, T> {
    /// Matrices of so many rows and columns.
    pub fn new(values: &'a [T], strides: [usize; 3], [rows, columns]: [usize; 2]) -> Self {
        Self { values: Values::Whole(values), strides, rows, columns }
    }

    /// The matrix of a head of a sequence, from a row on, to the end of its page if there are pages.
    #[inline(always)]
    pub fn rows_from(&self, sequence: usize, head: usize, row: usize) -> &'a [T] {
        let [of_batch, of_head, of_row] = self.strides;
        let (values, row) = match self.values {
            Values::Whole(values) => (values, row),
            Values::Pages(pages) => (pages[row / PAGE], row % PAGE),
        };
        &values[sequence * of_batch + head * of_head + row * of_row..]
    }
}

/// Adds a mask to scores; minus infinity excludes, whatever the score is.
#[inline(always)]
pub fn add_mask(scores: &mut [f32], mask: &[f32]) {
    for (score, add) in scores.iter_mut().zip(mask) {
        let excluded = *add == f32::NEG_INFINITY;
        *score = if excluded { *add } else { *score + *add };
    }
}

/// Queries of a block: four of the widest registers.
pub const QUERIES: usize = 4 * COLUMNS;

/// Keys that are taken at a time.
pub const KEYS: usize = 128;

/// Queries of one head: all of a task, or some that are computed together.
#[derive(Clone)]
pub struct QueryBlock {
    pub batch: usize,
    pub head: usize,
    pub queries: Range<usize>,
}

impl QueryBlock {
    /// The queries in blocks of up to [`QUERIES`], of about equally many registers.
    #[inline(always)]
    pub fn blocks(&self) -> impl Iterator<Item = Self> {
        let registers = self.queries.len().div_ceil(COLUMNS);
        let count = registers.div_ceil(QUERIES / COLUMNS);
        (0..count).map(move |block| {
            let bound = |block| self.queries.start + block * registers / count * COLUMNS;
            Self { queries: bound(block)..bound(block + 1).min(self.queries.end), ..*self }
        })
    }

    /// The keys and values of this head, which neighbouring heads of queries may share.
    #[inline(always)]
    pub fn of_keys(&self, attention: &Attention<'_>) -> Self {
        Self {
            head: self.head / (attention.queries.heads / attention.queries.kv_heads),
            ..self.clone()
        }
    }

    /// The matrix of this head from a row on.
    #[inline(always)]
    pub fn rows_from<'a>(&self, heads: &Heads<'a>, row: usize) -> &'a [f32] {
        heads.rows_from(self.batch, self.head, row)
    }
}
