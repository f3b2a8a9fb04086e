//! The border between tensors and slices: tensors above, slices below.

use std::fmt;

use candle_core::{
    CpuStorage, CustomOp1, DType, Device, IntDType, Layout, Shape, Storage, StorageRef, Tensor,
    WithDType,
};

use crate::error::{Error, Fault, Result};
use crate::kernels;
use crate::sizes;

/// A piece of memory, by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct MemoryId(usize);

impl MemoryId {
    /// The id of the memory behind a reference.
    pub fn new<T>(memory: &T) -> Self {
        Self(std::ptr::from_ref(memory).addr())
    }
}

/// Checks that the kernels can read a tensor: of a float dtype, and on the CPU.
pub(crate) fn check_cpu_float(tensor: &Tensor, op: &'static str) -> Result<()> {
    if !tensor.device().is_cpu() {
        return Err(Error::from(Fault::UnsupportedDevice {
            op,
            got: format!("{:?}", tensor.device().location()),
        }));
    }
    check_float(tensor, op)
}

/// Checks that a tensor has a float dtype that this crate computes with, and no more elements than
/// there is memory for, as a broadcast may show.
pub(crate) fn check_float(tensor: &Tensor, op: &'static str) -> Result<()> {
    if !tensor.is_contiguous() {
        sizes::allocated(op, tensor.dims())?;
    }
    check_float_dtype(tensor.dtype(), op)
}

/// Checks that a dtype is a float one that this crate computes with.
pub(crate) fn check_float_dtype(dtype: DType, op: &'static str) -> Result<()> {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 | DType::F64 => Ok(()),
        got => Err(Error::dtype(op, "f32, f16, bf16 or f64", got)),
    }
}

pub(crate) fn mismatch(op: &'static str, expected: impl fmt::Display, got: &Tensor) -> Error {
    Error::shape(op, expected, got.dims())
}

/// The tensor, or if it has no elements an equal one at the start of a new storage.
///
/// An empty view may begin beyond its storage, and most of candle's operations panic at that.
pub(crate) fn readable(tensor: &Tensor) -> Result<Tensor> {
    Ok(match tensor.elem_count() {
        0 => tensor.zeros_like()?,
        _ => tensor.clone(),
    })
}

/// The tensor without the copies that a broadcast shows of it.
pub(crate) fn unrepeated(tensor: &Tensor) -> Result<Tensor> {
    let mut compact = tensor.clone();
    for (dim, stride) in tensor.stride().iter().enumerate() {
        if *stride == 0 && tensor.dims()[dim] > 1 {
            compact = compact.narrow(dim, 0, 1)?;
        }
    }
    Ok(compact)
}

/// A float tensor on the CPU as f32; one that is f32 keeps its strides.
pub(crate) fn to_f32(tensor: &Tensor, op: &'static str) -> Result<Tensor> {
    check_cpu_float(tensor, op)?;
    let tensor = readable(tensor)?;
    let isa = kernels::active()?;
    let values = match tensor.dtype() {
        DType::BF16 => kernels::widen_bf16(isa, Elements::new(&tensor.contiguous()?).as_slice()?),
        DType::F16 => kernels::widen_f16(isa, Elements::new(&tensor.contiguous()?).as_slice()?),
        _ => return Ok(tensor.to_dtype(DType::F32)?),
    };
    Ok(Tensor::from_vec(values, tensor.shape(), &Device::Cpu)?)
}

/// A float tensor on the CPU as contiguous f32.
pub(crate) fn as_f32(tensor: &Tensor, op: &'static str) -> Result<Tensor> {
    Ok(to_f32(tensor, op)?.contiguous()?)
}

/// The elements of a float tensor on the CPU, as f32 in row order.
pub(crate) fn to_f32_vec(tensor: &Tensor, op: &'static str) -> Result<Vec<f32>> {
    let tensor = as_f32(tensor, op)?;
    let elements = Elements::new(&tensor);
    Ok(elements.as_slice()?.to_vec())
}

/// A tensor on the CPU, in `dtype`, of elements in row order.
pub(crate) fn from_f32_vec(values: Vec<f32>, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let cpu = &Device::Cpu;
    Ok(match dtype {
        DType::BF16 => {
            Tensor::from_vec(kernels::narrow_bf16(kernels::active()?, &values), shape, cpu)?
        }
        DType::F16 => Tensor::from_vec(kernels::narrow_f16(&values), shape, cpu)?,
        _ => Tensor::from_vec(values, shape, cpu)?.to_dtype(dtype)?,
    })
}

/// `ys`, which candle did not compute, as a result of `sources`: if candle tracks the gradient of
/// one of them, a backward pass that reaches `ys` is an error, where it would leave out gradients
/// in silence.
pub(crate) fn without_gradient(ys: Tensor, sources: &[&Tensor]) -> Result<Tensor> {
    Ok(match sources.iter().find(|source| source.track_op()) {
        None => ys,
        Some(source) => source.apply_op1(NoGradient(ys))?,
    })
}

/// The operation of which a tensor is the result, for candle's backward pass.
struct NoGradient(Tensor);

impl CustomOp1 for NoGradient {
    fn name(&self) -> &'static str {
        "a layer quantized by candle-dynquant"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let (storage, layout) = self.0.storage_and_layout();
        match &*storage {
            Storage::Cpu(storage) => Ok((storage.clone(), layout.shape().clone())),
            _ => candle_core::bail!("quantized layers run on the CPU"),
        }
    }
}

/// The elements of a tensor where they are. Its storage is not changed while this lives.
pub(crate) struct Elements<'a> {
    storage: StorageRef<'a>,
    layout: &'a Layout,
}

impl<'a> Elements<'a> {
    pub fn new(tensor: &'a Tensor) -> Self {
        let (storage, layout) = tensor.storage_and_layout();
        Self { storage, layout }
    }

    /// All elements, in row order; the tensor is contiguous and on the CPU.
    pub fn as_slice<T: WithDType>(&self) -> Result<&[T]> {
        if !self.layout.is_contiguous() {
            let op = "read";
            return Err(candle_core::Error::RequiresContiguous { op }.into());
        }
        Ok(&self.strided()?[..self.layout.shape().elem_count()])
    }

    /// The storage from the first element on, for an index by strides; the tensor is on the CPU.
    pub fn strided<T: WithDType>(&self) -> Result<&[T]> {
        let values = self.cpu()?.as_slice()?;
        // An empty view may begin beyond its storage.
        Ok(match self.layout.shape().elem_count() {
            0 => &[],
            _ => &values[self.layout.start_offset()..],
        })
    }

    /// Rows, columns and strides.
    pub fn layout(&self) -> &'a Layout {
        self.layout
    }

    /// All elements of a contiguous tensor of indexes of rows on the CPU.
    pub fn to_indexes(&self, op: &'static str, rows: usize) -> Result<Vec<usize>> {
        match self.cpu()? {
            CpuStorage::U8(_) => indexes(self.as_slice::<u8>()?, rows),
            CpuStorage::U32(_) => indexes(self.as_slice::<u32>()?, rows),
            CpuStorage::I64(_) => indexes(self.as_slice::<i64>()?, rows),
            _ => {
                let expected = "u8, u32 or i64 indexes";
                Err(Error::dtype(op, expected, self.storage.dtype()))
            }
        }
    }

    fn cpu(&self) -> Result<&CpuStorage> {
        match &*self.storage {
            Storage::Cpu(storage) => Ok(storage),
            other => Err(Error::from(Fault::UnsupportedDevice {
                op: "read",
                got: format!("{:?}", other.device().location()),
            })),
        }
    }
}

fn indexes<I: IntDType>(indexes: &[I], rows: usize) -> Result<Vec<usize>> {
    // A negative index is a large one as usize.
    if let Some(wrong) = indexes.iter().find(|index| index.as_usize() >= rows) {
        let expected = format!("0 or more, below the {rows} rows of the table");
        return Err(Error::argument("index", expected, wrong));
    }
    Ok(indexes.iter().map(|index| index.as_usize()).collect())
}

/// The bits of all elements in row order, as f64: of any float dtype, to be compared.
pub(crate) fn bits(tensor: &Tensor) -> candle_core::Result<Vec<u64>> {
    let values = tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?;
    Ok(values.into_iter().map(f64::to_bits).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_those_of_the_view() -> Result<()> {
        let tensor = Tensor::new(&[[1f32, 2., 3.], [4., 5., 6.]], &Device::Cpu)?;
        let column = tensor.narrow(1, 1, 1)?;
        assert_eq!(to_f32_vec(&tensor.t()?, "read")?, [1., 4., 2., 5., 3., 6.]);
        assert_eq!(to_f32_vec(&column, "read")?, [2., 5.]);
        let elements = Elements::new(&column);
        assert_eq!(elements.strided::<f32>()?, [2., 3., 4., 5., 6.]);
        assert!(elements.as_slice::<f32>().is_err(), "not contiguous");
        assert!(elements.to_indexes("embedding", 9).is_err(), "not indexes");
        Ok(())
    }

    #[test]
    fn an_empty_view_beyond_its_storage_has_no_elements() -> Result<()> {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
            let row = Tensor::zeros((1, 3), dtype, &Device::Cpu)?;
            let view = row.narrow(0, 1, 0)?.narrow(1, 2, 1)?;
            assert!(view.layout().start_offset() > 3);
            assert!(to_f32_vec(&view, "read")?.is_empty());
            assert_eq!(as_f32(&view.t()?, "read")?.dims(), [1, 0]);
        }
        let indexes = Tensor::zeros(3, DType::U32, &Device::Cpu)?.narrow(0, 3, 0)?;
        assert!(Elements::new(&indexes).to_indexes("embedding", 9)?.is_empty());
        Ok(())
    }
}
