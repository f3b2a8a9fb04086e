//! Projections from checkpoints, and to them.

use std::sync::Arc;

use candle_core::Tensor;
use candle_nn::VarBuilder;

use super::{Projection, Weight};
use crate::error::{Error, Result};
use crate::weight::{Format, Origin, QWeight, Quantized, StoredValue, StoredWeight, find, origin};

impl Projection {
    /// The weight `name`, `[out_features, in_features]` of `shape`, with its bias: quantized where
    /// the checkpoint behind `vb` has it quantized and multiplied, else as `weight`
    /// reads it.
    pub(in crate::nn) fn load(
        vb: &VarBuilder<'_>,
        name: &str,
        shape: [usize; 2],
        gates: usize,
        weight: impl FnOnce() -> Result<Tensor>,
        bias: impl FnOnce() -> Result<Option<Tensor>>,
    ) -> Result<Self> {
        let found = find(vb, name).filter(|found| found.format.is_multiplied());
        let Some(found) = found else {
            let weight = weight()?;
            return Ok(Self::of_gates(weight, bias()?, gates));
        };
        let bias = bias()?;
        let weight = found.read(&shape, |parts| parts.qweight(gates, bias.as_ref()))?;
        let (weight, origin) = (Weight::Quantized(Arc::new(weight)), found.origin(&shape));
        Ok(Self::assembled((weight, None), bias, gates, Some(origin)))
    }

    /// The projection of a tensor, which a checkpoint may have quantized; its channels
    /// are `gates` gates.
    pub(super) fn of_gates(weight: Tensor, bias: Option<Tensor>, gates: usize) -> Self {
        let origin = origin::find(&weight);
        let found = origin.as_ref().and_then(|origin| origin.weight().ok()?);
        let is_table = |format: Format| !format.is_multiplied() && format.groups().is_none();
        let weight = match found.filter(|found| !is_table(found.format)) {
            None => (Weight::Float(weight), None),
            Some(found) => or_float(found.qweight(gates, bias.as_ref()), || weight),
        };
        Self::assembled(weight, bias, gates, origin)
    }

    fn assembled(
        (weight, refused): (Weight, Option<Error>),
        bias: Option<Tensor>,
        gates: usize,
        origin: Option<Origin>,
    ) -> Self {
        Self {
            weight,
            bias,
            activation: None,
            is_exact: false,
            gates,
            folded: false,
            origin,
            refused: refused.map(Arc::new),
            tap: None,
        }
    }

    /// The output projection of a table that was read from a checkpoint as its weight; `float` are
    /// its values.
    pub(in crate::nn) fn tied(
        weight: &Arc<QWeight>,
        bias: Option<Tensor>,
        float: impl FnOnce() -> Tensor,
    ) -> Self {
        let weight = match &bias {
            None => (Weight::Quantized(Arc::clone(weight)), None),
            // A bias is part of the packed weight.
            Some(bias) => or_float(weight.with_bias(bias), float),
        };
        // It is saved with the table.
        Self::assembled(weight, bias, 1, None)
    }

    /// The weight, to be saved under that name: for [`Layer::stored`](crate::Layer::stored).
    pub fn stored(&self, name: &str) -> StoredWeight {
        let value = match &self.weight {
            Weight::Float(weight) => {
                StoredValue::Float { weight: weight.clone(), folded: self.folded }
            }
            Weight::Quantized(weight) => {
                StoredValue::Quantized(Quantized::matrix(Arc::clone(weight), true))
            }
        };
        StoredWeight::new(name, value).with_bias(self.bias.clone())
    }
}

/// A quantized weight, or the float weight and why the quantized weight of the checkpoint is not
/// used.
fn or_float(weight: Result<QWeight>, float: impl FnOnce() -> Tensor) -> (Weight, Option<Error>) {
    match weight {
        Ok(weight) => (Weight::Quantized(Arc::new(weight)), None),
        Err(error) => (Weight::Float(float()), Some(error)),
    }
}
