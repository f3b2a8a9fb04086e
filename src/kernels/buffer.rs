//! New vectors without clearing them first, which costs as much as filling them; slices of which
//! several threads have different parts.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

/// A vector of `len` floats which `write` fills.
///
/// # Safety
/// `write` writes every element.
pub(super) unsafe fn filled(len: usize, write: impl FnOnce(&mut [MaybeUninit<f32>])) -> Vec<f32> {
    // SAFETY: the caller's promise.
    let [out] = unsafe { filled_each([len], |[out]| write(out)) };
    out
}

/// Vectors of so many floats which `write` fills.
///
/// # Safety
/// `write` writes every element.
pub(super) unsafe fn filled_each<const N: usize>(
    lens: [usize; N],
    write: impl FnOnce([&mut [MaybeUninit<f32>]; N]),
) -> [Vec<f32>; N] {
    let mut outs = lens.map(Vec::with_capacity);
    let mut rooms = outs.each_mut().map(|out| out.spare_capacity_mut());
    for (room, len) in rooms.iter_mut().zip(lens) {
        // A vector may have more capacity than was asked for.
        *room = &mut std::mem::take(room)[..len];
    }
    write(rooms);
    for (out, len) in outs.iter_mut().zip(lens) {
        // SAFETY: by the contract every element is written.
        unsafe { out.set_len(len) };
    }
    outs
}

/// Floats as such that may not be there yet; only floats are written to them.
pub(super) fn as_uninit(out: &mut [f32]) -> &mut [MaybeUninit<f32>] {
    // SAFETY: initialised floats may be seen as such that may not be.
    unsafe { &mut *(std::ptr::from_mut(out) as *mut [MaybeUninit<f32>]) }
}

/// Copies `from`, of the same length, to `to`, which is then floats.
pub(super) fn copied<'a>(from: &[f32], to: &'a mut [MaybeUninit<f32>]) -> &'a mut [f32] {
    assert_eq!(from.len(), to.len(), "as many elements");
    // SAFETY: both have that many elements, and a mutable borrow overlaps nothing; then every
    // element of `to` is written, and a `MaybeUninit<f32>` is laid out like an `f32`.
    unsafe {
        let start = to.as_mut_ptr().cast::<f32>();
        start.copy_from_nonoverlapping(from.as_ptr(), from.len());
        std::slice::from_raw_parts_mut(start, from.len())
    }
}

/// A slice of which several threads have different parts.
pub(super) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    _slice: PhantomData<&'a mut [T]>,
}

impl<T> Clone for Shared<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<'_, T> {}

// SAFETY: it is an exclusive slice, whose parts are handed out under contracts that keep them
// from overlapping while one of them is written.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub fn new(slice: &'a mut [T]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            _slice: PhantomData,
        }
    }

    pub fn len(self) -> usize {
        self.len
    }

    /// A part to write.
    ///
    /// # Safety
    /// No other part that overlaps this one is alive.
    #[inline(always)]
    pub unsafe fn part(self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: by the assertion the part lies within the slice that is borrowed for `'a`; by
        // the contract nothing aliases it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// A part to read.
    ///
    /// # Safety
    /// No part to write that overlaps this one is alive.
    #[inline(always)]
    pub unsafe fn read(self, range: Range<usize>) -> &'a [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: by the assertion the part lies within the slice that is borrowed for `'a`; by
        // the contract nobody writes to it.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }
}

/// Floats that begin at a cache line, kept from call to call.
#[derive(Default)]
pub(super) struct Aligned(Vec<Line>);

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

const LINE: usize = 16;

/// Greatest buffer that is kept.
const KEPT_LINES: usize = (4 << 20) / size_of::<Line>();

impl Aligned {
    /// Slices of these lengths, each of which begins at a cache line; what they hold is left
    /// from before.
    pub fn split<const N: usize>(&mut self, lens: [usize; N]) -> [&mut [f32]; N] {
        let lines = lens.map(|len| len.div_ceil(LINE));
        let total = lines.iter().sum();
        if self.0.len() < total {
            self.0.resize(total, Line([0.; LINE]));
        }
        let mut rest = &mut self.0[..];
        let mut lines = lines.into_iter();
        lens.map(|len| {
            let (first, others) =
                std::mem::take(&mut rest).split_at_mut(lines.next().unwrap_or_default());
            rest = others;
            // SAFETY: a line is 16 floats and nothing else, so that lines in a row are floats
            // in a row.
            let floats = unsafe {
                std::slice::from_raw_parts_mut(first.as_mut_ptr().cast(), first.len() * LINE)
            };
            &mut floats[..len]
        })
    }

    /// Gives it back for the next call on this thread.
    pub fn keep(self, at: &'static std::thread::LocalKey<std::cell::Cell<Self>>) {
        if self.0.len() <= KEPT_LINES {
            at.set(self);
        }
    }
}
