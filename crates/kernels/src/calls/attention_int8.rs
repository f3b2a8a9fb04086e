//! Attention by products of codes: keys and values as codes, and the queries of all heads, cut into
//! blocks.

use std::cell::Cell;
use std::ops::Range;

use crate::arch;
use crate::arch::op::ops;
use crate::isa::Isa;
use crate::loops::attention::{Attention, Heads, Queries};
use crate::loops::attention_int8::{self as loops, BLOCK, MAX_TERMS, ROWS, Rows};
use crate::loops::buffer::{self, Aligned};
use crate::loops::product::{Part, Product, Row, Sink};
use crate::loops::queries::add_mask;
use crate::loops::rows;
use crate::packed::Packed;
use crate::packed::heads::{HEADS, HeadsMut};
use crate::sizes;
use crate::threads::{Shared, TASKS_PER_THREAD, Threads};

/// Keys and values of attention as codes, with a scale a row: a cache, or the operands of one call.
///
/// A row becomes codes when it is appended, by
/// [`quantize_symmetric_row`](crate::reference::quantize_symmetric_row), and is never touched
/// again. There may be room for more rows than there are.
#[derive(Debug)]
pub struct KeyValues {
    batch: usize,
    kv_heads: usize,
    /// Rows of each head.
    len: usize,
    capacity: usize,
    /// Keys are channels.
    keys: Packed,
    /// Columns of the values are channels, rows their inputs.
    values: Packed,
    /// Scales of the rows of values, whole blocks of each head.
    scales: Vec<f32>,
}

impl Clone for KeyValues {
    fn clone(&self) -> Self {
        self.with_capacity(self.capacity)
    }
}

thread_local! {
    static KEY_VALUES: Cell<Option<KeyValues>> = const { Cell::new(None) };
    static ROOM: Cell<TaskCodes> = Cell::default();
    static ALL_SCORES: Cell<Aligned> = Cell::default();
}

/// Max bytes of codes that a thread keeps from call to call.
const KEPT_BYTES: usize = 16 << 20;

/// Max groups of a task's codes that are kept: 4 MiB.
const KEPT_GROUPS: usize = 1 << 20;

/// Keys that become codes together.
const KEYS: usize = 64;

/// Elements below which keys and values become codes on the caller's thread.
const SERIAL_ELEMENTS: usize = 16_384;

/// Multiply-adds below which the caller's thread computes alone.
const SERIAL_MACS: usize = 200_000;

/// Scores of a block of queries: they stay in a common L2 beside the codes of keys.
const SCORES: usize = 16 << 10;

impl KeyValues {
    /// An empty cache with room for `capacity` rows of each head.
    ///
    /// # Panics
    /// If memory cannot hold them, or there are more rows or columns of keys than [`MAX_TERMS`].
    pub fn new(
        isa: Isa,
        [batch, kv_heads]: [usize; 2],
        [head_dim, value_dim]: [usize; 2],
        capacity: usize,
    ) -> Self {
        let empty = || Packed::zeros(isa, HEADS, 0, 1, &[]);
        let empty = Self {
            batch: 0,
            kv_heads: 0,
            len: 0,
            capacity: 0,
            keys: empty(),
            values: empty(),
            scales: Vec::new(),
        };
        empty.cleared(isa, [batch, kv_heads], [head_dim, value_dim], capacity)
    }

    /// [`new`](Self::new) in the memory of `self`.
    fn cleared(
        self,
        isa: Isa,
        [batch, kv_heads]: [usize; 2],
        [head_dim, value_dim]: [usize; 2],
        capacity: usize,
    ) -> Self {
        for (what, got) in [("keys", capacity), ("head_dim", head_dim)] {
            assert!(got <= MAX_TERMS, "{what}: expected at most {MAX_TERMS}, got {got}");
        }
        let heads = sizes::length("heads", &[batch, kv_heads]);
        let stride = capacity.next_multiple_of(BLOCK);
        let keys = self.keys.of_heads(isa, heads, capacity, head_dim);
        let values = self.values.of_heads(isa, heads, value_dim, capacity);
        let mut scales = self.scales;
        scales.resize(sizes::length("scales", &[heads, stride]), 0.);
        Self { batch, kv_heads, len: 0, capacity, keys, values, scales }
    }

    /// A copy of these rows with room for `capacity` of each head; codes are not converted again.
    ///
    /// # Panics
    /// As [`new`](Self::new), and if there are more rows.
    #[must_use]
    pub fn with_capacity(&self, capacity: usize) -> Self {
        let heads = [self.batch, self.kv_heads];
        let value_dim = self.value_dim();
        let mut new = Self::new(self.keys.isa(), heads, [self.keys.k(), value_dim], capacity);
        new.keys.copy_heads(&self.keys, self.len, self.keys.groups());
        new.values.copy_heads(&self.values, value_dim, self.len.div_ceil(4));
        let [to, from] = [&new, self].map(|cache| cache.capacity.next_multiple_of(BLOCK));
        for head in 0..self.batch * self.kv_heads {
            let scales = &self.scales[head * from..][..self.len];
            new.scales[head * to..][..self.len].copy_from_slice(scales);
        }
        new.len = self.len;
        new
    }

    /// Keeps the first rows of each head, at most `len`.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Columns of the values.
    fn value_dim(&self) -> usize {
        let heads = self.batch * self.kv_heads;
        self.values.n().checked_div(heads).unwrap_or(0)
    }

    /// Rows of each head.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the heads are empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Rows of each head that there is room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes of codes and scales, spare capacity included.
    pub fn bytes(&self) -> usize {
        let packed = self.keys.bytes_of_heads() + self.values.bytes_of_heads();
        packed + size_of_val(&*self.scales)
    }

    /// Scores of a query, padding included.
    fn stride(&self) -> usize {
        self.keys.padded(self.len).next_multiple_of(BLOCK)
    }

    /// Appends rows of keys, `[batch, kv_heads, rows, head_dim]`, and of values,
    /// `[batch, kv_heads, rows, value_dim]`.
    ///
    /// # Panics
    /// If the sizes of the operands do not agree, one exceeds its slice, or the rows exceed the
    /// capacity.
    pub fn append(&mut self, k: Heads<'_>, v: Heads<'_>) {
        let k = k.checked("k", self.batch, self.kv_heads);
        let v = v.checked("v", self.batch, self.kv_heads);
        let heads = self.batch * self.kv_heads;
        let value_dim = if heads == 0 { v.columns } else { self.value_dim() };
        assert!(k.columns == self.keys.k(), "k: expected {} columns", self.keys.k());
        assert!(v.columns == value_dim, "v: expected {value_dim} columns");
        assert!(k.rows == v.rows, "k and v: expected one number of keys");
        let room = self.capacity - self.len;
        assert!(k.rows <= room, "keys: expected at most {room} more, got {}", k.rows);
        let all = self.len..self.len + k.rows;
        if heads == 0 || all.is_empty() {
            self.len = all.end;
            return;
        }

        let (isa, groups) = (self.keys.isa(), self.keys.groups());
        let stride = self.capacity.next_multiple_of(BLOCK);
        let scales = Shared::new(&mut self.scales);
        let (keys, values) = (self.keys.heads_mut(), self.values.heads_mut());
        // Parts begin at the same keys whatever is appended: no two have a group of values.
        let first = all.start / KEYS;
        let parts = all.end.div_ceil(KEYS) - first;
        let task = |index: usize| {
            let (head, part) = (index / parts, first + index % parts);
            let rows = all.start.max(part * KEYS)..all.end.min((part + 1) * KEYS);
            let (sequence, kv_head) = (head / self.kv_heads, head % self.kv_heads);
            let row = rows.start - all.start;
            let at = head * stride;
            let mut room = TaskCodes::take();
            let [k, v] = [&k, &v].map(|heads| rows_of(heads, [sequence, kv_head, row]));
            // SAFETY: these rows of the head are this task's.
            let scales = unsafe { scales.part(at + rows.start..at + rows.end) };
            let (to, room_of_codes) = ([head, rows.start], room.codes(groups, v.columns));
            isa.run(encode(to, scales, (k, keys), (v, values), room_of_codes));
            room.keep();
        };
        let elements = heads * all.len() * (k.columns + v.columns);
        let threads = Threads::of_caller();
        let count = threads.for_work(elements, SERIAL_ELEMENTS);
        threads.spread(count, heads * parts, task);
        self.len = all.end;
    }
}

/// The rows of a head of a sequence, from a row on.
fn rows_of<'a>(heads: &Heads<'a>, [sequence, head, row]: [usize; 3]) -> Rows<'a> {
    Rows {
        values: heads.rows_from(sequence, head, row),
        stride: heads.strides[2],
        columns: heads.columns,
    }
}

ops! {
    /// Writes the codes of successive keys and values of a head, from a row `to` on, and scales of
    /// the values, one a key.
    fn encode(
        to: [usize; 2],
        scales: &'a mut [f32],
        keys: (Rows<'a>, HeadsMut<'a>),
        values: (Rows<'a>, HeadsMut<'a>),
        room: (&'a mut [[u8; 4]], &'a mut [u8]),
    ) {
        // SAFETY: these keys and values are the task's.
        unsafe {
            loops::keys::<N>(keys.0, scales.len(), to, room.0, keys.1);
            loops::values::<N>(values.0, to, room.1, scales, values.1);
        }
    }

    /// Writes the codes of queries, with the number of groups of a query; `scale` is the factor of
    /// the scores, and whether sums of codes are asked for.
    fn encode_queries(
        from: Rows<'a>,
        scale: (f32, bool),
        codes: (&'a mut [[u8; 4]], usize),
        of_rows: &'a mut [Row],
    ) {
        loops::queries::<N>(from, scale, codes, of_rows);
    }
}

/// The codes of a task, kept from one to the next on its thread.
#[derive(Default)]
struct TaskCodes {
    queries: Vec<[u8; 4]>,
    weights: Vec<[u8; 4]>,
    /// Parameters of the queries, then of the weights.
    rows: Vec<Row>,
}

impl TaskCodes {
    fn take() -> Self {
        buffer::take(&ROOM)
    }

    fn keep(self) {
        if self.queries.len() + self.weights.len() <= KEPT_GROUPS {
            buffer::keep(&ROOM, self);
        }
    }

    /// Groups of four keys, and codes of four rows of values.
    fn codes(&mut self, groups: usize, width: usize) -> (&mut [[u8; 4]], &mut [u8]) {
        let weights = buffer::grown(&mut self.weights, width, [0; 4]);
        let queries = buffer::grown(&mut self.queries, 4 * groups, [0; 4]);
        (queries, weights.as_flattened_mut())
    }
}

/// [`attention`](super::attention::attention) by codes of this call.
pub(super) fn attention(isa: Isa, attention: Attention<'_>) -> Vec<f32> {
    let Attention { queries, k, v, .. } = attention;
    let heads = [queries.batch, queries.kv_heads];
    let kept = buffer::take(&KEY_VALUES);
    let columns = [k.columns, v.columns];
    let mut kv = match kept {
        Some(kept) => kept.cleared(isa, heads, columns, k.rows),
        None => KeyValues::new(isa, heads, columns, k.rows),
    };
    kv.append(k, v);
    let out = attend(queries, &kv);
    if kv.bytes() <= KEPT_BYTES {
        buffer::keep(&KEY_VALUES, Some(kv));
    }
    out
}

/// Attention of queries to keys and values that are codes already, laid out as
/// `[batch, queries, heads, value_dim]`.
///
/// Each query has the result of [`reference::attention_int8`](crate::reference::attention_int8).
///
/// # Panics
/// If the sizes of the operands do not agree, or one exceeds its slice.
pub fn attend(queries: Queries<'_>, kv: &KeyValues) -> Vec<f32> {
    let (batch, kv_heads, keys) = (queries.batch, queries.kv_heads, kv.len);
    assert!(
        (batch, kv_heads) == (kv.batch, kv.kv_heads),
        "keys and values: expected {kv_heads} heads of {batch} sequences, got {} of {}",
        kv.kv_heads,
        kv.batch
    );
    let value_dim = kv.value_dim();
    let queries = queries.checked(keys, kv.keys.k()).grouped();
    let Queries { q, batch, heads, .. } = queries;
    let len = sizes::length("out", &[batch, heads, q.rows, value_dim]);
    if len == 0 || keys == 0 {
        return vec![0.; len];
    }

    let threads = Threads::of_caller();
    let count = threads.for_work(queries.multiply_adds(keys, value_dim), SERIAL_MACS);
    // Whole tiles of queries for each task, of as many heads as there are.
    let tile = kv.keys.isa().registers().tile_rows;
    let tiles = q.rows.div_ceil(tile);
    let wanted = TASKS_PER_THREAD * count;
    let parts = match count {
        1 => 1,
        _ => wanted.div_ceil(batch * heads).clamp(1, tiles),
    };
    // SAFETY: the parts of all heads of all sequences are all rows and columns of the output, each
    // once: they fill it, and do not overlap.
    unsafe {
        buffer::filled(len, |out| {
            let out = Sink::channels(out, heads * value_dim);
            let task = |index: usize| {
                let (head, part) = (index / parts, index % parts);
                let bound = |part: usize| q.rows.min(part * tiles / parts * tile);
                let task =
                    Task { queries: &queries, kv, sequence: head / heads, head: head % heads };
                task.attend(bound(part)..bound(part + 1), value_dim, &out);
            };
            threads.spread(count, batch * heads * parts, task);
        })
    }
}

/// A head of queries, and its keys and values.
struct Task<'a> {
    queries: &'a Queries<'a>,
    kv: &'a KeyValues,
    sequence: usize,
    head: usize,
}

impl Task<'_> {
    /// Computes some queries, block by block.
    ///
    /// # Safety
    /// No other thread computes any of these queries.
    unsafe fn attend(&self, all: Range<usize>, value_dim: usize, out: &Sink<'_>) {
        let isa = self.kv.keys.isa();
        let tile = isa.registers().tile_rows;
        let stride = self.kv.stride();
        let most = (SCORES / stride).max(1).next_multiple_of(tile);
        let tiles = all.len().div_ceil(tile);
        let blocks = all.len().div_ceil(most);
        let mut room = TaskCodes::take();
        for block in 0..blocks {
            let bound = |block: usize| all.end.min(all.start + block * tiles / blocks * tile);
            // SAFETY: the contract is the same.
            unsafe { self.block(bound(block)..bound(block + 1), value_dim, out, &mut room) };
        }
        room.keep();
    }

    /// # Safety
    /// No other thread computes any of these queries.
    unsafe fn block(
        &self,
        rows: Range<usize>,
        value_dim: usize,
        out: &Sink<'_>,
        room: &mut TaskCodes,
    ) {
        let Self { queries, kv, sequence, head } = *self;
        let isa = kv.keys.isa();
        let height = rows.len();
        // No query sees the keys behind.
        let keys = queries.seen(rows.end - 1, kv.len);
        let stride = kv.stride();
        let (of_key, of_weights) = (kv.keys.groups(), keys.div_ceil(4));
        let kv_head = sequence * queries.kv_heads + head / (queries.heads / queries.kv_heads);
        let codes = buffer::grown(&mut room.queries, height * of_key, [0; 4]);
        let weights = buffer::grown(&mut room.weights, height * of_weights, [0; 4]);
        let of_rows = buffer::grown(&mut room.rows, height, Row::PLAIN);
        let mut all_scores = Aligned::take(&ALL_SCORES);
        let [scores] = all_scores.split([height * stride]);

        let from = rows_of(&queries.q, [sequence, head, rows.start]);
        let scale = (queries.scale, kv.keys.has_zero_points());
        isa.run(encode_queries(from, scale, (codes, of_key), of_rows));
        let part = |panels| Part { rows: 0..height, panels, step: None };
        // SAFETY: the scores are this task's.
        unsafe {
            let padded = kv.keys.padded_n() / kv.keys.gates();
            let sink = Sink::padded(buffer::as_uninit(scores), stride);
            let sink = sink.moved(kv_head * padded, 0);
            let product = product(codes, of_rows, &kv.keys);
            arch::multiply(&product, &sink, part(kv.keys.panels_of(kv_head, keys)));
        }
        let of_scales = kv.capacity.next_multiple_of(BLOCK);
        let scales = &kv.scales[kv_head * of_scales..][..of_scales];
        isa.run(weigh(
            queries,
            [sequence, head, rows.start],
            (scores, stride),
            (kv.len, scales),
            (weights, of_weights),
            of_rows,
            kv.values.has_zero_points(),
        ));
        // SAFETY: the contract is the same.
        unsafe {
            let first = sequence * queries.q.rows + rows.start;
            let sink = out.starting_at(first).moved(kv_head * value_dim, head * value_dim);
            let product = product(weights, of_rows, &kv.values);
            arch::multiply(&product, &sink, part(kv.values.panels_of(kv_head, value_dim)));
        }
        all_scores.keep(&ALL_SCORES);
    }
}

/// The product of rows of codes and the codes of heads, over as many groups as a row has.
fn product<'a>(lhs: &'a [[u8; 4]], rows: &'a [Row], rhs: &'a Packed) -> Product<'a, [u8; 4]> {
    let groups = lhs.len() / rows.len();
    Product { groups, ..Product::of_groups(rows.len(), lhs, rows, rhs) }
}

ops! {
    /// Turns scores of queries, `[queries, stride]`, and the scales of `keys` values into the codes
    /// of weights, with the number of groups of a query; `first` is the sequence, the head and the
    /// first query, `of_sum` whether sums of codes are asked for.
    fn weigh(
        queries: &'a Queries<'a>,
        first: [usize; 3],
        scores: (&'a mut [f32], usize),
        keys: (usize, &'a [f32]),
        codes: (&'a mut [[u8; 4]], usize),
        of_rows: &'a mut [Row],
        of_sum: bool,
    ) {
        let ((all_scores, stride), (keys, scales), (codes, groups)) = (scores, keys, codes);
        let [sequence, head, first] = first;
        let mask = queries.mask.map(|mask| (mask.rows_from(sequence, head, first), mask.strides[2]));
        // One mask for all queries, mostly without padding.
        let is_zero = |(mask, stride): &(&[f32], usize)| {
            let bits = mask[..keys]
                .iter()
                .fold(0, |bits, x| bits | x.to_bits() << 1);
            *stride == 0 && bits == 0
        };
        let mask = mask.filter(|mask| !is_zero(mask));
        let all = of_rows.len();
        for rows in (0..all).step_by(ROWS).map(|row| row..all.min(row + ROWS)) {
            let (mut lens, mut origins) = ([0; ROWS], [0.; ROWS]);
            for (i, row) in rows.clone().enumerate() {
                let seen = queries.seen(first + row, keys);
                lens[i] = seen.next_multiple_of(BLOCK);
                let scores = &mut all_scores[row * stride..][..lens[i]];
                if seen < scores.len() {
                    scores[seen..].fill(f32::NEG_INFINITY);
                }
                if let Some((mask, stride)) = mask {
                    add_mask(&mut scores[..seen], &mask[row * stride..][..seen]);
                }
                origins[i] = loops::origin(scores);
            }
            let mut sums = [(0., 0.); ROWS];
            for (i, row) in rows.clone().enumerate() {
                let scores = &mut all_scores[row * stride..][..lens[i]];
                sums[i] = loops::weigh::<N>(scores, origins[i], scales);
            }
            let factors = sums.map(|(z, greatest)| match greatest {
                0. => (0., 0.),
                greatest => (greatest / 255. / z, 255. / greatest),
            });
            for ((row, len), (scale, to_code)) in rows.zip(lens).zip(factors) {
                let weights = &all_scores[row * stride..][..len];
                let codes = codes[row * groups..][..groups].as_flattened_mut();
                loops::encode_weights::<N>(weights, to_code, codes);
                of_rows[row] = Row {
                    scale,
                    zero_point: 0,
                    sum: if of_sum { rows::sum(codes) } else { 0 },
                    ..Row::PLAIN
                };
            }
        }
    }
}
