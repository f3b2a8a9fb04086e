//! Layers: candle_nn's calls, with weights that can be quantized in place.

mod embedding;
mod linear;
mod projection;
mod recurrent;

use std::sync::Arc;

use candle_nn::VarBuilder;

pub use embedding::{Embedding, embedding};
pub use linear::{Linear, linear, linear_b, linear_no_bias};
pub use projection::{Projection, WeightError};
pub use recurrent::{
    GRU, GRUCell, GRUConfig, GRUState, LSTM, LSTMCell, LSTMConfig, LSTMState, Nonlinearity, RNN,
    RNNCell, RecurrentConfig, gru, lstm,
};

/// The name that a layer remembers of where it was loaded from.
fn prefix_of(vb: &VarBuilder<'_>) -> Option<Arc<str>> {
    let prefix = vb.prefix();
    (!prefix.is_empty()).then(|| prefix.into())
}
