//! Memory that is not cleared before it is written, which would cost as much as writing it.

use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::thread::LocalKey;

use super::float_row::SUMS;

/// A vector of `len` floats that `write` fills.
///
/// # Safety
/// `write` writes every element.
pub unsafe fn filled(len: usize, write: impl FnOnce(&mut [MaybeUninit<f32>])) -> Vec<f32> {
    // SAFETY: `write` writes every element.
    let [out] = unsafe { filled_each([len], |[out]| write(out)) };
    out
}

/// Vectors of these lengths that `write` fills.
///
/// # Safety
/// `write` writes every element.
pub unsafe fn filled_each<const N: usize>(
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
        // SAFETY: `write` has written the `len` elements, and the capacity is that or more.
        unsafe { out.set_len(len) };
    }
    outs
}

/// A view of initialised floats as `MaybeUninit`; only floats are written to it.
pub fn as_uninit(out: &mut [f32]) -> &mut [MaybeUninit<f32>] {
    // SAFETY: `MaybeUninit<f32>` has the layout of f32, and callers write initialised values only.
    unsafe { &mut *(std::ptr::from_mut(out) as *mut [MaybeUninit<f32>]) }
}

/// Rows to write, adjacent or not.
pub struct RowsMut<'a> {
    start: *mut MaybeUninit<f32>,
    count: usize,
    width: usize,
    stride: usize,
    /// Distance from a row to the one [`SUMS`] after it.
    step: usize,
    _xs: PhantomData<&'a mut [MaybeUninit<f32>]>,
}

impl<'a> RowsMut<'a> {
    /// `[count, width]` rows and elements, each row `stride` behind the one before.
    ///
    /// # Safety
    /// They are elements that only their borrower accesses for `'a`.
    #[inline(always)]
    pub unsafe fn new(
        start: *mut MaybeUninit<f32>,
        [count, width]: [usize; 2],
        stride: usize,
    ) -> Self {
        Self { start, count, width, stride, step: SUMS * stride, _xs: PhantomData }
    }

    /// The rows of a matrix `[.., width]`.
    #[inline(always)]
    pub fn of_matrix(xs: &'a mut [f32], width: usize) -> Self {
        let count = xs.len() / width.max(1);
        // SAFETY: all elements are in `xs`.
        unsafe { Self::new(as_uninit(xs).as_mut_ptr(), [count, width], width) }
    }

    /// The rows of a matrix `[SUMS, .., width]` in the order of its middle axis.
    #[inline(always)]
    pub fn of_sums(xs: &'a mut [f32], width: usize) -> Self {
        let count = xs.len() / SUMS / width.max(1);
        Self {
            count: SUMS * count,
            stride: count * width,
            step: width,
            ..Self::of_matrix(xs, width)
        }
    }

    /// Distance from a row to the next, of [`SUMS`] rows.
    #[inline(always)]
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Whether there are `[count, width]` elements.
    #[inline(always)]
    pub fn has(&self, [count, width]: [usize; 2]) -> bool {
        count <= self.count && width <= self.width
    }

    /// Whether each row begins at a multiple of this number of bytes.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub fn is_aligned(&self, bytes: usize) -> bool {
        let starts = [self.stride, self.step].map(|distance| distance * size_of::<f32>());
        let mut starts = starts.into_iter().chain([self.start.addr()]);
        starts.all(|start| start.is_multiple_of(bytes))
    }

    /// These rows from the column `first` on, of at most `columns` columns.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub fn narrow(self, first: usize, columns: usize) -> Self {
        let first = first.min(self.width);
        Self {
            // Without rows it may be any address.
            start: self.start.wrapping_add(first),
            width: columns.min(self.width - first),
            ..self
        }
    }

    /// A row to write.
    ///
    /// # Safety
    /// There are more rows than `row`.
    #[inline(always)]
    pub unsafe fn row(&mut self, row: usize) -> &mut [MaybeUninit<f32>] {
        let place = row % SUMS * self.stride + row / SUMS * self.step;
        // SAFETY: the elements of the row are ours, by the contracts, and the exclusive borrow of
        // all rows borrows them once.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(place), self.width) }
    }
}

/// Floats that begin at a cache line, kept from call to call.
#[derive(Default)]
pub struct Aligned(Vec<FloatLine>);

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct FloatLine([f32; LINE]);

const LINE: usize = 16;

/// Max lines that are kept.
const KEPT_LINES: usize = (4 << 20) / size_of::<FloatLine>();

impl Aligned {
    /// Slices of these lengths, each of which begins at a cache line; what they hold is left
    /// from before.
    pub fn split<const N: usize>(&mut self, lens: [usize; N]) -> [&mut [f32]; N] {
        let lines = lens.map(|len| len.div_ceil(LINE));
        let total = lines.iter().sum();
        if self.0.len() < total {
            self.0.resize(total, FloatLine([0.; LINE]));
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

    /// The buffer that this thread keeps in `at`.
    pub fn take(at: &'static LocalKey<Cell<Self>>) -> Self {
        take(at)
    }

    /// Keeps the buffer for the next call on this thread.
    pub fn keep(self, at: &'static LocalKey<Cell<Self>>) {
        if self.0.len() <= KEPT_LINES {
            keep(at, self);
        }
    }
}

/// The first `len` of some elements, in new memory if there are fewer: memory of zeros that nobody
/// writes takes no time.
pub fn grown<T: Copy>(elements: &mut Vec<T>, len: usize, more: T) -> &mut [T] {
    if elements.len() < len {
        *elements = vec![more; len];
    }
    &mut elements[..len]
}

/// The value that this thread keeps from call to call; a new one in a call within another one, or
/// while the thread ends and its value is gone.
pub fn take<T: Default>(at: &'static LocalKey<Cell<T>>) -> T {
    at.try_with(Cell::take).unwrap_or_default()
}

/// Keeps a value on this thread for the next call, if there can be a next call.
pub fn keep<T>(at: &'static LocalKey<Cell<T>>, value: T) {
    // An error says that the thread ends.
    _ = at.try_with(|kept| kept.set(value));
}
