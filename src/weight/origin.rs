//! Which elements of which tensor of a checkpoint a weight is.
//!
//! A model may rename tensors, cut several weights out of a tensor, or transpose it, and gives a
//! layer nothing but the result. Its memory tells where it came from: a backend records each tensor
//! that it hands out, and layers look their weights up when they are made. As memory may be freed
//! and used again, or changed in place, a matrix is compared with the file: all of it where the
//! file has codes, which then replace it, else a sample.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use candle_core::{DType, Device, Layout, Tensor, TensorId, WithDType};
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use super::format::Format;
use super::groups::Grouped;
use crate::error::{Error, Result};
use crate::halves::Halves;
use crate::kernels::OutOfRange;
use crate::tensor::{Elements, MemoryId, bits};
use crate::weight::coded::Coded;
use crate::weight::qtable::QTable;
use crate::weight::qweight::QWeight;

/// Elements of a tensor as a matrix: `[i, j]` is the element at
/// `offset + i * strides[0] + j * strides[1]` in row order. The stride of an axis of one element is
/// 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Part {
    pub shape: [usize; 2],
    pub offset: usize,
    pub strides: [usize; 2],
}

/// A checkpoint, as layers look into it.
pub(crate) trait Source: Send + Sync {
    /// Elements of a tensor in row order, dequantized.
    fn elements(&self, name: &str, range: Range<usize>) -> Result<Vec<f32>>;

    /// The tensor that has a part in quantized form, to be multiplied.
    fn view(&self, name: &str, part: &Part) -> Option<String>;

    /// A part of a tensor, if that is quantized.
    fn quantized(&self, name: &str, part: &Part) -> Result<Option<Parts>>;

    /// All of a quantized weight.
    ///
    /// # Errors
    /// When it has another shape.
    fn whole(&self, name: &str, shape: &[usize]) -> Result<Parts>;

    /// The format of a quantized weight.
    fn format(&self, name: &str) -> Option<Format>;

    /// Some bytes of a tensor, at least one if it has any: of its elements at [`places`] as f32, or
    /// from the middle of the file's if it is quantized.
    fn sample(&self, name: &str) -> Result<Vec<u8>>;
}

/// The contents of a quantized weight of a checkpoint.
pub(crate) struct Parts {
    pub format: Format,
    pub shape: [usize; 2],
    pub values: Values,
}

/// The numbers of a quantized weight, in row order.
pub(crate) enum Values {
    /// Codes, with zero points of the dtype.
    Codes(Coded<i8>),
    Halves(Halves),
    Groups(Grouped),
}

/// The place of a weight in a checkpoint.
#[derive(Clone)]
pub(crate) struct Origin {
    pub name: Arc<str>,
    /// The shape of the tensor.
    pub dims: Arc<[usize]>,
    pub part: Part,
    source: Weak<dyn Source>,
    /// A sample of the tensor: what is known of it after the checkpoint is closed.
    sample: Arc<[u8]>,
}

/// The tensor of a checkpoint that a tensor in memory was loaded from.
struct LoadedFrom {
    id: TensorId,
    /// All of it; its [`Source::sample`] is empty if unknown.
    tensor: Origin,
}

/// The origins of loaded tensors, by their memory. Origins of a closed checkpoint are removed when
/// others are added.
#[derive(Default)]
struct TensorOrigins {
    by_memory: Option<HashMap<MemoryId, LoadedFrom>>,
    sweep_at: usize,
}

static TENSOR_ORIGINS: Mutex<TensorOrigins> =
    Mutex::new(TensorOrigins { by_memory: None, sweep_at: 0 });

/// Remembers that a tensor, which shares its memory with no other, is `name` of `source`; `sample`
/// is empty, or that of the source.
pub(crate) fn record(
    tensor: &Tensor,
    name: &str,
    source: Weak<dyn Source>,
    sample: impl Into<Arc<[u8]>>,
) {
    let (storage, _) = tensor.storage_and_layout();
    if !tensor.device().is_cpu() {
        return;
    }
    let (dims, part) = (tensor.dims().into(), Part::whole(tensor.dims()));
    let loaded = Origin { name: name.into(), dims, part, source, sample: sample.into() };
    let mut origins = TENSOR_ORIGINS.lock().unwrap_or_else(PoisonError::into_inner);
    let TensorOrigins { by_memory, sweep_at } = &mut *origins;
    let by_memory = by_memory.get_or_insert_default();
    if by_memory.len() >= *sweep_at {
        by_memory.retain(|_, loaded| loaded.tensor.source.strong_count() > 0);
        *sweep_at = 2 * by_memory.len().max(512);
    }
    by_memory.insert(MemoryId::new(&*storage), LoadedFrom { id: tensor.id(), tensor: loaded });
}

/// The tensor of a checkpoint whose memory a tensor is in, and the tensor that was handed out.
fn loaded_from(tensor: &Tensor) -> Option<(Origin, TensorId)> {
    let (storage, _) = tensor.storage_and_layout();
    let origins = TENSOR_ORIGINS.lock().unwrap_or_else(PoisonError::into_inner);
    let loaded = origins.by_memory.as_ref()?.get(&MemoryId::new(&*storage))?;
    Some((loaded.tensor.clone(), loaded.id))
}

/// The tensor of a checkpoint that `answer` is, unchanged since a backend handed it out.
pub(super) fn loaded_whole(answer: &Tensor) -> Option<Origin> {
    loaded_from(answer).filter(|(_, id)| *id == answer.id()).map(|(loaded, _)| loaded)
}

/// The origin of a matrix, if it is in the memory of a tensor that was handed out.
pub(crate) fn find(matrix: &Tensor) -> Option<Origin> {
    let (loaded, _) = loaded_from(matrix)?;
    let (source, part) = (loaded.source.upgrade()?, Part::from_layout(matrix.layout())?);
    let name = &loaded.name;
    let is_quantized = source.format(name).is_some() || source.view(name, &part).is_some();
    // It may have been changed in place.
    let is_it = if is_quantized {
        equals(matrix, name, part, &*source)
    } else if loaded.is_sampled(matrix, &part) {
        Ok(true)
    } else {
        is_like(matrix, name, part, &*source)
    };
    is_it.ok()?.then(|| loaded.of_part(part))
}

/// The origin of the weight of a convolution that a backend handed out whole; of a quantized one,
/// which has the shape `taps`, it is the origin of the matrices of its taps.
pub(crate) fn of_convolution(weight: &Tensor, taps: &[usize]) -> Option<Origin> {
    let loaded = loaded_whole(weight)?;
    let is_quantized = loaded.source.upgrade()?.format(&loaded.name).is_some();
    Some(loaded.of_shape(if is_quantized { taps } else { weight.dims() }))
}

/// The 8 places at which a matrix is compared, by row and column, from the first to the last, and
/// the shape of the elements along an axis that each has.
fn places(shape: [usize; 2], along: usize) -> ([usize; 2], impl Iterator<Item = [usize; 2]>) {
    const PLACES: usize = 8;
    let mut count = [1, 1];
    count[along] = shape[along].min(PLACES);
    let first = move |place, axis: usize| (shape[axis] - count[axis]) * place / (PLACES - 1);
    let all = if shape.contains(&0) { 0 } else { PLACES };
    (count, (0..all).map(move |place| [0, 1].map(|axis| first(place, axis))))
}

/// Whether a matrix has the elements that the checkpoint has there, by those at [`places`].
fn is_like(matrix: &Tensor, name: &str, part: Part, source: &dyn Source) -> Result<bool> {
    let (count, places) = places(part.shape, usize::from(part.strides[1] <= 1));
    for [row, column] in places {
        let some = matrix.narrow(0, row, count[0])?;
        let at = Part {
            shape: count,
            offset: part.offset + row * part.strides[0] + column * part.strides[1],
            ..part
        };
        if !equals(&some.narrow(1, column, count[1])?, name, at, source)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The ranges of the elements at [`places`] of a tensor.
pub(crate) fn sampled(dims: &[usize]) -> impl Iterator<Item = Range<usize>> + use<> {
    let Part { shape, .. } = Part::whole(dims);
    let (count, places) = places(shape, 1);
    let first = places.map(move |[row, column]| row * shape[1] + column);
    first.map(move |first| first..first + count[1])
}

/// The [`Source::sample`] of a tensor as a file has it; empty of a vector, and of a dtype that f32
/// does not hold.
pub(crate) fn sample_of(tensor: &Tensor) -> Vec<u8> {
    fn gather<T: WithDType>(tensor: &Tensor, widen: impl Fn(T) -> f32) -> Result<Vec<u8>> {
        let elements = Elements::new(tensor);
        let (values, mut some) = (elements.as_slice::<T>()?, Vec::new());
        for range in sampled(tensor.dims()) {
            some.extend(values[range].iter().map(|value| widen(*value)));
        }
        Ok(bytemuck::cast_slice(&some).to_vec())
    }
    let sample = match tensor.dtype() {
        _ if tensor.rank() < 2 => return Vec::new(),
        DType::F32 => gather(tensor, |value: f32| value),
        DType::F16 => gather(tensor, f16::to_f32),
        DType::BF16 => gather(tensor, bf16::to_f32),
        _ => return Vec::new(),
    };
    sample.unwrap_or_default()
}

/// The elements that are compared at once, so that little memory is needed.
const BLOCK: usize = 1 << 20;

/// Whether a matrix has the elements that the checkpoint has there, in its dtype.
pub(crate) fn equals(matrix: &Tensor, name: &str, part: Part, source: &dyn Source) -> Result<bool> {
    let Part { shape: [n, k], strides: [down, across], .. } = part;
    let is_by_rows = down >= k.saturating_mul(across);
    let rows = if is_by_rows { BLOCK / k.max(1) } else { n };
    for first in (0..n).step_by(rows.max(1)) {
        let count = rows.max(1).min(n - first);
        let block = Part { shape: [count, k], offset: part.offset + first * down, ..part };
        let Some(end) = block.end() else { return Ok(false) };
        let values = source.elements(name, block.offset..end)?;
        if !equals_block(&matrix.narrow(0, first, count)?, block, values)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn equals_block(matrix: &Tensor, part: Part, values: Vec<f32>) -> Result<bool> {
    let count = values.len();
    let values = Tensor::from_vec(values, count, &Device::Cpu)?.to_dtype(matrix.dtype())?;
    let (expected, got) = (bits(&values)?, bits(matrix)?);
    let mut got = got.iter().zip(part.elements());
    Ok(got.all(|(value, at)| *value == expected[at - part.offset]))
}

impl Part {
    /// All rows of a tensor, whose length is the last axis.
    pub fn whole(shape: &[usize]) -> Self {
        let (k, rows) = shape.split_last().unwrap_or((&1, &[]));
        Self::rows(0, [rows.iter().product(), *k])
    }

    /// A number of rows of a matrix, from `first` on.
    pub fn rows(first: usize, shape: [usize; 2]) -> Self {
        let [n, k] = shape;
        let stride = |size, stride| if size > 1 { stride } else { 0 };
        Self { shape, offset: first * k, strides: [stride(n, k), stride(k, 1)] }
    }

    fn from_layout(layout: &Layout) -> Option<Self> {
        let (&[n, k], &[down, across]) = (layout.dims(), layout.stride()) else { return None };
        let stride = |size, stride| if size > 1 { stride } else { 0 };
        (n * k > 0).then(|| Self {
            shape: [n, k],
            offset: layout.start_offset(),
            strides: [stride(n, down), stride(k, across)],
        })
    }

    /// The end of the elements that it spans; `None` if it has none, or if they cannot be counted.
    pub fn end(&self) -> Option<usize> {
        let mut last = self.offset;
        for (size, stride) in self.shape.into_iter().zip(self.strides) {
            last = last.checked_add(size.checked_sub(1)?.checked_mul(stride)?)?;
        }
        last.checked_add(1)
    }

    /// The elements of the tensor, in row order of the matrix.
    pub fn elements(&self) -> impl Iterator<Item = usize> {
        let Self { shape: [n, k], offset, strides: [down, across] } = *self;
        (0..n).flat_map(move |i| (0..k).map(move |j| offset + i * down + j * across))
    }

    /// The rows that it is of a matrix with rows of `k`, if it is whole rows.
    pub fn whole_rows(&self, k: usize) -> Option<Range<usize>> {
        let first = self.offset.checked_div(k).unwrap_or(0);
        (*self == Self::rows(first, [self.shape[0], k])).then(|| first..first + self.shape[0])
    }
}

impl Origin {
    /// The format of the weight that it describes.
    pub fn format(&self) -> Option<Format> {
        self.source.upgrade()?.format(&self.name)
    }

    /// All of the weight of that shape that it describes.
    pub fn of_shape(self, shape: &[usize]) -> Self {
        Self { dims: shape.into(), ..self }.of_part(Part::whole(shape))
    }

    /// Whether a matrix is the whole tensor as it was handed out, by the sample of both.
    fn is_sampled(&self, matrix: &Tensor, part: &Part) -> bool {
        let is_known = !self.sample.is_empty() && *part == Part::whole(&self.dims);
        is_known && sample_of(matrix) == *self.sample
    }

    fn of_part(mut self, part: Part) -> Self {
        if self.sample.is_empty() {
            let sample = self.source.upgrade().and_then(|source| source.sample(&self.name).ok());
            self.sample = sample.unwrap_or_default().into();
        }
        Self { part, ..self }
    }

    /// The weight to be multiplied, if the checkpoint has it quantized.
    pub fn weight(&self) -> Result<Option<Parts>> {
        let Some(source) = self.source.upgrade() else { return Ok(None) };
        match source.view(&self.name, &self.part) {
            Some(view) => source.quantized(&view, &Part::rows(0, self.part.shape)),
            None => source.quantized(&self.name, &self.part),
        }
    }

    /// The table, if the checkpoint has it quantized.
    pub fn table(&self) -> Result<Option<Parts>> {
        self.source.upgrade().map_or(Ok(None), |source| source.quantized(&self.name, &self.part))
    }

    /// The weight, which is a whole tensor.
    ///
    /// # Errors
    /// When the tensor has another shape, or the checkpoint is closed.
    pub fn whole(&self) -> Result<Parts> {
        match self.source.upgrade() {
            Some(source) => source.whole(&self.name, &self.dims),
            None => Err(Error::argument("checkpoint", "an open one", "a closed one")),
        }
    }

    /// Whether the tensor of this name in `source` has other elements; compares a sample of it if
    /// the checkpoint of the origin is closed.
    pub fn differs_in(&self, source: &dyn Source) -> Result<bool> {
        let Some(opened) = self.source.upgrade() else {
            let is_known = !self.sample.is_empty();
            return Ok(is_known && *self.sample != source.sample(&self.name)?);
        };
        if std::ptr::addr_eq(Arc::as_ptr(&opened), std::ptr::from_ref(source)) {
            return Ok(false);
        }
        let count = self.dims.iter().product();
        for first in (0..count).step_by(BLOCK) {
            let range = first..count.min(first + BLOCK);
            let [a, b] =
                [&*opened, source].map(|source| source.elements(&self.name, range.clone()));
            let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits);
            if !bits(a?).eq(bits(b?)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the part is the whole tensor.
    pub fn is_whole(&self) -> bool {
        let [rows @ .., k] = &*self.dims else { return false };
        self.part == Part::rows(0, [rows.iter().product(), *k])
    }

    /// Remembers that a tensor is this tensor of the checkpoint.
    pub fn record(&self, tensor: &Tensor) {
        let (source, sample) = (Weak::clone(&self.source), Arc::clone(&self.sample));
        record(tensor, &self.name, source, sample);
    }
}

impl PartialEq for Origin {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, &self.dims, self.part) == (&other.name, &other.dims, other.part)
    }
}

impl Eq for Origin {}

impl std::fmt::Debug for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, part, .. } = self;
        let debug = &mut f.debug_struct("Origin");
        debug.field("name", name).field("part", part).finish()
    }
}

impl Parts {
    /// The weight, packed to be multiplied; its channels are `gates` gates.
    ///
    /// # Errors
    /// When it is a table that is not in groups, or its numbers do not fit.
    pub fn qweight(self, gates: usize, bias: Option<&Tensor>) -> Result<QWeight> {
        let (shape, saturated) = (self.shape, self.format.saturated);
        match self.values {
            Values::Groups(grouped) => grouped.qweight(gates, shape, bias),
            _ if !self.format.is_multiplied() => {
                Err(Error::qconfig("a weight that is multiplied", "a table"))
            }
            Values::Halves(halves) => {
                QWeight::of_halves(gates, shape, &halves, clamped(saturated), bias)
            }
            Values::Codes(raw) => {
                let activation = self.format.dynamic().unwrap_or_default();
                QWeight::of_codes(gates, shape, raw, activation, bias)
            }
        }
    }

    /// The weight as f32, in row order.
    pub fn dequantize(self) -> Result<Vec<f32>> {
        if let Values::Groups(grouped) = self.values {
            return Ok(grouped.dequantize(self.shape[1]));
        }
        Ok(self.qtable()?.dequantize()?.flatten_all()?.to_vec1()?)
    }

    /// The weight as a table.
    ///
    /// # Errors
    /// When it is in groups, which no table has, or its numbers do not fit.
    pub fn qtable(self) -> Result<QTable> {
        match self.values {
            Values::Groups(grouped) => Err(Error::qconfig("a table", grouped.groups)),
            Values::Codes(raw) => QTable::of_codes(self.shape, raw),
            Values::Halves(halves) => {
                QTable::of_halves(self.shape, halves, clamped(self.format.saturated))
            }
        }
    }
}

/// The count of elements that were clamped when they became halves; nothing is known of
/// underflows.
fn clamped(saturated: usize) -> OutOfRange {
    OutOfRange { saturated, underflowed: 0 }
}
