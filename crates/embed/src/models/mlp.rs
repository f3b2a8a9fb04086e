//! The feed-forward part of a layer: products with an activation function between them, or experts
//! of such products.

use candle_core::{Result, Tensor};
use candle_dynquant::{FusedActivation, Quantizable, nn, ops};
use candle_nn::Module;

#[derive(Clone, Quantizable)]
#[expect(clippy::large_enum_variant, reason = "most are products")]
pub(crate) enum Mlp {
    Products { up: Up, down: nn::Linear },
    Mixture(Mixture),
}

/// Experts, of which some compute each token, and the bias of their sum.
#[derive(Clone, Quantizable)]
pub(crate) struct Mixture {
    pub router: nn::Router,
    pub experts: nn::Experts,
    pub chosen: usize,
    pub bias: Tensor,
}

/// The products that compute the inner activations.
#[derive(Clone, Quantizable)]
pub(crate) enum Up {
    /// A product with an activation function.
    Plain(nn::Linear),
    /// Two products; the activation of the first multiplies the second.
    Gated { gate: nn::Linear, value: nn::Linear, activation: FusedActivation },
    /// The gated products in one weight.
    Fused {
        both: nn::Linear,
        activation: FusedActivation,
        /// Whether the rows of the gate come first.
        gate_first: bool,
    },
}

impl Mlp {
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::Products { up, down } => down.forward(&up.forward(xs)?),
            Self::Mixture(all) => {
                let (chosen, weights) = all.router.choose(xs, all.chosen, false)?;
                let sum = all.experts.forward(xs, &chosen, &weights)?;
                sum.broadcast_add(&all.bias)
            }
        }
    }
}

impl Up {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (gate, value, activation) = match self {
            Self::Plain(linear) => return linear.forward(xs),
            Self::Gated { gate, value, activation } => {
                let [gate, value] = nn::Linear::forward_each([gate, value], xs)?;
                (gate, value, activation)
            }
            Self::Fused { both, activation, gate_first } => {
                let both = both.forward(xs)?;
                let size = both.dim(1)? / 2;
                let gate_at = usize::from(!gate_first) * size;
                // For views, candle would compute the position of each element.
                let part = |start| both.narrow(1, start, size)?.contiguous();
                (part(gate_at)?, part(size - gate_at)?, activation)
            }
        };
        ops::activate_mul(&gate, &value, *activation)
    }
}
