//! Recurrent layers over sequences: what LSTM, GRU and RNN share.

mod cell;
mod gru;
mod lstm;
mod rnn;
mod run;
mod schedule;
mod stack;
mod weights;

pub use candle_nn::rnn::{GRUConfig, GRUState, LSTMConfig, LSTMState};
pub use cell::{GRUCell, LSTMCell, RNNCell};
pub use gru::{GRU, gru};
pub use lstm::{LSTM, lstm};
pub use rnn::{Nonlinearity, RNN};

use candle_core::Tensor;
use candle_nn::{Init, VarBuilder};

use crate::error::{Error, Result};
use crate::sizes;
use crate::tensor::{mismatch, to_f32_vec};
use stack::Stack;

/// How a recurrent layer is built, under PyTorch's names and with its defaults.
///
/// ```
/// use candle_dynquant::nn::RecurrentConfig;
///
/// let config = RecurrentConfig { num_layers: 2, bidirectional: true, ..Default::default() };
/// assert!(config.bias && !config.batch_first);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentConfig {
    /// Layers, each of which reads the output of the one before.
    pub num_layers: usize,
    /// Whether the layers have `bias_ih` and `bias_hh`.
    pub bias: bool,
    /// Input and output are `[batch, steps, features]` instead of `[steps, batch, features]`.
    pub batch_first: bool,
    /// A second set of weights reads the sequence from its end; outputs are concatenated.
    pub bidirectional: bool,
    /// LSTM only: the size the hidden state is projected to, 0 for none.
    pub proj_size: usize,
}

impl Default for RecurrentConfig {
    fn default() -> Self {
        Self {
            num_layers: 1,
            bias: true,
            batch_first: false,
            bidirectional: false,
            proj_size: 0,
        }
    }
}

/// The implementations that all layers around a [`Stack`] or a cell share.
macro_rules! quantizable_layer {
    ($layer:ident, $inner:ident, $kind:expr) => {
        impl $crate::module::Layer for $layer {
            fn kind(&self) -> $crate::module::LayerKind {
                $kind
            }

            fn checkpoint_name(&self) -> Option<&str> {
                self.$inner.name()
            }

            fn weights(&self) -> Vec<$crate::module::WeightInfo> {
                self.$inner.weights()
            }

            fn quantize(&self, qconfig: &$crate::qconfig::QConfig) -> $crate::error::Result<Self> {
                Ok(Self {
                    $inner: self.$inner.quantize(qconfig)?,
                })
            }
        }

        impl $crate::module::Quantizable for $layer {
            fn visit(&self, walk: &mut $crate::module::Walk<'_>) -> $crate::error::Result<()> {
                walk.layer(self)
            }

            fn visit_mut(
                &mut self,
                walk: &mut $crate::module::WalkMut<'_>,
            ) -> $crate::error::Result<()> {
                walk.layer(self)
            }
        }
    };
}
use quantizable_layer;

/// As PyTorch draws the weights and biases of recurrent layers.
fn uniform_init(hidden_size: usize) -> Init {
    let bound = 1. / (hidden_size.max(1) as f64).sqrt();
    Init::Uniform {
        lo: -bound,
        up: bound,
    }
}

/// A weight or bias; a backend of the user's own may not give the shape that it is asked for.
fn load(vb: &VarBuilder<'_>, shape: &[usize], name: &str, init: Init) -> Result<Tensor> {
    sizes::elements("weight", shape)?;
    let tensor = vb.get_with_hints(shape, name, init)?;
    match tensor.dims() == shape {
        true => Ok(tensor),
        false => Err(mismatch("weight", format!("{shape:?}"), &tensor).at(&vb.pp(name).prefix())),
    }
}

/// A state as f32, or zeros where none was given.
fn read_state(op: &'static str, tensor: Option<&Tensor>, shape: &[usize]) -> Result<Vec<f32>> {
    let len = sizes::elements(op, shape)?;
    match tensor {
        None => Ok(vec![0.; len]),
        Some(tensor) if tensor.dims() == shape => to_f32_vec(tensor, op),
        Some(tensor) => Err(mismatch(op, format!("{shape:?}"), tensor)),
    }
}

/// candle's `RNN` has one layer and one direction.
fn single(stack: &Stack, kind: &str) -> Result<()> {
    match stack.is_single() {
        true => Ok(()),
        false => Err(Error::InvalidArgument {
            what: "layer used through candle_nn::RNN",
            expected: "one layer in one direction; use forward".into(),
            got: "several".into(),
        }
        .at(stack.name().unwrap_or(kind))),
    }
}
