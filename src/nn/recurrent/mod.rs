//! Recurrent layers over sequences: the parts that LSTM, GRU and RNN share. The arithmetic of a
//! step, after its products, is `kernels::loops::gates`.

mod candle;
mod cell;
mod composite;
mod fused;
mod gru;
mod kind;
mod lstm;
mod rnn;
mod schedule;
mod stack;
mod steps;
mod weights;

pub use candle::{gru, lstm};
pub use candle_nn::rnn::{GRUConfig, GRUState, LSTMConfig, LSTMState};
pub use cell::{GRUCell, LSTMCell, RNNCell};
pub use gru::GRU;
pub use lstm::LSTM;
pub use rnn::{Nonlinearity, RNN};

use candle_core::Tensor;
use candle_nn::{Init, VarBuilder};

use crate::error::Result;
use crate::sizes;
use crate::tensor::{Elements, as_f32, mismatch};
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

/// The constructor and the implementations that all layers around a [`Stack`] or a cell share.
///
/// The constructor has the parameters in brackets; `$layer_kind` may be one of them, and the
/// weights are loaded with the one that is named last.
macro_rules! recurrent_layer {
    (
        $layer:ident { $inner:ident: $Inner:ty }, $layer_kind:expr,
        [$($param:ident: $Param:ty),+], $options:ident
    ) => {
        impl $layer {
            /// Loads it from `vb`.
            ///
            /// # Errors
            /// When a tensor is missing or has another shape, or the options make no sense.
            pub fn new(
                input_size: usize,
                hidden_size: usize,
                $($param: $Param,)+
                vb: candle_nn::VarBuilder<'_>,
            ) -> $crate::error::Result<Self> {
                let $inner = <$Inner>::load($layer_kind, [input_size, hidden_size], $options, &vb)?;
                Ok(Self { $inner })
            }
        }

        impl $crate::module::Layer for $layer {
            fn kind(&self) -> $crate::module::LayerKind {
                $crate::module::LayerKind::$layer
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

            fn stored(&self) -> $crate::error::Result<Vec<$crate::stored::StoredWeight>> {
                Ok(self.$inner.stored())
            }

            fn values(&self) -> $crate::error::Result<Vec<candle_core::Tensor>> {
                self.$inner.projections().map($crate::nn::Projection::value).collect()
            }

            fn attach(&mut self, tap: Option<$crate::tap::Tap>) -> bool {
                self.$inner.tap = tap;
                true
            }

            fn replay(&self) -> Option<$crate::tap::Replay> {
                let own = self.$inner.clone();
                Some(std::sync::Arc::new(move |inputs| own.replay(inputs)))
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
use recurrent_layer;

/// `forward` and `forward_lengths` of a layer whose state is h alone.
macro_rules! forward_h {
    ($layer:ident, $span:literal) => {
        impl $layer {
            /// Output and last state; the state before the first step is `h`, or zeros.
            ///
            /// # Errors
            /// When the input or the state has a wrong shape or dtype, or is on another device than
            /// the weights.
            pub fn forward(
                &self,
                xs: &candle_core::Tensor,
                h: Option<&candle_core::Tensor>,
            ) -> $crate::error::Result<(candle_core::Tensor, candle_core::Tensor)> {
                $crate::trace::forward!($span, self.stack.name());
                self.stack.forward_h(stringify!($layer), xs, None, h)
            }

            /// [`forward`](Self::forward) over sequences of different lengths: the rest of each is
            /// padding, which influences nothing and is zero in the output.
            ///
            /// # Errors
            /// Also when there is not one length a sequence, or one is longer than the input.
            pub fn forward_lengths(
                &self,
                xs: &candle_core::Tensor,
                lengths: &[usize],
                h: Option<&candle_core::Tensor>,
            ) -> $crate::error::Result<(candle_core::Tensor, candle_core::Tensor)> {
                $crate::trace::forward!($span, self.stack.name());
                self.stack
                    .forward_h(stringify!($layer), xs, Some(lengths), h)
            }
        }
    };
}
use forward_h;

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
    if tensor.dims() == shape {
        Ok(tensor)
    } else {
        Err(mismatch("weight", format!("{shape:?}"), &tensor).at(&vb.pp(name).prefix()))
    }
}

/// A state that `copy` makes of f32 elements, or zeros where none is given.
fn read_state(
    op: &'static str,
    state: Option<&Tensor>,
    shape: &[usize],
    copy: impl FnOnce(&[f32]) -> Vec<f32>,
) -> Result<Vec<f32>> {
    let len = sizes::elements(op, shape)?;
    let Some(state) = state else {
        return Ok(vec![0.; len]);
    };
    check_state(op, state, shape)?;
    let state = as_f32(state, op)?;
    Ok(copy(Elements::of(&state).as_slice()?))
}

/// Checks the shape of a state.
fn check_state(op: &'static str, state: &Tensor, shape: &[usize]) -> Result<()> {
    if state.dims() == shape {
        Ok(())
    } else {
        Err(mismatch(op, format!("{shape:?}"), state))
    }
}
