//! The head of a classifier or reranker: logits from the vectors of a text's tokens.

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Result as CandleResult, Tensor};
use candle_dynquant::{FusedActivation, Quantizable, nn};
use candle_nn::{Module, VarBuilder};

use super::sizes::Sizes;
use crate::keys::Keys;
use crate::modules::LogitScore;
use crate::pooling::Mode;

/// The products after the pooled vectors, `[texts, hidden]` to `[texts, labels]`.
#[derive(Clone, Quantizable)]
pub(crate) struct ClassHead {
    dense: Option<Dense>,
    classifier: nn::Linear,
    /// The pooling of a text's vectors.
    #[quantizable(skip)]
    pub pooling: Mode,
    /// Whether the pooling follows the product.
    pub is_late: bool,
    /// The token that is left out at the end of a text.
    pub pad: Option<u32>,
}

#[derive(Clone, Quantizable)]
struct Dense {
    linear: nn::Linear,
    activation: FusedActivation,
    norm: Option<nn::LayerNorm>,
}

impl ClassHead {
    pub fn new(pooling: Mode, classifier: nn::Linear) -> Self {
        Self { dense: None, classifier, pooling, is_late: false, pad: None }
    }

    /// The vectors of a text's tokens that the head reads.
    pub fn seen<'a>(&self, vectors: &'a [f32], ids: &[u32]) -> &'a [f32] {
        let last = ids.iter().rposition(|id| Some(*id) != self.pad);
        let size = vectors.len() / ids.len().max(1);
        &vectors[..(last.unwrap_or(0) + 1) * size]
    }

    /// A head that reads the first token of a text.
    pub fn of_first(classifier: nn::Linear) -> Self {
        Self::new(Mode::Cls, classifier)
    }

    #[must_use]
    pub fn behind(self, linear: nn::Linear, activation: FusedActivation) -> Self {
        let dense = Dense { linear, activation, norm: None };
        Self { dense: Some(dense), ..self }
    }

    #[must_use]
    pub fn normalized(mut self, norm: nn::LayerNorm) -> Self {
        if let Some(dense) = &mut self.dense {
            dense.norm = Some(norm);
        }
        self
    }

    pub fn pooled(&self, vectors: &[f32], size: usize) -> CandleResult<Vec<f32>> {
        if !self.is_late {
            return Ok(self.pooling.pool(vectors, size, 0));
        }
        let xs = Tensor::from_slice(vectors, (vectors.len() / size, size), &Device::Cpu)?;
        let inner = self.inner(&xs)?.flatten_all()?.to_vec1()?;
        Ok(self.pooling.pool(&inner, size, 0))
    }

    pub fn logits(&self, pooled: &Tensor) -> CandleResult<Tensor> {
        if self.is_late {
            return self.classifier.forward(pooled);
        }
        self.forward(pooled)
    }

    /// All products.
    pub fn forward(&self, xs: &Tensor) -> CandleResult<Tensor> {
        self.classifier.forward(&self.inner(xs)?)
    }

    fn inner(&self, xs: &Tensor) -> CandleResult<Tensor> {
        let Some(dense) = &self.dense else {
            return Ok(xs.clone());
        };
        let inner = dense.linear.forward(xs)?;
        let inner = match dense.activation {
            // The function that has the bits of BERT's pooler in candle.
            FusedActivation::Tanh => inner.tanh()?,
            other => other.forward(&inner)?,
        };
        match &dense.norm {
            Some(norm) => norm.forward(&inner),
            None => Ok(inner),
        }
    }
}

/// The tasks with a head of the same name that answers something else.
const OTHER_TASKS: [&str; 3] =
    ["ForTokenClassification", "ForMultipleChoice", "ForQuestionAnswering"];

/// The checkpoint and configuration of a head.
pub(crate) struct Source<'a> {
    pub keys: &'a Keys,
    pub sizes: &'a Sizes,
    pub labels: usize,
    /// The checkpoint, with the path of the model.
    pub vb: VarBuilder<'a>,
    pub model: VarBuilder<'a>,
}

impl Source<'_> {
    /// Whether `config.json` or the checkpoint contains a head.
    pub fn is_classifier(&self, name: &str) -> bool {
        let is_task = |tasks: &[&str]| tasks.iter().any(|it| self.keys.is_architecture(it));
        is_task(&["ForSequenceClassification"])
            || (!is_task(&OTHER_TASKS) && self.vb.pp(name).contains_tensor("weight"))
    }

    pub fn square(&self, vb: VarBuilder<'_>, bias: bool) -> Result<nn::Linear> {
        Ok(self.sizes.linear(self.sizes.hidden, bias, vb)?)
    }

    pub fn classes(&self, name: &str, bias: bool) -> Result<nn::Linear> {
        let linear = self.sizes.linear(self.labels, bias, self.vb.pp(name));
        linear.with_context(|| format!("expected a head of {} classes", self.labels))
    }

    /// A head that scores the next token: logits are products with rows of the word table, so the
    /// difference of two logits is the product with the difference of two rows.
    pub fn logit_score(&self, score: LogitScore, words: &nn::Embedding) -> Result<ClassHead> {
        let is_decoder = self.keys.is_architecture("ForCausalLM");
        is_decoder.then_some(()).ok_or_else(|| {
            let expected = "a model that writes texts, ..ForCausalLM, before LogitScore";
            self.keys.fault("architectures", expected)
        })?;
        let size = self.sizes.vocab;
        let table = if self.keys.flag("tie_word_embeddings", false)? {
            words.clone()
        } else {
            self.sizes.table(size, self.vb.pp("lm_head"))?
        };
        let row = |id: u32| -> Result<Tensor> {
            ensure!(
                (id as usize) < size,
                "LogitScore: expected token ids below vocab_size {size}, got {id}"
            );
            Ok(table.forward(&Tensor::new(&[id], &Device::Cpu)?)?)
        };
        let mut weight = row(score.yes)?;
        if let Some(no) = score.no {
            weight = (weight - row(no)?)?;
        }
        Ok(ClassHead::new(Mode::LastToken, nn::Linear::new(weight, None)))
    }
}

/// A square product with its activation, then the classifier, if the model has both.
pub(super) fn two_products(
    source: &Source<'_>,
    dense: VarBuilder<'_>,
    activation: FusedActivation,
    classifier: &str,
) -> Result<Option<ClassHead>> {
    if !source.is_classifier(classifier) {
        return Ok(None);
    }
    let dense = source.square(dense, true)?;
    let head = ClassHead::of_first(source.classes(classifier, true)?);
    Ok(Some(head.behind(dense, activation)))
}

/// The names of a head that guesses words.
pub(crate) struct Guesses {
    pub dense: &'static str,
    pub norm: &'static str,
    pub decoder: &'static str,
    /// The bias, or that of the decoder.
    pub bias: &'static str,
    /// The activation function, or the model's.
    pub activation: Option<FusedActivation>,
    /// The key of the activation function, if it has one.
    pub function: &'static str,
    /// The keys of whether the three layers have biases, if any, and whether they have these without.
    pub biases: [(&'static str, bool); 3],
}

impl Guesses {
    /// A head of as many classes as there are words.
    pub fn load(&self, source: &Source<'_>, words: &nn::Embedding) -> Result<ClassHead> {
        let Source { keys, sizes, vb, .. } = source;
        let [dense, norm, decoded] = self.biases.map(|(key, default)| keys.flag(key, default));
        let dense = source.square(vb.pp(self.dense), dense?)?;
        let norm = sizes.norm_b(norm?, vb.pp(self.norm))?;
        let (decoder, has_bias) = (vb.pp(self.decoder), decoded?);
        let alone = vb.contains_tensor(self.bias).then_some(self.bias);
        let bias = || match alone {
            Some(name) => vb.get(sizes.vocab, name),
            None => decoder.get(sizes.vocab, "bias"),
        };
        let decoder = if keys.flag("tie_word_embeddings", true)? {
            nn::Linear::tied(words, has_bias.then(bias).transpose()?)
        } else {
            sizes.linear(sizes.vocab, has_bias, decoder)?
        };
        let activation = self.activation.unwrap_or(sizes.activation);
        let activation = keys.activation(self.function, activation)?;
        let head = ClassHead::new(Mode::Max, decoder);
        Ok(head.behind(dense, activation).normalized(norm))
    }
}

/// The pooled vectors as a matrix.
pub(crate) fn matrix(vectors: Vec<Vec<f32>>) -> CandleResult<Tensor> {
    let rows = vectors.len();
    Tensor::from_vec(vectors.concat(), (rows, ()), &Device::Cpu)
}
