//! Which tensors of a checkpoint are quantized weights, and how.

use std::collections::BTreeMap;
use std::ops::Range;

use safetensors::Dtype;

use super::config::Quantization;
use super::files::Files;
use super::header::{Encoding, Entry, invalid};
use super::record::{self, View};
use super::shard::Shard;
use crate::error::Result;
use crate::kernels::Precision;
use crate::observer::ZeroPoints;
use crate::qconfig::{BLOCK, DynamicConfig, GroupConfig, GroupScheme, IntType};
use crate::qparams::{QDType, QScheme};
use crate::weight::origin::{Part, Parts, Values};
use crate::weight::{
    Coded, Codes, Format, G_IDX, Grouped, MINIMUM, Numbers, SCALE, UNSIGNED_ZERO_POINT, ZERO_POINT,
};
use crate::words::brief;

pub type Weights = BTreeMap<String, Kind>;

/// Parts of tensors that are quantized beside them: by the tensor the names of the tensors
/// that hold them.
pub type Views = BTreeMap<String, BTreeMap<Part, String>>;

/// The precision of attention by its name, where it is not float32.
pub type Precisions = BTreeMap<String, Precision>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The format that this crate's layers compute with.
    Whole(Format),
    /// A scale for each group of this many inputs, which may be in any order: layers get the weight
    /// dequantized.
    Groups(usize),
}

/// Finds the quantized weights, which the metadata names or which are int8 weights with scales; and
/// attention of fewer bits.
///
/// # Errors
/// When a tensor that belongs to a weight is missing, or has another dtype or shape.
pub fn find(files: &Files, config: &Quantization) -> Result<(Weights, Views, Precisions)> {
    let (mut weights, mut views) = (Weights::new(), Views::new());
    let mut attention = Precisions::new();
    for shard in &files.shards {
        let Some(json) = shard.header.metadata.get(record::KEY) else { continue };
        let recorded = record::read(json).map_err(|e| e.in_file(&shard.path))?;
        for (name, precision) in recorded.attention {
            if *attention.entry(name.clone()).or_insert(precision) != precision {
                let expected = "one precision of attention in the metadata of all files";
                return Err(invalid(&name, expected, "two").in_file(&shard.path));
            }
        }
        for (name, view) in recorded.views {
            let checked = check_view(files, &name, &view, &recorded.weights);
            checked.map_err(|e| e.in_file(&shard.path))?;
            views.entry(view.of).or_default().insert(view.part, name);
        }
        for (name, format) in recorded.weights {
            check(files, &name, format).map_err(|e| e.in_file(&shard.path))?;
            let known = weights.get(&name);
            if known.is_some_and(|known| *known != Kind::Whole(format)) {
                let expected = "one format in the metadata of all files";
                return Err(invalid(&name, expected, "two").in_file(&shard.path));
            }
            weights.insert(name, Kind::Whole(format));
        }
    }
    let mut names = views.values().flat_map(|parts| parts.values());
    if let Some(name) = names.find(|name| views.contains_key(*name)) {
        let error = invalid(name, "a view of a tensor that is none", "a view of a view");
        return Err(error.in_file(files.path()));
    }
    // A weight comes before its scales and zero points, which then belong to a known weight.
    for (name, shard, entry) in files.tensors() {
        if let Some((kind, suffix)) = owner(&weights, name) {
            if !kind.reads(suffix) {
                let expected = "no such tensor beside a weight of this format";
                return Err(invalid(name, expected, entry.kind()).in_file(&shard.path));
            }
            continue;
        }
        if weights.contains_key(name) {
            continue;
        }
        let found = match entry.dtype {
            Dtype::I8 => foreign(files, name, entry, config)
                .and_then(|kind| check_module(files, name, entry).map(|()| Some(kind))),
            _ => check_scale(files, name).map(|()| None),
        };
        if let Some(kind) = found.map_err(|e| e.in_file(&shard.path))? {
            weights.insert(name.to_owned(), kind);
        }
    }
    Ok((weights, views, attention))
}

/// Checks that a view is a weight of the shape of a part of a tensor.
fn check_view(
    files: &Files,
    name: &str,
    view: &View,
    weights: &BTreeMap<String, Format>,
) -> Result<()> {
    let elements = files.find(&view.of).map(|(_, entry)| entry.elements());
    if view.part.end().is_none_or(|end| elements.is_none_or(|elements| end > elements)) {
        let expected = format!("a tensor with the part {:?}", view.part);
        let got = elements.map_or("no such tensor".to_owned(), |count| format!("{count} elements"));
        return Err(invalid(&view.of, expected, got));
    }
    let entry = files.find(name).map(|(_, entry)| entry);
    match entry.filter(|_| weights.contains_key(name)) {
        Some(entry) if entry.shape == view.part.shape => Ok(()),
        Some(entry) => {
            Err(invalid(name, format!("{:?}", view.part.shape), format!("{:?}", entry.shape)))
        }
        None => Err(invalid(name, "a quantized weight, as of a view", "none")),
    }
}

/// The weights of whose scales or zero points a tensor is by its name, and the rest of the name.
pub fn owners(name: &str) -> impl Iterator<Item = (&str, &'static str)> {
    let suffixes = [SCALE, ZERO_POINT, UNSIGNED_ZERO_POINT, MINIMUM, G_IDX].into_iter();
    suffixes.filter_map(|suffix| Some((name.strip_suffix(suffix)?, suffix)))
}

/// The known weight of whose scales or zero points a tensor is, and the rest of the name.
fn owner(weights: &Weights, name: &str) -> Option<(Kind, &'static str)> {
    owners(name).find_map(|(base, suffix)| Some((*weights.get(base)?, suffix)))
}

/// Whether a tensor is a scale or a zero point of a weight that is known.
pub fn belongs(weights: &Weights, name: &str) -> bool {
    owner(weights, name).is_some()
}

fn check(files: &Files, name: &str, format: Format) -> Result<()> {
    let (_, entry) = files.get(name, "the weight that the metadata names")?;
    let expected = format.half().map(|half| half.facts().dtype.into()).unwrap_or(Dtype::I8);
    let [n, _] = matrix(name, entry)?;
    if entry.dtype != expected {
        return Err(invalid(name, expected, entry.dtype));
    }
    if let Some(groups) = format.groups() {
        return check_groups(files, name, entry, groups);
    }
    let Some(codes) = format.codes() else { return Ok(()) };
    let count = if codes.qscheme.is_per_channel() { n } else { n.min(1) };
    companion(files, name, SCALE, [n, count])?;
    match codes.qscheme {
        QScheme::PerChannelAffineFloatQParams => {
            companion(files, name, UNSIGNED_ZERO_POINT, [n, count])
        }
        qscheme if qscheme.is_symmetric() && !has(files, name, ZERO_POINT) => Ok(()),
        _ => companion(files, name, ZERO_POINT, [n, count]),
    }
}

fn check_groups(files: &Files, name: &str, entry: &Entry, groups: GroupConfig) -> Result<()> {
    let [n, k] = matrix(name, entry)?;
    let packed = entry.encoding.is_int4();
    if packed != (groups.dtype == IntType::Int4) {
        let got = if packed { IntType::Int4 } else { IntType::Int8 };
        return Err(invalid(name, groups.dtype, got));
    }
    if has(files, name, G_IDX) {
        let expected = "none beside a weight whose groups are in order";
        let order = format!("{name}{G_IDX}");
        return Err(invalid(&order, expected, "inputs in another order"));
    }
    let count = n.checked_mul(groups.count(k));
    let count = count.ok_or_else(|| invalid(name, "groups that can be counted", "more"))?;
    companion(files, name, SCALE, [n, count])?;
    groups.scheme.suffix().map_or(Ok(()), |suffix| companion(files, name, suffix, [n, count]))
}

fn has(files: &Files, name: &str, suffix: &str) -> bool {
    files.find(&format!("{name}{suffix}")).is_some()
}

/// Checks the scales, zero points or minimums of a weight of `n` rows, `count` of them.
fn companion(files: &Files, name: &str, suffix: &str, [n, count]: [usize; 2]) -> Result<()> {
    let tensor = format!("{name}{suffix}");
    let (_, entry) = files.get(&tensor, format!("it beside {:?}", brief(name, 200)))?;
    match suffix {
        ZERO_POINT if entry.dtype != Dtype::I8 => return Err(invalid(&tensor, "I8", entry.dtype)),
        ZERO_POINT => {}
        _ => entry.check_float(&tensor)?,
    }
    let of_row = count.checked_div(n).unwrap_or(0).max(1);
    let in_rows = entry.shape.len() < 2 || entry.shape.last() == Some(&of_row);
    if entry.elements() == count && in_rows {
        return Ok(());
    }
    let expected = format!("{count} elements, {of_row} in a row");
    Err(invalid(&tensor, expected, format!("{:?}", entry.shape)))
}

/// An int8 weight that others wrote.
fn foreign(files: &Files, name: &str, entry: &Entry, config: &Quantization) -> Result<Kind> {
    let scale = format!("{name}{SCALE}");
    let Some((_, scales)) = files.find(&scale) else {
        let expected = format!("{:?} beside codes", brief(&scale, 200));
        return Err(invalid(name, expected, "no such tensor"));
    };
    let zero_point = format!("{name}{ZERO_POINT}");
    let zeros = files.find(&zero_point).map(|(_, zeros)| (&*zero_point, zeros));
    if let Encoding::Blocks(blocks) = entry.encoding
        && !entry.encoding.is_int4()
    {
        count_groups(matrix(name, entry)?, &scale, scales)?;
        let mut groups = GroupConfig::INT8;
        groups.group_size = Some(blocks.dtype.elements);
        return Ok(multiplied(groups));
    }
    if entry.encoding.is_int4() || matches!(entry.encoding, Encoding::Packed(_)) {
        let like = if entry.encoding.is_int4() { GroupConfig::INT4 } else { GroupConfig::INT8 };
        let like = GroupConfig { per_row: config.is_per_row(name), ..like };
        return packed(files, (name, entry), (&scale, scales), like);
    }
    let Scheme::Whole(qscheme) = scheme(name, entry, (&scale, scales), zeros)? else {
        let [_, k] = matrix(name, entry)?;
        let (groups, order) = (scales.shape[1], format!("{name}{G_IDX}"));
        if files.find(&order).is_some() {
            is_in_order(files, &order, groups, k)?;
        }
        return Ok(Kind::Groups(k / groups));
    };
    let codes = Numbers::Codes(Codes { dtype: QDType::QInt8, qscheme });
    let activation = config.activation(name);
    Ok(Kind::Whole(
        activation.map_or_else(|| codes.table(), |activation| codes.multiplied(activation)),
    ))
}

/// Checks that a module with a quantized weight has no tensors but those that are read, such as the
/// factors of a smoothed activation. GGUF's blocks hold their scales, and its names are of no modules.
fn check_module(files: &Files, name: &str, entry: &Entry) -> Result<()> {
    let module = name.strip_suffix(".weight");
    let Some(module) = module.filter(|_| !matches!(entry.encoding, Encoding::Blocks(_))) else {
        return Ok(());
    };
    for (tensor, entry) in files.below(&format!("{module}.")) {
        let last = &tensor[module.len() + 1..];
        let is_read =
            matches!(last, "weight" | "bias") || owners(last).any(|(owner, _)| owner == "weight");
        if !(is_read || last.contains('.')) {
            let expected = "a weight, its scales and a bias alone in a quantized module";
            return Err(invalid(tensor, expected, entry.kind()));
        }
    }
    Ok(())
}

/// The number of groups of a channel, by the scales of a weight.
fn count_groups([n, k]: [usize; 2], scale: &str, scales: &Entry) -> Result<usize> {
    match scales.shape[..] {
        [rows, count] if rows == n && count > 0 => Ok(count),
        ref got => Err(invalid(scale, format!("[{n}, groups of {k} inputs]"), format!("{got:?}"))),
    }
}

/// A weight of 4 bits, or of packed 8, that others wrote.
fn packed(
    files: &Files,
    (name, entry): (&str, &Entry),
    (scale, scales): (&str, &Entry),
    like: GroupConfig,
) -> Result<Kind> {
    let [n, k] = matrix(name, entry)?;
    let count = count_groups([n, k], scale, scales)?;
    let mut scheme = GroupScheme::Symmetric;
    for stored in [GroupScheme::Affine, GroupScheme::Minimum] {
        if !stored.suffix().is_some_and(|suffix| has(files, name, suffix)) {
            continue;
        }
        if scheme != GroupScheme::Symmetric {
            return Err(invalid(name, "zero points or minimums", "both"));
        }
        scheme = stored;
    }
    if let Some(suffix) = scheme.suffix() {
        companion(files, name, suffix, [n, n * count])?;
    }
    // Layers get 8 bits with zero points dequantized.
    let is_multiplied = like.dtype == IntType::Int4 || scheme == GroupScheme::Symmetric;
    let order = format!("{name}{G_IDX}");
    let in_order = files.find(&order).is_none() || is_in_order(files, &order, count, k)?;
    let groups = |group_size| {
        let mut groups = like;
        (groups.group_size, groups.scheme) = (group_size, scheme);
        multiplied(groups)
    };
    if count == 1 {
        let whole = Kind::Groups(k.max(1));
        return Ok(if is_multiplied { groups(None) } else { whole });
    }
    if !k.is_multiple_of(count) {
        let expected = format!("groups of equally many of {k} inputs");
        return Err(invalid(scale, expected, format!("{count}")));
    }
    let size = k / count;
    // Layers get others dequantized.
    Ok(if is_multiplied && in_order && size.is_multiple_of(BLOCK) {
        groups(Some(size))
    } else {
        Kind::Groups(size)
    })
}

/// The error of a scale whose weight is not int8.
fn check_scale(files: &Files, name: &str) -> Result<()> {
    let last = name.rsplit('.').next().unwrap_or(name);
    let Some(base) = name.strip_suffix(SCALE) else { return Ok(()) };
    // A name that this crate's layers give to scales: other tensors may end so too.
    let of_weight =
        last == "weight_scale" || last.starts_with("weight_ih") || last.starts_with("weight_hh");
    if !of_weight {
        return Ok(());
    }
    let got = match files.find(base) {
        None => "no such tensor".to_owned(),
        Some((_, entry)) => entry.dtype.to_string(),
    };
    Err(invalid(base, format!("I8, beside {:?}", brief(name, 200)), got))
}

fn multiplied(groups: GroupConfig) -> Kind {
    Kind::Whole(Numbers::Groups(groups).multiplied(DynamicConfig::default()))
}

impl Kind {
    /// Whether the tensor of that suffix beside a weight is read, or known to change nothing.
    fn reads(self, suffix: &str) -> bool {
        match self.format().map(|format| format.numbers) {
            None => matches!(suffix, SCALE | ZERO_POINT | MINIMUM | G_IDX),
            Some(Numbers::Half(_)) => false,
            Some(Numbers::Codes(codes)) => match suffix {
                UNSIGNED_ZERO_POINT => codes.qscheme == QScheme::PerChannelAffineFloatQParams,
                _ => matches!(suffix, SCALE | ZERO_POINT),
            },
            // Those of another order were refused, or are dequantized.
            Some(Numbers::Groups(groups)) => {
                matches!(suffix, SCALE | G_IDX) || groups.scheme.suffix() == Some(suffix)
            }
        }
    }

    pub fn format(self) -> Option<Format> {
        match self {
            Self::Whole(format) => Some(format),
            _ => None,
        }
    }

    /// Elements of the dequantized weight as f32, in row order.
    pub fn dequantize(self, files: &Files, name: &str, range: Range<usize>) -> Result<Vec<f32>> {
        let (shard, entry, [n, k]) = weight(files, name)?;
        let rows = match k {
            0 => 0..n,
            k => range.start / k..range.end.div_ceil(k),
        };
        let within = range.start - rows.start * k..range.end - rows.start * k;
        let values = match self {
            Self::Whole(format) if format.half().is_some() => {
                return shard.floats(name, entry, range);
            }
            Self::Whole(format) => {
                parts(files, name, format, rows)?.dequantize().map_err(|e| e.at(name))?
            }
            Self::Groups(size) => {
                let scales = finite_scales(files, name, None)?;
                let zeros = zeros(files, name, scales.len())?;
                let codes = shard.codes(entry, rows.start * k..rows.end * k)?;
                let of_inputs = groups_of_inputs(files, name, [k, size])?;
                let value = |(i, code): (usize, &i8)| {
                    let group = (rows.start + i / k) * (k / size) + of_inputs[i % k];
                    (i32::from(*code) - zeros[group]) as f32 * scales[group]
                };
                codes.iter().enumerate().map(value).collect()
            }
        };
        Ok(if within == (0..values.len()) { values } else { values[within].to_vec() })
    }
}

pub fn parts(files: &Files, name: &str, mut format: Format, rows: Range<usize>) -> Result<Parts> {
    let (shard, entry, [n, k]) = weight(files, name)?;
    let shape = [rows.len(), k];
    if rows.len() != n {
        // The place of those that were clamped is unknown.
        format.saturated = 0;
    }
    let elements = rows.start * k..rows.end * k;
    let values = match format.numbers {
        Numbers::Codes(codes) => Values::Codes(coded(files, name, codes, rows)?),
        Numbers::Half(_) => Values::Halves(shard.halves(entry, elements)?),
        Numbers::Groups(groups) => Values::Groups(grouped(files, name, groups, rows)?),
    };
    Ok(Parts { format, shape, values })
}

fn coded(files: &Files, name: &str, codes: Codes, rows: Range<usize>) -> Result<Coded<i8>> {
    let (shard, entry, [_, k]) = weight(files, name)?;
    let elements = rows.start * k..rows.end * k;
    let Codes { dtype, qscheme } = codes;
    let scales = floats(files, name, SCALE, None)?;
    let zero_points = match qscheme {
        QScheme::PerChannelAffineFloatQParams => {
            let zeros = floats(files, name, UNSIGNED_ZERO_POINT, None)?;
            ZeroPoints::Float(of_rows(zeros, qscheme, &rows))
        }
        _ => {
            let zeros = zeros(files, name, scales.len())?.into_iter();
            let zeros = zeros.map(|zero| zero + dtype.offset()).collect();
            ZeroPoints::Int(of_rows(zeros, qscheme, &rows))
        }
    };
    Ok(Coded {
        dtype,
        qscheme,
        codes: shard.codes(entry, elements)?,
        scales: of_rows(scales, qscheme, &rows),
        zero_points,
    })
}

fn grouped(files: &Files, name: &str, groups: GroupConfig, rows: Range<usize>) -> Result<Grouped> {
    let (shard, entry, [_, k]) = weight(files, name)?;
    let count = groups.count(k);
    let of_rows = rows.start * count..rows.end * count;
    let scales = finite_scales(files, name, Some(of_rows.clone()))?;
    let (mut zero_points, mut minimums) = (Vec::new(), Vec::new());
    if groups.scheme == GroupScheme::Minimum {
        minimums = floats(files, name, MINIMUM, Some(of_rows))?;
    } else if let Some(suffix) = groups.scheme.suffix() {
        let (zeros, entry) = files.get(&format!("{name}{suffix}"), "a tensor")?;
        zero_points = zeros.codes(entry, of_rows)?;
    }
    Ok(Grouped {
        groups,
        codes: shard.codes(entry, rows.start * k..rows.end * k)?,
        scales,
        zero_points,
        minimums,
    })
}

fn of_rows<T: Clone>(values: Vec<T>, qscheme: QScheme, rows: &Range<usize>) -> Vec<T> {
    if qscheme.is_per_channel() && rows.len() < values.len() {
        values[rows.clone()].to_vec()
    } else {
        values
    }
}

/// The group of each of `k` inputs; the numbers of another order were checked.
fn groups_of_inputs(files: &Files, name: &str, [k, size]: [usize; 2]) -> Result<Vec<usize>> {
    match files.find(&format!("{name}{G_IDX}")) {
        None => Ok((0..k).map(|input| input / size).collect()),
        Some((shard, entry)) => {
            let numbers = shard.numbers(entry)?.into_iter();
            Ok(numbers.map(|number| number.cast_unsigned() as usize).collect())
        }
    }
}

fn weight<'a>(files: &'a Files, name: &str) -> Result<(&'a Shard, &'a Entry, [usize; 2])> {
    let (shard, entry) = files.get(name, "a tensor")?;
    Ok((shard, entry, matrix(name, entry)?))
}

/// The floats beside a weight, all or some.
fn floats(
    files: &Files,
    name: &str,
    suffix: &str,
    range: Option<Range<usize>>,
) -> Result<Vec<f32>> {
    let name = format!("{name}{suffix}");
    let (shard, entry) = files.get(&name, "a tensor")?;
    shard.floats(&name, entry, range.unwrap_or(0..entry.elements()))
}

fn finite_scales(files: &Files, name: &str, range: Option<Range<usize>>) -> Result<Vec<f32>> {
    let scales = floats(files, name, SCALE, range)?;
    check_scales(name, &scales, "finite numbers", f32::is_finite)?;
    Ok(scales)
}

pub fn check_positive_scales(files: &Files, name: &str) -> Result<()> {
    let is_positive = |scale: f32| scale.is_finite() && scale > 0.;
    let scales = floats(files, name, SCALE, None)?;
    check_scales(name, &scales, "finite positive numbers", is_positive)
}

fn check_scales(name: &str, scales: &[f32], expected: &str, fits: fn(f32) -> bool) -> Result<()> {
    let wrong = scales.iter().find(|scale| !fits(**scale));
    let error = |got| Err(invalid(&format!("{name}{SCALE}"), expected, got));
    wrong.map_or(Ok(()), error)
}

/// Integer zero points, less the offset of the dtype.
fn zeros(files: &Files, name: &str, count: usize) -> Result<Vec<i32>> {
    match files.find(&format!("{name}{ZERO_POINT}")) {
        None => Ok(vec![0; count]),
        Some((shard, entry)) => {
            Ok(shard.codes(entry, 0..entry.elements())?.into_iter().map(i32::from).collect())
        }
    }
}

/// The rows of a weight and their length; the rows of experts follow each other.
pub fn matrix(name: &str, entry: &Entry) -> Result<[usize; 2]> {
    match &entry.shape[..] {
        [rows @ .., k] if !rows.is_empty() => Ok([rows.iter().product(), *k]),
        got => Err(invalid(name, "[.., out_features, in_features]", format!("{got:?}"))),
    }
}

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
