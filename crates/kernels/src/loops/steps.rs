//! The innermost loops of a product: a group of inputs, and all groups of a sorted panel.

use std::ops::Range;

use super::fetch::{LINE, fetch, prefetch};
use super::product::Row;
use super::vector::Vector;
use crate::packed::{Panel, Sorted};

/// Takes one group of inputs: `NV` loads, `MR` broadcasts, `MR * NV` dot products.
///
/// # Safety
/// The rows have that group.
// Indices name the same place in several arrays.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
pub unsafe fn step<
    const LANES: usize,
    const BYTES: usize,
    const NV: usize,
    const MR: usize,
    V: Vector<LANES, BYTES>,
>(
    vector: V,
    acc: &mut [[V::Acc; NV]; MR],
    rows: &[&[V::Group]; MR],
    group: usize,
    weights: &[[u8; BYTES]; NV],
) {
    let b: [_; NV] = std::array::from_fn(|v| vector.load(&weights[v]));
    for r in 0..MR {
        // SAFETY: each row has that group.
        let a = vector.splat(unsafe { *rows[r].get_unchecked(group) });
        for v in 0..NV {
            acc[r][v] = vector.dot(acc[r][v], a, b[v]);
        }
    }
}

/// Takes the groups of one class of a sorted panel.
///
/// # Safety
/// The weights and the steps have these places, and the rows the groups that steps lead to.
#[inline(always)]
unsafe fn of_class<
    const LANES: usize,
    const BYTES: usize,
    const NV: usize,
    const MR: usize,
    V: Vector<LANES, BYTES>,
>(
    vector: V,
    acc: &mut [[V::Acc; NV]; MR],
    rows: &[&[V::Group]; MR],
    (weights, steps): (&[[[u8; BYTES]; NV]], &[u8]),
    places: Range<usize>,
    ahead: Option<&[u8]>,
) {
    let mut group = 0;
    for place in places {
        match ahead {
            Some(ahead) => prefetch::<2>(ahead.as_ptr(), place * LINE),
            None => fetch(weights, place),
        }
        // SAFETY: the contract is the same.
        unsafe {
            group += usize::from(*steps.get_unchecked(place));
            step(vector, acc, rows, group, weights.get_unchecked(place));
        }
    }
}

/// Takes the groups of a panel in its order, class after class, each by its vector; the weights
/// that come soon, or those `ahead`, are fetched.
///
/// # Safety
/// The rows have the groups of the panel.
#[inline(always)]
pub unsafe fn classes<
    const LANES: usize,
    const BYTES: usize,
    const NV: usize,
    const MR: usize,
    V: Vector<LANES, BYTES>,
>(
    vector: V,
    acc: &mut [[V::Acc; NV]; MR],
    rows: &[&[V::Group]; MR],
    (panel, sorted): (Panel<'_>, Sorted<'_>),
    ahead: Option<&[u8]>,
) {
    let weights = panel.groups::<BYTES, NV>();
    let [first, second, last] = *sorted.counts;
    let places = [weights.len(), sorted.steps.len()];
    assert_eq!(places, [first + second + last; 2], "groups of classes");
    assert!(rows.iter().all(|row| row.len() >= weights.len()), "groups");
    // Products of zero points and sums begin a sum: those of -1 are what sorted groups begin with.
    let row = Row {
        zero_point: -1,
        ..Row::PLAIN
    };
    let starts = Panel {
        sums: sorted.starts,
        zero_points: &[],
        ..panel
    };
    for (v, channels) in starts.channels::<LANES, NV>(0).into_iter().enumerate() {
        let start = vector.start(row, channels);
        for acc in &mut *acc {
            acc[v] = vector.add(acc[v], start);
        }
    }
    let (negated, signed) = (vector.next(), vector.next().next());
    let order = (weights, sorted.steps);
    let (second, last) = (first..first + second, first + second..weights.len());
    // SAFETY: by the assertions there are as many places, and steps lead to groups of a panel.
    unsafe {
        of_class(vector, acc, rows, order, 0..first, ahead);
        of_class(negated, acc, rows, order, second, ahead);
        of_class(signed, acc, rows, order, last, ahead);
    }
}
