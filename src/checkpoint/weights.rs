//! Which tensors of a checkpoint are quantized weights, and how.

use std::collections::BTreeMap;

use safetensors::Dtype;

use super::config::Quantization;
use super::files::Files;
use super::header::{Entry, invalid};
use super::record;
use super::shard::{Shard, is_float};
use crate::error::Result;
use crate::observer::ZeroPoints;
use crate::qparams::{QDType, QScheme};
use crate::qtable::QTable;
use crate::qweight::RawCodes;
use crate::stored::{Codes, Format, SCALE, UNSIGNED_ZERO_POINT, ZERO_POINT};
use crate::words::brief;

/// The quantized weights of a checkpoint by name.
pub(super) type Weights = BTreeMap<String, Kind>;

/// How a weight is quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// As this crate's layers compute with it.
    Whole(Format),
    /// With a scale for each so many inputs: layers get it dequantized.
    Groups(usize),
}

/// Finds the quantized weights: those that the metadata names, and int8 weights with scales.
///
/// # Errors
/// When a tensor that belongs to one is missing, or has another dtype or shape.
pub(super) fn find(files: &Files, config: &Quantization) -> Result<Weights> {
    let mut weights = Weights::new();
    for shard in &files.shards {
        let Some(json) = shard.header.metadata.get(record::KEY) else {
            continue;
        };
        let recorded = record::read(json).map_err(|e| e.in_file(&shard.path))?;
        for (name, format) in recorded {
            let checked = check(files, &name, format);
            checked.map_err(|e| e.in_file(&shard.path))?;
            let known = weights.get(&name);
            if known.is_some_and(|known| *known != Kind::Whole(format)) {
                let expected = "one format in the metadata of all files";
                return Err(invalid(&name, expected, "two").in_file(&shard.path));
            }
            weights.insert(name, Kind::Whole(format));
        }
    }
    // A weight comes before its scales and zero points, which then belong to one that is known.
    for (name, shard, entry) in files.tensors() {
        if weights.contains_key(name) || belongs(&weights, name) {
            continue;
        }
        let found = match entry.dtype {
            Dtype::I8 => foreign(files, name, entry, config).map(Some),
            _ => check_scale(files, name).map(|()| None),
        };
        if let Some(kind) = found.map_err(|e| e.in_file(&shard.path))? {
            weights.insert(name.to_owned(), kind);
        }
    }
    Ok(weights)
}

/// Whether a tensor is a scale or a zero point of a weight that is known.
pub(super) fn belongs(weights: &Weights, name: &str) -> bool {
    let suffixes = [UNSIGNED_ZERO_POINT, ZERO_POINT, SCALE];
    let of = |suffix| name.strip_suffix(suffix);
    let mut bases = suffixes.into_iter().filter_map(of);
    bases.any(|base| weights.contains_key(base))
}

/// Checks the tensors of a weight against its format.
fn check(files: &Files, name: &str, format: Format) -> Result<()> {
    let Some((_, entry)) = files.find(name) else {
        return Err(invalid(
            name,
            "the weight that the metadata names",
            "no such tensor",
        ));
    };
    let expected = match format.codes {
        Some(_) => Dtype::I8,
        None => format.halves().into(),
    };
    let [n, _] = matrix(name, entry)?;
    if entry.dtype != expected {
        return Err(invalid(name, expected.to_string(), entry.dtype.to_string()));
    }
    let Some(codes) = format.codes else {
        return Ok(());
    };
    let count = if codes.qscheme.is_per_channel() {
        n
    } else {
        n.min(1)
    };
    let is_float_zero = codes.qscheme == QScheme::PerChannelAffineFloatQParams;
    companion(files, name, SCALE, is_float, "a float dtype", count)?;
    if is_float_zero {
        companion(
            files,
            name,
            UNSIGNED_ZERO_POINT,
            is_float,
            "a float dtype",
            count,
        )?;
    } else if !codes.qscheme.is_symmetric() || files.find(&format!("{name}{ZERO_POINT}")).is_some()
    {
        companion(files, name, ZERO_POINT, |d| d == Dtype::I8, "I8", count)?;
    }
    Ok(())
}

/// The scales or zero points of a weight, `count` of them.
fn companion(
    files: &Files,
    name: &str,
    suffix: &str,
    fits: impl Fn(Dtype) -> bool,
    expected: &str,
    count: usize,
) -> Result<()> {
    let tensor = format!("{name}{suffix}");
    let Some((_, entry)) = files.find(&tensor) else {
        return Err(invalid(
            &tensor,
            format!("it beside {:?}", brief(name, 200)),
            "no such tensor",
        ));
    };
    if !fits(entry.dtype) {
        return Err(invalid(&tensor, expected, entry.dtype.to_string()));
    }
    if elements(entry) == count {
        Ok(())
    } else {
        Err(invalid(
            &tensor,
            format!("{count} elements"),
            format!("{:?}", entry.shape),
        ))
    }
}

fn matrix(name: &str, entry: &Entry) -> Result<[usize; 2]> {
    match entry.shape[..] {
        [n, k] => Ok([n, k]),
        _ => {
            let expected = "[out_features, in_features]";
            Err(invalid(name, expected, format!("{:?}", entry.shape)))
        }
    }
}

/// The header has checked that they can be counted.
fn elements(entry: &Entry) -> usize {
    entry.shape.iter().product()
}

/// An int8 weight that others wrote.
fn foreign(files: &Files, name: &str, entry: &Entry, config: &Quantization) -> Result<Kind> {
    let scale = format!("{name}{SCALE}");
    let Some((_, scales)) = files.find(&scale) else {
        let expected = format!("{:?} beside codes", brief(&scale, 200));
        return Err(invalid(name, expected, "no such tensor"));
    };
    let zero_point = format!("{name}{ZERO_POINT}");
    let zeros = files
        .find(&zero_point)
        .map(|(_, zeros)| (&*zero_point, zeros));
    let Scheme::Whole(qscheme) = scheme(name, entry, (&scale, scales), zeros)? else {
        let [_, k] = matrix(name, entry)?;
        return Ok(Kind::Groups(k / scales.shape[1]));
    };
    let dtype = QDType::QInt8;
    Ok(Kind::Whole(Format {
        codes: Some(Codes { dtype, qscheme }),
        bfloat16: false,
        activation: config.activation(name),
        saturated: 0,
    }))
}

/// How the scales of a weight are distributed.
pub(super) enum Scheme {
    Whole(QScheme),
    /// One for each so many inputs.
    Groups,
}

/// The scheme of an int8 weight that others wrote, by the shapes of its tensors.
///
/// # Errors
/// When a tensor has another dtype, or shapes do not fit.
pub(super) fn scheme(
    name: &str,
    entry: &Entry,
    (scale, scales): (&str, &Entry),
    zeros: Option<(&str, &Entry)>,
) -> Result<Scheme> {
    let [n, k] = matrix(name, entry)?;
    if entry.dtype != Dtype::I8 {
        return Err(invalid(name, "I8", entry.dtype.to_string()));
    }
    if !is_float(scales.dtype) {
        return Err(invalid(scale, "a float dtype", scales.dtype.to_string()));
    }
    if let Some((name, zeros)) = zeros {
        if zeros.dtype != Dtype::I8 {
            return Err(invalid(name, "I8", zeros.dtype.to_string()));
        }
        if zeros.shape != scales.shape {
            let expected = format!("{:?}, as the scales", scales.shape);
            return Err(invalid(name, expected, format!("{:?}", zeros.shape)));
        }
    }
    let symmetric = zeros.is_none();
    Ok(Scheme::Whole(match (&scales.shape[..], symmetric) {
        (&([] | [1] | [1, 1]), true) if n != 1 => QScheme::PerTensorSymmetric,
        (&([] | [1] | [1, 1]), false) if n != 1 => QScheme::PerTensorAffine,
        (&([rows] | [rows, 1]), true) if rows == n => QScheme::PerChannelSymmetric,
        (&([rows] | [rows, 1]), false) if rows == n => QScheme::PerChannelAffine,
        (&[rows, groups], _) if rows == n && groups > 1 && k.is_multiple_of(groups) => {
            return Ok(Scheme::Groups);
        }
        (got, _) => {
            let expected = format!("[{n}, 1], [1], or [{n}, groups of {k} inputs]");
            return Err(invalid(scale, expected, format!("{got:?}")));
        }
    }))
}

/// The error of a scale whose weight is not int8.
fn check_scale(files: &Files, name: &str) -> Result<()> {
    let last = name.rsplit('.').next().unwrap_or(name);
    let Some(base) = name.strip_suffix(SCALE) else {
        return Ok(());
    };
    // Of a weight as this crate's layers name them: other tensors may end so too.
    let of_weight =
        last == "weight_scale" || last.starts_with("weight_ih") || last.starts_with("weight_hh");
    if !of_weight {
        return Ok(());
    }
    let got = match files.find(base) {
        None => "no such tensor".to_owned(),
        Some((_, entry)) => entry.dtype.to_string(),
    };
    Err(invalid(
        base,
        format!("I8, beside {:?}", brief(name, 200)),
        got,
    ))
}

impl Kind {
    /// The dequantized weight as f32, `[out_features, in_features]` in row order.
    pub fn dequantize(self, files: &Files, name: &str) -> Result<Vec<f32>> {
        let missing = || invalid(name, "a tensor", "no such tensor");
        let (shard, entry) = files.find(name).ok_or_else(missing)?;
        let shape = matrix(name, entry)?;
        let floats = |suffix: &str| {
            let name = format!("{name}{suffix}");
            match files.find(&name) {
                Some((shard, entry)) => shard.floats(&name, entry, 0..elements(entry)),
                None => Err(invalid(&name, "a tensor", "no such tensor")),
            }
        };
        let zeros = format!("{name}{ZERO_POINT}");
        let zeros = |count| match files.find(&zeros) {
            None => Ok(vec![0; count]),
            Some((shard, entry)) => signed(shard, entry),
        };
        match self {
            Self::Whole(Format { codes: None, .. }) => {
                shard.floats(name, entry, 0..elements(entry))
            }
            Self::Whole(Format {
                codes: Some(Codes { dtype, qscheme }),
                ..
            }) => {
                let scales = floats(SCALE)?;
                let zero_points = match qscheme {
                    QScheme::PerChannelAffineFloatQParams => {
                        ZeroPoints::Float(floats(UNSIGNED_ZERO_POINT)?)
                    }
                    _ => {
                        let mut zeros = zeros(scales.len())?;
                        for zero in &mut zeros {
                            *zero += crate::codes::offset(dtype);
                        }
                        ZeroPoints::Int(zeros)
                    }
                };
                let raw = RawCodes {
                    dtype,
                    qscheme,
                    codes: codes(shard, entry)?,
                    scales,
                    zero_points,
                };
                let table = QTable::of_codes(shape, raw).map_err(|e| e.at(name))?;
                Ok(table.dequantize()?.flatten_all()?.to_vec1()?)
            }
            Self::Groups(size) => {
                let scales = floats(SCALE)?;
                if let Some(scale) = scales.iter().find(|s| !(s.is_finite() && **s > 0.)) {
                    return Err(invalid(
                        &format!("{name}{SCALE}"),
                        "finite positive numbers",
                        scale.to_string(),
                    ));
                }
                let zeros = zeros(scales.len())?;
                let codes = codes(shard, entry)?;
                let group = |(i, code): (usize, &i8)| {
                    let group = i / size;
                    (i32::from(*code) - zeros[group]) as f32 * scales[group]
                };
                Ok(codes.iter().enumerate().map(group).collect())
            }
        }
    }
}

fn codes(shard: &Shard, entry: &Entry) -> Result<Vec<i8>> {
    let bytes = shard.bytes(entry)?.into_iter();
    Ok(bytes.map(|byte| byte.cast_signed()).collect())
}

fn signed(shard: &Shard, entry: &Entry) -> Result<Vec<i32>> {
    Ok(codes(shard, entry)?.into_iter().map(i32::from).collect())
}
