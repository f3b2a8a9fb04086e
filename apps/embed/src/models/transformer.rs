//! What all architectures are made of: an embedding of tokens, and layers of attention and
//! products, each with norms around it. A file of its own says for each how, and under which names.

use candle_core::{Device, Result, Tensor};
use candle_dynquant::{Quantizable, nn};
use candle_nn::Module;

use super::attention::Attention;
use super::mlp::Mlp;
use super::rows::Rows;
use super::view::{View, Viewed};

/// Tokens in, their vectors out.
#[derive(Clone, Quantizable)]
pub(crate) struct Transformer {
    pub embeddings: Embeddings,
    pub layers: Vec<Layer>,
    /// Behind the last layer.
    pub norm: Option<nn::LayerNorm>,
    /// Of which each layer has one.
    pub views: Vec<View>,
}

impl Transformer {
    /// The last hidden state, `[tokens, hidden]`.
    pub fn forward(&self, rows: &Rows) -> Result<Tensor> {
        let views = self.views.iter().map(|view| view.of(rows));
        let views = views.collect::<Result<Vec<_>>>()?;
        let mut hidden = self.embeddings.forward(rows)?;
        for layer in &self.layers {
            hidden = layer.forward(&hidden, rows, &views[layer.view])?;
        }
        match &self.norm {
            Some(norm) => norm.forward(&hidden),
            None => Ok(hidden),
        }
    }
}

/// Words, and what else there is of token types and positions.
#[derive(Clone, Quantizable)]
pub(crate) struct Embeddings {
    pub words: nn::Embedding,
    pub types: Option<nn::Embedding>,
    pub positions: Option<Positions>,
    pub norm: Option<nn::LayerNorm>,
    /// The factor of words.
    pub scale: Option<f64>,
}

#[derive(Clone, Quantizable)]
pub(crate) struct Positions {
    pub table: nn::Embedding,
    /// The row of the first token of a text.
    pub first: u32,
}

impl Embeddings {
    /// Of words alone.
    pub fn of(words: nn::Embedding) -> Self {
        Self {
            words,
            types: None,
            positions: None,
            norm: None,
            scale: None,
        }
    }

    fn forward(&self, rows: &Rows) -> Result<Tensor> {
        let tensor = |values: &[u32]| Tensor::new(values, &Device::Cpu);
        let mut hidden = self.words.forward(&tensor(&rows.ids)?)?;
        if let Some(scale) = self.scale {
            hidden = (hidden * scale)?;
        }
        if let Some(types) = &self.types {
            hidden = match types.embeddings().dim(0)? {
                // One for all.
                1 => hidden.broadcast_add(&types.forward(&tensor(&[0])?)?)?,
                _ => (hidden + types.forward(&tensor(&rows.types)?)?)?,
            };
        }
        let positions = self.positions.as_ref().map(|positions| {
            let ids: Vec<u32> = rows.positions.iter().map(|p| p + positions.first).collect();
            positions.table.forward(&tensor(&ids)?)
        });
        match (positions.transpose()?, &self.norm) {
            (Some(positions), Some(norm)) => norm.forward_add(&hidden, &positions),
            (Some(positions), None) => hidden + positions,
            (None, Some(norm)) => norm.forward(&hidden),
            (None, None) => Ok(hidden),
        }
    }
}

/// Attention, then products.
#[derive(Clone, Quantizable)]
pub(crate) struct Layer {
    pub attention: Attention,
    pub around_attention: Residual,
    pub mlp: Mlp,
    pub around_mlp: Residual,
    /// The index of its view.
    pub view: usize,
}

impl Layer {
    fn forward(&self, xs: &Tensor, rows: &Rows, view: &Viewed) -> Result<Tensor> {
        let attend = |xs: &Tensor| self.attention.forward(xs, rows, view);
        let xs = self.around_attention.forward(xs, attend)?;
        self.around_mlp.forward(&xs, |xs| self.mlp.forward(xs))
    }
}

/// `last(xs + after(inner(before(xs))))`: where the norms are around a part of a layer.
#[derive(Clone, Default, Quantizable)]
pub(crate) struct Residual {
    pub before: Option<nn::LayerNorm>,
    pub after: Option<nn::LayerNorm>,
    pub last: Option<nn::LayerNorm>,
}

impl Residual {
    pub fn post_norm(norm: nn::LayerNorm) -> Self {
        Self {
            last: Some(norm),
            ..Self::default()
        }
    }

    pub fn pre_norm(norm: Option<nn::LayerNorm>) -> Self {
        Self {
            before: norm,
            ..Self::default()
        }
    }

    fn forward(
        &self,
        xs: &Tensor,
        inner: impl FnOnce(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let mut ys = match &self.before {
            Some(norm) => inner(&norm.forward(xs)?)?,
            None => inner(xs)?,
        };
        if let Some(norm) = &self.after {
            ys = norm.forward(&ys)?;
        }
        match &self.last {
            Some(norm) => norm.forward_add(&ys, xs),
            None => ys + xs,
        }
    }
}
