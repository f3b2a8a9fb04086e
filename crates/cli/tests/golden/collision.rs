use candle::{Result, Tensor};
use candle_nn as nn;
use candle_nn::RNN;

mod ops {
    pub fn twice(x: usize) -> usize {
        2 * x
    }
}

pub struct Tagger {
    lstm: nn::LSTM,
    states: Vec<nn::rnn::LSTMState>,
}

impl Tagger {
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let _ = ops::twice(self.states.len());
        let states = self.lstm.seq(xs)?;
        nn::RNN::states_to_tensor(&self.lstm, &states)?.tanh()
    }

    fn gate(&self, xs: &Tensor, x: f64) -> Result<Tensor> {
        let _ = x.tanh();
        let xs = xs.tanh()?;
        candle_nn::ops::sigmoid(&xs)
    }
}
