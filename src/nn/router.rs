//! The layer that chooses the experts of each row.

use std::sync::Arc;

use candle_core::{D, DType, Module, Result as CandleResult, Tensor};
use candle_nn::VarBuilder;

use super::linear::linear_no_bias;
use super::prefix::prefix_of;
use super::projection::Projection;
use crate::error::{Error, Result};
use crate::module::trees::layers;
use crate::module::{Layer, LayerKind, WeightInfo};
use crate::ops;
use crate::qconfig::QConfig;
use crate::tap::{Replay, Tap};
use crate::trace;
use crate::weight::StoredWeight;

/// The scores of experts, `x W^T`, by which [`choose`](Self::choose) chooses some of
/// [`Experts`](super::Experts).
///
/// Small differences decide, so it is a layer of the kind `Custom(Router)`, which stays float
/// unless a rule by name, or for that kind, says otherwise. Of f32, a score has the same bits beside
/// any other rows, and on every CPU.
///
/// # Shapes
/// - weight: `[experts, in_features]`
/// - input: `[.., in_features]`
/// - output: `[.., experts]` in the dtype of the input
#[derive(Clone, Debug)]
pub struct Router {
    projection: Projection,
    name: Option<Arc<str>>,
}

impl Router {
    /// A router of this weight.
    pub fn new(weight: Tensor) -> Self {
        Self::from_projection(Projection::new(weight, None), None)
    }

    fn from_projection(projection: Projection, name: Option<Arc<str>>) -> Self {
        Self { projection: projection.exactly(), name }
    }

    /// The `count` experts with the highest scores for each row of `xs`, of equal ones the first,
    /// u32, and their weights in f32: softmax over the scores of all experts, or, `normalized`
    /// to a sum of 1, over the scores of the chosen. Both are `[.., count]`, the best expert first.
    ///
    /// # Errors
    /// When there are fewer experts; the errors of [`forward`](Module::forward).
    pub fn choose(
        &self,
        xs: &Tensor,
        count: usize,
        normalized: bool,
    ) -> CandleResult<(Tensor, Tensor)> {
        let scores = self.forward(xs)?.to_dtype(DType::F32)?;
        let experts = scores.dim(D::Minus1)?;
        if count > experts {
            let expected = format!("at most {experts}, as there are");
            return Err(Error::argument("experts of each row", expected, count).into());
        }
        let rows = scores.flatten_all()?.to_vec1::<f32>()?;
        let mut chosen = Vec::<u32>::with_capacity(rows.len() / experts.max(1) * count);
        for row in rows.chunks_exact(experts.max(1)) {
            let mut order: Vec<u32> = (0..experts as u32).collect();
            order.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]));
            chosen.extend(&order[..count]);
        }
        let batch = &scores.dims()[..scores.rank() - 1];
        let chosen = Tensor::from_vec(chosen, [batch, &[count]].concat(), xs.device())?;
        let weights = if normalized {
            ops::softmax_last_dim(&scores.contiguous()?.gather(&chosen, D::Minus1)?)?
        } else {
            ops::softmax_last_dim(&scores)?.gather(&chosen, D::Minus1)?
        };
        Ok((chosen, weights))
    }
}

impl Module for Router {
    fn forward(&self, xs: &Tensor) -> CandleResult<Tensor> {
        trace::forward!("router", self.name.as_deref());
        let scores = self.projection.try_forward(xs);
        scores.map_err(|e| e.at(self.name.as_deref().unwrap_or("Router")).into())
    }
}

impl Layer for Router {
    fn kind(&self) -> LayerKind {
        LayerKind::custom("Router")
    }

    fn checkpoint_name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn weight_infos(&self) -> Vec<WeightInfo> {
        vec![self.projection.info("weight")]
    }

    fn quantize(&self, qconfig: &QConfig) -> Result<Self> {
        let projection = self.projection.quantize(qconfig)?;
        Ok(Self::from_projection(projection, self.name.clone()))
    }

    fn stored(&self) -> Result<Vec<StoredWeight>> {
        Ok(vec![self.projection.stored("weight")])
    }

    fn weights(&self) -> Result<Vec<Tensor>> {
        Ok(vec![self.projection.value()?])
    }

    fn attach(&mut self, tap: Option<Tap>) -> bool {
        self.projection.attach(tap)
    }

    fn replay(&self) -> Option<Replay> {
        self.projection.replay()
    }
}

layers! { Router }

/// Loads the `weight` of a router, `[experts, in_dim]`, from `vb`.
///
/// # Errors
/// When the tensor is missing or has another shape.
pub fn router(in_dim: usize, experts: usize, vb: VarBuilder<'_>) -> CandleResult<Router> {
    let name = prefix_of(&vb);
    let linear = linear_no_bias(in_dim, experts, vb)?;
    Ok(Router::from_projection(linear.projection().clone(), name))
}
