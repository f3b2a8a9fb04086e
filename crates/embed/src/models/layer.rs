//! A layer of any architecture, by the names of its parts in a checkpoint.

use candle_core::Result;
use candle_dynquant::nn;
use candle_nn::VarBuilder;

use super::attention::Attention;
use super::mlp::{Mlp, Up};
use super::projections::Inputs;
use super::sizes::Sizes;
use super::transformer::{Layer, Residual};

/// The names of a layer's parts, and their kinds.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    pub layers: &'static str,
    pub inputs: Projected,
    /// The norms of each head's queries and keys.
    pub head_norms: Option<[&'static str; 2]>,
    /// The name in a checkpoint of the precision of attention.
    pub attention: &'static str,
    /// The scale of scores, if not by the size of a head.
    pub scale: Option<f64>,
    pub output: &'static str,
    pub up: Expanded,
    pub down: &'static str,
    /// The norms around attention and around the products.
    pub norms: [Norms; 2],
    pub norm: Norm,
    /// Whether attention and the products up and down have biases.
    pub biases: [bool; 3],
}

/// The products before attention.
#[derive(Clone, Copy)]
pub(super) enum Projected {
    /// Queries, keys and values.
    Each([&'static str; 3]),
    Fused(&'static str),
}

/// The products that compute the inner activations.
#[derive(Clone, Copy)]
pub(super) enum Expanded {
    Plain(&'static str),
    /// The gate, and what it multiplies.
    Gated([&'static str; 2]),
    /// Both in one weight, and whether the rows of the gate come first.
    Fused(&'static str, bool),
}

/// The norms before a part, behind it, and behind the sum with its input.
pub(super) type Norms = [Option<&'static str>; 3];

pub(super) const fn pre_norm(name: &'static str) -> Norms {
    [Some(name), None, None]
}

pub(super) const fn post_norm(name: &'static str) -> Norms {
    [None, None, Some(name)]
}

#[derive(Clone, Copy)]
pub(super) enum Norm {
    Layer {
        bias: bool,
    },
    /// A norm without a mean, with an offset that is added to the stored weight.
    Rms {
        offset: f64,
    },
}

impl Norm {
    pub fn load(self, size: usize, eps: f64, vb: VarBuilder<'_>) -> Result<nn::LayerNorm> {
        match self {
            Self::Layer { bias } => {
                let config = nn::LayerNormConfig { affine: bias, ..eps.into() };
                nn::layer_norm(size, config, vb)
            }
            Self::Rms { offset: 0. } => Ok(nn::rms_norm(size, eps, vb)?.into_inner()),
            Self::Rms { offset } => {
                let weight = (nn::rms_norm(size, eps, vb)?.weight() + offset)?;
                Ok(nn::RmsNorm::new(weight, eps).into_inner())
            }
        }
    }
}

impl Parts {
    /// All layers, of which `vb` is the model's place.
    pub fn load_all(&self, sizes: &Sizes, vb: &VarBuilder<'_>) -> Result<Vec<Layer>> {
        let layers = vb.pp(self.layers);
        (0..sizes.layers).map(|index| self.load(sizes, &layers.pp(index))).collect()
    }

    pub fn load(&self, sizes: &Sizes, vb: &VarBuilder<'_>) -> Result<Layer> {
        self.load_around(sizes, self.mlp(sizes, vb)?, vb)
    }

    /// A layer with these inner products.
    pub fn load_around(&self, sizes: &Sizes, mlp: Mlp, vb: &VarBuilder<'_>) -> Result<Layer> {
        let (heads, [bias, ..]) = (sizes.heads, self.biases);
        let [of_queries, of_keys] = [heads.queries, heads.keys].map(|count| count * heads.dim);
        let linear = |out, name| sizes.linear(out, bias, vb.pp(name));
        let norm = |size, name| self.norm.load(size, sizes.eps, vb.pp(name));
        let inputs = match self.inputs {
            Projected::Each([q, k, v]) => {
                let [k, v] = [k, v].map(|name| linear(of_keys, name));
                Inputs::Each(Box::new([linear(of_queries, q)?, k?, v?]))
            }
            Projected::Fused(name) => Inputs::Fused(linear(of_queries + 2 * of_keys, name)?),
        };
        let head_norms = self.head_norms.map(|[q, k]| {
            let [q, k] = [q, k].map(|name| norm(heads.dim, name));
            Ok::<_, candle_core::Error>([q?, k?])
        });
        let around = |names: Norms| {
            let norms = names.map(|name| name.map(|name| norm(sizes.hidden, name)).transpose());
            let [before, after, last] = norms;
            Ok::<_, candle_core::Error>(Residual {
                before: before?,
                after: after?,
                last: last?,
                scale: None,
            })
        };
        let scale = self.scale.unwrap_or_else(|| heads.scale().into());
        Ok(Layer {
            attention: Attention {
                inputs,
                norms: head_norms.transpose()?,
                attention: nn::Attention::load(scale, vb.pp(self.attention)),
                disentangled: None,
                output: nn::linear_b(of_queries, sizes.hidden, bias, vb.pp(self.output))?,
                heads,
            },
            around_attention: around(self.norms[0])?,
            mlp,
            around_mlp: around(self.norms[1])?,
            view: 0,
        })
    }

    /// The products behind attention.
    pub fn mlp(&self, sizes: &Sizes, vb: &VarBuilder<'_>) -> Result<Mlp> {
        let ([_, of_up, of_down], activation) = (self.biases, sizes.activation);
        let up = |size, name| sizes.linear(size, of_up, vb.pp(name));
        Ok(Mlp::Products {
            up: match self.up {
                Expanded::Plain(name) => {
                    Up::Plain(up(sizes.inner, name)?.with_activation(activation))
                }
                Expanded::Gated([gate, value]) => {
                    let [gate, value] = [gate, value].map(|name| up(sizes.inner, name));
                    Up::Gated { gate: gate?, value: value?, activation }
                }
                Expanded::Fused(name, gate_first) => {
                    Up::Fused { both: up(2 * sizes.inner, name)?, activation, gate_first }
                }
            },
            down: nn::linear_b(sizes.inner, sizes.hidden, of_down, vb.pp(self.down))?,
        })
    }
}
