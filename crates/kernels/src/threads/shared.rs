//! A slice of which several threads have different parts.

use std::marker::PhantomData;
use std::ops::Range;

/// A slice of which several threads have different parts.
pub struct Shared<'a, T> {
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
// SAFETY: parts to read of several threads may overlap, which `T: Sync` allows; no part to write
// does.
unsafe impl<T: Send + Sync> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), _slice: PhantomData }
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
        // SAFETY: by the assertion the part is within the slice that is borrowed for `'a`; by
        // the contract nothing aliases it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// Writes arrays, each `stride` elements behind the one before, from `first` on.
    ///
    /// # Safety
    /// No part that overlaps one of them is alive.
    #[inline(always)]
    pub unsafe fn scatter<const N: usize>(
        self,
        first: usize,
        stride: usize,
        arrays: impl ExactSizeIterator<Item = [T; N]>,
    ) {
        let count = arrays.len();
        let last = count.saturating_sub(1).checked_mul(stride);
        let end = last.and_then(|last| last.checked_add(first)?.checked_add(N));
        assert!(count == 0 || end.is_some_and(|end| end <= self.len));
        for (i, array) in arrays.take(count).enumerate() {
            // SAFETY: by the assertion it is within the slice that is borrowed for `'a`; by the
            // contract nothing aliases it.
            unsafe { self.start.add(first + i * stride).cast::<[T; N]>().write(array) };
        }
    }

    /// A part to read.
    ///
    /// # Safety
    /// No part to write that overlaps this one is alive.
    #[inline(always)]
    pub unsafe fn read(self, range: Range<usize>) -> &'a [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: by the assertion the part is within the slice that is borrowed for `'a`; by
        // the contract no part to write overlaps it.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::reversed_empty_ranges)]
    fn parts_lie_within_the_slice() {
        let mut values = [1, 2, 3, 4];
        let shared = Shared::new(&mut values);
        assert_eq!(shared.len(), 4);
        // SAFETY: no other part is alive.
        unsafe { shared.part(1..3) }.fill(7);
        // SAFETY: no part to write is alive.
        assert_eq!(unsafe { shared.read(0..4) }, [1, 7, 7, 4]);
        // SAFETY: no part is alive.
        unsafe { shared.scatter(0, 2, [[5], [6]].into_iter()) };
        // SAFETY: no part to write is alive.
        assert_eq!(unsafe { shared.read(0..4) }, [5, 7, 6, 4]);
        for (first, stride) in [(3, 1), (0, 3), (usize::MAX, 1), (1, usize::MAX)] {
            let arrays = [[0, 0], [0, 0]].into_iter();
            // SAFETY: no part is alive.
            let scatter = || unsafe { shared.scatter(first, stride, arrays) };
            assert!(std::panic::catch_unwind(scatter).is_err());
        }
        for range in [0..5, 3..2, 5..5] {
            // SAFETY: no part to write is alive.
            let read = std::panic::catch_unwind(|| _ = unsafe { shared.read(range.clone()) });
            // SAFETY: no other part is alive.
            let part = std::panic::catch_unwind(|| _ = unsafe { shared.part(range.clone()) });
            assert!(read.is_err() && part.is_err());
        }
    }
}
