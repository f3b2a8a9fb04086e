use candle::{DType, Module, Result, Tensor};
use candle_dynquant::nn::{
    embedding, linear_no_bias as linear, rms_norm, Embedding, Linear, RmsNorm,
};
use candle_dynquant::{ops, Quantizable};
use candle_nn::VarBuilder;
use std::sync::{Arc, Mutex};

struct Cache {
    mask: Tensor,
}

impl Cache {
    fn mask(&self, _len: usize) -> Result<Tensor> {
        Ok(self.mask.clone())
    }
}

#[derive(Clone, Quantizable)]
struct Attention {
    q_proj: Linear,
    kv_proj: Linear,
    heads: usize,
    head_dim: usize,
}

impl Attention {
    fn forward(&self, x: &Tensor, cache: &Cache) -> Result<Tensor> {
        let (b, len, hidden) = x.dims3()?;
        let shape = (b, len, self.heads, self.head_dim);
        let [q, k] = Linear::forward_each([&self.q_proj, &self.kv_proj], x)?;
        let q = q.reshape(shape)?.transpose(1, 2)?;
        let k = k.reshape(shape)?.transpose(1, 2)?;
        let v = k.clone();

        let mask = if len == 1 {
            None
        } else {
            Some(cache.mask(len)?)
        };
        let y = ops::scaled_dot_product_attention(
            &q,
            &k,
            &v,
            mask.as_ref().map_or(ops::Mask::All, ops::Mask::Exclude),
            1. / (self.head_dim as f64).sqrt(),
        )?
        .to_dtype(DType::F32)?;
        y.transpose(1, 2)?.reshape((b, len, hidden))
    }

    /// The scores are returned: no fused attention has them.
    fn with_scores(&self, q: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let (_b, _h, _s, _d) = q.dims4()?;
        let scores = q.matmul(&q.t()?)?;
        let probs = ops::softmax_last_dim(&scores)?;
        Ok((probs.matmul(v)?, scores))
    }
}

#[derive(Clone, Quantizable)]
struct Norms {
    first: RmsNorm,
}

#[derive(Clone, Quantizable)]
struct Block {
    attention: Attention,
    norms: Norms,
}

#[derive(Quantizable)]
pub struct Model {
    tied_head: Linear,
    embed: Embedding,
    blocks: Vec<Block>,
    shared: Arc<Attention>,
    hidden: Mutex<Linear>,
}

impl Model {
    pub fn new(vb: VarBuilder) -> Result<Self> {
        let embed = embedding(100, 16, vb.pp("embed"))?;
        let first = rms_norm(16, 1e-6, vb.pp("norm"))?;
        let proj = linear(16, 16, vb.pp("proj"))?;
        let attention = Attention {
            q_proj: proj.clone(),
            kv_proj: proj.clone(),
            heads: 2,
            head_dim: 8,
        };
        let norms = Norms { first };
        let blocks = vec![];
        let _ = norms;
        Ok(Self {
            tied_head: Linear::tied(&embed, None),
            embed,
            blocks,
            shared: Arc::new(attention),
            hidden: Mutex::new(proj),
        })
    }

    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let mut xs = self.embed.forward(ids)?;
        for block in &self.blocks {
            xs = block.norms.first.forward(&xs)?;
        }
        self.tied_head.forward(&xs)
    }
}

fn rotate(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    ops::rope(&x.contiguous()?, cos, sin)
}
// left: line 52: attention of a form that is not certain
