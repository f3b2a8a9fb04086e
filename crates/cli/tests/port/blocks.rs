//! Products of one input, and norms of sums: what is one call, and what stays.

use super::{compare, table};

/// A method of a block. A body is put in the place of `BODY`.
const METHOD: &str = "
use candle::{Module, Result, Tensor};
use candle_nn::{Dropout, LayerNorm, Linear, RmsNorm};

pub struct Block {
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    rms: RmsNorm,
    last_rms: RmsNorm,
    norm: LayerNorm,
    last_norm: LayerNorm,
    dropout: Dropout,
}

impl Block {
    fn split(&self, xs: &Tensor) -> Result<Tensor> {
        xs.reshape((1, 2, 3, 4))
    }

    fn f(&self, xs: &Tensor, ys: &Tensor, eps: f64, is_first: bool) -> Result<Tensor> {
        BODY
    }
}
";

#[test]
fn products_of_one_input_are_one_call() {
    let cases = "
        let query = self.query.forward(xs)?; let mut key = self.key.forward(xs)?;
            let value = xs.apply(&self.value)?; key = key.contiguous()?; Ok((query, key, value))
            @ let [query, mut key, value] = EACH, xs)?; key = key.contiguous()?;
                Ok((query, key, value))
        let xs = xs.clone(); let query = self.split(&self.query.forward(&xs)?)?;
            let key = xs.apply(&self.key)?; let value = self.value.forward(&xs)?.transpose(1, 2)?;
            Ok((query.matmul(&key)?, value))
            @ let [query, key, value] = EACH, &xs)?; let query = self.split(&query)?;
            let value = value.transpose(1, 2)?; Ok((query.matmul(&key)?, value))
        let query = self.query.forward(xs)?; let key = self.key.forward(ys)?; query + key @ stays
        let query = self.query.forward(ys)?; let xs = self.value.forward(xs)?;
            let value = self.value.forward(&xs)?;
            let query = self.query.forward(&xs)?.add(&query)?;
                let first = self.query.forward(&query)?;
            let second = self.query.forward(&query)?; first + second + value @ stays
        let third = self.out.forward(ys)?; let value = xs.add(&third)?;
            let key = self.key.forward(ys)?.add(&value)?; let value = self.value.forward(ys)?;
            third + key + value @ stays
    ";
    let each = "Linear::forward_each([&self.query, &self.key, &self.value]";
    for [body, expected] in &table(cases) {
        compare(METHOD, body, &expected.replace("EACH", each), "");
    }
    let kept = "let third = self.out.forward(ys)?;\n// dynquant: keep\n\
                let key = self.key.forward(ys)?;\nthird + key";
    compare(METHOD, kept, "stays", "");
}

#[test]
fn norms_of_sums_are_one_call() {
    let cases = "
        let xs = self.out.forward(xs)?; let xs = self.dropout.forward(&xs, false)?;
            self.norm.forward(&(xs + ys)?)
            @ let xs = self.dropout.forward(&xs, false)?; self.norm.forward_add(&xs, ys)
        let zs = self.out.forward(xs)?.broadcast_add(ys)?; let zs = self.norm.forward(&zs)?;
            (zs + ys)?.apply(&self.last_norm)
            @ let zs = self.norm.forward_add(&self.out.forward(xs)?, ys)?;
            self.last_norm.forward_add(&zs, ys)
        let mut zs = self.out.forward(xs)?;
            zs = { let sum = zs.broadcast_add(ys)?; self.norm.forward(&sum)? }; Ok(zs)
            @ zs = self.norm.forward_add(&zs, ys)?; Ok(zs)
        let zs = self.out.forward(xs)?; let sum = (&zs + xs)?; self.norm.forward(&sum)? + sum
            @ stays
        self.norm.forward(&(xs + eps)?) @ stays
        self.norm.forward(&(xs * ys)?) @ stays
        self.norm.forward(&(xs + self.out.forward(xs))?) @ stays
        let residual = xs; let xs = self.rms.forward(xs)?;
            let xs = (self.out.forward(&xs)? + residual)?; let residual = &xs;
            let xs = (self.key.forward(&self.last_rms.forward(&xs)?)? + residual)?; Ok(xs)
            @ let (normal, xs) = self.last_rms.forward_add(&self.out.forward(&xs)?, residual)?;
            let residual = &xs; let xs = (self.key.forward(&normal)? + residual)?; Ok(xs)
        let residual = xs; let xs = self.rms.forward(xs)?; let xs = self.out.forward(&xs)?;
            let xs = (xs + residual)?; let residual = &xs;
            let xs = xs.apply(&self.last_rms)?.apply(&self.key)?; residual + xs
            @ let (normal, xs) = self.last_rms.forward_add(&xs, residual)?; let residual = &xs;
            let xs = normal.apply(&self.key)?; residual + xs
        let h = self.rms.forward(xs)?; let h = self.out.forward(&h)?; let xs = (xs + h)?;
            let h2 = self.last_rms.forward(&xs)?; let h2 = h2.apply(&self.key)?; xs + h2
            @ let (normal, xs) = self.last_rms.forward_add(xs, &h)?; let h2 = normal;
            let h2 = h2.apply(&self.key)?; xs + h2
        let xs = (xs + ys)?; let ys = (self.key.forward(&self.rms.forward(&xs)?)? + ys)?;
            let zs = self.last_rms.forward(&ys)?; ys + zs
            @ let (normal, _) = self.rms.forward_add(xs, ys)?;
            let (normed, ys) = self.last_rms.forward_add(&self.key.forward(&normal)?, ys)?;
            let zs = normed; ys + zs
        let xs = (xs + ys)?; let xs = self.last_rms.forward(&xs)?; self.key.forward(&xs)
            @ let (normal, _) = self.last_rms.forward_add(xs, ys)?; let xs = normal;
            self.key.forward(&xs)
        let mut xs = (xs + ys)?; if is_first { xs = self.rms.forward(&xs)?; } Ok(xs) @ stays
        let zs = (xs + ys)?; &zs + self.norm.forward(&zs)? @ stays
        let zs = (xs + eps)?; self.rms.forward(&zs) @ stays
        let zs = (xs * ys)?; self.rms.forward(&zs) @ stays
        let far = (xs + ys)?; let between = self.key.forward(xs)?;
            self.rms.forward(&far)? + between @ stays
    ";
    for [body, expected] in &table(cases) {
        compare(METHOD, body, expected, "");
    }
    for kept in [
        "// dynquant: keep\nself.norm.forward(&(xs + ys)?)",
        "// dynquant: keep\nlet zs = (xs + ys)?;\nself.rms.forward(&zs)? + zs",
    ] {
        compare(METHOD, kept, "stays", "");
    }
}
