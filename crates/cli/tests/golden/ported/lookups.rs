//! Elements that are looked up by index, and defaults that are made in vain.
use candle::{DType, Result, Tensor, D};
use candle_dynquant::nn::Linear;
use candle_dynquant::{ops, Quantizable};

#[derive(Clone, Quantizable)]
pub struct Relative {
    proj: Linear,
    span: i64,
}

impl Relative {
    fn bias(&self, query: Tensor, key: Tensor, places: Option<&Tensor>) -> Result<Tensor> {
        let places = match places {
            Some(places) => places.clone(),
            None => build_places(query.dim(D::Minus2)?, key.dim(D::Minus2)?)?,
        };
        let size = places.dims().last().map_or(0, |last| *last);
        let mut scores = query.matmul(&key.t()?)?;
        scores = ops::gather(
            &scores,
            &places
                .squeeze(0)?
                .expand(&[query.dim(0)?, query.dim(1)?, size])?,
            D::Minus1,
        )?;
        let other = ops::gather(
            &key.matmul(&self.proj.forward(&query)?.t()?)?,
            &places
                .squeeze(0)?
                .expand(&[query.dim(0)?, query.dim(1)?, size])?
                .contiguous()?
                .to_dtype(DType::U32)?,
            D::Minus1,
        )?
        .t()?;
        scores.broadcast_add(&other)
    }

    fn weights(&self, routing: &Tensor, experts: &Tensor) -> Result<Tensor> {
        let weights = ops::gather(routing, experts, D::Minus1)?;
        let size = weights.dim(0)?;
        // dynquant: keep
        let kept = routing.gather(experts, 1)?.narrow(0, 0, size)?;
        ops::gather(&weights, experts, D::Minus1)? + kept
    }
}

fn build_places(queries: usize, keys: usize) -> Result<Tensor> {
    Tensor::zeros((1, queries, keys), DType::I64, &candle::Device::Cpu)
}
