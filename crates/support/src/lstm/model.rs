//! The language model: an ordinary candle model, with this crate's LSTM, GRU and Linear.

use candle_core::{Device, Result, Tensor};
use candle_dynquant::{Quantizable, nn};
use candle_nn::{Embedding, Module, VarBuilder, embedding};

use super::config::Config;

/// Maps characters to scores of the character that follows.
#[derive(Quantizable, Clone)]
pub struct CharModel {
    embedding: Embedding,
    recurrent: Recurrent,
    decoder: nn::Linear,
}

/// The recurrent layer of the model.
#[derive(Quantizable, Clone)]
enum Recurrent {
    Lstm(nn::LSTM),
    Gru(nn::GRU),
}

/// The model's state after the characters read.
#[derive(Clone)]
pub enum State {
    Lstm(nn::LSTMState),
    Gru(Tensor),
}

impl CharModel {
    /// Loads a model with an LSTM, or with a GRU, under PyTorch's names.
    pub fn load(config: &Config, gru: bool, vb: VarBuilder<'_>) -> Result<Self> {
        let (size, hidden) = (config.embedding_size, config.hidden_size);
        let layers = nn::RecurrentConfig { num_layers: config.num_layers, ..Default::default() };
        Ok(Self {
            embedding: embedding(config.vocab_size, size, vb.pp("embedding"))?,
            recurrent: if gru {
                Recurrent::Gru(nn::GRU::new(size, hidden, layers, vb.pp("gru"))?)
            } else {
                Recurrent::Lstm(nn::LSTM::new(size, hidden, layers, vb.pp("lstm"))?)
            },
            decoder: nn::linear(hidden, config.vocab_size, vb.pp("decoder"))?,
        })
    }

    /// The scores after every character of `ids`, `[steps, batch]`: `[steps, batch, vocab]`, and
    /// the state after the last. The initial state is `state`, or zeros.
    pub fn forward(&self, ids: &Tensor, state: Option<&State>) -> Result<(Tensor, State)> {
        let (ys, state) = self.recur(&self.embedding.forward(ids)?, state)?;
        Ok((self.decoder.forward(&ys)?, state))
    }

    /// The scores after the last of the characters `ids` of one text, `[vocab]`, and the state.
    pub fn read(&self, ids: &[u32]) -> Result<(Vec<f32>, State)> {
        let ids = Tensor::new(ids, &Device::Cpu)?;
        let (ys, state) = self.recur(&self.embedding.forward(&ids)?, None)?;
        let last = ys.narrow(0, ys.dim(0)? - 1, 1)?;
        Ok((self.decoder.forward(&last)?.flatten_all()?.to_vec1()?, state))
    }

    /// The scores after one more character of one text, `[vocab]`, and the state.
    ///
    /// The character's row of the embedding is a view, without a tensor of ids or a gather. Without
    /// a batch dimension the row is what the recurrent layer takes, one step of one sequence.
    pub fn step(&self, id: u32, state: &State) -> Result<(Vec<f32>, State)> {
        let xs = self.embedding.embeddings().narrow(0, id as usize, 1)?;
        let (ys, state) = self.recur(&xs, Some(state))?;
        Ok((self.decoder.forward(&ys)?.flatten_all()?.to_vec1()?, state))
    }

    fn recur(&self, xs: &Tensor, state: Option<&State>) -> Result<(Tensor, State)> {
        Ok(match (&self.recurrent, state) {
            (Recurrent::Lstm(lstm), None) => {
                let (ys, state) = lstm.forward(xs, None)?;
                (ys, State::Lstm(state))
            }
            (Recurrent::Lstm(lstm), Some(State::Lstm(state))) => {
                let (ys, state) = lstm.forward(xs, Some(state))?;
                (ys, State::Lstm(state))
            }
            (Recurrent::Gru(gru), None) => {
                let (ys, h) = gru.forward(xs, None)?;
                (ys, State::Gru(h))
            }
            (Recurrent::Gru(gru), Some(State::Gru(h))) => {
                let (ys, h) = gru.forward(xs, Some(h))?;
                (ys, State::Gru(h))
            }
            _ => candle_core::bail!("expected a state of this model, got one of another kind"),
        })
    }
}
