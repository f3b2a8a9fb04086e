//! Attention in other forms: what becomes one call, and what is left as it is.

use super::{compare, table};

/// A method of a type with layers and a constant bias. A body is put in the place of `BODY`.
const METHOD: &str = "\
use candle::{DType, Result, Tensor, D};
use candle_nn::ops::{softmax, softmax_last_dim};
use candle_nn::{Linear, Module};

fn masked_fill(on_false: &Tensor, mask: &Tensor, on_true: f32) -> Result<Tensor> {
    let on_true = Tensor::new(on_true, on_false.device())?.broadcast_as(mask.shape().dims())?;
    mask.where_cond(&on_true, on_false)
}

pub struct Identity;

impl Module for Identity {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.clone())
    }
}

pub struct Scores {
    none: Identity,
    mixes: Linear,
    scale: f64,
    bias: Tensor,
}

impl Scores {
    fn f(&self, q: &Tensor, v: &Tensor, mask: MASK, other: &Tensor) -> Result<Tensor> {
        BODY
    }
}
";

/// [`METHOD`] with a body, of which it says what stands in its place when it is ported.
#[track_caller]
fn check(mask: &str, body: &str, expected: &str) {
    let body = body.replace("DIMS", "let (b, h, len, d) = q.dims4()?;");
    let body = body.replace("QK", "q.matmul(&q.t()?)?");
    let body = body.replace("SOFT", "softmax_last_dim(&scores)?");
    let expected = expected.replace("CALL", "ops::scaled_dot_product_attention");
    let text = METHOD.replace("MASK", mask);
    compare(&text, &body, &expected, "attention of a form that is not certain");
}

/// Steps of the scores between their product and their softmax, and the mask and the scale that
/// they become.
#[test]
fn steps_of_scores_become_arguments() {
    let plain = "
        (scores + mask)? @ mask, 1.
        scores.broadcast_add(&self.bias)? @ &self.bias, 1.
        scores.broadcast_add(&mask.to_dtype(scores.dtype())?)? @ mask, 1.
        scores.broadcast_add(&mask.to_dtype(q.dtype())?)? @ &mask.to_dtype(q.dtype())?, 1.
        scores.broadcast_add(&mask.unsqueeze(1)?)? @ &mask.unsqueeze(1)?, 1.
        masked_fill(&scores, mask, f32::NEG_INFINITY)? @ ops::Mask::Exclude(mask), 1.
        scores.affine(self.scale, 0.)? @ None, self.scale
        scores.to_dtype(DType::BF16)? @ left
        scores.matmul(other)? @ left
        self.mixes.forward(&scores)? @ left
        scores.apply(&self.mixes)? @ left
        scores.affine(self.scale, 1.)? @ left
        scores.broadcast_add(mask)?.affine(self.scale, 0.)? @ left
        (scores.broadcast_add(mask)? * self.scale)? @ left
        (&scores / (scores.dim(3)? as f64).sqrt())? @ left
        scores.broadcast_add(&mask.reshape(scores.shape())?)? @ left
        scores.broadcast_add(mask)?.to_dtype(DType::F32)?.broadcast_add(other)? @ left
        scores.broadcast_add(other)?.broadcast_add(&mask.to_dtype(scores.dtype())?)? @ left
    ";
    let optional = "
        Some(mask) => scores.broadcast_add(mask)?, None => scores @ mask, 1.
        Some(mask) => masked_fill(&scores, mask, f32::NEG_INFINITY)?, None => scores
            @ mask.map_or(ops::Mask::All, ops::Mask::Exclude), 1.
        Some(mask) => (scores * self.scale)?.broadcast_add(mask)?, None => scores @ left
        Some(mask) => scores.broadcast_add(mask)?, None => scores.broadcast_add(&self.bias)? @ left
        Some(mask) => scores.broadcast_add(other)?, None => scores @ left
        Some(mask) => masked_fill(&scores, other, f32::NEG_INFINITY)?, None => scores @ left
    ";
    let run = |mask: &str, step: &str, expected: &str| {
        let body = format!("DIMS let scores = QK; let scores = {step}; SOFT.matmul(v)");
        match expected {
            "left" => check(mask, &body, expected),
            _ => check(mask, &body, &format!("= q.dims4()?; CALL(q, q, v, {expected})")),
        }
    };
    for [step, expected] in &table(plain) {
        run("&Tensor", step, expected);
    }
    for [arms, expected] in &table(optional) {
        run("Option<&Tensor>", &format!("match mask {{ {arms} }}"), expected);
    }
    let arms = "Some(mask) => scores.broadcast_add(mask)?, None => scores";
    run("&Option<Tensor>", &format!("match mask {{ {arms} }}"), "mask.as_ref(), 1.");
}

/// Statements around the product and the softmax.
#[test]
fn attention_among_other_statements_is_one_call_where_that_is_certain() {
    let cases = "
        let (_len, _size) = q.dims2()?; softmax_last_dim(&q.matmul(v)?.relu()?.contiguous()?)
            @ stays
        DIMS let mut last = 0; let scores = QK; let half = len / 2; last = half;
            let scores = SOFT; let scores = scores.matmul(q)?; scores.narrow(2, half, last)
            @ let mut last = 0; let half = len / 2; last = half;
            let scores = CALL(q, q, q, None, 1.)?; scores.narrow(2, half, last)
        DIMS let scores = q.matmul(other)?; softmax(&scores.contiguous()?, 3)?.matmul(v)
            @ CALL(q, &other.t()?, v, None, 1.)
        DIMS let scores = QK.to_dtype(DType::F32)?; let probs = SOFT.to_dtype(v.dtype())?;
            probs.matmul(v) @ CALL(q, q, v, None, 1.)?.to_dtype(v.dtype())
        DIMS let scores = QK; let probs = SOFT.apply(&self.none)?;
            self.none.forward(&probs)?.matmul(q) @ CALL(q, q, q, None, 1.)
        DIMS let owned = mask.clone(); let scores = QK.broadcast_add(&owned)?;
            let q = SOFT.matmul(q)?; q + mask
            @ let owned = mask.clone(); let q = CALL(q, q, q, &owned, 1.)?; q + mask
        DIMS let bias = &self.bias; let scores = QK; let scores = scores.broadcast_add(bias)?;
            SOFT.matmul(q) @ let bias = &self.bias; CALL(q, q, q, bias, 1.)
        DIMS let scores = masked_fill(&QK, mask, f32::NEG_INFINITY)?; SOFT.matmul(q)
            @ CALL(q, q, q, ops::Mask::Exclude(mask), 1.)
        DIMS let probs = softmax_last_dim(&QK)?; probs.matmul(q)?.broadcast_add(&probs) @ left
        DIMS let scores = QK; let count = scores.elem_count();
            SOFT.matmul(&q.narrow(0, 0, count)?) @ left
        DIMS let scores = QK; let q = (q * 2.)?; let probs = SOFT; probs.matmul(v)? + q @ left
        DIMS let mut q = q.clone(); let scores = QK; q = (&q * 2.)?; SOFT.matmul(v)? + q @ left
        DIMS let scores = QK.broadcast_add(mask)?; let mask = mask.exp()?;
            SOFT.matmul(q)? * mask @ left
        DIMS let scores = QK; softmax(&scores, D::Minus2)?.matmul(q) @ left
        DIMS let scores = QK; softmax(&scores, 1)?.matmul(q) @ left
        DIMS let probs = softmax_last_dim(&QK)?; probs.affine(self.scale, 0.)?.matmul(q) @ left
        DIMS let probs = softmax_last_dim(&QK)?;
            masked_fill(&probs, mask, f32::NEG_INFINITY)?.matmul(q) @ left
        DIMS let scores = (QK * self.scale)?;
            let attn = softmax_last_dim(&scores.to_dtype(DType::F32)?)?.to_dtype(scores.dtype())?;
            attn.matmul(v) @ CALL(q, q, v, None, self.scale)?.to_dtype(q.dtype())
        DIMS let k_t = q.t()?; let scaled = (q * (d as f64).powf(-0.5))?;
            let scores = scaled.matmul(&k_t)?;
            let attn = softmax_last_dim(&scores.to_dtype(DType::F32)?)?.to_dtype(scores.dtype())?;
            attn.matmul(v) @ let k_t = q.t()?;
            CALL(q, &k_t.t()?, v, None, (d as f64).powf(-0.5))?.to_dtype(q.dtype())
        DIMS let scores = QK.to_dtype(DType::F32)?; let attn = SOFT.to_dtype(scores.dtype())?;
            attn.matmul(v) @ left
        DIMS let scores = q.to_dtype(DType::F32)?.matmul(&q.t()?)?;
            let attn = SOFT.to_dtype(scores.dtype())?; attn.matmul(v) @ left
        DIMS let attn = softmax_last_dim(&QK)?; attn.matmul(&v.to_dtype(attn.dtype())?) @ left
        DIMS let scores = QK; let wide = mask.broadcast_as(scores.shape())?;
            let scores = scores.broadcast_add(&wide)?; let ys = SOFT.matmul(q)?; ys + wide @ left
        DIMS let scores = (q.matmul(&v.t()?)? / (d as f64).sqrt())?;
            let scores = scores.broadcast_add(other)?; let scores = scores.broadcast_add(mask)?;
            SOFT.matmul(v) @ CALL(q, v, v, &other.broadcast_add(mask)?, 1. / (d as f64).sqrt())
    ";
    for [body, expected] in &table(cases) {
        check("&Tensor", body, expected);
    }
    // The second mask, or the first, is optional; a mask is one of its own by then, or unknown; one
    // branch has a softmax.
    let both = "@ CALL(q, q, v, &match mask { Some(mask) => self.bias.broadcast_add(mask)?, \
                None => self.bias.clone() }, self.scale)";
    let cases = "
        DIMS let scores = (q.matmul(&q.transpose(D::Minus2, D::Minus1)?)? * self.scale)?;
            let mut scores = scores.broadcast_add(&self.bias)?;
            if let Some(mask) = mask { scores = scores.broadcast_add(mask)?; }
            let weights = SOFT; weights.matmul(v) BOTH
        DIMS let scores = (QK * self.scale)?; let scores = scores.broadcast_add(&self.bias)?;
            let scores = match mask { Some(mask) => scores.broadcast_add(mask)?, None => scores };
            SOFT.matmul(v) BOTH
        DIMS let mut scores = (QK * self.scale)?;
            if let Some(mask) = mask { scores = scores.broadcast_add(mask)?; }
            let scores = (scores + &self.bias)?; SOFT.matmul(v) BOTH
        DIMS let mask = match mask { Some(mask) => Some(mask.unsqueeze(1)?), None => None };
            let mut scores = (QK * self.scale)?;
            if let Some(mask) = mask { scores = scores.broadcast_add(&mask)?; } SOFT.matmul(v)
            @ CALL(q, q, v, mask.as_ref(), self.scale)
        DIMS let mask = self.prepared(mask)?; let mut scores = (QK * self.scale)?;
            if let Some(mask) = mask { scores = scores.broadcast_add(&mask)?; } SOFT.matmul(v)
                @ left
        DIMS let scores = QK; let probs = match mask {
            Some(mask) => scores.broadcast_add(mask)?, None => SOFT }; probs.matmul(q) @ left
        DIMS let scores = QK; let probs = match mask {
            Some(mask) => softmax_last_dim(&scores.broadcast_add(mask)?)?, None => scores };
            softmax_last_dim(&probs)?.matmul(q) @ left
    ";
    for [body, expected] in &table(&cases.replace("BOTH", both)) {
        check("Option<&Tensor>", body, expected);
    }
}

/// Ranks of operands that are known where the product stands, or not.
#[test]
fn attention_is_of_operands_whose_rank_is_known() {
    let flat = "DIMS let q = q.reshape((b * h, len, d))?; \
                let scores = q.matmul(&q.transpose(1, 2)?)?; let scores";
    let cases = "
        FLAT = scores.reshape((b, h, len, len))?.broadcast_add(mask)?;
            let scores = scores.reshape((b * h, 1, len))?; SOFT.matmul(&q) @ left
        FLAT = scores.reshape((b, h, len, len))?.broadcast_add(mask)?;
            let scores = scores.reshape((b * h, len, 1))?; SOFT.matmul(&q) @ left
        FLAT = scores.reshape((b, h, len, len))?;
            let scores = scores.reshape((h, b, len, len))?.broadcast_add(mask)?;
            let scores = scores.reshape((b * h, len, len))?; SOFT.matmul(&q) @ left
        FLAT = scores.reshape((scores.dim(0)? / h, h, len, len))?.broadcast_add(mask)?;
            let scores = scores.reshape((b * h, len, len))?; SOFT.matmul(&q) @ left
        FLAT = scores.reshape((b, h, len, len))?.broadcast_add(mask)?;
            let scores = scores.reshape((b * h, len, len))?; SOFT.matmul(&q)
            @ CALL(&q.reshape((b, h, len, ()))?, &q.reshape((b, h, len, ()))?,
            &q.reshape((b, h, len, ()))?, mask, 1.)?.flatten_to(1)
    ";
    for [body, expected] in &table(&cases.replace("FLAT", flat)) {
        check("&Tensor", body, expected);
    }
    // Heads and batch are one dimension, apart at most for the mask; an optional mask.
    let heads = "let (b, len, _) = q.dims3()?; let shape = (b * 8, len, 64); \
                 let q = (self.mixes.forward(q)? * self.scale)?.reshape(shape)?; \
                 let k = self.mixes.forward(v)?.reshape(shape)?.to_dtype(DType::F32)?;";
    let cases = "
        HEADS let scores = q.matmul(&k.transpose(1, 2)?)?;
            let scores = match mask { None => scores, Some(mask) => scores.broadcast_add(mask)? };
            let probs = SOFT; probs.matmul(&k)
            @ HEADS CALL(&q.unsqueeze(0)?, &k.unsqueeze(0)?, &k.unsqueeze(0)?, mask, 1.)?.squeeze(0)
        HEADS let scores = q.matmul(&k.transpose(1, 2)?)?; let scores = if let Some(mask) = mask {
            scores.reshape((b, 8, len, len))?.broadcast_add(mask)?.reshape((b * 8, len, len))?
            } else { scores }; let probs = softmax(&scores, D::Minus1)?;
            let ys = probs.matmul(&k)?.to_dtype(v.dtype())?; ys.reshape((b, 8, len, 64))
            @ let ys = CALL(&q.reshape((b, 8, len, ()))?, &k.reshape((b, 8, len, ()))?,
            &k.reshape((b, 8, len, ()))?, mask, 1.)?.flatten_to(1)?.to_dtype(v.dtype())?;
            ys.reshape((b, 8, len, 64))
    ";
    for [body, expected] in &table(&cases.replace("HEADS", heads)) {
        check("Option<&Tensor>", body, expected);
    }
    // A factor of the queries that is scaled before, is read again, or is another one by then; a
    // view of an image; a rank of what was there before, of another name or of one branch.
    let cases = "
        DIMS let factor = (d as f64).powf(-0.5); let q = (q * factor)?;
            softmax(&q.matmul(&v.t()?)?, D::Minus1)?.matmul(v)
            @ let factor = (d as f64).powf(-0.5); CALL(q, v, v, None, factor)
        DIMS let keys = v.reshape((b, h, len, d))?;
            let queries: Tensor = (keys.clone() / (d as f64).sqrt())?;
            let scores = queries.matmul(&keys.t()?)?;
            let probs = softmax_last_dim(&(scores * self.scale)?)?; probs.matmul(&keys)
            @ let queries: Tensor = (keys.clone() / (d as f64).sqrt())?;
            CALL(&queries, &keys, &keys, None, self.scale)
        DIMS let scaled = (q * self.scale)?;
            let xs = softmax_last_dim(&scaled.matmul(&v.t()?)?)?.matmul(v)?; xs + scaled
            @ let scaled = (q * self.scale)?; let xs = CALL(&scaled, v, v, None, 1.)?; xs + scaled
        DIMS let d = d as f64; let ys = (q * d)?; let d = len as f64;
            let ys = softmax_last_dim(&ys.matmul(&v.t()?)?)?.matmul(v)?; ys * d
            @ let ys = (q * d)?; let d = len as f64; let ys = CALL(&ys, v, v, None, 1.)?; ys * d
        DIMS let x = q.reshape((b, h, len * d))?.transpose(1, 2)?; let q = self.mixes.forward(&x)?;
            let k = self.mixes.forward(&x)?; let scores = q.matmul(&k.transpose(1, 2)?)?;
            SOFT.matmul(&k) @ left
        let max = v; let (_b, _c, _h, _w) = max.dims4()?; DIMS
            let q = self.pooled(q)?; let x = self.pooled(v)?;
            let scores = q.matmul(&x.transpose(1, 2)?)?; SOFT.matmul(&x) @ left
        if q.rank() == 4 { DIMS } let scores = QK; SOFT.matmul(q) @ left
        let mut k = self.mixes.forward(q)?; let (_b, _h, _len, _d) = k.dims4()?;
            if self.is_used() { k = self.append(&k)?; } let scores = q.matmul(&k.t()?)?;
            SOFT.matmul(&k) @ if self.is_used() { k = self.append(&k)?; } CALL(q, &k, &k, None, 1.)
    ";
    for [body, expected] in &table(cases) {
        check("&Tensor", body, expected);
    }
}
