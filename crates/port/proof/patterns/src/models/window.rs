//! Attention by two masks, types by a glob, a weight without a name, and a head that may be a
//! table.
use crate::layers::*;
use candle::{Module, Result, Tensor, D};
use candle_nn::{embedding, linear_no_bias, Embedding, VarBuilder};

const LEN: usize = 6;

struct Projection(Tensor);

impl Projection {
    fn load(size: usize, out: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self(vb.get((out, size), "weight")?))
    }

    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        xs.broadcast_matmul(&self.0.t()?)
    }
}

struct Attention {
    qkv: Projection,
    out: Conv1D,
    bias: Tensor,
    heads: usize,
}

impl Attention {
    fn load(size: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            qkv: Projection::load(size, 3 * size, vb.pp("qkv"))?,
            out: Conv1D::load(size, size, vb.pp("out"))?,
            bias: vb.get((4, LEN, LEN), "bias")?,
            heads: 4,
        })
    }

    fn forward(&self, xs: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let (batch, len, size) = xs.dims3()?;
        let qkv = self.qkv.forward(xs)?.chunk(3, D::Minus1)?;
        let heads = |part: &Tensor| {
            let part = part.reshape((batch, len, self.heads, size / self.heads))?;
            part.transpose(1, 2)?.contiguous()
        };
        let (q, k, v) = (heads(&qkv[0])?, heads(&qkv[1])?, heads(&qkv[2])?);
        let (_batch, _heads, _len, head_size) = q.dims4()?;

        // Scaled products.
        let scores = q.matmul(&k.t()?)?; // [batch, heads, len, len]
        let scores = (scores / (head_size as f64).sqrt())?;

        // The distance mask, then the window mask.
        let mut scores = scores.broadcast_add(&self.bias)?;
        if let Some(mask) = mask {
            scores = scores.broadcast_add(mask)?;
        }
        let weights = candle_nn::ops::softmax_last_dim(&scores)?;
        let context = weights.matmul(&v)?;
        let context = context.transpose(1, 2)?.flatten_from(D::Minus2)?;
        self.out.forward(&context)
    }
}

pub struct Decoder {
    embed: Embedding,
    attention: Attention,
    /// The head; `None` if the embedding table is the head.
    lm_head: Option<candle_nn::Linear>,
}

impl Decoder {
    pub fn load(vocab: usize, size: usize, tied: bool, vb: VarBuilder) -> Result<Self> {
        let embed = embedding(vocab, size, vb.pp("embed"))?;
        let lm_head = if tied {
            None
        } else {
            Some(linear_no_bias(size, vocab, vb.pp("lm_head"))?)
        };
        Ok(Self {
            embed,
            attention: Attention::load(size, vb.pp("attention"))?,
            lm_head,
        })
    }

    pub fn forward(&self, ids: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let xs = self.embed.forward(ids)?;
        let xs = (self.attention.forward(&xs, mask)? + &xs)?;
        match &self.lm_head {
            Some(head) => head.forward(&xs),
            // The table, transposed.
            None => xs.broadcast_matmul(&self.embed.embeddings().t()?),
        }
    }
}
