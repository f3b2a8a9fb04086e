use candle::{DType, Module, Result, Tensor};
use candle_nn::{embedding, linear_no_bias, Embedding, Linear, VarBuilder};

pub struct Matched {
    embed: Embedding,
    lm_head: Option<Linear>,
}

impl Matched {
    pub fn load(tied: bool, vb: VarBuilder) -> Result<Self> {
        let embed = embedding(10, 4, vb.pp("embed"))?;
        let lm_head = if tied {
            None
        } else {
            Some(linear_no_bias(4, 10, vb.pp("lm_head"))?)
        };
        Ok(Self { embed, lm_head })
    }

    pub fn logits(&self, xs: &Tensor) -> Result<Tensor> {
        let logits = match self.lm_head {
            None => xs.matmul(&self.embed.embeddings().t()?)?,
            Some(ref lm_head) => lm_head.forward(xs)?,
        };
        logits.to_dtype(DType::F32)
    }
}

pub struct Chosen {
    embed: Embedding,
    /// The head.  `None` when tied to `embed`.
    head: Option<Linear>,
    /// The norm's.
    eps: f64,
}

impl Chosen {
    pub fn load(head: Option<Linear>, vb: VarBuilder) -> Result<Self> {
        let embed = embedding(10, 4, vb.pp("embed"))?;
        Ok(Self {
            embed,
            head,
            eps: 1e-5,
        })
    }

    pub fn logits(&self, xs: &Tensor) -> anyhow::Result<Tensor> {
        let xs = (xs + self.eps)?;
        if let Some(head) = &self.head {
            Ok(head.forward(&xs)?)
        } else {
            // logits = xs @ embed^T
            let table = self.embed.embeddings();
            let logits = xs.broadcast_matmul(&table.t()?)?;
            Ok(logits)
        }
    }
}

/// It reads its head elsewhere.
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
