//! The BERT: an ordinary candle model, ported to int8 by `nn`'s layers and one derive per struct.
//!
//! Texts of different lengths are computed together without padding: all tokens of a call are rows of one
//! matrix, `[tokens, hidden]`. Only attention sees texts, and takes those of one length at a time.

use candle_core::{Result, Tensor};
use candle_dynquant::{Quantizable, nn, ops};
use candle_nn::{Module, VarBuilder};

use crate::Config;

/// Successive texts of one length among the rows of a call.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub texts: usize,
    pub tokens: usize,
}

/// All tokens of a call, `[tokens]` in u32 each, and the texts that they are of.
pub struct Rows {
    pub ids: Tensor,
    pub types: Tensor,
    pub positions: Tensor,
    pub runs: Vec<Run>,
}

/// The encoder with the heads that its checkpoint has.
#[derive(Quantizable, Clone)]
pub struct Bert {
    embeddings: Embeddings,
    encoder: Encoder,
    pooler: Option<Pooler>,
    classifier: Option<nn::Linear>,
}

impl Bert {
    /// Loads the encoder, and pooler and classifier where the checkpoint has them.
    ///
    /// The encoder's tensors may be below `bert.`, as they are beside a head.
    pub fn load(config: &Config, vb: VarBuilder<'_>) -> Result<Self> {
        let prefixed = vb.contains_tensor("bert.embeddings.word_embeddings.weight");
        let bert = if prefixed { vb.pp("bert") } else { vb.clone() };
        // Only a classifier reads the pooler: embeddings are made of the tokens' vectors.
        let classifies = config.says_classifier || vb.contains_tensor("classifier.weight");
        let pooler = || Pooler::load(config, bert.pp("pooler"));
        let classifier = || {
            let vb = vb.pp("classifier");
            nn::linear(config.hidden_size, config.labels.len(), vb)
        };
        Ok(Self {
            embeddings: Embeddings::load(config, bert.pp("embeddings"))?,
            encoder: Encoder::load(config, bert.pp("encoder"))?,
            pooler: classifies.then(pooler).transpose()?,
            classifier: classifies.then(classifier).transpose()?,
        })
    }

    /// Whether there is a classification head.
    pub fn is_classifier(&self) -> bool {
        self.classifier.is_some()
    }

    /// The last hidden state, `[tokens, hidden]`.
    pub fn hidden(&self, rows: &Rows) -> Result<Tensor> {
        let mut hidden = self.embeddings.forward(rows)?;
        for layer in &self.encoder.layer {
            hidden = layer.forward(&hidden, &rows.runs)?;
        }
        Ok(hidden)
    }

    /// Logits `[texts, labels]` from the hidden states of the texts' first tokens, `[texts, hidden]`;
    /// `None` without a classification head.
    pub fn logits(&self, first: &Tensor) -> Result<Option<Tensor>> {
        match (&self.pooler, &self.classifier) {
            (Some(pooler), Some(head)) => head.forward(&pooler.forward(first)?).map(Some),
            _ => Ok(None),
        }
    }
}

/// Word, position and token type.
#[derive(Quantizable, Clone)]
struct Embeddings {
    word_embeddings: nn::Embedding,
    position_embeddings: nn::Embedding,
    token_type_embeddings: nn::Embedding,
    layer_norm: nn::LayerNorm,
}

impl Embeddings {
    fn load(config: &Config, vb: VarBuilder<'_>) -> Result<Self> {
        let table = |rows, name| nn::embedding(rows, config.hidden_size, vb.pp(name));
        Ok(Self {
            word_embeddings: table(config.vocab_size, "word_embeddings")?,
            position_embeddings: table(config.max_position_embeddings, "position_embeddings")?,
            token_type_embeddings: table(config.type_vocab_size, "token_type_embeddings")?,
            layer_norm: load_norm(config, &vb)?,
        })
    }

    fn forward(&self, rows: &Rows) -> Result<Tensor> {
        let words = self.word_embeddings.forward(&rows.ids)?;
        let types = self.token_type_embeddings.forward(&rows.types)?;
        let positions = self.position_embeddings.forward(&rows.positions)?;
        self.layer_norm.forward_add(&(words + types)?, &positions)
    }
}

#[derive(Quantizable, Clone)]
struct Encoder {
    layer: Vec<Layer>,
}

impl Encoder {
    fn load(config: &Config, vb: VarBuilder<'_>) -> Result<Self> {
        let layers = 0..config.num_hidden_layers;
        let layer = layers.map(|i| Layer::load(config, vb.pp("layer").pp(i)));
        Ok(Self {
            layer: layer.collect::<Result<_>>()?,
        })
    }
}

/// Attention, then two products with an activation function between them.
#[derive(Quantizable, Clone)]
struct Layer {
    attention: Attention,
    intermediate: Intermediate,
    output: Output,
}

impl Layer {
    fn load(config: &Config, vb: VarBuilder<'_>) -> Result<Self> {
        Ok(Self {
            attention: Attention::load(config, vb.pp("attention"))?,
            intermediate: Intermediate::load(config, vb.pp("intermediate"))?,
            output: Output::load(config, config.intermediate_size, vb.pp("output"))?,
        })
    }

    fn forward(&self, hidden: &Tensor, runs: &[Run]) -> Result<Tensor> {
        let attended = self.attention.forward(hidden, runs)?;
        let inner = self.intermediate.dense.forward(&attended)?;
        self.output.forward(&inner, &attended)
    }
}

#[derive(Quantizable, Clone)]
struct Attention {
    #[quantizable(rename = "self")]
    self_attention: SelfAttention,
    output: Output,
}

impl Attention {
    fn load(config: &Config, vb: VarBuilder<'_>) -> Result<Self> {
        Ok(Self {
            self_attention: SelfAttention::load(config, vb.pp("self"))?,
            output: Output::load(config, config.hidden_size, vb.pp("output"))?,
        })
    }

    fn forward(&self, hidden: &Tensor, runs: &[Run]) -> Result<Tensor> {
        let attended = self.self_attention.forward(hidden, runs)?;
        self.output.forward(&attended, hidden)
    }
}

#[derive(Quantizable, Clone)]
struct SelfAttention {
    query: nn::Linear,
    key: nn::Linear,
    value: nn::Linear,
    heads: usize,
}

impl SelfAttention {
    fn load(config: &Config, vb: VarBuilder<'_>) -> Result<Self> {
        let size = config.hidden_size;
        Ok(Self {
            query: nn::linear(size, size, vb.pp("query"))?,
            key: nn::linear(size, size, vb.pp("key"))?,
            value: nn::linear(size, size, vb.pp("value"))?,
            heads: config.num_attention_heads,
        })
    }

    fn forward(&self, hidden: &Tensor, runs: &[Run]) -> Result<Tensor> {
        let projections = [&self.query, &self.key, &self.value];
        let [query, key, value] = nn::Linear::forward_each(projections, hidden)?;
        let mut contexts = Vec::with_capacity(runs.len());
        let mut start = 0;
        for &run in runs {
            let rows = run.texts * run.tokens;
            let of_run = |all: &Tensor| self.split(&all.narrow(0, start, rows)?, run);
            contexts.push(self.attend(of_run(&query)?, of_run(&key)?, of_run(&value)?)?);
            start += rows;
        }
        match contexts.as_slice() {
            [context] => Ok(context.clone()),
            contexts => Tensor::cat(contexts, 0),
        }
    }

    /// `[rows, hidden]` as `[texts, heads, tokens, head_size]`, a view.
    fn split(&self, rows: &Tensor, run: Run) -> Result<Tensor> {
        let head_size = rows.dim(1)? / self.heads;
        rows.reshape((run.texts, run.tokens, self.heads, head_size))?
            .transpose(1, 2)
    }

    fn attend(&self, query: Tensor, key: Tensor, value: Tensor) -> Result<Tensor> {
        let (texts, heads, tokens, head_size) = query.dims4()?;
        let scale = 1. / (head_size as f32).sqrt();
        let context = ops::scaled_dot_product_attention(&query, &key, &value, None, scale)?;
        context
            .transpose(1, 2)?
            .reshape((texts * tokens, heads * head_size))
    }
}

#[derive(Quantizable, Clone)]
struct Intermediate {
    dense: nn::Linear,
}

impl Intermediate {
    fn load(config: &Config, vb: VarBuilder<'_>) -> Result<Self> {
        let (size, inner) = (config.hidden_size, config.intermediate_size);
        Ok(Self {
            dense: nn::linear(size, inner, vb.pp("dense"))?.with_activation(config.hidden_act),
        })
    }
}

/// A product back to the hidden size, plus what went around it, normalised.
#[derive(Quantizable, Clone)]
struct Output {
    dense: nn::Linear,
    layer_norm: nn::LayerNorm,
}

impl Output {
    fn load(config: &Config, in_size: usize, vb: VarBuilder<'_>) -> Result<Self> {
        Ok(Self {
            dense: nn::linear(in_size, config.hidden_size, vb.pp("dense"))?,
            layer_norm: load_norm(config, &vb)?,
        })
    }

    fn forward(&self, hidden: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let hidden = self.dense.forward(hidden)?;
        self.layer_norm.forward_add(&hidden, residual)
    }
}

/// A product and tanh.
#[derive(Quantizable, Clone)]
struct Pooler {
    dense: nn::Linear,
}

impl Pooler {
    fn load(config: &Config, vb: VarBuilder<'_>) -> Result<Self> {
        let size = config.hidden_size;
        Ok(Self {
            dense: nn::linear(size, size, vb.pp("dense"))?,
        })
    }

    fn forward(&self, first: &Tensor) -> Result<Tensor> {
        self.dense.forward(first)?.tanh()
    }
}

fn load_norm(config: &Config, vb: &VarBuilder<'_>) -> Result<nn::LayerNorm> {
    nn::layer_norm(
        config.hidden_size,
        config.layer_norm_eps,
        vb.pp("LayerNorm"),
    )
}
