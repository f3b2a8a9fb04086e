//! Elements that are looked up by index, and defaults that are made in vain.
use candle::{DType, Result, Tensor, D};
use candle_nn::Linear;

pub struct Relative {
    proj: Linear,
    span: i64,
}

impl Relative {
    fn bias(&self, query: Tensor, key: Tensor, places: Option<&Tensor>) -> Result<Tensor> {
        let places = places.map_or(
            build_places(query.dim(D::Minus2)?, key.dim(D::Minus2)?)?,
            |places| places.clone(),
        );
        let size = places.dims().last().map_or(0, |last| *last);
        let mut scores = query.matmul(&key.t()?)?;
        scores = scores.gather(
            &places
                .squeeze(0)?
                .expand(&[query.dim(0)?, query.dim(1)?, size])?
                .contiguous()?,
            D::Minus1,
        )?;
        let other = key
            .matmul(&self.proj.forward(&query)?.t()?)?
            .gather(
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
        let weights = routing.gather(experts, D::Minus1)?;
        let size = weights.dim(0)?;
        // dynquant: keep
        let kept = routing.gather(experts, 1)?.narrow(0, 0, size)?;
        weights.gather(&experts.contiguous()?, D::Minus1)? + kept
    }
}

fn build_places(queries: usize, keys: usize) -> Result<Tensor> {
    Tensor::zeros((1, queries, keys), DType::I64, &candle::Device::Cpu)
}
