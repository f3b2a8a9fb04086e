//! The model as a function from texts to answers.

use anyhow::{Context, Result, bail};
use candle_core::{Device, Tensor};
use candle_dynquant::ops::Precision;
use candle_dynquant::{Visitor, Walk};
use candle_nn::Module as _;

use crate::config::Config;
use crate::lexical::Lexical;
use crate::models::{Network, Rows, Sees, matrix};
use crate::modules::Module;
use crate::pooling::Pooling;
use crate::splade::Splade;
use crate::tokens::Tokens;

/// A kind of answer to a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// The embedding, `embedding_size` numbers, without the folder's final normalization.
    Embedding,
    /// The weights of all tokens of the vocabulary, of a model with [`Config::is_sparse`].
    Sparse,
    /// The vectors of the tokens before the pooling, `hidden_size` numbers each, concatenated; of
    /// a model of late interaction, which has no [`Embedding`](Self::Embedding), those that
    /// similarities are made of, `embedding_size` numbers each.
    TokenEmbeddings,
    /// The logits, one for each label.
    Classes,
    /// The logits of each token, one for each label, concatenated.
    TokenClasses,
}

/// A text and the kind of answer.
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    /// The text.
    pub tokens: &'a Tokens,
    /// The kind of answer.
    pub head: Head,
}

/// A model that answers texts.
pub struct Model {
    network: Network,
    pooling: Pooling,
    /// The pooling of sparse vectors.
    splade: Option<Splade>,
    /// The head of sparse vectors beside embeddings.
    lexical: Option<Lexical>,
    /// The modules after the pooling.
    modules: Vec<Module>,
    /// The token that has a text's vector: see `Tower::ending`.
    ending: Option<u32>,
    /// Whether the modules end in a reranker's score, in place of a head.
    is_scored: bool,
    /// Whether the modules are for the vectors of tokens.
    is_late: bool,
    one_by_one: bool,
}

impl Model {
    /// A model; tests whether the texts of a call may be computed together.
    pub(crate) fn new(
        network: Network,
        config: &Config,
        modules: Vec<Module>,
        is_scored: bool,
    ) -> Result<Self> {
        let mut model = Self {
            one_by_one: false,
            pooling: config.pooling.clone(),
            splade: config.splade,
            lexical: config.lexical.clone(),
            ending: config.ending,
            modules,
            is_scored,
            is_late: config.is_late,
            network,
        };
        model.one_by_one = !model.rows_are_independent(config)?;
        Ok(model)
    }

    /// Whether the model can answer [`Head::Classes`].
    pub fn is_classifier(&self) -> bool {
        self.is_scored || self.network.head.is_some()
    }

    /// Whether the model can answer [`Head::TokenClasses`].
    pub fn classifies_tokens(&self) -> bool {
        self.network.of_tokens.is_some() && self.splade.is_none()
    }

    /// The most tokens of a text that attention can handle.
    pub(crate) fn most_tokens(&self) -> usize {
        let mut layers = self.network.model.layers.iter();
        let is_int8 = layers.any(|it| it.attention.attention.precision() == Precision::Int8);
        if is_int8 { MOST_INT8 } else { usize::MAX }
    }

    /// The length of the texts with last tokens that no token attends to, if there are any, is at
    /// most this: each token must attend to another.
    pub(crate) fn most_hidden(&self) -> usize {
        let views = self.network.model.views.iter();
        let most = views.map(|view| match view.sees {
            Sees::All | Sees::Biased(_) => usize::MAX,
            Sees::Within(reach) => reach.saturating_add(1),
            Sees::Causal => 0,
        });
        most.min().unwrap_or(usize::MAX)
    }

    /// Shows each layer to `visitor`.
    ///
    /// # Errors
    /// The first error of the visitor.
    pub fn walk(&self, visitor: &mut dyn Visitor) -> candle_dynquant::Result<()> {
        Walk::over(&self.network, visitor)
    }

    /// Whether the texts of a call are computed one after the other: with one scale for all
    /// activations of a call, through which texts would influence each other.
    pub fn is_one_by_one(&self) -> bool {
        self.one_by_one
    }

    /// The answers to `tasks`, in order, each with the same bits as if it were alone.
    ///
    /// # Errors
    /// When the model fails, or classes are requested from a model without a classification head.
    pub fn answer(&self, tasks: &[Task<'_>]) -> Result<Vec<Vec<f32>>> {
        if tasks.is_empty() {
            return Ok(Vec::new());
        }
        if self.one_by_one {
            let each = tasks.chunks(1).map(|task| self.together(task));
            return Ok(each.collect::<Result<Vec<_>>>()?.concat());
        }
        self.together(tasks)
    }

    fn together(&self, tasks: &[Task<'_>]) -> Result<Vec<Vec<f32>>> {
        // Texts of one length are adjacent, so that attention takes them together.
        let mut order: Vec<usize> = (0..tasks.len()).collect();
        order.sort_by_key(|&index| (tasks[index].tokens.len(), tasks[index].tokens.hidden));
        let sorted: Vec<Task<'_>> = order.iter().map(|&index| tasks[index]).collect();

        let rows = Rows::new(sorted.iter().map(|task| task.tokens));
        let hidden = self.network.forward(&rows)?;
        let answers = self.heads(&sorted, &hidden)?;
        let mut in_order = vec![Vec::new(); tasks.len()];
        for (index, answer) in order.into_iter().zip(answers) {
            in_order[index] = answer;
        }
        Ok(in_order)
    }

    /// The answers in the order of the rows of `hidden`.
    fn heads(&self, tasks: &[Task<'_>], hidden: &Tensor) -> Result<Vec<Vec<f32>>> {
        let size = hidden.dim(1)?;
        let values = hidden.flatten_all()?.to_vec1::<f32>()?;
        let mut rest = values.as_slice();
        let mut texts = Vec::with_capacity(tasks.len());
        for task in tasks {
            let (vectors, others) = rest.split_at(task.tokens.len() * size);
            texts.push((task, vectors));
            rest = others;
        }
        let by_head = |head| head == Head::Classes && !self.is_scored;
        let is_classified = |(task, _): &&(&Task<'_>, &[f32])| by_head(task.head);
        let classified = texts.iter().filter(is_classified);
        let classified: Vec<(&[f32], &[u32])> =
            classified.map(|(task, vectors)| (*vectors, task.tokens.ids())).collect();
        let mut logits = self.logits(&classified, size)?.into_iter();
        let pool = |task: &Task<'_>, vectors: &[f32]| self.pool(task.tokens, vectors, size);
        let of_tokens = self.network.of_tokens.as_ref();
        let answer = |(task, vectors): (&Task<'_>, &[f32])| match task.head {
            Head::Embedding if self.is_late => {
                bail!(
                    "expected a request for vectors of tokens, which the model makes, got Embedding"
                )
            }
            Head::TokenEmbeddings if self.is_late => {
                let skipped = &task.tokens.skipped;
                let places = vectors.chunks_exact(size).enumerate();
                let kept = places.filter(|(place, _)| skipped.binary_search(place).is_err());
                let kept: Vec<&[f32]> = kept.map(|(_, vector)| vector).collect();
                self.behind(kept.concat(), kept.len())
            }
            Head::Sparse => self.sparse(task.tokens, vectors, size),
            Head::Embedding if self.splade.is_some() => self.sparse(task.tokens, vectors, size),
            Head::Embedding if self.is_scored => pool(task, vectors),
            head @ (Head::Embedding | Head::Classes) if !by_head(head) => {
                self.behind(pool(task, vectors)?, 1)
            }
            Head::TokenEmbeddings => Ok(vectors.to_vec()),
            Head::TokenClasses => {
                let head = of_tokens.filter(|_| self.splade.is_none());
                let head = head.context("expected a head for the classes of tokens, got none")?;
                let vectors = Tensor::from_slice(vectors, (task.tokens.len(), size), &Device::Cpu)?;
                Ok(head.forward(&vectors)?.flatten_all()?.to_vec1()?)
            }
            Head::Embedding | Head::Classes => logits.next().context("expected logits, got none"),
        };
        texts.into_iter().map(answer).collect()
    }

    /// The vectors after the modules.
    fn behind(&self, vectors: Vec<f32>, rows: usize) -> Result<Vec<f32>> {
        self.modules.iter().try_fold(vectors, |vectors, module| module.apply(vectors, rows))
    }

    /// The weights of all tokens of the vocabulary.
    fn sparse(&self, tokens: &Tokens, vectors: &[f32], size: usize) -> Result<Vec<f32>> {
        if let Some((splade, words)) = self.splade.zip(self.network.of_tokens.as_ref()) {
            return Ok(splade.pool(words, vectors, size)?);
        }
        let lexical = self.lexical.as_ref();
        let lexical = lexical.context("expected a head of sparse vectors, got none")?;
        lexical.pool(tokens.ids(), vectors)
    }

    /// The pooled vector of a text, behind the product of a tower.
    fn pool(&self, tokens: &Tokens, vectors: &[f32], size: usize) -> Result<Vec<f32>> {
        let ids = tokens.ids();
        let largest = ids.iter().max();
        let end = match self.ending {
            None => ids.len(),
            Some(2) => 1 + ids.iter().position(|id| Some(id) == largest).unwrap_or(0),
            Some(ending) => 1 + ids.iter().position(|id| *id == ending).unwrap_or(0),
        };
        let pooled = self.pooling.pool(&vectors[..end * size], size, tokens.prompt);
        let Some(projection) = &self.network.pooled_projection else {
            return Ok(pooled);
        };
        // A text at a time, so that no other can influence it.
        let ys = projection.forward(&matrix(vec![pooled])?)?;
        Ok(ys.flatten_all()?.to_vec1()?)
    }

    /// The logits from the vectors of each text's tokens.
    fn logits(&self, texts: &[(&[f32], &[u32])], size: usize) -> Result<Vec<Vec<f32>>> {
        if texts.is_empty() {
            return Ok(Vec::new());
        }
        let head = self.network.head.as_ref();
        let head = head.context("expected a classification head, got none")?;
        let seen = texts.iter().map(|(vectors, ids)| head.seen(vectors, ids));
        let pooled = seen.map(|text| head.pooled(text, size));
        let pooled = matrix(pooled.collect::<Result<_, _>>()?)?;
        Ok(head.logits(&pooled)?.to_vec2()?)
    }

    /// Compares texts that are computed together with the same texts alone, bit for bit. A layer
    /// does not show how its activations are quantized, but a shared scale changes most of these
    /// bits.
    fn rows_are_independent(&self, config: &Config) -> Result<bool> {
        let lengths = [1, 2, 3, 5, 8, 13, 21].into_iter();
        let texts: Vec<Tokens> = lengths
            .filter(|&count| count <= config.max_tokens)
            .map(|count| {
                let id = |i| ((i * 7919 + count * 104_729) % config.vocab_size) as u32;
                Tokens::new((0..count).map(id).collect(), vec![0; count], 0)
            })
            .collect();
        let mut heads = vec![Head::TokenEmbeddings];
        heads.extend((!self.is_late).then_some(Head::Embedding));
        heads.extend(self.lexical.is_some().then_some(Head::Sparse));
        heads.extend(self.is_classifier().then_some(Head::Classes));
        heads.extend(self.classifies_tokens().then_some(Head::TokenClasses));
        let tasks: Vec<Task<'_>> = (texts.iter())
            .flat_map(|tokens| heads.iter().map(move |&head| Task { tokens, head }))
            .collect();
        let together = self.together(&tasks)?;
        for (task, answer) in tasks.iter().zip(together) {
            let alone = self.together(&[*task])?;
            if let Some(x) = alone.iter().flatten().find(|x| !x.is_finite()) {
                bail!("the model: expected finite answers, got {x}");
            }
            let bits = |answer: &[f32]| answer.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            if alone.iter().map(|alone| bits(alone)).ne([bits(&answer)]) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The most keys of attention in 8 bits, so that sums fit an i32.
const MOST_INT8: usize = 1 << 16;
