//! The innermost loops of a product: a group of inputs, and all groups of a sorted panel.

use super::fetch::{LINE, fetch, prefetch};
use super::product::Row;
use super::vector::Vector;
use crate::packed::{Class, Panel, Sorted, classes_of};

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
    class: Class,
    ahead: Option<&[u8]>,
) {
    let Class {
        places,
        steps: first,
    } = class;
    let (mut group, mut place, mut at) = (0, places.start, first);
    // SAFETY: the contract is the same; there is a byte for each two places.
    unsafe {
        while place + 1 < places.end {
            let pair = *steps.get_unchecked(at);
            for distance in [pair & 15, pair >> 4] {
                group += usize::from(distance);
                fetch_and_step(vector, acc, rows, (group, place), weights, ahead);
                place += 1;
            }
            at += 1;
        }
        if place < places.end {
            group += usize::from(*steps.get_unchecked(at));
            fetch_and_step(vector, acc, rows, (group, place), weights, ahead);
        }
    }
}

/// [`step`] of a group whose weights are at a place; the weights that come soon, or those `ahead`,
/// are fetched.
///
/// # Safety
/// The rows have the group, and the weights the place.
#[inline(always)]
unsafe fn fetch_and_step<
    const LANES: usize,
    const BYTES: usize,
    const NV: usize,
    const MR: usize,
    V: Vector<LANES, BYTES>,
>(
    vector: V,
    acc: &mut [[V::Acc; NV]; MR],
    rows: &[&[V::Group]; MR],
    (group, place): (usize, usize),
    weights: &[[[u8; BYTES]; NV]],
    ahead: Option<&[u8]>,
) {
    match ahead {
        Some(ahead) => prefetch::<2>(ahead.as_ptr(), place * LINE),
        None => fetch(weights, place),
    }
    // SAFETY: the contract is the same.
    unsafe { step(vector, acc, rows, group, weights.get_unchecked(place)) };
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
    let [first, second, last] = classes_of(sorted.counts);
    assert_eq!(last.places.end, weights.len(), "groups of classes");
    let bytes = last.steps + last.places.len().div_ceil(2);
    assert!(bytes <= sorted.steps.len(), "steps of classes");
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
    // SAFETY: by the assertions there are as many places, and steps lead to groups of a panel.
    unsafe {
        of_class(vector, acc, rows, order, first, ahead);
        of_class(negated, acc, rows, order, second, ahead);
        of_class(signed, acc, rows, order, last, ahead);
    }
}
