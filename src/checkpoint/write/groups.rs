//! The tensors of a weight in groups, as compressed-tensors has them, and their bytes.

use half::f16;
use safetensors::Dtype;

use super::writer::{Planned, Writer};
use crate::error::Result;
use crate::qconfig::{GroupConfig, GroupScheme, IntType};
use crate::weight::{Grouped, PACKED, SCALE, SHAPE, ZERO_POINT};

/// Codes in an i32.
const CODES: usize = 8;

/// A weight in groups that is written some rows at a time.
pub struct GroupsWriter<'a> {
    name: &'a str,
    groups: GroupConfig,
    shape: [usize; 2],
    /// Of the scales.
    dtype: Dtype,
    /// Of the rows that are written, for they are packed along the rows.
    zero_points: Vec<i8>,
}

impl<'a> GroupsWriter<'a> {
    /// Of a weight whose scales are float16, or f32 where that has no room for them.
    pub fn new(name: &'a str, groups: GroupConfig, shape: [usize; 2], halves: bool) -> Self {
        Self {
            name,
            groups,
            shape,
            dtype: if halves { Dtype::F16 } else { Dtype::F32 },
            zero_points: Vec::new(),
        }
    }

    /// The tensors of a weight of that shape, of which there may be more axes than two.
    pub fn planned(&self, shape: &[usize]) -> Vec<Planned> {
        let tensor = |suffix: &str, dtype, shape: &[usize]| {
            Planned::new(&format!("{}{suffix}", self.name), dtype, shape)
        };
        let [n, k] = self.shape;
        let count = self.groups.count(k);
        let mut tensors = match self.groups.dtype {
            IntType::Int8 => vec![tensor("", Dtype::I8, shape)],
            IntType::Int4 => vec![
                tensor(PACKED, Dtype::I32, &[n, k.div_ceil(CODES)]),
                tensor(SHAPE, Dtype::I64, &[2]),
            ],
        };
        tensors.push(tensor(SCALE, self.dtype, &[n, count]));
        if self.groups.scheme != GroupScheme::Symmetric {
            tensors.push(tensor(ZERO_POINT, Dtype::I32, &[n.div_ceil(CODES), count]));
        }
        tensors
    }

    /// Writes the next rows.
    pub fn rows(&mut self, rows: Grouped, to: &mut Writer<'_>) -> Result<()> {
        let [_, k] = self.shape;
        match self.groups.dtype {
            IntType::Int8 => {
                let bytes: Vec<_> = rows.codes.iter().map(|code| code.cast_unsigned()).collect();
                to.write(self.name, &bytes)?;
            }
            IntType::Int4 => {
                let rows = rows.codes.chunks(k.max(1));
                let bytes: Vec<_> = rows
                    .flat_map(|row| row.chunks(CODES).flat_map(word))
                    .collect();
                to.write(&format!("{}{PACKED}", self.name), &bytes)?;
            }
        }
        let scales = rows.scales.iter();
        let bytes: Vec<_> = match self.dtype {
            Dtype::F16 => scales
                .flat_map(|x| f16::from_f32(*x).to_le_bytes())
                .collect(),
            _ => scales.flat_map(|x| x.to_le_bytes()).collect(),
        };
        to.write(&format!("{}{SCALE}", self.name), &bytes)?;
        self.zero_points.extend(rows.zero_points);
        Ok(())
    }

    /// Writes what is of all rows.
    pub fn finish(self, to: &mut Writer<'_>) -> Result<()> {
        let [n, k] = self.shape;
        if self.groups.dtype == IntType::Int4 {
            let sizes: Vec<_> = [n, k]
                .iter()
                .flat_map(|x| (*x as i64).to_le_bytes())
                .collect();
            to.write(&format!("{}{SHAPE}", self.name), &sizes)?;
        }
        if self.groups.scheme == GroupScheme::Symmetric {
            return Ok(());
        }
        let count = self.groups.count(k);
        let zero = |row: usize, group: usize| self.zero_points.get(row * count + group).copied();
        let words = (0..n.div_ceil(CODES)).flat_map(|eight| {
            (0..count)
                .map(move |group| (8 * eight..8 * eight + 8).map_while(move |row| zero(row, group)))
        });
        let bytes: Vec<_> = words
            .flat_map(|zeros| word(&zeros.collect::<Vec<_>>()))
            .collect();
        to.write(&format!("{}{ZERO_POINT}", self.name), &bytes)
    }
}

/// Up to eight codes, each plus 8, the first in the lowest bits.
fn word(codes: &[i8]) -> [u8; 4] {
    let nibble = |(i, code): (usize, &i8)| ((code + 8) as u32 & 15) << (4 * i);
    codes
        .iter()
        .enumerate()
        .map(nibble)
        .sum::<u32>()
        .to_le_bytes()
}
