//! The inputs of some layers, as sums of their products, from a run of the model with taps.

use std::collections::BTreeMap;

use candle_core::Tensor;

use crate::error::{Error, Result};
use crate::inspect::gathered;
use crate::kernels::{InputProducts, Isa};
use crate::module::Quantizable;
use crate::qconfig::QConfig;
use crate::tensor::{Elements, as_f32};

/// A layer to be quantized by its inputs.
pub(super) struct LayerInputs {
    pub path: String,
    /// Inputs of its weight.
    pub k: usize,
    pub qconfig: QConfig,
}

/// The inputs that a layer was called with.
pub(super) struct Inputs {
    pub place: LayerInputs,
    pub products: InputProducts,
    pub rows: usize,
    /// Whether the weight could multiply all that was reported.
    pub fits: bool,
}

impl Inputs {
    fn add(&mut self, isa: Isa, inputs: &[&Tensor]) -> Result<()> {
        let k = self.place.k;
        let Some(xs) = inputs.first().filter(|xs| xs.dims().last() == Some(&k)) else {
            self.fits = false;
            return Ok(());
        };
        let xs = as_f32(xs, "gptq")?;
        let elements = Elements::new(&xs);
        let values: &[f32] = elements.as_slice()?;
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            let got = format!("{} in row {}", values[at], self.rows + at / k);
            return Err(Error::argument("inputs", "finite numbers", got));
        }
        self.products.add(isa, values);
        self.rows += values.len().checked_div(k).unwrap_or(0);
        Ok(())
    }
}

/// Runs the model and returns the inputs of each layer, by path.
pub(super) fn collect<M, T>(
    model: &mut M,
    isa: Isa,
    places: Vec<LayerInputs>,
    run: impl FnOnce(&M) -> candle_core::Result<T>,
) -> Result<BTreeMap<String, Inputs>>
where
    M: Quantizable + ?Sized,
{
    let states = places.into_iter().map(|place| {
        let inputs = Inputs { products: InputProducts::new(place.k), place, rows: 0, fits: true };
        (inputs.place.path.clone(), inputs)
    });
    let add = move |own: &mut Inputs, inputs: &[&Tensor], _: &Tensor| own.add(isa, inputs);
    let (result, inputs) = gathered(model, states.collect(), add, run)?;
    result?;
    Ok(inputs.into_iter().collect())
}
