//! BERT: an ordinary candle model, ported to int8 by `nn::Linear`, `nn::Embedding`, `nn::Attention`
//! and one derive per struct. Texts are padded to one length.

use candle_core::{DType, Result, Tensor};
use candle_dynquant::{Quantizable, nn};
use candle_nn::{Module, VarBuilder};

use super::config::Config;

/// A batch's token ids and attention mask: `[batch, seq]` in u32 and in f32 (1 token, 0 padding).
#[derive(Clone)]
pub struct Batch {
    pub ids: Tensor,
    pub mask: Tensor,
}

/// The encoder with the heads that its checkpoint has.
#[derive(Quantizable, Clone)]
pub struct Bert {
    embeddings: Embeddings,
    #[quantizable(rename = "encoder.layer")]
    layers: Vec<Layer>,
    #[quantizable(rename = "pooler.dense")]
    pooler: Option<nn::Linear>,
    classifier: Option<nn::Linear>,
}

impl Bert {
    /// Loads the encoder, with the pooler and the classifier if the checkpoint has them.
    ///
    /// The encoder's tensors may be below `bert.`, as in a checkpoint with a head.
    pub fn load(config: &Config, prefixed: bool, vb: VarBuilder<'_>) -> Result<Self> {
        let bert = if prefixed { vb.pp("bert") } else { vb.clone() };
        let pools = bert.contains_tensor("pooler.dense.weight");
        let classifies = config.says_classifier || vb.contains_tensor("classifier.weight");
        let size = config.hidden_size;
        let pooler = || nn::linear(size, size, bert.pp("pooler.dense"));
        let classifier = || nn::linear(size, config.labels.len(), vb.pp("classifier"));
        let layers = 0..config.num_hidden_layers;
        let layers = layers.map(|i| Layer::load(config, bert.pp("encoder.layer").pp(i)));
        Ok(Self {
            embeddings: Embeddings::load(config, bert.pp("embeddings"))?,
            layers: layers.collect::<Result<_>>()?,
            pooler: (classifies || pools).then(pooler).transpose()?,
            classifier: classifies.then(classifier).transpose()?,
        })
    }

    /// Whether the model answers with classes; otherwise it answers with embeddings.
    pub fn is_classifier(&self) -> bool {
        self.classifier.is_some()
    }

    /// The last hidden state, `[batch, seq, hidden]`; the rows of padding are meaningless.
    pub fn hidden(&self, batch: &Batch) -> Result<Tensor> {
        // Added to the attention scores: 0 for tokens, in effect minus infinity for padding.
        let mask = ((1. - &batch.mask)? * f64::from(f32::MIN))?;
        let mask = mask.unsqueeze(1)?.unsqueeze(1)?;
        let (ids, device) = (&batch.ids, batch.ids.device());
        // All texts here are single, so every token has type 0.
        let type_0 = Tensor::zeros(1, DType::U32, device)?;
        let positions = Tensor::arange(0, ids.dim(1)? as u32, device)?;
        let mut hidden = self.embeddings.forward(ids, &type_0, &positions)?;
        for layer in &self.layers {
            hidden = layer.forward(&hidden, &mask)?;
        }
        Ok(hidden)
    }

    /// The model's answers, one row per text: the logits `[batch, labels]` of a classifier, else
    /// embeddings `[batch, hidden]`, the normalized mean over the tokens.
    pub fn forward(&self, batch: &Batch) -> Result<Tensor> {
        let hidden = self.hidden(batch)?;
        let first = hidden.narrow(1, 0, 1)?.squeeze(1)?.contiguous()?;
        match self.logits(&first)? {
            Some(logits) => Ok(logits),
            None => mean_of_tokens(&hidden, &batch.mask),
        }
    }

    /// The logits `[texts, labels]` from the hidden states of the texts' first tokens; `None`
    /// without a classifier.
    pub fn logits(&self, first: &Tensor) -> Result<Option<Tensor>> {
        match (&self.pooler, &self.classifier) {
            (Some(pooler), Some(classifier)) => {
                let pooled = pooler.forward(first)?.tanh()?;
                classifier.forward(&pooled).map(Some)
            }
            _ => Ok(None),
        }
    }
}

fn mean_of_tokens(hidden: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let sum = hidden.broadcast_mul(&mask.unsqueeze(2)?)?.sum(1)?;
    let mean = sum.broadcast_div(&mask.sum_keepdim(1)?)?;
    mean.broadcast_div(&mean.sqr()?.sum_keepdim(1)?.sqrt()?)
}

/// The embeddings of words, positions and token types.
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

    /// The sum of the embeddings; a single type or position is broadcast.
    fn forward(&self, ids: &Tensor, types: &Tensor, positions: &Tensor) -> Result<Tensor> {
        let words = self.word_embeddings.forward(ids)?;
        let types = self.token_type_embeddings.forward(types)?;
        let positions = self.position_embeddings.forward(positions)?;
        let hidden = words.broadcast_add(&types)?;
        self.layer_norm.forward_add(&hidden, &positions)
    }
}

/// Attention, then two products with an activation function between them.
#[derive(Quantizable, Clone)]
struct Layer {
    #[quantizable(rename = "attention.self")]
    attention: SelfAttention,
    #[quantizable(rename = "attention.output")]
    attended: Output,
    #[quantizable(rename = "intermediate.dense")]
    intermediate: nn::Linear,
    output: Output,
}

impl Layer {
    fn load(config: &Config, vb: VarBuilder<'_>) -> Result<Self> {
        let (size, inner) = (config.hidden_size, config.intermediate_size);
        let intermediate = nn::linear(size, inner, vb.pp("intermediate.dense"))?;
        Ok(Self {
            attention: SelfAttention::load(config, vb.pp("attention.self"))?,
            attended: Output::load(config, size, vb.pp("attention.output"))?,
            intermediate: intermediate.with_activation(config.hidden_act),
            output: Output::load(config, inner, vb.pp("output"))?,
        })
    }

    fn forward(&self, hidden: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let attended = self.attention.forward(hidden, mask)?;
        let attended = self.attended.forward(&attended, hidden)?;
        let inner = self.intermediate.forward(&attended)?;
        self.output.forward(&inner, &attended)
    }
}

#[derive(Quantizable, Clone)]
struct SelfAttention {
    query: nn::Linear,
    key: nn::Linear,
    value: nn::Linear,
    attention: nn::Attention,
    heads: usize,
}

impl SelfAttention {
    fn load(config: &Config, vb: VarBuilder<'_>) -> Result<Self> {
        let size = config.hidden_size;
        let heads = config.num_attention_heads;
        let scale = 1. / ((size / heads) as f32).sqrt();
        Ok(Self {
            query: nn::linear(size, size, vb.pp("query"))?,
            key: nn::linear(size, size, vb.pp("key"))?,
            value: nn::linear(size, size, vb.pp("value"))?,
            attention: nn::Attention::load(scale, vb.pp("attention")),
            heads,
        })
    }

    fn forward(&self, hidden: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let projections = [&self.query, &self.key, &self.value];
        let [query, key, value] = nn::Linear::forward_each(projections, hidden)?;
        let (batch, seq, size) = query.dims3()?;
        let head_size = size / self.heads;
        // [batch, seq, size] -> [batch, heads, seq, head_size], a view
        let split = |projected: Tensor| -> Result<Tensor> {
            let heads = projected.reshape((batch, seq, self.heads, head_size))?;
            heads.transpose(1, 2)
        };
        let (query, key, value) = (split(query)?, split(key)?, split(value)?);
        let context = self.attention.forward(&query, &key, &value, mask)?;
        context.transpose(1, 2)?.reshape((batch, seq, size))
    }
}

/// A product back to the hidden size, added to the residual and normalised.
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

fn load_norm(config: &Config, vb: &VarBuilder<'_>) -> Result<nn::LayerNorm> {
    nn::layer_norm(config.hidden_size, config.layer_norm_eps, vb.pp("LayerNorm"))
}
