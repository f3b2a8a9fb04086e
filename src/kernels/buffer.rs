//! New vectors without clearing them first, which costs as much as filling them.

use std::mem::MaybeUninit;

/// A vector of `len` floats which `write` fills.
///
/// # Safety
/// `write` writes every element.
pub(super) unsafe fn filled(len: usize, write: impl FnOnce(&mut [MaybeUninit<f32>])) -> Vec<f32> {
    let mut out = Vec::with_capacity(len);
    // A vector may have more capacity than was asked for.
    write(&mut out.spare_capacity_mut()[..len]);
    // SAFETY: by the contract every element is written.
    unsafe { out.set_len(len) };
    out
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
