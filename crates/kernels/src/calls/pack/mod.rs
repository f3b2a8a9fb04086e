//! Weights on their way from floats to codes or halves, packed or in row order; and those that are
//! codes or halves already.
//!
//! A packed weight is written panel by panel, each by one thread: the floats of a panel's channels
//! are in a cache when they become codes, if their extents were needed for that, and no codes are
//! in memory but the packed ones.

pub mod blocks;
mod ops;

use std::convert::Infallible;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use half::{bf16, f16};

use super::lookup::for_each_row;
use crate::arch::op::take_extents;
use crate::error::{Error, Result};
use crate::isa::Isa;
use crate::loops::encode::{self, Coding, Half};
use crate::loops::rows::Extent;
use crate::packed::{Element, Packed, PanelMut};
use crate::qparams::activation::DynamicConfig;
use crate::reference::Int8;
use crate::sizes;
use crate::threads::Threads;
use ops::{Codings, ElementSource, Halved, Pack, ShiftedCodes, Unchanged, distances, encode_row};

/// Values whose extent is taken together where rows do not matter.
pub const PART: usize = 16_384;

/// Elements below which a weight stays on the caller's thread.
const SERIAL_ELEMENTS: usize = 32_768;

/// The channels of a panel, and their values.
pub struct PanelValues<'a, T = f32> {
    /// The channels.
    pub range: Range<usize>,
    isa: Isa,
    k: usize,
    values: &'a [T],
}

impl PanelValues<'_> {
    /// The extent of each channel.
    ///
    /// # Errors
    /// When a value is NaN or infinite.
    pub fn extents(&self) -> Result<Vec<Extent>> {
        let (k, values) = (self.k, self.values);
        let mut out = vec![Extent::EMPTY; self.range.len()];
        self.isa.run(take_extents(k, values, &mut out));
        if out.iter().all(|extent| extent.finite) {
            Ok(out)
        } else {
            Err(non_finite(k, values, self.range.start))
        }
    }
}

impl<T> PanelValues<'_, T> {
    /// Writes the elements of the channels, in groups of `GROUP` bytes; returns how many were
    /// beyond the range.
    fn pack<const GROUP: usize>(
        &self,
        source: impl ElementSource<T>,
        panel: PanelMut<'_>,
    ) -> usize {
        self.isa.run(Pack::<GROUP, _, _> { k: self.k, values: self.values, source, panel })
    }
}

/// Packs the codes of `values`, `[n, k]`, with a bias per channel; a code that `codings` gives for
/// a channel is an i8. Channels are `gates` stretches of one length.
///
/// # Errors
/// The error of `codings` for the first channel that has one, or of the first channel whose
/// products could leave i32.
///
/// # Panics
/// If there are not `n * k` values, not one coding for each channel, or `gates` do not divide `n`.
pub fn pack_int8<E: From<Error> + Send>(
    isa: Isa,
    k: usize,
    gates: usize,
    values: &[f32],
    bias: &[f32],
    activations: DynamicConfig,
    codings: impl Fn(&PanelValues<'_>) -> Result<Vec<Coding>, E> + Sync,
) -> Result<Packed, E> {
    sizes::check("values, [n, k]", values, &[bias.len(), k]);
    let mut packed = Packed::zeros(isa, Element::Int8(activations), k, gates, bias);
    let shift = i32::from(isa.registers().shift);
    each_panel(&mut packed, values, |channels, panel| {
        let codings = codings(&channels)?;
        sizes::check("codings, [channels]", &codings, &[channels.range.len()]);
        check_sums(&channels, &codings)?;
        let codings: Vec<_> = codings.iter().map(|coding| coding.moved(shift)).collect();
        for (i, coding) in codings.iter().enumerate() {
            panel.scales[i] = coding.scale;
            panel.zero_points[i] = coding.zero_point;
        }
        channels.pack::<4>(Codings(codings), panel);
        Ok::<_, E>(())
    })?;
    Ok(packed.written())
}

/// Packs codes in row order, `[n, k]`, with a bias per channel. Channels are `gates` stretches of
/// one length.
///
/// # Panics
/// If there are not `n * k` codes, or not `n` scales or zero points, or `gates` do not divide `n`.
pub fn pack_codes(
    isa: Isa,
    k: usize,
    gates: usize,
    int8: Int8<'_>,
    bias: &[f32],
    activations: DynamicConfig,
) -> Packed {
    let (shift, n) = (isa.registers().shift, bias.len());
    sizes::check("codes, [n, k]", int8.codes, &[n, k]);
    sizes::check("scales, [n]", int8.scales, &[n]);
    sizes::check("zero points, [n]", int8.zero_points, &[n]);
    let mut packed = Packed::zeros(isa, Element::Int8(activations), k, gates, bias);
    let Ok(()) = each_panel(&mut packed, int8.codes, |channels, panel| {
        let zero_points = &int8.zero_points[channels.range.clone()];
        for (i, channel) in channels.range.clone().enumerate() {
            panel.scales[i] = int8.scales[channel];
            panel.zero_points[i] = int8.zero_points[channel] + i32::from(shift);
        }
        channels.pack::<4>(ShiftedCodes { shift, zero_points }, panel);
        Ok::<_, Infallible>(())
    });
    packed.written()
}

/// The values that halves have no room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutOfRange {
    /// How many values were clamped to the maximum.
    pub saturated: usize,
    /// How many values are not 0 and, with all of their channel, below what has all bits of
    /// precision.
    pub underflowed: usize,
}

/// [`OutOfRange::underflowed`] of a channel: few values of an ordinary channel are looked at.
fn underflowed<H: Half>(channel: &[f32]) -> usize {
    if channel.iter().any(|x| x.abs() >= H::MIN_POSITIVE) {
        0
    } else {
        channel.iter().filter(|x| **x != 0.).count()
    }
}

/// Packs `values`, `[n, k]`, as halves; returns how many were out of their range as well.
///
/// # Errors
/// When a value is NaN or infinite.
///
/// # Panics
/// If there are not `n * k` values, or `gates` do not divide `n`.
pub fn pack_floats<H: Factor>(
    isa: Isa,
    k: usize,
    gates: usize,
    values: &[f32],
    bias: &[f32],
) -> Result<(Packed, OutOfRange)> {
    sizes::check("values, [n, k]", values, &[bias.len(), k]);
    let mut packed = Packed::zeros(isa, H::ELEMENT, k, gates, bias);
    let (saturated, below) = (AtomicUsize::new(0), AtomicUsize::new(0));
    each_panel(&mut packed, values, |channels, panel| {
        channels.extents()?;
        let of_panel = H::pack(&channels, Halved::<H>(PhantomData), panel);
        saturated.fetch_add(of_panel, Ordering::Relaxed);
        let underflowed = channels.values.chunks_exact(k.max(1)).map(underflowed::<H>).sum();
        below.fetch_add(underflowed, Ordering::Relaxed);
        Ok::<_, Error>(())
    })?;
    let out_of_range =
        OutOfRange { saturated: saturated.into_inner(), underflowed: below.into_inner() };
    Ok((packed.written(), out_of_range))
}

/// Packs halves in row order, `[n, k]`, with a bias per channel.
///
/// # Panics
/// If there are not `n * k` halves, or `gates` do not divide `n`.
pub fn pack_halves<H: Factor>(
    isa: Isa,
    k: usize,
    gates: usize,
    halves: &[H],
    bias: &[f32],
) -> Packed {
    sizes::check("halves, [n, k]", halves, &[bias.len(), k]);
    let mut packed = Packed::zeros(isa, H::ELEMENT, k, gates, bias);
    let Ok(()) = each_panel(&mut packed, halves, |channels, panel| {
        H::pack(&channels, Unchanged, panel);
        Ok::<_, Infallible>(())
    });
    packed.written()
}

/// A half that weights of products can have.
pub trait Factor: Half {
    /// The type of the weights.
    const ELEMENT: Element;

    /// Writes the elements of a panel; returns how many were beyond the range.
    fn pack<T>(
        values: &PanelValues<'_, T>,
        source: impl ElementSource<T>,
        panel: PanelMut<'_>,
    ) -> usize;
}

impl Factor for f16 {
    const ELEMENT: Element = Element::Float16;

    fn pack<T>(
        values: &PanelValues<'_, T>,
        source: impl ElementSource<T>,
        panel: PanelMut<'_>,
    ) -> usize {
        values.pack::<2>(source, panel)
    }
}

impl Factor for bf16 {
    const ELEMENT: Element = Element::BFloat16;

    fn pack<T>(
        values: &PanelValues<'_, T>,
        source: impl ElementSource<T>,
        panel: PanelMut<'_>,
    ) -> usize {
        if values.isa.registers().alternate {
            values.pack::<8>(source, panel)
        } else {
            values.pack::<4>(source, panel)
        }
    }
}

/// The codes of `values` in row order, rows of `k`; a code that `coding` gives for a row is a u8.
///
/// # Panics
/// If `values` is not whole rows.
pub fn encode_rows(
    isa: Isa,
    k: usize,
    values: &[f32],
    coding: impl Fn(usize) -> Coding + Sync,
) -> Vec<u8> {
    let mut codes = vec![0; values.len()];
    for_each_row(&mut codes, k, |row, codes| {
        let (values, coding) = (&values[row * k..][..k], coding(row));
        isa.run(encode_row(values, coding, codes));
    });
    codes
}

/// `values` in row order as halves, rows of `k`; returns how many were out of their range as well.
///
/// # Panics
/// If `values` is not whole rows.
pub fn halve_rows<H: Half>(k: usize, values: &[f32]) -> (Vec<H>, OutOfRange) {
    let mut halves = vec![H::default(); values.len()];
    let (saturated, below) = (AtomicUsize::new(0), AtomicUsize::new(0));
    for_each_row(&mut halves, k, |row, halves| {
        let values = &values[row * k..][..k];
        saturated.fetch_add(encode::halve(values, halves), Ordering::Relaxed);
        below.fetch_add(underflowed::<H>(values), Ordering::Relaxed);
    });
    let out_of_range =
        OutOfRange { saturated: saturated.into_inner(), underflowed: below.into_inner() };
    (halves, out_of_range)
}

/// The extent of each `k` values and of the rest, on several threads if that is faster.
pub fn extents(isa: Isa, k: usize, values: &[f32]) -> Vec<Extent> {
    let k = k.max(1);
    let mut out = vec![Extent::EMPTY; values.len().div_ceil(k)];
    let threads = Threads::of_caller();
    let tasks = threads.tasks(values.len(), SERIAL_ELEMENTS);
    let height = out.len().div_ceil(tasks).max(1);
    let parts = values.chunks(height * k).zip(out.chunks_mut(height));
    threads.for_each_item(parts, |(values, extents)| {
        isa.run(take_extents(k, values, extents));
    });
    out
}

/// Checks the values of a weight, in rows of `k`.
///
/// # Errors
/// When one is NaN or infinite.
pub fn check_finite(isa: Isa, k: usize, values: &[f32]) -> Result<()> {
    let extents = extents(isa, PART, values);
    if extents.iter().all(|extent| extent.finite) { Ok(()) } else { Err(non_finite(k, values, 0)) }
}

/// The error that names the first value that is NaN or infinite; `first_row` is the number of the
/// first row.
fn non_finite(k: usize, values: &[f32], first_row: usize) -> Error {
    let found = values.iter().position(|value| !value.is_finite());
    let at = found.unwrap_or_default();
    Error::NonFiniteWeight {
        index: vec![first_row + at / k.max(1), at % k.max(1)],
        value: found.map_or(f32::NAN, |at| values[at]),
    }
}

/// Calls `task` with the channels of each panel, and the panel, on several threads if
/// that is faster; returns the error of the first channels.
fn each_panel<T: Sync, E: Send>(
    packed: &mut Packed,
    values: &[T],
    task: impl Fn(PanelValues<'_, T>, PanelMut<'_>) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let (isa, k) = (packed.isa(), packed.k());
    let failed: Mutex<Option<(usize, E)>> = Mutex::new(None);
    let task = |panel: PanelMut<'_>| {
        let start = panel.start;
        let range = start..start + panel.channels;
        let of_panel =
            PanelValues { values: &values[range.start * k..range.end * k], range, isa, k };
        if let Err(error) = task(of_panel, panel) {
            let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
            if failed.as_ref().is_none_or(|(first, _)| start < *first) {
                *failed = Some((start, error));
            }
        }
    };
    if values.len() < SERIAL_ELEMENTS {
        packed.panels_mut().for_each(task)
    } else {
        Threads::of_caller().for_each_item(packed.panels_mut(), task)
    }
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.map_or(Ok(()), |(_, error)| Err(error))
}

/// Checks that no dot product of a channel's codes can leave i32.
fn check_sums(channels: &PanelValues<'_>, codings: &[Coding]) -> Result<()> {
    const MAX: i64 = 255;
    // No distance exceeds 255.
    if MAX * MAX * channels.k as i64 <= i32::MAX.into() {
        return Ok(());
    }
    let rows = channels.values.chunks_exact(channels.k);
    for ((channel, values), &coding) in channels.range.clone().zip(rows).zip(codings) {
        let got = MAX * channels.isa.run(distances(values, coding));
        if got > i32::MAX.into() {
            return Err(Error::AccumulatorOverflow { channel, got });
        }
    }
    Ok(())
}
