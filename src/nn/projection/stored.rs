//! Projections from checkpoints, and to them.

use std::sync::Arc;

use candle_core::Tensor;
use candle_nn::VarBuilder;

use super::{Projection, Weight};
use crate::error::Result;
use crate::weight::{Origin, QWeight, Quantized, StoredWeight, Value, find, origin};

impl Projection {
    /// The weight `name`, `[out_features, in_features]` of `shape`, with its bias: quantized where
    /// the checkpoint behind `vb` has it quantized and as one that is multiplied, else as `weight`
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
        let weight = found.read(shape, |parts| parts.qweight(gates, bias.as_ref()))?;
        let (weight, origin) = (Weight::Quantized(Arc::new(weight)), found.origin(shape));
        Ok(Self::of(weight, bias, gates, Some(origin)))
    }

    /// The projection of a tensor, which may be one that a checkpoint has quantized; its channels
    /// are `gates` gates.
    pub(super) fn of_gates(weight: Tensor, bias: Option<Tensor>, gates: usize) -> Self {
        let origin = origin::find(&weight);
        let quantized = origin.as_ref().and_then(|origin| {
            let found = origin.weight().ok()??;
            // With a bias that does not fit it is an error later, as with any weight.
            found.qweight(gates, bias.as_ref()).ok()
        });
        let weight = match quantized {
            None => Weight::Float(weight),
            Some(weight) => Weight::Quantized(Arc::new(weight)),
        };
        Self::of(weight, bias, gates, origin)
    }

    fn of(weight: Weight, bias: Option<Tensor>, gates: usize, origin: Option<Origin>) -> Self {
        Self {
            weight,
            bias,
            activation: None,
            gates,
            folded: false,
            origin,
            tap: None,
        }
    }

    /// The output projection of a table that was read from a checkpoint as its weight.
    ///
    /// # Errors
    /// When the bias has a wrong shape or dtype, or holds a NaN or an infinity.
    pub(in crate::nn) fn tied(weight: &Arc<QWeight>, bias: Option<Tensor>) -> Result<Self> {
        let weight = match &bias {
            None => Arc::clone(weight),
            // A bias is part of the packed weight.
            Some(bias) => Arc::new(weight.with_bias(bias)?),
        };
        // It is saved with the table.
        Ok(Self::of(Weight::Quantized(weight), bias, 1, None))
    }

    /// The weight, to be saved under that name: for [`Layer::stored`](crate::Layer::stored).
    pub fn stored(&self, name: &str) -> StoredWeight {
        let value = match &self.weight {
            Weight::Float(weight) => Value::Float {
                weight: weight.clone(),
                folded: self.folded,
            },
            Weight::Quantized(weight) => Value::Quantized(Quantized::Weight {
                weight: Arc::clone(weight),
                multiplied: true,
            }),
        };
        StoredWeight::new(name, value).with_bias(self.bias.clone())
    }
}
