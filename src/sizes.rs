//! Sizes, checked: no access and no allocation rests on a product that wrapped around, and limits.

use crate::error::{Error, Result};

/// The maximum number of elements: of any dtype, they take at most `isize::MAX` bytes.
const MAX: usize = isize::MAX as usize / size_of::<f64>();

/// The product of `sizes`, if it is at most [`MAX`] with every 0 replaced by 1. Then the product
/// of some of them does not overflow either, in any order.
fn product(sizes: &[usize]) -> Option<usize> {
    let mut product = 1usize;
    for size in sizes {
        product = product.checked_mul((*size).max(1))?;
    }
    let product = (product <= MAX).then_some(product)?;
    Some(if sizes.contains(&0) { 0 } else { product })
}

/// The number of elements of a shape.
///
/// # Errors
/// When there are more than memory can hold, also where a size is 0.
pub(crate) fn elements(op: &'static str, shape: &[usize]) -> Result<usize> {
    product(shape).ok_or_else(|| Error::ShapeMismatch {
        op,
        expected: format!("at most {MAX} elements, a dimension of 0 counted as 1"),
        got: shape.to_vec(),
    })
}

/// The maximum number of elements that are computed from an input without any: no memory stands for
/// them yet.
const FROM_NONE: usize = 1 << 24;

/// [`elements`] of a result that is computed from `input` elements.
///
/// # Errors
/// As [`elements`], and when there are more than [`FROM_NONE`] from none.
pub(crate) fn computed(op: &'static str, shape: &[usize], input: usize) -> Result<usize> {
    match elements(op, shape)? {
        count if input == 0 && count > FROM_NONE => Err(Error::ShapeMismatch {
            op,
            expected: format!("at most {FROM_NONE} elements from an input without any"),
            got: shape.to_vec(),
        }),
        count => Ok(count),
    }
}

/// The maximum number of rows without columns: no byte of a file stands for them, and each has a
/// scale.
const EMPTY_ROWS: usize = 1 << 24;

/// [`elements`] of a weight, `[rows, columns]`.
///
/// # Errors
/// As [`elements`], and when there are more than [`EMPTY_ROWS`] rows without columns.
pub(crate) fn weight(op: &'static str, shape: [usize; 2]) -> Result<usize> {
    match shape {
        [rows, 0] if rows > EMPTY_ROWS => Err(Error::ShapeMismatch {
            op,
            expected: format!("at most {EMPTY_ROWS} rows without columns"),
            got: shape.to_vec(),
        }),
        _ => elements(op, &shape),
    }
}

/// [`elements`] for the kernels, where a wrong size is a panic.
///
/// # Panics
/// Where [`elements`] is an error.
#[track_caller]
pub(crate) fn length(what: &str, shape: &[usize]) -> usize {
    match product(shape) {
        Some(length) => length,
        None => panic!("{what}: expected at most {MAX} elements, got {shape:?}"),
    }
}

/// Checks that a slice has the elements of a shape.
///
/// # Panics
/// If it has another length, or if there are more than memory can hold.
#[track_caller]
pub(crate) fn check(what: &str, slice: &[impl Sized], shape: &[usize]) {
    let (expected, got) = (length(what, shape), slice.len());
    assert!(
        expected == got,
        "{what}: expected {expected} elements, {shape:?}, got {got}"
    );
}

/// Rejects more of something than is allowed.
pub(crate) fn at_most(what: &'static str, max: usize, got: usize) -> Result<()> {
    if got > max {
        Err(Error::InvalidArgument {
            what,
            expected: format!("at most {max}"),
            got: got.to_string(),
        })
    } else {
        Ok(())
    }
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
        for wrong in [
            &[MAX + 1][..],
            &[half, half],
            &[0, usize::MAX],
            &[2 * half, 0, 2 * half],
        ] {
            assert_eq!(product(wrong), None, "{wrong:?}");
            let error = elements("forward", wrong).unwrap_err().to_string();
            assert!(error.contains("forward") && error.contains(&format!("{wrong:?}")));
        }
    }

    #[test]
    fn rows_without_columns_are_limited() {
        assert!(weight("quantize weight", [EMPTY_ROWS, 0]).is_ok_and(|count| count == 0));
        let error = weight("quantize weight", [EMPTY_ROWS + 1, 0]).expect_err("too many");
        assert!(error.to_string().contains("rows without columns"));
    }
}
