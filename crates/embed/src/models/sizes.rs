//! The common parts of architectures, and how these are loaded.

use anyhow::Result;
use candle_core::Result as CandleResult;
use candle_dynquant::{FusedActivation, nn};
use candle_nn::VarBuilder;

use super::projections::Heads;
use crate::keys::Keys;

/// The parameters of a model that all architectures have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub vocab: usize,
    pub hidden: usize,
    /// The length of a row of the tables of words, types and positions.
    pub embedding: usize,
    pub layers: usize,
    pub heads: Heads,
    /// The inner size of the feed-forward part.
    pub inner: usize,
    pub eps: f64,
    pub activation: FusedActivation,
    /// The most tokens of a text.
    pub tokens: usize,
    /// Whether longer texts are impossible, because positions are rows of a table.
    pub has_table: bool,
    /// The number of rows of the token type table, 0 without one.
    pub types: usize,
    /// Whether two texts can be told apart.
    pub takes_pairs: bool,
}

impl Sizes {
    /// A model of this hidden size without layers, words or tokens.
    pub fn empty(hidden: usize) -> Self {
        Self {
            vocab: 0,
            hidden,
            embedding: hidden,
            layers: 0,
            heads: Heads::equal(1, hidden),
            inner: 0,
            eps: 0.,
            activation: FusedActivation::Gelu,
            tokens: 0,
            has_table: false,
            types: 0,
            takes_pairs: true,
        }
    }

    /// The layers by the keys of the hidden size and the numbers of heads and layers, each with
    /// another name, or the same.
    pub fn of_layers(keys: &Keys, [hidden, heads, layers]: [[&str; 2]; 3]) -> Result<Self> {
        let size = keys.size_as(hidden[0], hidden[1])?;
        let count = keys.size_as(heads[0], heads[1])?;
        keys.divides(heads[0], count, hidden[0], size)?;
        Ok(Self {
            layers: keys.size_as(layers[0], layers[1])?,
            heads: Heads::equal(count, size),
            ..Self::empty(size)
        })
    }

    /// The layers by the keys of BERT and most of its relatives.
    pub fn of_bert_layers(keys: &Keys) -> Result<Self> {
        let names = ["hidden_size", "num_attention_heads", "num_hidden_layers"];
        Self::of_layers(keys, names.map(|name| [name; 2]))
    }

    /// The sizes by the keys of BERT and most of its relatives.
    pub fn read(keys: &Keys) -> Result<Self> {
        let layers = Self::of_bert_layers(keys)?;
        Ok(Self {
            vocab: keys.size("vocab_size")?,
            inner: keys.size("intermediate_size")?,
            eps: keys.epsilon("layer_norm_eps", 1e-12)?,
            activation: keys.activation("hidden_act", FusedActivation::Gelu)?,
            tokens: keys.positions("max_position_embeddings")?,
            ..layers
        })
    }

    pub fn linear(&self, out: usize, bias: bool, vb: VarBuilder<'_>) -> CandleResult<nn::Linear> {
        nn::linear_b(self.hidden, out, bias, vb)
    }

    pub fn norm(&self, vb: VarBuilder<'_>) -> CandleResult<nn::LayerNorm> {
        nn::layer_norm(self.hidden, self.eps, vb)
    }

    pub fn norm_b(&self, bias: bool, vb: VarBuilder<'_>) -> CandleResult<nn::LayerNorm> {
        let config = nn::LayerNormConfig { affine: bias, ..self.eps.into() };
        nn::layer_norm(self.hidden, config, vb)
    }

    pub fn table(&self, rows: usize, vb: VarBuilder<'_>) -> CandleResult<nn::Embedding> {
        nn::embedding(rows, self.embedding, vb)
    }

    /// The table of token types, if the model has one.
    pub fn types(&self, vb: VarBuilder<'_>) -> CandleResult<Option<nn::Embedding>> {
        let table = (self.types > 0).then(|| self.table(self.types, vb));
        table.transpose()
    }
}
