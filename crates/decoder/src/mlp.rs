//! The second part of a layer: an MLP, or a mixture of experts.

use anyhow::Result;
use candle_core::{Result as CandleResult, Tensor};
use candle_dynquant::ops;
use candle_dynquant::{FusedActivation, Quantizable, nn};
use candle_nn::{Module, VarBuilder};

use crate::config::Config;

/// Two products, their combination, and a third product.
#[derive(Quantizable, Clone)]
pub enum Mlp {
    Separate {
        gate_proj: nn::Linear,
        up_proj: nn::Linear,
        down_proj: nn::Linear,
        is_gelu: bool,
    },
    /// The first two products as one.
    Joined {
        gate_up_proj: nn::Linear,
        down_proj: nn::Linear,
    },
    Mixture {
        gate: nn::Router,
        experts: nn::Experts,
        /// The experts of a token, and whether their weights sum to 1.
        choice: (usize, bool),
    },
}

impl Mlp {
    pub fn load(config: &Config, layer: usize, vb: &VarBuilder<'_>) -> Result<Self> {
        if config.has_experts(layer) {
            return Self::mixture(config, vb);
        }
        let [module, gate, up, down] = config.names().mlp;
        let vb = vb.pp(module);
        let (size, inner) = (config.hidden_size, config.intermediate_size());
        let linear = |inputs, out, name| {
            let vb = vb.pp(name);
            nn::linear_b(inputs, out, config.bias(false, &vb), vb)
        };
        let down_proj = linear(inner, size, down)?;
        if config.has_joined_projections() {
            return Ok(Self::Joined {
                gate_up_proj: linear(size, 2 * inner, "gate_up_proj")?,
                down_proj,
            });
        }
        Ok(Self::Separate {
            gate_proj: linear(size, inner, gate)?,
            up_proj: linear(size, inner, up)?,
            down_proj,
            is_gelu: config.is_gemma(),
        })
    }

    fn mixture(config: &Config, vb: &VarBuilder<'_>) -> Result<Self> {
        let (size, inner, count) = (config.hidden_size, config.expert_size(), config.experts());
        let choice = (config.experts_per_token(), config.has_normalized_experts());
        let [module, router, gate, up, down] = config.expert_names();
        let vb = vb.pp(module);
        if config.has_stacked_experts() {
            let tensor = |shape: (usize, usize, usize), name| vb.pp(name).get(shape, "weight");
            let both = tensor((count, 2 * inner, size), gate)?;
            let down = tensor((count, size, inner), down)?;
            return Ok(Self::Mixture {
                gate: nn::router(size, count, vb.pp(router))?,
                experts: nn::Experts::stacked(&both, &down)?,
                choice,
            });
        }
        let expert = |index| {
            let vb = vb.pp("experts").pp(index);
            Ok(nn::Expert::new(
                nn::linear_no_bias(size, inner, vb.pp(gate))?,
                nn::linear_no_bias(size, inner, vb.pp(up))?,
                nn::linear_no_bias(inner, size, vb.pp(down))?,
            ))
        };
        let experts: CandleResult<_> = (0..count).map(expert).collect();
        Ok(Self::Mixture {
            gate: nn::router(size, count, vb.pp(router))?,
            experts: nn::Experts::new(experts?),
            choice,
        })
    }

    /// Maps `[rows, hidden]` to `[rows, hidden]`.
    pub fn forward(&self, xs: &Tensor) -> CandleResult<Tensor> {
        let (gate_proj, up_proj, down_proj, is_gelu) = match self {
            Self::Mixture { gate, experts, choice: (count, normalized) } => {
                let (chosen, weights) = gate.choose(xs, *count, *normalized)?;
                return experts.forward(xs, &chosen, &weights);
            }
            Self::Joined { gate_up_proj, down_proj } => return joined(xs, gate_up_proj, down_proj),
            Self::Separate { gate_proj, up_proj, down_proj, is_gelu } => {
                (gate_proj, up_proj, down_proj, *is_gelu)
            }
        };
        let [gate, up] = nn::Linear::forward_each([gate_proj, up_proj], xs)?;
        let activation = if is_gelu { FusedActivation::GeluTanh } else { FusedActivation::Silu };
        down_proj.forward(&ops::activate_mul(&gate, &up, activation)?)
    }
}

/// An MLP whose gate and up projections are one matrix.
fn joined(xs: &Tensor, gate_up: &nn::Linear, down: &nn::Linear) -> CandleResult<Tensor> {
    down.forward(&ops::swiglu(&gate_up.forward(xs)?)?)
}

/// [`Mlp::Joined`] by Granite 4's names.
#[derive(Quantizable, Clone)]
pub struct SharedMlp {
    input_linear: nn::Linear,
    output_linear: nn::Linear,
}

impl SharedMlp {
    pub fn load(config: &Config, vb: VarBuilder<'_>) -> Result<Self> {
        let (size, inner) = (config.hidden_size, config.intermediate_size());
        Ok(Self {
            input_linear: nn::linear_no_bias(size, 2 * inner, vb.pp("input_linear"))?,
            output_linear: nn::linear_no_bias(inner, size, vb.pp("output_linear"))?,
        })
    }

    /// Maps `[rows, hidden]` to `[rows, hidden]`.
    pub fn forward(&self, xs: &Tensor) -> CandleResult<Tensor> {
        joined(xs, &self.input_linear, &self.output_linear)
    }
}
