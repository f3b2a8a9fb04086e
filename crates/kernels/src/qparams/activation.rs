//! How activations are quantized: which rows share a scale, and by whose formulas.

use super::{QParams, onnxruntime_activation, per_row_activation, per_tensor_activation};

/// The formulas that turn a range into scale, zero point and codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// torch 2.9.1's on x86; per row the plain affine formula. The code of `x` is
    /// `round(fma(x, 1 / scale, zero_point))`.
    PyTorch,
    /// onnxruntime 1.31.1's `DynamicQuantizeLinear`. The code of `x` is
    /// `round(x / scale) + zero_point`.
    OnnxRuntime,
}

/// How activations become u8, affine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DynamicConfig {
    /// Whether each row (token) has its own scale and zero point, so that its result does not depend
    /// on the rows beside it. Else all rows of a call share one: PyTorch's way.
    pub per_row: bool,
    /// Use only 7 of the 8 bits, as PyTorch does on x86. It costs accuracy; x86-64 CPUs without
    /// VNNI multiply such codes faster.
    pub reduce_range: bool,
    /// The formulas.
    pub arithmetic: Arithmetic,
}

impl DynamicConfig {
    /// 8 bits, a scale for each row, by PyTorch's formulas.
    pub const PER_ROW: Self =
        Self { per_row: true, reduce_range: false, arithmetic: Arithmetic::PyTorch };

    /// Scale and zero point of activations in `[min, max]`.
    #[inline]
    pub fn qparams(self, min: f32, max: f32) -> QParams {
        let reduce_range = self.reduce_range;
        match self.arithmetic {
            Arithmetic::OnnxRuntime => onnxruntime_activation(min, max, reduce_range),
            Arithmetic::PyTorch if self.per_row => per_row_activation(min, max, reduce_range),
            Arithmetic::PyTorch => per_tensor_activation(min, max, reduce_range),
        }
    }
}
