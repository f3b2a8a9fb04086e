use candle::{Module, Result, Tensor};
use candle_dynquant::nn::{embedding, Embedding, Linear};
use candle_dynquant::{nn, Quantizable};
use candle_nn::VarBuilder;

#[derive(Clone, Quantizable)]
pub struct Decoder {
    tied_head: Linear,
    embed: Embedding,
    proj: Linear,
}

impl Decoder {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        let embed = embedding(10, 4, vb.pp("embed"))?;
        let proj = nn::linear(4, 4, vb.pp("proj"))?;
        Ok(Self {
            tied_head: Linear::tied(&embed, None),
            embed,
            proj,
        })
    }

    pub fn logits(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = self.proj.forward(xs)?;
        self.tied_head.forward(&xs)
    }
}

/// Distances to a codebook are no head: their least is looked for.
#[derive(Clone, Quantizable)]
pub struct Codebook {
    embed: Embedding,
}

impl Codebook {
    pub fn nearest(&self, xs: &Tensor) -> Result<Tensor> {
        let dot = xs.matmul(&self.embed.embeddings().t()?)?;
        dot.argmax(1)
    }
}
// left: line 30: a product with an embedding's table is no layer
