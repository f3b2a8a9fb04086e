//! The common structure of all architectures: an embedding of tokens, and layers of attention and
//! products, each with norms around it. A file for each architecture names its parts.

use candle_core::{Device, Result, Tensor};
use candle_dynquant::{Quantizable, nn};
use candle_nn::Module;

use super::attention::Attention;
use super::mlp::Mlp;
use super::rows::Rows;
use super::view::{View, Viewed};

/// The model from tokens to their vectors.
#[derive(Clone, Quantizable)]
pub(crate) struct Transformer {
    pub embeddings: Embeddings,
    pub layers: Vec<Layer>,
    /// The norm after the last layer.
    pub norm: Option<nn::LayerNorm>,
    /// The views; each layer uses one.
    pub views: Vec<View>,
}

impl Transformer {
    /// The last hidden state, `[tokens, hidden]`.
    pub fn forward(&self, rows: &Rows) -> Result<Tensor> {
        let views = self.views.iter().map(|view| view.for_rows(rows));
        let views = views.collect::<Result<Vec<_>>>()?;
        let mut hidden = Hidden::from(self.embeddings.forward(rows)?);
        for layer in &self.layers {
            hidden = layer.forward(hidden, rows, &views[layer.view])?;
        }
        match &self.norm {
            Some(norm) => hidden.normal(norm).map(|(normal, _)| normal),
            None => hidden.complete(),
        }
    }
}

/// The embeddings of words, token types and positions.
#[derive(Clone, Quantizable)]
pub(crate) struct Embeddings {
    pub words: nn::Embedding,
    pub types: Option<nn::Embedding>,
    pub positions: Option<Positions>,
    pub norm: Option<nn::LayerNorm>,
    /// The product from a narrower table to the hidden size.
    pub projection: Option<nn::Linear>,
    /// The factor of word embeddings.
    pub scale: Option<f64>,
}

#[derive(Clone, Quantizable)]
pub(crate) struct Positions {
    pub table: nn::Embedding,
    /// The token that has the row of its number; others have the rows behind it, in order.
    pub pad: Option<u32>,
}

impl Embeddings {
    pub fn words_only(words: nn::Embedding) -> Self {
        Self { words, types: None, positions: None, norm: None, projection: None, scale: None }
    }

    fn forward(&self, rows: &Rows) -> Result<Tensor> {
        let tensor = |values: &[u32]| Tensor::new(values, &Device::Cpu);
        let mut hidden = self.words.forward(&tensor(&rows.ids)?)?;
        if let Some(scale) = self.scale {
            hidden = (hidden * scale)?;
        }
        if let Some(types) = &self.types {
            hidden = match types.embeddings().dim(0)? {
                // One type for all tokens.
                1 => hidden.broadcast_add(&types.forward(&tensor(&[0])?)?)?,
                _ => (hidden + types.forward(&tensor(&rows.types)?)?)?,
            };
        }
        let positions = self.positions.as_ref().map(|positions| {
            let ids = match positions.pad {
                Some(pad) => rows.positions_without(pad),
                None => rows.positions.clone(),
            };
            positions.table.forward(&tensor(&ids)?)
        });
        let hidden = match (positions.transpose()?, &self.norm) {
            (Some(positions), Some(norm)) => norm.forward_add(&hidden, &positions)?,
            (Some(positions), None) => (hidden + positions)?,
            (None, Some(norm)) => norm.forward(&hidden)?,
            (None, None) => hidden,
        };
        match &self.projection {
            Some(projection) => projection.forward(&hidden),
            None => Ok(hidden),
        }
    }
}

#[derive(Clone, Quantizable)]
pub(crate) struct Layer {
    pub attention: Attention,
    pub around_attention: Residual,
    pub mlp: Mlp,
    pub around_mlp: Residual,
    pub view: usize,
}

impl Layer {
    pub fn forward(&self, hidden: Hidden, rows: &Rows, view: &Viewed) -> Result<Hidden> {
        let attend = |xs: &Tensor| self.attention.forward(xs, rows, view);
        let hidden = self.around_attention.forward(hidden, attend)?;
        self.around_mlp.forward(hidden, |xs| self.mlp.forward(xs))
    }
}

/// A hidden state, whose last term the next norm may add.
pub(crate) struct Hidden {
    sum: Tensor,
    term: Option<Tensor>,
}

impl From<Tensor> for Hidden {
    fn from(sum: Tensor) -> Self {
        Self { sum, term: None }
    }
}

impl Hidden {
    pub fn normal(self, norm: &nn::LayerNorm) -> Result<(Tensor, Tensor)> {
        match &self.term {
            Some(term) => norm.forward_add_with_sum(term, &self.sum),
            None => Ok((norm.forward(&self.sum)?, self.sum)),
        }
    }

    pub fn complete(self) -> Result<Tensor> {
        match self.term {
            Some(term) => term + self.sum,
            None => Ok(self.sum),
        }
    }
}

/// A part of a layer with its norms, `last(xs + scale * after(inner(before(xs))))`.
#[derive(Clone, Default, Quantizable)]
pub(crate) struct Residual {
    pub before: Option<nn::LayerNorm>,
    pub after: Option<nn::LayerNorm>,
    pub last: Option<nn::LayerNorm>,
    /// The factors of what is added.
    #[quantizable(skip)]
    pub scale: Option<Tensor>,
}

impl Residual {
    fn forward(
        &self,
        hidden: Hidden,
        inner: impl FnOnce(&Tensor) -> Result<Tensor>,
    ) -> Result<Hidden> {
        let (mut ys, sum) = match &self.before {
            Some(norm) => {
                let (normal, sum) = hidden.normal(norm)?;
                (inner(&normal)?, sum)
            }
            None => {
                let sum = hidden.complete()?;
                (inner(&sum)?, sum)
            }
        };
        if let Some(norm) = &self.after {
            ys = norm.forward(&ys)?;
        }
        if let Some(scale) = &self.scale {
            ys = ys.broadcast_mul(scale)?;
        }
        Ok(match &self.last {
            Some(norm) => norm.forward_add(&ys, &sum)?.into(),
            None => Hidden { sum, term: Some(ys) },
        })
    }
}
