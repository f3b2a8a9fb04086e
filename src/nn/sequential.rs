//! Layers one after the other.

use std::fmt;

use candle_core::{Result, Tensor};
use candle_nn::Module;

use crate::module::Quantizable;
use crate::module::trees::trees;

/// Layers one after the other, call-compatible with [`candle_nn::Sequential`]; the walk sees them
/// as `0`, `1`, ..
///
/// ```
/// use candle_core::{Device, Module, Tensor};
/// use candle_dynquant::{nn, quantize_dynamic, QConfigSpec};
///
/// let linear = || Ok(nn::Linear::new(Tensor::randn(0f32, 1., (32, 32), &Device::Cpu)?, None));
/// let linear = || -> candle_core::Result<nn::Linear> { linear() };
/// let mut model = nn::seq().add(linear()?).add(nn::Activation::Relu).add(linear()?);
/// let report = quantize_dynamic(&mut model, &QConfigSpec::int8())?;
/// assert_eq!(report.swapped().map(|layer| &layer.path[..]).collect::<Vec<_>>(), ["0", "2"]);
/// let ys = model.forward(&Tensor::ones((2, 32), candle_core::DType::F32, &Device::Cpu)?)?;
/// assert_eq!(ys.dims(), [2, 32]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Sequential {
    layers: Vec<Box<dyn Block>>,
}

/// An element of a [`Sequential`].
trait Block: Module + Quantizable {}

impl<B: Module + Quantizable> Block for B {}

/// No layers yet: [`Sequential::add`] adds them.
pub fn seq() -> Sequential {
    Sequential { layers: Vec::new() }
}

impl Sequential {
    /// How many layers there are.
    pub fn len(&self) -> i64 {
        self.layers.len() as i64
    }

    /// Whether the sequence is empty, so that the output is the input.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Adds a layer behind the others; a layer of candle's without a namesake here will do.
    #[must_use]
    #[allow(clippy::should_implement_trait, reason = "candle's name")]
    pub fn add<M: Module + Quantizable + 'static>(mut self, layer: M) -> Self {
        self.layers.push(Box::new(layer));
        self
    }

    /// Adds a function behind the others. Layers that it captures are not seen by a walk, which
    /// reports it as opaque then.
    #[must_use]
    pub fn add_fn<F>(self, f: F) -> Self
    where
        F: 'static + Fn(&Tensor) -> Result<Tensor> + Send + Sync,
    {
        self.add(Function(f))
    }

    /// The output of each layer.
    ///
    /// # Errors
    /// When a layer fails.
    pub fn forward_all(&self, xs: &Tensor) -> Result<Vec<Tensor>> {
        let mut outputs: Vec<Tensor> = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            outputs.push(layer.forward(outputs.last().unwrap_or(xs))?);
        }
        Ok(outputs)
    }
}

impl fmt::Debug for Sequential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sequential of {} layers", self.layers.len())
    }
}

impl Module for Sequential {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut layers = self.layers.iter();
        layers.try_fold(xs.clone(), |xs, layer| layer.forward(&xs))
    }
}

trees! { self, walk:
    [] Sequential => self.layers.visit(walk), self.layers.visit_mut(walk);

    [F] Function<F> => {
        // A function that captures nothing holds no layer.
        if size_of::<F>() > 0 {
            walk.opaque_here(std::any::type_name::<F>());
        }
        Ok(())
    }, Ok(());
}

/// A closure as a layer.
struct Function<F>(F);

impl<F: Fn(&Tensor) -> Result<Tensor>> Module for Function<F> {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        (self.0)(xs)
    }
}
