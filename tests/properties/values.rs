//! Random tensors and memory layouts.

use candle_core::{DType, Device, Result, Tensor};
use proptest::prelude::*;

/// The elements of a tensor.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    /// Uniform in -3 to 3.
    Ordinary,
    /// All the same.
    Equal,
    /// All 0.
    Zero,
    /// Subnormal numbers.
    Subnormal,
    /// Finite, but with products outside the range of f32.
    Huge,
    /// Ordinary values and one of 10,000.
    Outlier,
    /// Ordinary values and one NaN.
    Nan,
    /// Ordinary values and one infinity.
    Infinite,
}

const FINITE: [Values; 6] = [
    Values::Ordinary,
    Values::Equal,
    Values::Zero,
    Values::Subnormal,
    Values::Huge,
    Values::Outlier,
];

impl Values {
    /// Any kind of values, mostly finite.
    pub fn any() -> impl Strategy<Value = Self> {
        prop_oneof![
            4 => Just(Self::Ordinary),
            3 => proptest::sample::select(&FINITE[..]),
            1 => proptest::sample::select(vec![Self::Nan, Self::Infinite]),
        ]
    }

    /// Any finite kind of values.
    pub fn finite() -> impl Strategy<Value = Self> {
        proptest::sample::select(&FINITE[..])
    }

    /// A tensor of this shape; the same seed gives the same values.
    pub fn tensor(self, shape: &[usize], seed: u64) -> Result<Tensor> {
        let len = shape.iter().product::<usize>();
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z ^ (z >> 29)
        };
        let mut values: Vec<f32> = (0..len)
            .map(|_| {
                let unit = (next() >> 40) as f32 / (1u64 << 23) as f32 - 1.;
                match self {
                    Self::Equal => 0.7,
                    Self::Zero => 0.,
                    Self::Subnormal => unit * 1e-40,
                    Self::Huge => unit * 1e38,
                    _ => unit * 3.,
                }
            })
            .collect();
        let special = match self {
            Self::Outlier => Some(1e4),
            Self::Nan => Some(f32::NAN),
            Self::Infinite => Some(f32::NEG_INFINITY),
            _ => None,
        };
        if let (Some(special), true) = (special, len > 0) {
            values[next() as usize % len] = special;
        }
        Tensor::from_vec(values, shape, &Device::Cpu)
    }
}

/// The layout of a tensor in its storage.
#[derive(Clone, Copy, Debug)]
pub enum View {
    /// Row-major.
    Contiguous,
    /// The first dimension was the last.
    Transposed,
    /// Part of a larger storage in every dimension.
    Narrowed,
    /// The first row, repeated.
    Broadcast,
    /// An empty tensor that starts beyond the end of its storage.
    Beyond,
}

impl View {
    /// Any layout.
    pub fn any() -> impl Strategy<Value = Self> {
        use View::*;
        proptest::sample::select(&[Contiguous, Transposed, Narrowed, Broadcast, Beyond][..])
    }

    /// A tensor of the shape of `tensor` with this layout.
    pub fn of(self, tensor: &Tensor) -> Result<Tensor> {
        let (last, rows) = (tensor.rank() - 1, tensor.dim(0)?);
        match self {
            Self::Contiguous => Ok(tensor.clone()),
            Self::Transposed => tensor.transpose(0, last)?.contiguous()?.transpose(0, last),
            Self::Narrowed => {
                let mut view = tensor.clone();
                for dim in 0..tensor.rank() {
                    view = view.pad_with_zeros(dim, 2, 1)?;
                }
                for (dim, size) in tensor.dims().iter().enumerate() {
                    view = view.narrow(dim, 2, *size)?;
                }
                Ok(view)
            }
            Self::Broadcast if rows > 0 => tensor.narrow(0, 0, 1)?.broadcast_as(tensor.shape()),
            Self::Broadcast => Ok(tensor.clone()),
            Self::Beyond => match tensor.dims().iter().position(|size| *size == 0) {
                Some(empty) => {
                    let mut shape = tensor.dims().to_vec();
                    shape[empty] = 1;
                    let one = Tensor::zeros(shape, tensor.dtype(), &Device::Cpu)?;
                    one.narrow(empty, 1, 0)
                }
                None => Ok(tensor.clone()),
            },
        }
    }
}

/// Any float dtype.
pub fn dtype() -> impl Strategy<Value = DType> {
    proptest::sample::select(&[DType::F32, DType::F16, DType::BF16, DType::F64][..])
}

/// Sizes around multiples of groups and registers.
pub fn size() -> impl Strategy<Value = usize> {
    prop_oneof![0..6usize, 15..18usize, 31..34usize, 63..70usize]
}

/// The elements as f32.
pub fn floats(tensor: &Tensor) -> Vec<f32> {
    // candle does not read an empty view that begins beyond its storage.
    if tensor.elem_count() == 0 {
        return Vec::new();
    }
    let tensor = tensor.to_dtype(DType::F32).and_then(|t| t.flatten_all());
    tensor.and_then(|t| t.to_vec1()).expect("floats")
}

/// The bits of each element, equal for all NaNs.
pub fn bits(tensor: &Tensor) -> Vec<u32> {
    let bits = |x: f32| if x.is_nan() { u32::MAX } else { x.to_bits() };
    floats(tensor).into_iter().map(bits).collect()
}

/// A contiguous copy in f32.
pub fn copied(tensor: &Tensor) -> Result<Tensor> {
    Tensor::from_vec(floats(tensor), tensor.shape(), &Device::Cpu)
}
