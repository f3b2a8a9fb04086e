//! Norms in the tree: layers without a weight to be quantized, which scale what others multiply.

use candle_core::Tensor;

use crate::tap::Tap;

/// The parameters of a norm, `[hidden]` each.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Affine {
    /// The factors of the normal values.
    pub weight: Tensor,
    /// The terms.
    pub bias: Option<Tensor>,
    /// The factors of a residual, before it is added to the input.
    pub residual: Option<Tensor>,
}

/// A norm that a walk shows: [`nn::LayerNorm`](crate::nn::LayerNorm) and
/// [`nn::RmsNorm`](crate::nn::RmsNorm).
pub trait AnyNorm {
    /// The name it was loaded under, if it remembers one.
    fn checkpoint_name(&self) -> Option<&str>;
    /// Its parameters.
    fn affine(&self) -> Affine;
    /// Whether its parameters were replaced since it was made.
    fn is_folded(&self) -> bool;
    /// Replaces its parameters.
    fn set_affine(&mut self, affine: Affine);
    /// As [`Layer::attach`](super::Layer::attach); a residual is reported after the input.
    fn attach(&mut self, tap: Option<Tap>);
}
