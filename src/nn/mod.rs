//! Layers: candle_nn's calls, with weights that can be quantized in place.

mod linear;
mod projection;
mod recurrent;

pub use linear::{Linear, linear, linear_b, linear_no_bias};
pub use projection::Projection;
pub use recurrent::{
    GRU, GRUCell, GRUConfig, GRUState, LSTM, LSTMCell, LSTMConfig, LSTMState, Nonlinearity, RNN,
    RNNCell, RecurrentConfig, gru, lstm,
};
