use candle::{DType, Result, Tensor, D};
use candle_dynquant::nn::Linear;
use candle_dynquant::ops::{softmax, softmax_last_dim};
use candle_dynquant::{ops, Quantizable};
use candle_nn::Module;

fn masked_fill(on_false: &Tensor, mask: &Tensor, on_true: f32) -> Result<Tensor> {
    let on_true = Tensor::new(on_true, on_false.device())?.broadcast_as(mask.shape().dims())?;
    mask.where_cond(&on_true, on_false)
}

#[derive(Clone)]
pub struct Identity;

impl Module for Identity {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.clone())
    }
}

#[derive(Clone, Quantizable)]
pub struct Scores {
    #[quantizable(skip)]
    none: Identity,
    mixes: Linear,
    scale: f64,
    bias: Tensor,
}

// One product is no attention.
pub fn classified(xs: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (_len, _size) = xs.dims2()?;
    softmax_last_dim(&xs.matmul(weight)?.relu()?.contiguous()?)
}

// Statements between that have nothing to do with it.
pub fn between(q: &Tensor) -> Result<Tensor> {
    let (_b, _h, len, _d) = q.dims4()?;
    let mut last = 0;
    let half = len / 2;
    last = half;
    let scores = ops::scaled_dot_product_attention(q, q, q, None, 1.)?;
    scores.narrow(2, half, last)
}

// Keys that were transposed before.
pub fn transposed(q: &Tensor, keys: Tensor, v: &Tensor) -> Result<Tensor> {
    let (_b, _h, _len, _d) = q.dims4()?;
    ops::scaled_dot_product_attention(q, &keys.t()?, v, None, 1.)
}

// Dtypes on the way.
pub fn cast(q: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (_b, _h, _len, _d) = q.dims4()?;
    ops::scaled_dot_product_attention(q, q, v, None, 1.)?.to_dtype(v.dtype())
}

impl Scores {
    // Layers that do nothing, and a scale of another form.
    pub fn dropped(&self, q: &Tensor) -> Result<Tensor> {
        let (_b, _h, _len, _d) = q.dims4()?;
        ops::scaled_dot_product_attention(q, q, q, None, self.scale)
    }

    // Masks of each form.
    pub fn masked(&self, q: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (_b, _h, _len, _d) = q.dims4()?;
        let owned = mask.clone();
        let q = ops::scaled_dot_product_attention(q, q, q, &owned, 1.)?;
        q + mask
    }

    pub fn added(&self, q: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (_b, _h, _len, _d) = q.dims4()?;
        ops::scaled_dot_product_attention(q, q, q, mask, 1.)
    }

    pub fn biased(&self, q: &Tensor) -> Result<Tensor> {
        let (_b, _h, _len, _d) = q.dims4()?;
        ops::scaled_dot_product_attention(q, q, q, &self.bias, 1.)
    }

    pub fn biased_later(&self, q: &Tensor) -> Result<Tensor> {
        let (_b, _h, _len, _d) = q.dims4()?;
        let bias = &self.bias;
        ops::scaled_dot_product_attention(q, q, q, bias, 1.)
    }

    pub fn cast_mask(&self, q: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (_b, _h, _len, _d) = q.dims4()?;
        ops::scaled_dot_product_attention(q, q, q, mask, 1.)
    }

    pub fn other_cast(&self, q: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (_b, _h, _len, _d) = q.dims4()?;
        ops::scaled_dot_product_attention(q, q, q, &mask.to_dtype(q.dtype())?, 1.)
    }

    pub fn unsqueezed(&self, q: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (_b, _h, _len, _d) = q.dims4()?;
        ops::scaled_dot_product_attention(q, q, q, &mask.unsqueeze(1)?, 1.)
    }

    pub fn filled(&self, q: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (_b, _h, _len, _d) = q.dims4()?;
        ops::scaled_dot_product_attention(q, q, q, ops::Mask::Exclude(mask), 1.)
    }

    pub fn maybe_owned(&self, q: &Tensor, mask: &Option<Tensor>) -> Result<Tensor> {
        let (_b, _h, _len, _d) = q.dims4()?;
        ops::scaled_dot_product_attention(q, q, q, mask.as_ref(), 1.)
    }

    pub fn maybe_filled(&self, q: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let (_b, _h, _len, _d) = q.dims4()?;
        ops::scaled_dot_product_attention(
            q,
            q,
            q,
            mask.map_or(ops::Mask::All, ops::Mask::Exclude),
            1.,
        )
    }
}

// Here nothing is certain. Probabilities are read beside the product,
pub fn read_beside(q: &Tensor) -> Result<Tensor> {
    let (_b, _h, _len, _d) = q.dims4()?;
    let probs = softmax_last_dim(&q.matmul(&q.t()?)?)?;
    probs.matmul(q)?.broadcast_add(&probs)
}

// scores on the way;
pub fn read_between(q: &Tensor) -> Result<(Tensor, usize)> {
    let (_b, _h, _len, _d) = q.dims4()?;
    let scores = q.matmul(&q.t()?)?;
    let count = scores.elem_count();
    let probs = softmax_last_dim(&scores)?;
    Ok((probs.matmul(q)?, count))
}

// operands and masks are others by the time of the product;
pub fn rebound(q: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (_b, _h, _len, _d) = q.dims4()?;
    let scores = q.matmul(&q.t()?)?;
    let q = (q * 2.)?;
    let probs = softmax_last_dim(&scores)?;
    probs.matmul(v)? + q
}

pub fn assigned(mut q: Tensor, v: &Tensor) -> Result<Tensor> {
    let (_b, _h, _len, _d) = q.dims4()?;
    let scores = q.matmul(&q.t()?)?;
    q = (q * 2.)?;
    let probs = softmax_last_dim(&scores)?;
    probs.matmul(v)? + q
}

pub fn rebound_mask(q: &Tensor, own_mask: &Tensor) -> Result<Tensor> {
    let (_b, _h, _len, _d) = q.dims4()?;
    let scores = q.matmul(&q.t()?)?.broadcast_add(own_mask)?;
    let own_mask = own_mask.exp()?;
    softmax_last_dim(&scores)?.matmul(q)? * own_mask
}

// there is a dtype of few bits,
pub fn narrowed(q: &Tensor) -> Result<Tensor> {
    let (_b, _h, _len, _d) = q.dims4()?;
    let scores = q.matmul(&q.t()?)?.to_dtype(DType::BF16)?;
    softmax_last_dim(&scores)?.matmul(q)
}

// another product, or another dimension.
pub fn mixed(q: &Tensor, mix: &Tensor) -> Result<Tensor> {
    let (_b, _h, _len, _d) = q.dims4()?;
    let scores = q.matmul(&q.t()?)?;
    let scores = scores.matmul(mix)?;
    softmax_last_dim(&scores)?.matmul(q)
}

pub fn of_rows(q: &Tensor) -> Result<Tensor> {
    let (_b, _h, _len, _d) = q.dims4()?;
    let scores = q.matmul(&q.t()?)?;
    softmax(&scores, D::Minus2)?.matmul(q)
}

impl Scores {
    // A layer does something,
    pub fn layer(&self, q: &Tensor) -> Result<Tensor> {
        let (_b, _h, _len, _d) = q.dims4()?;
        let scores = self.mixes.forward(&q.matmul(&q.t()?)?)?;
        softmax_last_dim(&scores)?.matmul(q)
    }

    pub fn applied(&self, q: &Tensor) -> Result<Tensor> {
        let (_b, _h, _len, _d) = q.dims4()?;
        let scores = q.matmul(&q.t()?)?.apply(&self.mixes)?;
        softmax_last_dim(&scores)?.matmul(q)
    }

    // a scale adds, or comes too late,
    pub fn shifted(&self, q: &Tensor) -> Result<Tensor> {
        let (_b, _h, _len, _d) = q.dims4()?;
        let scores = q.matmul(&q.t()?)?.affine(self.scale, 1.)?;
        softmax_last_dim(&scores)?.matmul(q)
    }

    pub fn scaled_mask(&self, q: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (_b, _h, _len, _d) = q.dims4()?;
        let scores = q.matmul(&q.t()?)?.broadcast_add(mask)?;
        let scores = scores.affine(self.scale, 0.)?;
        softmax_last_dim(&scores)?.matmul(q)
    }

    pub fn scaled_probabilities(&self, q: &Tensor) -> Result<Tensor> {
        let (_b, _h, _len, _d) = q.dims4()?;
        let probs = softmax_last_dim(&q.matmul(&q.t()?)?)?;
        probs.affine(self.scale, 0.)?.matmul(q)
    }

    // probabilities are masked,
    pub fn filled_probabilities(&self, q: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (_b, _h, _len, _d) = q.dims4()?;
        let probs = softmax_last_dim(&q.matmul(&q.t()?)?)?;
        masked_fill(&probs, mask, f32::NEG_INFINITY)?.matmul(q)
    }

    // with and without a mask there are other scores,
    pub fn scaled_if_masked(&self, q: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let (_b, _h, _len, _d) = q.dims4()?;
        let scores = q.matmul(&q.t()?)?;
        let scores = match mask {
            Some(mask) => (scores * self.scale)?.broadcast_add(mask)?,
            None => scores,
        };
        softmax_last_dim(&scores)?.matmul(q)
    }

    pub fn masked_anyway(&self, q: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let (_b, _h, _len, _d) = q.dims4()?;
        let scores = q.matmul(&q.t()?)?;
        let scores = match mask {
            Some(mask) => scores.broadcast_add(mask)?,
            None => scores.broadcast_add(&self.bias)?,
        };
        softmax_last_dim(&scores)?.matmul(q)
    }

    pub fn soft_without(&self, q: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let (_b, _h, _len, _d) = q.dims4()?;
        let scores = q.matmul(&q.t()?)?;
        let probs = match mask {
            Some(mask) => scores.broadcast_add(mask)?,
            None => softmax_last_dim(&scores)?,
        };
        probs.matmul(q)
    }

    pub fn soft_with(&self, q: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let (_b, _h, _len, _d) = q.dims4()?;
        let scores = q.matmul(&q.t()?)?;
        let probs = match mask {
            Some(mask) => softmax_last_dim(&scores.broadcast_add(mask)?)?,
            None => scores,
        };
        softmax_last_dim(&probs)?.matmul(q)
    }

    // or another mask than the one that is asked for.
    pub fn other_mask(&self, q: &Tensor, mask: Option<&Tensor>, other: &Tensor) -> Result<Tensor> {
        let (_b, _h, _len, _d) = q.dims4()?;
        let scores = q.matmul(&q.t()?)?;
        let scores = match mask {
            Some(mask) => scores.broadcast_add(other)?,
            None => scores,
        };
        softmax_last_dim(&scores)?.matmul(q)
    }

    pub fn shaped_mask(&self, q: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (_b, _h, _len, _d) = q.dims4()?;
        let scores = q.matmul(&q.t()?)?;
        let scores = scores.broadcast_add(&mask.reshape(scores.shape())?)?;
        softmax_last_dim(&scores)?.matmul(q)
    }

    pub fn other_filled(&self, q: &Tensor, mask: Option<&Tensor>, other: &Tensor) -> Result<Tensor> {
        let (_b, _h, _len, _d) = q.dims4()?;
        let scores = q.matmul(&q.t()?)?;
        let scores = match mask {
            Some(mask) => masked_fill(&scores, other, f32::NEG_INFINITY)?,
            None => scores,
        };
        softmax_last_dim(&scores)?.matmul(q)
    }

    // Shapes that are not those before.
    pub fn reshaped(&self, q: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (b, h, len, d) = q.dims4()?;
        let q = q.reshape((b * h, len, d))?;
        let scores = q.matmul(&q.transpose(1, 2)?)?;
        let scores = scores.reshape((b, h, len, len))?.broadcast_add(mask)?;
        let scores = scores.reshape((b * h, 1, len))?;
        softmax_last_dim(&scores)?.matmul(&q)
    }

    pub fn reshaped_keys(&self, q: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (b, h, len, d) = q.dims4()?;
        let q = q.reshape((b * h, len, d))?;
        let scores = q.matmul(&q.transpose(1, 2)?)?;
        let scores = scores.reshape((b, h, len, len))?.broadcast_add(mask)?;
        let scores = scores.reshape((b * h, len, 1))?;
        softmax_last_dim(&scores)?.matmul(&q)
    }

    pub fn reshaped_twice(&self, q: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (b, h, len, d) = q.dims4()?;
        let q = q.reshape((b * h, len, d))?;
        let scores = q.matmul(&q.transpose(1, 2)?)?;
        let scores = scores.reshape((b, h, len, len))?;
        let scores = scores.reshape((h, b, len, len))?.broadcast_add(mask)?;
        let scores = scores.reshape((b * h, len, len))?;
        softmax_last_dim(&scores)?.matmul(&q)
    }
}

// Dtypes of variables that go: that of the scores is the queries',
pub fn cast_back(q: &Tensor, v: &Tensor, scale: f64) -> Result<Tensor> {
    let (_b, _h, _len, _d) = q.dims4()?;
    ops::scaled_dot_product_attention(q, q, v, None, scale)?.to_dtype(q.dtype())
}

pub fn cast_back_scaled(q: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (_b, _h, _len, d) = q.dims4()?;
    let k_t = q.t()?;
    ops::scaled_dot_product_attention(
        q,
        &k_t.t()?,
        v,
        None,
        (d as f64).powf(-0.5),
    )?
    .to_dtype(q.dtype())
}

// which is not so of scores that were f32 already, of queries that are no variable,
pub fn cast_wide(q: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (_b, _h, _len, _d) = q.dims4()?;
    let scores = q.matmul(&q.t()?)?.to_dtype(DType::F32)?;
    let attn = softmax_last_dim(&scores)?.to_dtype(scores.dtype())?;
    attn.matmul(v)
}

pub fn cast_made(q: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (_b, _h, _len, _d) = q.dims4()?;
    let scores = q.to_dtype(DType::F32)?.matmul(&q.t()?)?;
    let attn = softmax_last_dim(&scores)?.to_dtype(scores.dtype())?;
    attn.matmul(v)
}

// of values, of a factor, or of a mask that is read again.
pub fn cast_values(q: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (_b, _h, _len, _d) = q.dims4()?;
    let attn = softmax_last_dim(&q.matmul(&q.t()?)?)?;
    attn.matmul(&v.to_dtype(attn.dtype())?)
}

pub fn own_factor(q: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (_b, _h, _len, _d) = q.dims4()?;
    let scores = q.matmul(&q.t()?)?;
    let scores = (&scores / (scores.dim(3)? as f64).sqrt())?;
    softmax_last_dim(&scores)?.matmul(v)
}

pub fn mask_again(q: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let (_b, _h, _len, _d) = q.dims4()?;
    let scores = q.matmul(&q.t()?)?;
    let wide = mask.broadcast_as(scores.shape())?;
    let scores = scores.broadcast_add(&wide)?;
    let ys = softmax_last_dim(&scores)?.matmul(q)?;
    ys + wide
}

// Batch and heads are apart for a mask only.
pub fn apart(q: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let (b, h, len, d) = q.dims4()?;
    let q = q.reshape((b * h, len, d))?;
    ops::scaled_dot_product_attention(
        &q.reshape((b, h, len, ()))?,
        &q.reshape((b, h, len, ()))?,
        &q.reshape((b, h, len, ()))?,
        mask,
        1.,
    )?
    .flatten_to(1)
}

// Masks before and after a cast have two dtypes.
pub fn masked_around_a_cast(q: &Tensor, mask: &Tensor, other: &Tensor) -> Result<Tensor> {
    let (_b, _h, _len, _d) = q.dims4()?;
    let scores = q.matmul(&q.t()?)?.broadcast_add(mask)?;
    let scores = scores.to_dtype(DType::F32)?.broadcast_add(other)?;
    softmax_last_dim(&scores)?.matmul(q)
}

// A shape that is read from the scores goes with them.
pub fn apart_by_scores(q: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let (b, h, len, d) = q.dims4()?;
    let q = q.reshape((b * h, len, d))?;
    let scores = q.matmul(&q.transpose(1, 2)?)?;
    let scores = scores.reshape((scores.dim(0)? / h, h, len, len))?.broadcast_add(mask)?;
    let scores = scores.reshape((b * h, len, len))?;
    softmax_last_dim(&scores)?.matmul(&q)
}
// left: line 147: attention of a form that is not certain
// left: line 156: attention of a form that is not certain
// left: line 165: attention of a form that is not certain
// left: line 173: attention of a form that is not certain
// left: line 181: attention of a form that is not certain
// left: line 188: attention of a form that is not certain
// left: line 196: attention of a form that is not certain
// left: line 202: attention of a form that is not certain
// left: line 210: attention of a form that is not certain
// left: line 216: attention of a form that is not certain
// left: line 223: attention of a form that is not certain
// left: line 230: attention of a form that is not certain
// left: line 235: attention of a form that is not certain
// left: line 242: attention of a form that is not certain
// left: line 254: attention of a form that is not certain
// left: line 264: attention of a form that is not certain
// left: line 272: attention of a form that is not certain
// left: line 281: attention of a form that is not certain
// left: line 284: attention of a form that is not certain
// left: line 295: attention of a form that is not certain
// left: line 302: attention of a form that is not certain
// left: line 312: attention of a form that is not certain
// left: line 322: attention of a form that is not certain
// left: line 331: attention of a form that is not certain
// left: line 341: attention of a form that is not certain
// left: line 366: attention of a form that is not certain
// left: line 373: attention of a form that is not certain
// left: line 380: attention of a form that is not certain
// left: line 388: attention of a form that is not certain
// left: line 396: attention of a form that is not certain
// left: line 415: attention of a form that is not certain
// left: line 425: attention of a form that is not certain
