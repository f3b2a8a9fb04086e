//! Any recurrent layer or cell, under PyTorch's names.

use candle_dynquant::Quantizable;
use candle_dynquant::nn::{self, Nonlinearity, RecurrentConfig};
use candle_nn::VarBuilder;

use super::Tensor;

#[derive(Quantizable, Clone)]
pub enum Recurrent {
    Lstm(nn::LSTM),
    Gru(nn::GRU),
    Rnn(nn::RNN),
    LstmCell(nn::LSTMCell),
    GruCell(nn::GRUCell),
    RnnCell(nn::RNNCell),
}

impl Recurrent {
    pub fn new(
        kind: &str,
        [input, hidden]: [usize; 2],
        act: Nonlinearity,
        config: RecurrentConfig,
        vb: VarBuilder<'_>,
    ) -> candle_dynquant::Result<Self> {
        let bias = config.bias;
        Ok(match kind {
            "LSTM" => Self::Lstm(nn::LSTM::new(input, hidden, config, vb)?),
            "GRU" => Self::Gru(nn::GRU::new(input, hidden, config, vb)?),
            "RNN" => Self::Rnn(nn::RNN::new(input, hidden, act, config, vb)?),
            "LSTMCell" => Self::LstmCell(nn::LSTMCell::new(input, hidden, bias, vb)?),
            "GRUCell" => Self::GruCell(nn::GRUCell::new(input, hidden, bias, vb)?),
            "RNNCell" => Self::RnnCell(nn::RNNCell::new(input, hidden, bias, act, vb)?),
            kind => panic!("unknown kind {kind}"),
        })
    }

    /// Results under the names `output`, `h_n` and `c_n`; a cell is called once on `xs`.
    pub fn run(
        &self,
        xs: &Tensor,
        lengths: Option<&[usize]>,
        h: Option<&Tensor>,
        c: Option<&Tensor>,
    ) -> candle_core::Result<Vec<(&'static str, Tensor)>> {
        let state = h.zip(c).map(|(h, c)| nn::LSTMState::new(h.clone(), c.clone()));
        let state = state.as_ref();
        let with_h = |(ys, h): (Tensor, Tensor)| vec![("output", ys), ("h_n", h)];
        let with_c = |state: nn::LSTMState| vec![("h_n", state.h), ("c_n", state.c)];
        let of_lstm = |(ys, state)| [vec![("output", ys)], with_c(state)].concat();
        Ok(match (self, lengths) {
            (Self::Lstm(lstm), None) => of_lstm(lstm.forward(xs, state)?),
            (Self::Lstm(lstm), Some(lengths)) => of_lstm(lstm.forward_lengths(xs, lengths, state)?),
            (Self::Gru(gru), None) => with_h(gru.forward(xs, h)?),
            (Self::Gru(gru), Some(lengths)) => with_h(gru.forward_lengths(xs, lengths, h)?),
            (Self::Rnn(rnn), None) => with_h(rnn.forward(xs, h)?),
            (Self::Rnn(rnn), Some(lengths)) => with_h(rnn.forward_lengths(xs, lengths, h)?),
            (Self::LstmCell(cell), _) => with_c(cell.forward(xs, state)?),
            (Self::GruCell(cell), _) => vec![("h_n", cell.forward(xs, h)?)],
            (Self::RnnCell(cell), _) => vec![("h_n", cell.forward(xs, h)?)],
        })
    }
}
