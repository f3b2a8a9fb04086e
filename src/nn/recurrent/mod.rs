//! Recurrent layers over sequences: the parts that LSTM, GRU and RNN share. The arithmetic of a
//! step, after its products, is `kernels::loops::gates`.

mod candle;
mod cell;
mod composite;
mod config;
mod fused;
mod gru;
mod kind;
mod layer;
mod lstm;
mod rnn;
mod schedule;
mod stack;
mod state;
mod steps;
mod weights;

pub use candle::{gru, lstm};
pub use candle_nn::rnn::{GRUConfig, GRUState, LSTMConfig, LSTMState};
pub use cell::{GRUCell, LSTMCell, RNNCell, RecurrentCell};
pub use config::RecurrentConfig;
pub use gru::GRU;
pub use lstm::LSTM;
pub use rnn::{Nonlinearity, RNN};
pub use stack::Recurrent;
