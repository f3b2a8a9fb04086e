use candle::{Result, Tensor};
use candle_dynquant::{nn as qnn, ops as qops, Quantizable};
use candle_nn as nn;
use candle_nn::RNN;

mod ops {
    pub fn twice(x: usize) -> usize {
        2 * x
    }
}

#[derive(Clone, Quantizable)]
pub struct Tagger {
    lstm: qnn::LSTM,
    states: Vec<qnn::LSTMState>,
}

impl Tagger {
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let _ = ops::twice(self.states.len());
        let states = self.lstm.seq(xs)?;
        nn::RNN::states_to_tensor(&self.lstm, &states)?.tanh()
    }

    fn gate(&self, xs: &Tensor, x: f64) -> Result<Tensor> {
        let _ = x.tanh();
        let xs = qops::tanh(&xs)?;
        qops::sigmoid(&xs)
    }
}
