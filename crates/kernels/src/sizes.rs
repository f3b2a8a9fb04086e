//! Sizes, checked: no access and no allocation rests on a product that wrapped around.

/// The maximum number of elements: of any dtype, they take at most `isize::MAX` bytes.
pub const MAX: usize = isize::MAX as usize / size_of::<f64>();

/// The product of `sizes`, if it is at most [`MAX`] with every 0 replaced by 1. Then the product
/// of some of them does not overflow either, in any order.
pub fn product(sizes: &[usize]) -> Option<usize> {
    let mut product = 1usize;
    for size in sizes {
        product = product.checked_mul((*size).max(1))?;
    }
    let product = (product <= MAX).then_some(product)?;
    Some(if sizes.contains(&0) { 0 } else { product })
}

/// The number of elements of a shape.
///
/// # Panics
/// If there are more than memory can hold, also where a size is 0.
#[track_caller]
pub fn length(what: &str, shape: &[usize]) -> usize {
    match product(shape) {
        Some(length) => length,
        None => panic!("{what}: expected at most {MAX} elements, got {shape:?}"),
    }
}

/// Checks that a slice has the elements of a shape.
///
/// # Panics
/// If it has not, or if there are more than memory can hold.
#[track_caller]
pub fn check(what: &str, slice: &[impl Sized], shape: &[usize]) {
    let (expected, got) = (length(what, shape), slice.len());
    assert!(expected == got, "{what}: expected {expected} elements, {shape:?}, got {got}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_exact_or_refused() {
        assert_eq!(product(&[]), Some(1));
        assert_eq!(product(&[3, 0, 5]), Some(0));
        assert_eq!(product(&[MAX]), Some(MAX));
        // Two of them are one too many for a usize.
        let half = 1 << (usize::BITS / 2);
        for wrong in [&[MAX + 1][..], &[half, half], &[0, usize::MAX], &[2 * half, 0, 2 * half]] {
            assert_eq!(product(wrong), None, "{wrong:?}");
        }
    }
}
