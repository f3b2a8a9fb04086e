//! New vectors without clearing them first, which costs as much as filling them.

use std::mem::MaybeUninit;

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
