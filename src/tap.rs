//! Taps: how a layer reports each of its forward calls to a receiver.

use std::fmt;
use std::sync::{Arc, Weak};

use candle_core::Tensor;

use crate::error::{Error, Result};

/// The function that a [`Tap`] leads to: it is given the inputs of a forward call and its output,
/// on the thread of the call.
pub type Receiver = dyn Fn(&[&Tensor], &Tensor) + Send + Sync;

/// The function of a layer by itself: from inputs as it reports them to the output that it would
/// report.
pub type Replay = Arc<dyn Fn(&[&Tensor]) -> Result<Tensor> + Send + Sync>;

/// A layer's way to report its forward calls: see [`Layer::attach`](crate::Layer::attach).
///
/// It ends with its receiver: what a clone of the layer reports later goes nowhere.
///
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use candle_core::{Device, Module, Tensor};
/// use candle_dynquant::{nn, Layer, Receiver, Tap};
///
/// let seen = Arc::new(Mutex::new(Vec::new()));
/// let shapes = Arc::clone(&seen);
/// let receiver: Arc<Receiver> = Arc::new(move |inputs: &[&Tensor], output: &Tensor| {
///     shapes.lock().unwrap().push((inputs[0].dims().to_vec(), output.dims().to_vec()));
/// });
/// let mut layer = nn::Linear::new(Tensor::zeros((3, 2), candle_core::DType::F32, &Device::Cpu)?, None);
/// assert!(layer.attach(Some(Tap::to(&receiver))));
/// layer.forward(&Tensor::zeros((5, 2), candle_core::DType::F32, &Device::Cpu)?)?;
/// assert_eq!(*seen.lock().unwrap(), [(vec![5, 2], vec![5, 3])]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Tap(Weak<Receiver>);

impl Tap {
    /// A tap that leads to `receiver` while that lives.
    pub fn to(receiver: &Arc<Receiver>) -> Self {
        Self(Arc::downgrade(receiver))
    }

    /// Reports a forward call.
    pub fn report(&self, inputs: &[&Tensor], output: &Tensor) {
        if let Some(receiver) = self.0.upgrade() {
            receiver(inputs, output);
        }
    }
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tap").finish_non_exhaustive()
    }
}

/// Reports the call of a layer to its tap, if it has one.
pub(crate) fn report(tap: Option<&Tap>, inputs: &[&Tensor], output: &Tensor) {
    if let Some(tap) = tap {
        tap.report(inputs, output);
    }
}

/// The error of a [`Replay`] that is given other inputs than its layer reports.
pub(crate) fn unlike(expected: &str, inputs: &[&Tensor]) -> Error {
    Error::argument("inputs to replay", expected, inputs.len())
}
