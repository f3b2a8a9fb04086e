//! The tensors of a quantized weight, and their bytes.

use safetensors::Dtype;

use super::groups::GroupsWriter;
use super::rewrite::Output;
use super::writer::{Planned, Writer};
use crate::error::Result;
use crate::qconfig::GroupConfig;
use crate::weight::{Format, Quantized, SCALE, UNSIGNED_ZERO_POINT, ZERO_POINT, Zeros};

/// A weight of these rows, one after the other.
pub fn weight<'a>(
    name: &str,
    shape: &[usize],
    format: Format,
    pieces: &'a [Quantized],
) -> Output<'a> {
    if let Some(groups) = format.groups() {
        return in_groups(name, shape, groups, pieces);
    }
    let zeros = zero_points(pieces);
    let tensors = planned(name, shape, format, &zeros);
    let name = name.to_owned();
    let write = move |to: &mut Writer<'_>| {
        let mut scales = Vec::new();
        for piece in pieces {
            if let Some(halves) = piece.halves() {
                to.write(&name, &halves.to_bytes())?;
                continue;
            }
            let codes = piece.codes().into_iter();
            let bytes: Vec<u8> = codes.map(i8::cast_unsigned).collect();
            to.write(&name, &bytes)?;
            scales.extend(piece.scales());
        }
        if pieces.iter().any(|piece| piece.format().codes().is_some()) {
            write_qparams(&name, &scales, &zeros, to)?;
        }
        Ok(())
    };
    Output::New(tensors, Box::new(write))
}

/// A weight in groups of these rows, one after the other.
fn in_groups<'a>(
    name: &str,
    shape: &[usize],
    groups: GroupConfig,
    pieces: &'a [Quantized],
) -> Output<'a> {
    let halves = !pieces.iter().any(Quantized::has_factors);
    let (n, k) = match shape {
        [rows @ .., k] => (rows.iter().product(), *k),
        [] => (1, 1),
    };
    let name = name.to_owned();
    let tensors = GroupsWriter::new(&name, groups, [n, k], halves).planned(shape);
    let write = move |to: &mut Writer<'_>| {
        let mut writer = GroupsWriter::new(&name, groups, [n, k], halves);
        for rows in pieces.iter().filter_map(Quantized::grouped) {
            writer.rows(rows, to)?;
        }
        writer.finish(to)
    };
    Output::New(tensors, Box::new(write))
}

/// The zero points of all rows.
fn zero_points(pieces: &[Quantized]) -> Zeros {
    let (mut ints, mut floats, mut is_affine) = (Vec::new(), None, false);
    for piece in pieces {
        match piece.zero_points() {
            // Zeros that all are 0 are not stored.
            Zeros::None => ints.resize(ints.len() + piece.scales().len(), 0),
            Zeros::Int(own) => {
                is_affine = true;
                ints.extend(own);
            }
            Zeros::Float(own) => floats.get_or_insert_with(Vec::new).extend(own),
        }
    }
    // In one qscheme all are float or none.
    match floats {
        Some(floats) => Zeros::Float(floats),
        None if is_affine => Zeros::Int(ints),
        None => Zeros::None,
    }
}

/// The tensors of a weight of that format.
pub fn planned(name: &str, shape: &[usize], format: Format, zeros: &Zeros) -> Vec<Planned> {
    let tensor = |suffix: &str, dtype, shape: &[usize]| {
        Planned::new(&format!("{name}{suffix}"), dtype, shape)
    };
    let codes = match format {
        Format::Int8 { codes, .. } => codes,
        Format::Half { half, .. } => return vec![tensor("", half.dtype().into(), shape)],
        // They have a writer of their own.
        Format::Groups { .. } => return Vec::new(),
    };
    let (rows, _) = shape.split_at(shape.len().saturating_sub(1));
    let of_scales = if codes.qscheme.is_per_channel() {
        &[rows, &[1]].concat()[..]
    } else {
        &[rows.iter().product::<usize>().min(1)]
    };
    let mut all = vec![
        tensor("", Dtype::I8, shape),
        tensor(SCALE, Dtype::F32, of_scales),
    ];
    match zeros {
        Zeros::None => {}
        Zeros::Int(_) => all.push(tensor(ZERO_POINT, Dtype::I8, of_scales)),
        Zeros::Float(_) => {
            all.push(tensor(ZERO_POINT, Dtype::F32, of_scales));
            all.push(tensor(UNSIGNED_ZERO_POINT, Dtype::F32, of_scales));
        }
    }
    all
}

/// Writes scales and zero points.
pub fn write_qparams(name: &str, scales: &[f32], zeros: &Zeros, to: &mut Writer<'_>) -> Result<()> {
    let bytes = |values: &[f32]| {
        values
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    to.write(&format!("{name}{SCALE}"), &bytes(scales))?;
    match zeros {
        Zeros::None => Ok(()),
        Zeros::Int(zeros) => {
            let zeros: Vec<u8> = zeros.iter().map(|z| (*z as i8).cast_unsigned()).collect();
            to.write(&format!("{name}{ZERO_POINT}"), &zeros)
        }
        Zeros::Float(zeros) => {
            // Among the codes of the file, which are 128 less, for others.
            let signed: Vec<f32> = zeros.iter().map(|z| z - 128.).collect();
            to.write(&format!("{name}{ZERO_POINT}"), &bytes(&signed))?;
            to.write(&format!("{name}{UNSIGNED_ZERO_POINT}"), &bytes(zeros))
        }
    }
}
