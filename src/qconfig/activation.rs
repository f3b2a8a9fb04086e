//! How activations are quantized: which rows share a scale, and by whose formulas.

use std::fmt;

use serde::Serialize;

use candle_dynquant_kernels::qparams::activation as kernels;

use crate::words::{converted, words};

/// The part of an activation that shares a scale and zero point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Granularity {
    /// All rows of a call share a scale: PyTorch's way, in which rows influence each other.
    PerTensor,
    /// Each row (token) has a separate scale: its result does not depend on the rows beside it.
    PerRow,
}

/// The formulas that turn a range into scale, zero point and codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Arithmetic {
    /// torch 2.9.1's on x86; per row the plain affine formula. The code of `x` is
    /// `round(fma(x, 1 / scale, zero_point))`.
    PyTorch,
    /// onnxruntime 1.31.1's `DynamicQuantizeLinear`. The code of `x` is
    /// `round(x / scale) + zero_point`.
    OnnxRuntime,
}

words!(Granularity, "granularity", prefix "", {
    PerTensor => "per_tensor",
    PerRow => "per_row",
});

words!(Arithmetic, "arithmetic", prefix "", {
    PyTorch => "pytorch",
    OnnxRuntime => "onnxruntime",
});

/// How activations become u8, affine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub struct DynamicConfig {
    /// Whether rows share their scale.
    pub granularity: Granularity,
    /// Use only 7 of the 8 bits, as PyTorch does on x86. It costs accuracy; x86-64 CPUs without
    /// VNNI multiply such codes faster.
    pub reduce_range: bool,
    /// The formulas.
    pub arithmetic: Arithmetic,
}

impl DynamicConfig {
    /// PyTorch's formulas.
    pub const fn new(granularity: Granularity, reduce_range: bool) -> Self {
        Self { granularity, reduce_range, arithmetic: Arithmetic::PyTorch }
    }
}

/// The recommended configuration, which [`QConfig::int8`](crate::QConfig) has.
impl Default for DynamicConfig {
    fn default() -> Self {
        Self::new(Granularity::PerRow, false)
    }
}

impl From<DynamicConfig> for kernels::DynamicConfig {
    fn from(config: DynamicConfig) -> Self {
        Self {
            per_row: config.granularity == Granularity::PerRow,
            reduce_range: config.reduce_range,
            arithmetic: config.arithmetic.into(),
        }
    }
}

converted!(Arithmetic => kernels::Arithmetic { PyTorch, OnnxRuntime });

impl fmt::Display for DynamicConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = if self.reduce_range { 7 } else { 8 };
        let granularity = match self.granularity {
            Granularity::PerTensor => "per tensor",
            Granularity::PerRow => "per row",
        };
        write!(f, "u{bits} {granularity}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qparams::{onnxruntime_activation, per_row_activation, per_tensor_activation};

    #[test]
    fn configurations_choose_the_formulas_and_say_so() {
        let (torch, onnx) = (Arithmetic::PyTorch, Arithmetic::OnnxRuntime);
        let (tensor, row) = (Granularity::PerTensor, Granularity::PerRow);
        // Below all normal numbers, where the three formulas differ.
        let (min, max) = (0., 1e-40);
        for (arithmetic, granularity, expected) in [
            (torch, tensor, per_tensor_activation(min, max, true)),
            (torch, row, per_row_activation(min, max, true)),
            (onnx, tensor, onnxruntime_activation(min, max, true)),
            (onnx, row, onnxruntime_activation(min, max, true)),
        ] {
            let config = DynamicConfig { granularity, reduce_range: true, arithmetic };
            let got = kernels::DynamicConfig::from(config).qparams(min, max);
            assert_eq!(got, expected, "{arithmetic} {granularity}");
        }
        assert_eq!(DynamicConfig::new(tensor, false).to_string(), "u8 per tensor");
        assert_eq!(DynamicConfig::new(row, true).to_string(), "u7 per row");
    }
}
