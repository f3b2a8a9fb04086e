//! Sizes, checked: no access and no allocation rests on a product that wrapped around, and limits.

use std::hint::black_box;

use candle_dynquant_kernels::sizes::product;

use crate::error::{Error, Result};

/// The maximum number of elements of a tensor: 1 TiB of f32.
const MAX: u64 = 1 << 38;

/// The number of elements of a shape.
///
/// # Errors
/// When there are more than memory can hold, also where a size is 0.
pub(crate) fn elements(op: &'static str, shape: &[usize]) -> Result<usize> {
    let count = product(shape).filter(|count| *count as u64 <= MAX);
    count.ok_or_else(|| {
        let expected = format!("at most {MAX} elements, a dimension of 0 counted as 1");
        Error::shape(op, expected, shape)
    })
}

/// [`elements`] of f32 that are to be allocated: a failed allocation would end the process.
///
/// # Errors
/// As [`elements`], and when the system has no memory for them.
pub(crate) fn allocated(op: &'static str, shape: &[usize]) -> Result<usize> {
    let count = elements(op, shape)?;
    // Only many are asked for. What nobody looks at, a compiler may leave out.
    let reserve = || black_box(&mut Vec::<f32>::new()).try_reserve_exact(count);
    if count > 1 << 26 && reserve().is_err() {
        return Err(Error::shape(op, "a shape that there is memory for", shape));
    }
    Ok(count)
}

/// The maximum number of elements that are computed from an input without any: no memory stands for
/// them yet.
const FROM_NONE: usize = 1 << 24;

/// [`allocated`] of a result that is computed from `input` elements.
///
/// # Errors
/// As [`allocated`], and when there are more than [`FROM_NONE`] from none.
pub(crate) fn computed(op: &'static str, shape: &[usize], input: usize) -> Result<usize> {
    if input == 0 && product(shape).is_some_and(|count| count > FROM_NONE) {
        let expected = format!("at most {FROM_NONE} elements from an input without any");
        return Err(Error::shape(op, expected, shape));
    }
    allocated(op, shape)
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
        [rows, 0] if rows > EMPTY_ROWS => {
            let expected = format!("at most {EMPTY_ROWS} rows without columns");
            Err(Error::shape(op, expected, &shape))
        }
        _ => elements(op, &shape),
    }
}

pub(crate) fn at_most(what: &'static str, max: usize, got: usize) -> Result<()> {
    if got > max { Err(Error::argument(what, format!("at most {max}"), got)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_beyond_memory_are_refused() {
        for wrong in [&[usize::MAX][..], &[1 << 20, 1 << 20], &[0, usize::MAX]] {
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
