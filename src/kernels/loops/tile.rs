//! The product of activations and packed weights: the loop nest, written once for u8 by int8
//! and for f32 by float16.
//!
//! ```text
//! for each panel of channels                 its codes stay in L1 or L2 while all rows pass
//!   for each tile of up to MR rows           MR * NV sums, begun with the correction by zero points
//!     for each group of inputs               4 of int8, 1 of float16
//!       load NV registers of weights
//!       for each row: broadcast a group of activations, NV dot products
//!     for each row: to f32, fma by scale and bias, store
//! ```
//!
//! It is fast because every weight register that is loaded serves MR rows and every broadcast
//! NV registers, so that dot products, not loads, are the limit; the loop has no branch but its
//! own; dequantization and bias happen in registers, so no i32 matrix exists. Sums that
//! went over the stack on their way out made a product of 384 inputs 4% slower.
//! One row alone uses a weight once, so that bytes are the limit: they are fetched some way ahead.
//!
//! An instruction set is a [`Vector`]: seven closures in a function that has its features.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::activation::Activation;
use super::product::{Group, Part, Pass, Product, Row};
use crate::kernels::packed::Panel;

/// Rows of the highest tile.
pub const MAX_ROWS: usize = 6;

/// One instruction set's register of `LANES` sums, as the operations the loop nest needs.
///
/// `BYTES` are the weights of one group of inputs in each lane. `Acc` is a register of sums, `A`
/// a group of activations in every lane, `B` a register of weights; `A` and `B` may be held in
/// any form that makes `dot` cheap.
pub trait Vector<const LANES: usize, const BYTES: usize>: Copy {
    /// Whether sums are the same in any order.
    const EXACT: bool;
    type Group: Group;
    type Acc: Copy;
    type A: Copy;
    type B: Copy;
    /// The value that a sum begins with: in i32 `-zero_point_a * sum_w - zero_point_w * sum_a`,
    /// which makes it the sum over `(a - zero_point_a) * (w - zero_point_w)`; in f32 0.
    fn start(self, terms: Terms<'_, LANES>) -> Self::Acc;
    fn load(self, weights: &[u8; BYTES]) -> Self::B;
    fn splat(self, group: Self::Group) -> Self::A;
    /// `acc` plus the sum of a group's products in each lane: exact in i32, or one `fma` in f32.
    fn dot(self, acc: Self::Acc, a: Self::A, b: Self::B) -> Self::Acc;
    fn add(self, left: Self::Acc, right: Self::Acc) -> Self::Acc;
    /// Writes `fma(acc as f32, scale_a * scale_w, bias)` of each lane.
    fn finish(self, acc: Self::Acc, terms: Terms<'_, LANES>, out: &mut Lanes<LANES>);
    /// Applies an activation function, out of line: inlined, six of them would crowd the loop.
    fn activate(self, activation: Activation, xs: &mut [f32]);
}

/// A [`Vector`] of closures: written inside a function that has an instruction set's features,
/// they have them too, so that intrinsics need no `unsafe` but for pointers.
///
/// `G` is the group, `EXACT` whether sums are.
#[derive(Clone, Copy)]
pub struct Closures<const EXACT: bool, G, Start, Load, Splat, Dot, Add, Finish, Activate> {
    pub start: Start,
    pub load: Load,
    pub splat: Splat,
    pub dot: Dot,
    pub add: Add,
    pub finish: Finish,
    pub activate: Activate,
    pub group: PhantomData<G>,
}

impl<
    const EXACT: bool,
    const LANES: usize,
    const BYTES: usize,
    G,
    Acc,
    A,
    B,
    Start,
    Load,
    Splat,
    Dot,
    Add,
    Finish,
    Activate,
> Vector<LANES, BYTES> for Closures<EXACT, G, Start, Load, Splat, Dot, Add, Finish, Activate>
where
    G: Group,
    Acc: Copy,
    A: Copy,
    B: Copy,
    Start: Fn(Terms<'_, LANES>) -> Acc + Copy,
    Load: Fn(&[u8; BYTES]) -> B + Copy,
    Splat: Fn(G) -> A + Copy,
    Dot: Fn(Acc, A, B) -> Acc + Copy,
    Add: Fn(Acc, Acc) -> Acc + Copy,
    Finish: Fn(Acc, Terms<'_, LANES>, &mut Lanes<LANES>) + Copy,
    Activate: Fn(Activation, &mut [f32]) + Copy,
{
    const EXACT: bool = EXACT;
    type Group = G;
    type Acc = Acc;
    type A = A;
    type B = B;

    #[inline(always)]
    fn start(self, terms: Terms<'_, LANES>) -> Acc {
        (self.start)(terms)
    }

    #[inline(always)]
    fn load(self, weights: &[u8; BYTES]) -> B {
        (self.load)(weights)
    }

    #[inline(always)]
    fn splat(self, group: G) -> A {
        (self.splat)(group)
    }

    #[inline(always)]
    fn dot(self, acc: Acc, a: A, b: B) -> Acc {
        (self.dot)(acc, a, b)
    }

    #[inline(always)]
    fn add(self, left: Acc, right: Acc) -> Acc {
        (self.add)(left, right)
    }

    #[inline(always)]
    fn finish(self, acc: Acc, terms: Terms<'_, LANES>, out: &mut Lanes<LANES>) {
        (self.finish)(acc, terms, out);
    }

    #[inline(always)]
    fn activate(self, activation: Activation, xs: &mut [f32]) {
        (self.activate)(activation, xs);
    }
}

/// Where a register of results goes.
pub type Lanes<const LANES: usize> = [MaybeUninit<f32>; LANES];

/// The parameters of a row and of a register's channels.
#[derive(Clone, Copy)]
pub struct Terms<'a, const LANES: usize> {
    pub row: Row,
    pub sums: &'a [i32; LANES],
    /// `None` where all are 0.
    pub zero_points: Option<&'a [i32; LANES]>,
    pub scales: &'a [f32; LANES],
    pub bias: &'a [f32; LANES],
}

/// Computes a part of a product, in tiles of at most `MR` rows; `MR` is at most [`MAX_ROWS`].
///
/// # Safety
/// No other thread computes a part that overlaps.
#[inline(always)]
pub unsafe fn multiply<const LANES: usize, const BYTES: usize, const MR: usize, V>(
    product: &Product<'_, V::Group>,
    part: Part,
    vector: V,
) where
    V: Vector<LANES, BYTES>,
{
    let Part {
        rows,
        mut panels,
        pass,
    } = part;
    let activate = |activation: Activation, xs: &mut [f32]| vector.activate(activation, xs);
    let few = |first| panels.len() * product.rhs.panel(first).weights.len() <= BY_TURNS;
    let by_turns = V::EXACT && rows.len() == 1 && pass != Pass::Once;
    let by_turns = by_turns && panels.clone().next().is_some_and(few);
    let next = |panels: &mut Range<usize>| match by_turns && pass == Pass::Back {
        true => panels.next_back(),
        false => panels.next(),
    };
    while let Some(index) = next(&mut panels) {
        let panel = product.rhs.panel(index);
        // After the last one a thread mostly goes on with the part beside this one.
        let next = match rows.len() > 1 && index + 1 < product.rhs.panels() {
            true => product.rhs.panel(index + 1).weights,
            false => panel.weights,
        };
        // One row of floats has too few sums to hide the latency of an `fma`, and their order is
        // set: it goes along several panels at once, if they are equally wide.
        if !V::EXACT && rows.len() == 1 {
            let (mut side, mut after) = ([panel; ABREAST], panels.clone());
            for panel in &mut side[1..] {
                if let Some(index) = after.next() {
                    *panel = product.rhs.panel(index);
                }
            }
            let alike = |other: &Panel<'_>| other.sums.len() == panel.sums.len();
            if panels.len() + 1 >= ABREAST && side.iter().all(alike) {
                // SAFETY: this row and these panels are a part of the part that is ours.
                unsafe {
                    match panel.sums.len() / LANES {
                        1 => abreast::<LANES, BYTES, 1, V>(product, side, rows.start, vector),
                        2 => abreast::<LANES, BYTES, 2, V>(product, side, rows.start, vector),
                        3 => abreast::<LANES, BYTES, 3, V>(product, side, rows.start, vector),
                        _ => abreast::<LANES, BYTES, 4, V>(product, side, rows.start, vector),
                    }
                    for panel in side {
                        product.activate(panel, &rows, activate);
                    }
                }
                panels = after;
                continue;
            }
        }
        let (all, near) = (rows.clone(), by_turns);
        // SAFETY: these rows and this panel are a part of the part that is ours.
        unsafe {
            match panel.sums.len() / LANES {
                1 => column::<LANES, BYTES, MR, 1, V>(product, panel, next, near, all, vector),
                2 => column::<LANES, BYTES, MR, 2, V>(product, panel, next, near, all, vector),
                3 => column::<LANES, BYTES, MR, 3, V>(product, panel, next, near, all, vector),
                _ => column::<LANES, BYTES, MR, 4, V>(product, panel, next, near, all, vector),
            }
            product.activate(panel, &rows, activate);
        }
    }
}

/// Panels that one row of floats passes at once.
const ABREAST: usize = 4;

/// All tiles of one panel of `NV` registers; on the way the weights of the `next` one are fetched,
/// or for a single row what comes soon, unless all of it is `near`.
///
/// # Safety
/// No other thread writes these rows of this panel.
#[inline(always)]
unsafe fn column<const LANES: usize, const BYTES: usize, const MR: usize, const NV: usize, V>(
    product: &Product<'_, V::Group>,
    panel: Panel<'_>,
    next: &[u8],
    near: bool,
    rows: Range<usize>,
    vector: V,
) where
    V: Vector<LANES, BYTES>,
{
    // All about equally high: a low tile has too few sums to hide the latency of a dot product.
    let tiles = rows.len().div_ceil(MR);
    let mut row = rows.start;
    let line = product.rhs.groups() * LINE;
    for left in (1..=tiles).rev() {
        let height = (rows.end - row).div_ceil(left);
        // Each tile has one line a group brought near, until all of the next panel is: no
        // prefetcher knows where it begins, and weights of a large model come from memory.
        let fetched = (tiles - left) * line;
        let ahead = next.get(fetched..).unwrap_or(panel.weights);
        // SAFETY: the rows of a tile are among these, which no other thread writes.
        unsafe {
            match height {
                1 if near => {
                    tile::<LANES, BYTES, NV, 1, true, V>(product, panel, ahead, row, vector)
                }
                1 => tile::<LANES, BYTES, NV, 1, false, V>(product, panel, ahead, row, vector),
                2 => tile::<LANES, BYTES, NV, 2, true, V>(product, panel, ahead, row, vector),
                3 => tile::<LANES, BYTES, NV, 3, true, V>(product, panel, ahead, row, vector),
                4 => tile::<LANES, BYTES, NV, 4, true, V>(product, panel, ahead, row, vector),
                5 => tile::<LANES, BYTES, NV, 5, true, V>(product, panel, ahead, row, vector),
                _ => tile::<LANES, BYTES, NV, 6, true, V>(product, panel, ahead, row, vector),
            }
        }
        row += height;
    }
}

/// Bytes that are fetched at once.
const LINE: usize = 64;

/// Bytes of weights between those that a single row uses and those that are fetched for it.
const DISTANCE: usize = 4_096;

/// Max bytes of weights that one row passes by turns: a few times L1. Beyond that, too little
/// survives in L1 to offset the hardware's prefetchers, which favour ascending addresses.
const BY_TURNS: usize = 256 << 10;

/// A cache that a line is brought to.
enum Cache {
    L1,
    L2,
}

/// Has the line at `offset` brought near, or does nothing.
#[inline(always)]
fn prefetch(to: Cache, bytes: &[u8], offset: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        let line = bytes.as_ptr().wrapping_add(offset).cast();
        // SAFETY: every x86-64 CPU has the instruction, which reads nothing, at any address.
        unsafe {
            match to {
                Cache::L1 => _mm_prefetch::<_MM_HINT_T0>(line),
                Cache::L2 => _mm_prefetch::<_MM_HINT_T1>(line),
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (to, bytes, offset);
}

/// Has the weights that come a while after a group brought to L1: one row uses them faster than
/// they come from L3 or, by the hardware's own prefetchers, from L2. Behind a panel mostly lies
/// the next. Each line asked for right before one is used: all of two groups at once took 3 to 4%
/// longer, and half of the lines 30%.
#[inline(always)]
fn fetch<const BYTES: usize, const NV: usize>(weights: &[[[u8; BYTES]; NV]], group: usize) {
    let weights = weights.as_flattened().as_flattened();
    for line in (0..NV * BYTES).step_by(LINE) {
        prefetch(Cache::L1, weights, group * NV * BYTES + DISTANCE + line);
    }
}

/// One group of inputs: `NV` loads, `MR` broadcasts, `MR * NV` dot products.
///
/// # Safety
/// `rows` and `weights` have that group.
// Indices name the same place in several arrays.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
unsafe fn step<const LANES: usize, const BYTES: usize, const NV: usize, const MR: usize, V>(
    acc: &mut [[V::Acc; NV]; MR],
    rows: &[&[V::Group]; MR],
    weights: &[[[u8; BYTES]; NV]],
    group: usize,
    vector: V,
) where
    V: Vector<LANES, BYTES>,
{
    // Checked, each row would be apart: not on every architecture does the compiler see that the
    // lengths are the loop's.
    // SAFETY: the panel has that group.
    let weights = unsafe { weights.get_unchecked(group) };
    let b: [_; NV] = std::array::from_fn(|v| vector.load(&weights[v]));
    for r in 0..MR {
        // SAFETY: each row has that group.
        let a = vector.splat(unsafe { *rows[r].get_unchecked(group) });
        for v in 0..NV {
            acc[r][v] = vector.dot(acc[r][v], a, b[v]);
        }
    }
}

/// `MR` rows by `NV` registers, with what comes soon fetched for a single row unless it is `NEAR`.
///
/// One row alone has too few sums to hide the latency of a dot product: even and odd groups of
/// inputs are summed apart, where the order of a sum does not matter.
///
/// # Safety
/// No other thread writes these rows of this panel.
// Indices name the same place in several arrays.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
unsafe fn tile<
    const LANES: usize,
    const BYTES: usize,
    const NV: usize,
    const MR: usize,
    const NEAR: bool,
    V,
>(
    product: &Product<'_, V::Group>,
    panel: Panel<'_>,
    ahead: &[u8],
    first_row: usize,
    vector: V,
) where
    V: Vector<LANES, BYTES>,
{
    let groups = product.rhs.groups();
    // Slices of one length: the groups below it are those of each.
    let rows: [_; MR] = std::array::from_fn(|r| product.lhs.groups(first_row + r, groups));
    let weights = &panel.groups::<BYTES, NV>()[..groups];

    let channels = Channels::<LANES, NV>::of(panel);
    let of_rows: [_; MR] = std::array::from_fn(|r| product.lhs.row(first_row + r));
    let mut acc = [[vector.start(channels.terms(Row::PLAIN, 0)); NV]; MR];
    for r in 0..MR {
        for v in 0..NV {
            acc[r][v] = vector.start(channels.terms(of_rows[r], v));
        }
    }
    let mut group = 0;
    if MR == 1 && V::EXACT {
        let mut odd = [channels.start(Row::PLAIN, vector); MR];
        while group + 1 < groups {
            for (acc, group) in [(&mut acc, group), (&mut odd, group + 1)] {
                if !NEAR {
                    fetch(weights, group);
                }
                // SAFETY: both are below `groups`.
                unsafe { step(acc, &rows, weights, group, vector) };
            }
            group += 2;
        }
        for r in 0..MR {
            for v in 0..NV {
                acc[r][v] = vector.add(acc[r][v], odd[r][v]);
            }
        }
    }
    while group < groups {
        if MR > 1 {
            prefetch(Cache::L2, ahead, group * LINE);
        }
        // SAFETY: it is below `groups`.
        unsafe { step(&mut acc, &rows, weights, group, vector) };
        group += 1;
    }
    // SAFETY: no other thread writes these rows of this panel.
    unsafe { store(product, panel, first_row, acc, of_rows, vector) };
}

/// One row by `NV` registers of each of several panels.
///
/// Apart from `tile`: sums in arrays of arrays of arrays, with one panel or with several, would
/// not stay in registers.
///
/// # Safety
/// No other thread writes this row of these panels.
#[inline(always)]
unsafe fn abreast<const LANES: usize, const BYTES: usize, const NV: usize, V>(
    product: &Product<'_, V::Group>,
    panels: [Panel<'_>; ABREAST],
    row: usize,
    vector: V,
) where
    V: Vector<LANES, BYTES>,
{
    let groups = product.rhs.groups();
    let rows = [product.lhs.groups(row, groups)];
    let weights = panels.map(|panel| &panel.groups::<BYTES, NV>()[..groups]);
    let start = |panel| [Channels::<LANES, NV>::of(panel).start(Row::PLAIN, vector)];
    let mut acc = panels.map(start);
    for group in 0..groups {
        for (acc, weights) in acc.iter_mut().zip(weights) {
            fetch(weights, group);
            // SAFETY: it is below `groups`, which is the length of each.
            unsafe { step(acc, &rows, weights, group, vector) };
        }
    }
    for (acc, panel) in acc.into_iter().zip(panels) {
        // SAFETY: no other thread writes this row of these panels.
        unsafe { store(product, panel, row, acc, [Row::PLAIN], vector) };
    }
}

/// Finishes and stores the sums of a tile.
///
/// # Safety
/// No other thread writes these rows of this panel.
// Indices name the same place in several arrays.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
unsafe fn store<const LANES: usize, const BYTES: usize, const NV: usize, const MR: usize, V>(
    product: &Product<'_, V::Group>,
    panel: Panel<'_>,
    first_row: usize,
    acc: [[V::Acc; NV]; MR],
    of_rows: [Row; MR],
    vector: V,
) where
    V: Vector<LANES, BYTES>,
{
    let channels = Channels::<LANES, NV>::of(panel);
    let columns = product.out.columns(panel);
    if columns.len() == NV * LANES {
        for r in 0..MR {
            let row = first_row + r;
            // SAFETY: these rows of this panel are this thread's; the part of the row before is no
            // longer alive.
            let out = unsafe { product.out.part(row..row + 1, columns.clone()) };
            for (v, out) in out.as_chunks_mut().0.iter_mut().enumerate().take(NV) {
                vector.finish(acc[r][v], channels.terms(of_rows[r], v), out);
            }
        }
        return;
    }
    // Padding channels are computed like the others and not stored.
    let mut padded = [[[MaybeUninit::uninit(); LANES]; NV]; MR];
    for r in 0..MR {
        for v in 0..NV {
            vector.finish(acc[r][v], channels.terms(of_rows[r], v), &mut padded[r][v]);
        }
    }
    for (r, values) in padded.iter().enumerate() {
        let row = first_row + r;
        // SAFETY: these rows of this panel are this thread's; the part of the row before is no
        // longer alive.
        let out = unsafe { product.out.part(row..row + 1, columns.clone()) };
        out.copy_from_slice(&values.as_flattened()[..out.len()]);
    }
}

/// The parameters of the channels of a panel of `NV` registers.
#[derive(Clone, Copy)]
struct Channels<'a, const LANES: usize, const NV: usize> {
    sums: &'a [[i32; LANES]; NV],
    zero_points: Option<&'a [[i32; LANES]; NV]>,
    scales: &'a [[f32; LANES]; NV],
    bias: &'a [[f32; LANES]; NV],
}

impl<'a, const LANES: usize, const NV: usize> Channels<'a, LANES, NV> {
    #[inline(always)]
    fn of(panel: Panel<'a>) -> Self {
        Self {
            sums: registers(panel.sums),
            zero_points: (!panel.zero_points.is_empty()).then(|| registers(panel.zero_points)),
            scales: registers(panel.scales),
            bias: registers(panel.bias),
        }
    }

    #[inline(always)]
    fn terms(self, row: Row, v: usize) -> Terms<'a, LANES> {
        Terms {
            row,
            sums: &self.sums[v],
            zero_points: self.zero_points.map(|zero_points| &zero_points[v]),
            scales: &self.scales[v],
            bias: &self.bias[v],
        }
    }

    /// The values that the sums of a row begin with.
    #[inline(always)]
    fn start<const BYTES: usize, V>(self, row: Row, vector: V) -> [V::Acc; NV]
    where
        V: Vector<LANES, BYTES>,
    {
        std::array::from_fn(|v| vector.start(self.terms(row, v)))
    }
}

/// The registers of a panel.
#[inline(always)]
fn registers<T, const LANES: usize, const NV: usize>(of_panel: &[T]) -> &[[T; LANES]; NV] {
    let registers = of_panel.as_chunks().0.first_chunk();
    registers.expect("a panel of NV registers")
}
