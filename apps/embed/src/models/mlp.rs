//! What follows attention in a layer: products with an activation function between them.

use candle_core::{Result, Tensor};
use candle_dynquant::{FusedActivation, Quantizable, nn, ops};
use candle_nn::Module;

#[derive(Clone, Quantizable)]
pub(crate) struct Mlp {
    pub up: Up,
    pub down: nn::Linear,
}

/// The products that make the inner numbers.
#[derive(Clone, Quantizable)]
pub(crate) enum Up {
    /// One, with an activation function.
    Plain(nn::Linear),
    /// Two, of which the activation of the first is the factor of the second.
    Gated {
        gate: nn::Linear,
        value: nn::Linear,
        activation: FusedActivation,
    },
    /// The same, as one weight.
    Fused {
        both: nn::Linear,
        activation: FusedActivation,
        /// Whether the rows of the gate come before those of the values.
        gate_first: bool,
    },
}

impl Mlp {
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.down.forward(&self.up.forward(xs)?)
    }
}

impl Up {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (gate, value, activation) = match self {
            Self::Plain(linear) => return linear.forward(xs),
            Self::Gated {
                gate,
                value,
                activation,
            } => {
                let [gate, value] = nn::Linear::forward_each([gate, value], xs)?;
                (gate, value, activation)
            }
            Self::Fused {
                both,
                activation,
                gate_first,
            } => {
                let both = both.forward(xs)?;
                let size = both.dim(1)? / 2;
                let gate_at = usize::from(!gate_first) * size;
                // Of views, candle would compute the place of each element.
                let part = |start| both.narrow(1, start, size)?.contiguous();
                (part(gate_at)?, part(size - gate_at)?, activation)
            }
        };
        ops::activate_mul(&gate, &value, *activation)
    }
}
