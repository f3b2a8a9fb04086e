use candle::{DType, Module, Result, Tensor};
use candle_dynquant::nn::{embedding, linear_no_bias, Embedding, Linear};
use candle_dynquant::Quantizable;
use candle_nn::VarBuilder;

#[derive(Clone, Quantizable)]
pub struct Matched {
    embed: Embedding,
    lm_head: Linear,
}

impl Matched {
    pub fn load(tied: bool, vb: VarBuilder) -> Result<Self> {
        let embed = embedding(10, 4, vb.pp("embed"))?;
        let lm_head = if tied {
            None
        } else {
            Some(linear_no_bias(4, 10, vb.pp("lm_head"))?)
        };
        let lm_head = lm_head.unwrap_or_else(|| Linear::tied(&embed, None));
        Ok(Self { embed, lm_head })
    }

    pub fn logits(&self, xs: &Tensor) -> Result<Tensor> {
        let logits = self.lm_head.forward(xs)?;
        logits.to_dtype(DType::F32)
    }
}

#[derive(Clone, Quantizable)]
pub struct Chosen {
    embed: Embedding,
    /// The head.
    head: Linear,
    /// The norm's.
    eps: f64,
}

impl Chosen {
    pub fn load(head: Option<Linear>, vb: VarBuilder) -> Result<Self> {
        let embed = embedding(10, 4, vb.pp("embed"))?;
        let head = head.unwrap_or_else(|| Linear::tied(&embed, None));
        Ok(Self {
            embed,
            head,
            eps: 1e-5,
        })
    }

    pub fn logits(&self, xs: &Tensor) -> anyhow::Result<Tensor> {
        let xs = (xs + self.eps)?;
        Ok(self.head.forward(&xs)?)
    }
}

/// It reads its head elsewhere.
#[derive(Clone, Quantizable)]
pub struct Asked {
    embed: Embedding,
    head: Option<Linear>,
}

impl Asked {
    pub fn new(embed: Embedding, head: Option<Linear>) -> Self {
        Self { embed, head }
    }

    pub fn is_tied(&self) -> bool {
        self.head.is_none()
    }

    pub fn logits(&self, xs: &Tensor) -> Result<Tensor> {
        match &self.head {
            Some(head) => head.forward(xs),
            None => xs.matmul(&self.embed.embeddings().t()?),
        }
    }
}
// left: line 78: a product with an embedding's table is no layer
