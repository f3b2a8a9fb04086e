//! The model as a function from texts to answers.

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};
use candle_dynquant::LayerKind;
use candle_dynquant::{Layer, Visitor, Walk};
use candle_dynquant_support::bert::Bert;
use candle_dynquant_support::bert::rows::{Rows, Run};

use crate::dense::Dense;
use crate::{Config, Pooling, Tokens};

/// A kind of answer to a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// Its embedding, `embedding_size` numbers, not normalized.
    Embedding,
    /// Its logits, one for each label.
    Classes,
}

/// A text and what is asked of it.
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    /// The text.
    pub tokens: &'a Tokens,
    /// The kind of answer.
    pub head: Head,
}

/// A BERT that answers texts.
pub struct Model {
    bert: Bert,
    pooling: Pooling,
    /// Behind the pooling.
    dense: Vec<Dense>,
    one_by_one: bool,
}

impl Model {
    /// Finds out whether the texts of a call may be computed together.
    pub(crate) fn new(bert: Bert, config: &Config, dense: Vec<Dense>) -> Result<Self> {
        let mut floats = FloatProducts(0);
        Walk::over(&bert, &mut floats)?;
        let mut model = Self {
            bert,
            pooling: config.pooling,
            dense,
            one_by_one: false,
        };
        model.one_by_one = floats.0 > 0 || !model.rows_are_independent(config)?;
        Ok(model)
    }

    /// Whether [`Head::Classes`] can be asked.
    pub fn is_classifier(&self) -> bool {
        self.bert.is_classifier()
    }

    /// Shows each layer to `visitor`.
    ///
    /// # Errors
    /// The first error of the visitor.
    pub fn walk(&self, visitor: &mut dyn Visitor) -> candle_dynquant::Result<()> {
        Walk::over(&self.bert, visitor)
    }

    /// Whether the texts of a call are computed one after the other: those of a model with a float
    /// product, whose sums depend on the number of rows, or with one scale for the activations of a call,
    /// in which texts would influence each other.
    pub fn is_one_by_one(&self) -> bool {
        self.one_by_one
    }

    /// The answers to `tasks`, in their order, each with the same bits as if it were alone.
    ///
    /// # Errors
    /// When the model fails, or classes are asked of a model without a classification head.
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
        // Texts of one length are adjacent, so that attention takes them at once.
        let mut order: Vec<usize> = (0..tasks.len()).collect();
        order.sort_by_key(|&index| tasks[index].tokens.len());
        let sorted: Vec<Task<'_>> = order.iter().map(|&index| tasks[index]).collect();

        let hidden = self.bert.hidden_rows(&rows(&sorted)?)?;
        let answers = self.heads(&sorted, &hidden)?;
        let mut in_order = vec![Vec::new(); tasks.len()];
        for (index, answer) in order.into_iter().zip(answers) {
            in_order[index] = answer;
        }
        Ok(in_order)
    }

    /// The answers in the order of the rows of `hidden`.
    fn heads(&self, tasks: &[Task<'_>], hidden: &Tensor) -> Result<Vec<Vec<f32>>> {
        let mut starts = Vec::with_capacity(tasks.len());
        let mut start = 0;
        for task in tasks {
            starts.push(start);
            start += task.tokens.len();
        }
        let classified = (tasks.iter().zip(&starts))
            .filter(|(task, _)| task.head == Head::Classes)
            .map(|(_, &start)| start as u32);
        let mut logits = self.logits(hidden, classified.collect())?.into_iter();

        let size = hidden.dim(1)?;
        let values = hidden.flatten_all()?.to_vec1::<f32>()?;
        let answer = |(task, start): (&Task<'_>, usize)| match task.head {
            Head::Embedding => {
                let tokens = &values[start * size..(start + task.tokens.len()) * size];
                let pooled = pool(tokens, size, self.pooling);
                let mut dense = self.dense.iter();
                dense.try_fold(pooled, |embedding, dense| dense.apply(embedding))
            }
            Head::Classes => logits.next().context("expected logits, got none"),
        };
        tasks.iter().zip(starts).map(answer).collect()
    }

    fn logits(&self, hidden: &Tensor, first_tokens: Vec<u32>) -> Result<Vec<Vec<f32>>> {
        if first_tokens.is_empty() {
            return Ok(Vec::new());
        }
        let count = first_tokens.len();
        let first_tokens = Tensor::from_vec(first_tokens, count, hidden.device())?;
        let first = hidden.index_select(&first_tokens, 0)?;
        let logits = self.bert.logits(&first)?;
        let logits = logits.context("expected a classification head, got none")?;
        Ok(logits.to_vec2()?)
    }

    /// Compares texts that are computed together with the same texts alone, bit for bit. The format of
    /// an activation is not to be seen from a layer; a scale that they share changes most of these bits.
    fn rows_are_independent(&self, config: &Config) -> Result<bool> {
        let longest = config.max_tokens.min(24);
        let texts: Vec<Tokens> = (1..=longest)
            .map(|count| Tokens {
                ids: (0..count)
                    .map(|i| ((i * 7919 + count * 104_729) % config.bert.vocab_size) as u32)
                    .collect(),
                types: vec![0; count],
            })
            .collect();
        let heads = if self.is_classifier() {
            &[Head::Embedding, Head::Classes][..]
        } else {
            &[Head::Embedding]
        };
        let tasks: Vec<Task<'_>> = (texts.iter())
            .flat_map(|tokens| heads.iter().map(move |&head| Task { tokens, head }))
            .collect();
        let together = self.together(&tasks)?;
        for (task, answer) in tasks.iter().zip(together) {
            let alone = self.together(&[*task])?;
            ensure!(
                alone.iter().flatten().all(|x| x.is_finite()),
                "the model: expected finite answers, got {:?}",
                alone.iter().flatten().find(|x| !x.is_finite()),
            );
            let bits = |answer: &[f32]| answer.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            if alone.iter().map(|alone| bits(alone)).ne([bits(&answer)]) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Counts float weights that are multiplied by.
struct FloatProducts(usize);

impl Visitor for FloatProducts {
    fn layer(&mut self, _: &str, layer: &dyn Layer) -> candle_dynquant::Result<()> {
        if layer.kind() != LayerKind::Embedding {
            let weights = layer.weight_infos();
            self.0 += weights.iter().filter(|weight| !weight.quantized).count();
        }
        Ok(())
    }
}

fn rows(tasks: &[Task<'_>]) -> Result<Rows> {
    let tensor = |values: Vec<u32>| {
        let count = values.len();
        Tensor::from_vec(values, count, &Device::Cpu)
    };
    let all = |part: fn(&Tokens) -> &[u32]| {
        let parts = tasks.iter().map(|task| part(task.tokens));
        tensor(parts.flatten().copied().collect())
    };
    let positions = tasks.iter().flat_map(|task| 0..task.tokens.len() as u32);
    let mut runs = Vec::<Run>::new();
    for task in tasks {
        let tokens = task.tokens.len();
        match runs.last_mut() {
            Some(run) if run.tokens == tokens => run.texts += 1,
            _ => runs.push(Run { texts: 1, tokens }),
        }
    }
    Ok(Rows {
        ids: all(|tokens| &tokens.ids)?,
        types: all(|tokens| &tokens.types)?,
        positions: tensor(positions.collect())?,
        runs,
    })
}

fn pool(tokens: &[f32], size: usize, pooling: Pooling) -> Vec<f32> {
    let mut rows = tokens.chunks_exact(size);
    let mut answer = rows.next().unwrap_or_default().to_vec();
    if pooling == Pooling::Mean {
        for row in rows {
            for (sum, x) in answer.iter_mut().zip(row) {
                *sum += x;
            }
        }
        let count = (tokens.len() / size) as f32;
        for sum in &mut answer {
            *sum /= count;
        }
    }
    answer
}
