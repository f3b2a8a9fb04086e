//! The inputs of some layers, as sums of their products, from a run of the model with taps.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::Tensor;

use crate::error::{Error, Fault, Result};
use crate::inspect::tapped;
use crate::kernels::{InputProducts, Isa};
use crate::module::{Quantizable, Receiver};
use crate::qconfig::QConfig;
use crate::tensor::{Elements, as_f32};

/// A layer to be quantized by its inputs.
pub(super) struct Place {
    pub path: String,
    /// Inputs of its weight.
    pub k: usize,
    pub qconfig: QConfig,
}

/// The inputs that a layer was called with.
pub(super) struct Inputs {
    pub products: InputProducts,
    pub rows: usize,
    /// Whether the weight could multiply all that was reported.
    pub fits: bool,
}

impl Inputs {
    fn none(k: usize) -> Self {
        Self {
            products: InputProducts::new(k),
            rows: 0,
            fits: true,
        }
    }

    fn add(&mut self, isa: Isa, k: usize, inputs: &[&Tensor]) -> Result<()> {
        let Some(xs) = inputs.first().filter(|xs| xs.dims().last() == Some(&k)) else {
            self.fits = false;
            return Ok(());
        };
        let xs = as_f32(xs, "gptq")?;
        let elements = Elements::of(&xs);
        let values: &[f32] = elements.as_slice()?;
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            return Err(Error::from(Fault::InvalidArgument {
                what: "inputs",
                expected: "finite numbers".into(),
                got: format!("{} in row {}", values[at], self.rows + at / k),
            }));
        }
        self.products.add(isa, values);
        self.rows += values.len().checked_div(k).unwrap_or(0);
        Ok(())
    }
}

/// Runs the model: the inputs of each place, in their order.
pub(super) fn collect<M, T>(
    model: &mut M,
    isa: Isa,
    places: &[Place],
    run: impl FnOnce(&M) -> candle_core::Result<T>,
) -> Result<Vec<Inputs>>
where
    M: Quantizable + ?Sized,
{
    let gathered = places.iter().map(|place| Ok(Inputs::none(place.k)));
    let gathered: Vec<Arc<Mutex<Result<Inputs>>>> = gathered
        .map(|inputs| Arc::new(Mutex::new(inputs)))
        .collect();
    let receivers = gathered.iter().zip(places).map(|(gathered, place)| {
        let (gathered, k) = (Arc::clone(gathered), place.k);
        let receiver: Arc<Receiver> = Arc::new(move |inputs: &[&Tensor], _: &Tensor| {
            let mut gathered = gathered.lock().unwrap_or_else(PoisonError::into_inner);
            if let Ok(own) = &mut *gathered
                && let Err(error) = own.add(isa, k, inputs)
            {
                *gathered = Err(error);
            }
        });
        receiver
    });
    let receivers: Vec<_> = receivers.collect();
    let paths = places.iter().map(|place| place.path.as_str());
    let by_path: BTreeMap<_, _> = paths.zip(&receivers).collect();
    tapped(model, &by_path, run)??;
    let taken = gathered.iter().zip(places).map(|(gathered, place)| {
        let mut gathered = gathered.lock().unwrap_or_else(PoisonError::into_inner);
        let inputs = std::mem::replace(&mut *gathered, Ok(Inputs::none(0)));
        inputs.map_err(|e| e.at(&place.path))
    });
    taken.collect()
}
