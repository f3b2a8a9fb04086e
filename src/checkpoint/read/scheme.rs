//! How the scales of an int8 weight are distributed, by the shapes of its tensors.

use safetensors::Dtype;

use super::files::Files;
use super::header::{Entry, invalid};
use crate::error::Result;
use crate::qparams::QScheme;

/// The rows of a weight and their length; the rows of experts follow each other.
pub fn matrix(name: &str, entry: &Entry) -> Result<[usize; 2]> {
    match &entry.shape[..] {
        [rows @ .., k] if !rows.is_empty() => Ok([rows.iter().product(), *k]),
        got => Err(invalid(name, "[.., out_features, in_features]", format!("{got:?}"))),
    }
}

/// How the scales of a weight are distributed.
pub enum Scheme {
    Whole(QScheme),
    /// A scale for each group of inputs.
    Groups,
}

/// The scheme of an int8 weight that others wrote, by the shapes of its tensors.
///
/// # Errors
/// When a tensor has another dtype, or shapes do not fit.
pub fn scheme(
    name: &str,
    entry: &Entry,
    (scale, scales): (&str, &Entry),
    zeros: Option<(&str, &Entry)>,
) -> Result<Scheme> {
    let [n, k] = matrix(name, entry)?;
    if entry.dtype != Dtype::I8 {
        return Err(invalid(name, "I8", entry.dtype));
    }
    scales.check_float(scale)?;
    if let Some((name, zeros)) = zeros {
        if zeros.dtype != Dtype::I8 {
            return Err(invalid(name, "I8", zeros.dtype));
        }
        if zeros.shape != scales.shape {
            let expected = format!("{:?}, as the scales", scales.shape);
            return Err(invalid(name, expected, format!("{:?}", zeros.shape)));
        }
    }
    let symmetric = zeros.is_none();
    if let [rows @ .., _] = &entry.shape[..]
        && rows.len() > 1
    {
        // Experts have one for each row of each.
        if !matches!(&scales.shape[..], [of @ .., 1] if of == rows) {
            let expected = format!("[out_features, in_features], or scales {rows:?} x 1");
            let got = format!("{:?} and {:?}", entry.shape, scales.shape);
            return Err(invalid(name, expected, got));
        }
        return Ok(Scheme::Whole(QScheme::integer(true, symmetric)));
    }
    match scales.shape[..] {
        [] | [1] | [1, 1] if n != 1 => Ok(Scheme::Whole(QScheme::integer(false, symmetric))),
        [rows] | [rows, 1] if rows == n => Ok(Scheme::Whole(QScheme::integer(true, symmetric))),
        [rows, groups] if rows == n && groups > 1 && k.is_multiple_of(groups) => Ok(Scheme::Groups),
        ref got => {
            let expected = format!("[{n}, 1], [1], or [{n}, groups of {k} inputs]");
            Err(invalid(scale, expected, format!("{got:?}")))
        }
    }
}

/// Whether the groups of inputs, by the number of each in `name`, follow one another.
///
/// # Errors
/// When it is not a vector of an i32 for each of `k` inputs, or a number is not the number of a
/// group.
pub fn is_in_order(files: &Files, name: &str, groups: usize, k: usize) -> Result<bool> {
    let (shard, entry) = files.get(name, "the group of each input")?;
    entry.check(name, Dtype::I32, &[k], ", a group for each input")?;
    let numbers = shard.numbers(entry)?;
    let is_group = |number: &i32| usize::try_from(*number).is_ok_and(|number| number < groups);
    if let Some(index) = numbers.iter().position(|number| !is_group(number)) {
        let expected = format!("numbers of {groups} groups, from 0 on");
        return Err(invalid(name, expected, format!("{} at index {index}", numbers[index])));
    }
    let size = k.checked_div(groups).unwrap_or(0).max(1);
    let mut numbers = numbers.iter().enumerate();
    Ok(numbers.all(|(input, number)| usize::try_from(*number) == Ok(input / size)))
}
