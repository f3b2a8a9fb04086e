//! The tensors of a quantized weight, as compressed-tensors has them, and their bytes.

use half::f16;
use safetensors::Dtype;

use super::rewrite::Output;
use super::writer::{CODES, Planned, Writer, packed};
use crate::checkpoint::read::Axis;
use crate::error::Result;
use crate::qconfig::{GroupScheme, IntType};
use crate::weight::{
    Format, MINIMUM, Numbers, PACKED, Quantized, SCALE, SHAPE, UNSIGNED_ZERO_POINT, ZERO_POINT,
    Zeros,
};

/// A weight as it is written, some rows at a time.
pub struct WrittenWeight<'a> {
    pub name: &'a str,
    /// There may be more axes than two.
    pub shape: Vec<usize>,
    pub format: Format,
    /// Whether groups have scales that float16 has no room for: then all are f32.
    pub has_factors: bool,
    /// The kind of zero points; ignored for weights in groups.
    pub zeros: Zeros,
}

#[derive(Default)]
struct State {
    has_scale: bool,
    /// The zero points of groups; they are packed along the rows, so at the end.
    zero_points: Vec<i8>,
}

impl<'a> WrittenWeight<'a> {
    /// A weight of these rows, one after the other.
    pub fn pieces(
        name: &'a str,
        shape: &[usize],
        format: Format,
        pieces: &'a [Quantized],
    ) -> Output<'a> {
        let mut zeros = pieces.iter().map(Quantized::zero_points);
        let written = Self {
            name,
            shape: shape.to_vec(),
            format,
            has_factors: pieces.iter().any(Quantized::has_factors),
            // In one qscheme all are of one kind, or 0.
            zeros: zeros.find(|zeros| *zeros != Zeros::None).unwrap_or(Zeros::None),
        };
        written.output(|write| pieces.iter().try_for_each(write))
    }

    /// A weight whose rows `rows` hands to its argument, one block after the other.
    pub fn output(
        self,
        rows: impl Fn(&mut dyn FnMut(&Quantized) -> Result<()>) -> Result<()> + 'a,
    ) -> Output<'a> {
        let tensors = self.planned();
        let write = move |to: &mut Writer<'_>| {
            let mut state = State::default();
            rows(&mut |block| self.rows(block, &mut state, to))?;
            self.finish(&state, to)
        };
        Output::New(tensors, Box::new(write))
    }

    fn matrix(&self) -> [usize; 2] {
        match &self.shape[..] {
            [rows @ .., k] => [rows.iter().product(), *k],
            [] => [1, 1],
        }
    }

    fn planned(&self) -> Vec<Planned> {
        let tensor = |suffix: &str, dtype, shape: &[usize]| {
            Planned::new(&format!("{}{suffix}", self.name), dtype, shape)
        };
        let (shape, [n, k]) = (&self.shape[..], self.matrix());
        match self.format.numbers {
            Numbers::Half(half) => vec![tensor("", half.facts().dtype.into(), shape)],
            Numbers::Codes(codes) => {
                let (rows, _) = shape.split_at(shape.len().saturating_sub(1));
                let of_scales = if codes.qscheme.is_per_channel() {
                    &[rows, &[1]].concat()[..]
                } else {
                    &[rows.iter().product::<usize>().min(1)]
                };
                let mut all =
                    vec![tensor("", Dtype::I8, shape), tensor(SCALE, Dtype::F32, of_scales)];
                match self.zeros {
                    Zeros::None => {}
                    Zeros::Int(_) => all.push(tensor(ZERO_POINT, Dtype::I8, of_scales)),
                    Zeros::Float(_) => {
                        let names = [ZERO_POINT, UNSIGNED_ZERO_POINT];
                        all.extend(names.map(|name| tensor(name, Dtype::F32, of_scales)));
                    }
                }
                all
            }
            Numbers::Groups(groups) => {
                let count = groups.count(k);
                let mut all = if groups.dtype == IntType::Int4 {
                    vec![
                        tensor(PACKED, Dtype::I32, &[n, k.div_ceil(CODES)]),
                        tensor(SHAPE, Dtype::I64, &[2]),
                    ]
                } else {
                    vec![tensor("", Dtype::I8, shape)]
                };
                let floats = if self.has_factors { Dtype::F32 } else { Dtype::F16 };
                all.push(tensor(SCALE, floats, &[n, count]));
                all.extend(groups.scheme.suffix().map(|suffix| match suffix {
                    ZERO_POINT => tensor(suffix, Dtype::I32, &[n.div_ceil(CODES), count]),
                    _ => tensor(suffix, floats, &[n, count]),
                }));
                all
            }
        }
    }

    fn rows(&self, rows: &Quantized, state: &mut State, to: &mut Writer<'_>) -> Result<()> {
        let mut write =
            |suffix: &str, bytes: &[u8]| to.write(&format!("{}{suffix}", self.name), bytes);
        if let Some(halves) = rows.halves() {
            return write("", &halves.to_bytes());
        }
        if let Some(rows) = rows.grouped() {
            let [_, k] = self.matrix();
            if rows.groups.dtype == IntType::Int4 {
                let shape = [rows.codes.len().checked_div(k).unwrap_or(0), k];
                write(PACKED, &packed(&rows.codes, shape, Axis::Columns))?;
            } else {
                write("", &unsigned(rows.codes))?;
            }
            let floats = |numbers: &[f32]| -> Vec<u8> {
                if self.has_factors {
                    return floats(numbers);
                }
                numbers.iter().map(|x| f16::from_f32(*x)).flat_map(f16::to_le_bytes).collect()
            };
            write(SCALE, &floats(&rows.scales))?;
            if rows.groups.scheme == GroupScheme::Minimum {
                write(MINIMUM, &floats(&rows.minimums))?;
            }
            state.zero_points.extend(rows.zero_points);
            return Ok(());
        }
        write("", &unsigned(rows.codes()))?;
        let per_row = self.format.codes().is_some_and(|codes| codes.qscheme.is_per_channel());
        // Where one scale is for all rows, the first ones have it.
        if std::mem::replace(&mut state.has_scale, true) && !per_row {
            return Ok(());
        }
        let scales = rows.scales();
        write(SCALE, &floats(&scales))?;
        match (&self.zeros, rows.zero_points()) {
            (Zeros::None, _) => Ok(()),
            (_, Zeros::Float(zeros)) => {
                // Among the codes of the file, which are 128 less, for others.
                let signed: Vec<f32> = zeros.iter().map(|z| z - 128.).collect();
                write(ZERO_POINT, &floats(&signed))?;
                write(UNSIGNED_ZERO_POINT, &floats(&zeros))
            }
            (_, Zeros::Int(zeros)) => {
                write(ZERO_POINT, &unsigned(zeros.into_iter().map(|z| z as i8)))
            }
            (_, Zeros::None) => write(ZERO_POINT, &vec![0; scales.len()]),
        }
    }

    fn finish(&self, state: &State, to: &mut Writer<'_>) -> Result<()> {
        let (Some(groups), [n, k]) = (self.format.groups(), self.matrix()) else { return Ok(()) };
        if groups.dtype == IntType::Int4 {
            let sizes = [n, k].map(|size| (size as i64).to_le_bytes());
            to.write(&format!("{}{SHAPE}", self.name), sizes.as_flattened())?;
        }
        if groups.scheme != GroupScheme::Affine {
            return Ok(());
        }
        let bytes = packed(&state.zero_points, [n, groups.count(k)], Axis::Rows);
        to.write(&format!("{}{ZERO_POINT}", self.name), &bytes)
    }
}

fn unsigned(codes: impl IntoIterator<Item = i8>) -> Vec<u8> {
    codes.into_iter().map(i8::cast_unsigned).collect()
}

fn floats(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}
