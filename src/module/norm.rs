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
    /// The name that the norm was loaded under, if it remembers it.
    fn checkpoint_name(&self) -> Option<&str>;
    /// The parameters of the norm.
    fn affine(&self) -> Affine;
    /// Whether the parameters were replaced since the norm was built.
    fn is_folded(&self) -> bool;
    /// Replaces the parameters.
    fn set_affine(&mut self, affine: Affine);
    /// Makes each forward call report to `tap`, or to nothing, as
    /// [`Layer::attach`](super::Layer::attach); a residual is reported after the input.
    fn attach(&mut self, tap: Option<Tap>);
}
