//! Recurrent layers with candle's configuration.
use candle::{Result, Tensor};
use candle_nn::rnn::{Direction, LSTMConfig};
use candle_nn::{GRUConfig, VarBuilder, GRU, LSTM, RNN};

pub struct Recurrent {
    there: LSTM,
    back: LSTM,
    last: GRU,
}

impl Recurrent {
    pub fn load(size: usize, vb: VarBuilder) -> Result<Self> {
        let config = LSTMConfig {
            direction: Direction::Backward,
            ..Default::default()
        };
        Ok(Self {
            there: LSTM::new(size, size, LSTMConfig::default(), vb.pp("lstm"))?,
            back: candle_nn::rnn::LSTM::new(size, size, config, vb.pp("lstm"))?,
            last: GRU::new(2 * size, size, GRUConfig::default(), vb.pp("gru"))?,
        })
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let there = self.there.states_to_tensor(&self.there.seq(xs)?)?;
        let back = self.back.states_to_tensor(&self.back.seq(xs)?)?;
        let states = self
            .last
            .seq(&Tensor::cat(&[there, back], 2)?.contiguous()?)?;
        self.last.states_to_tensor(&states)
    }
}
