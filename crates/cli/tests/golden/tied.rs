use candle::{Module, Result, Tensor};
use candle_nn::{embedding, Embedding, Linear, VarBuilder};

pub struct Decoder {
    embed: Embedding,
    proj: Linear,
}

impl Decoder {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        let embed = embedding(10, 4, vb.pp("embed"))?;
        let proj = candle_nn::linear(4, 4, vb.pp("proj"))?;
        Ok(Self { embed, proj })
    }

    pub fn logits(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = self.proj.forward(xs)?;
        let w = self.embed.embeddings().broadcast_left(1)?;
        xs.matmul(&w.t()?)
    }
}

/// Distances to a codebook are no head: their least is looked for.
pub struct Codebook {
    embed: Embedding,
}

impl Codebook {
    pub fn nearest(&self, xs: &Tensor) -> Result<Tensor> {
        let dot = xs.matmul(&self.embed.embeddings().t()?)?;
        dot.argmax(1)
    }
}
