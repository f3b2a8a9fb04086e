//! The tensors of a weight in groups, as compressed-tensors has them, and their bytes.

use half::f16;
use safetensors::Dtype;

use super::writer::{Planned, Writer};
use crate::checkpoint::read::Axis;
use crate::error::Result;
use crate::qconfig::{GroupConfig, GroupScheme, IntType};
use crate::weight::{Grouped, MINIMUM, PACKED, SCALE, SHAPE, ZERO_POINT};

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
        match self.groups.scheme {
            GroupScheme::Symmetric => {}
            GroupScheme::Affine => {
                tensors.push(tensor(ZERO_POINT, Dtype::I32, &[n.div_ceil(CODES), count]));
            }
            GroupScheme::Minimum => tensors.push(tensor(MINIMUM, self.dtype, &[n, count])),
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
                let shape = [rows.codes.len().checked_div(k).unwrap_or(0), k];
                let bytes = packed(&rows.codes, shape, Axis::Columns);
                to.write(&format!("{}{PACKED}", self.name), &bytes)?;
            }
        }
        to.write(&format!("{}{SCALE}", self.name), &self.floats(&rows.scales))?;
        if self.groups.scheme == GroupScheme::Minimum {
            let minimums = self.floats(&rows.minimums);
            to.write(&format!("{}{MINIMUM}", self.name), &minimums)?;
        }
        self.zero_points.extend(rows.zero_points);
        Ok(())
    }

    fn floats(&self, numbers: &[f32]) -> Vec<u8> {
        let numbers = numbers.iter();
        match self.dtype {
            Dtype::F16 => numbers
                .flat_map(|x| f16::from_f32(*x).to_le_bytes())
                .collect(),
            _ => numbers.flat_map(|x| x.to_le_bytes()).collect(),
        }
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
        if self.groups.scheme != GroupScheme::Affine {
            return Ok(());
        }
        let bytes = packed(&self.zero_points, [n, self.groups.count(k)], Axis::Rows);
        to.write(&format!("{}{ZERO_POINT}", self.name), &bytes)
    }
}

/// A matrix of codes, each plus 8, eight to an i32 along an axis, the first in the lowest bits.
pub fn packed(codes: &[i8], [n, k]: [usize; 2], axis: Axis) -> Vec<u8> {
    let (height, width) = match axis {
        Axis::Columns => (n, k.div_ceil(CODES)),
        Axis::Rows => (n.div_ceil(CODES), k),
    };
    let word = |at: usize| {
        let nibble = |place: usize| {
            let (row, column) = match axis {
                Axis::Columns => (at / width, at % width * CODES + place),
                Axis::Rows => (at / width * CODES + place, at % width),
            };
            let is_within = row < n && column < k;
            let code = is_within.then(|| codes[row * k + column] + 8);
            (code.unwrap_or(0) as u32 & 15) << (4 * place)
        };
        (0..CODES).map(nibble).sum::<u32>().to_le_bytes()
    };
    (0..height * width).flat_map(word).collect()
}
