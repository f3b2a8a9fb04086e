//! Activation functions by the names that models' configurations give them.

use candle_core::{Result, Tensor};
use candle_nn::Module;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::kernels;
use crate::module::leaves::leaves;
use crate::ops;
use crate::words::converted;

/// An activation function, in place of [`candle_nn::Activation`]: the same variants, words in a
/// configuration and results. A transformer's functions are several times as fast on the CPU.
///
/// [`FusedActivation`](crate::FusedActivation) lists those that a [`Linear`](super::Linear) can
/// apply itself.
///
/// ```
/// use candle_core::{Device, Module, Tensor};
/// use candle_dynquant::nn;
///
/// let act: nn::Activation = serde_json::from_str("\"gelu_new\"").unwrap();
/// assert_eq!(act, nn::Activation::NewGelu);
/// let xs = Tensor::new(&[0f32, 100.], &Device::Cpu)?;
/// assert_eq!(act.forward(&xs)?.to_vec1::<f32>()?, [0., 100.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "they are candle's, by its names")]
pub enum Activation {
    #[default]
    #[serde(alias = "gelu")]
    Gelu,
    #[serde(alias = "gelu_new")]
    NewGelu,
    Relu,
    Relu2,
    Relu6,
    Silu,
    Sigmoid,
    HardSigmoid,
    Swiglu,
    Swish,
    Mish,
    HardSwish,
    Elu(f64),
    LeakyRelu(f64),
    #[serde(alias = "gelu_pytorch_tanh")]
    GeluPytorchTanh,
}

impl Module for Activation {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::Relu2 => ops::relu(xs)?.sqr(),
            Self::Swiglu => ops::swiglu(xs),
            _ => match kernels::FusedActivation::try_from(*self) {
                Ok(activation) => activation.forward(xs),
                Err(_) => candle_nn::Activation::from(*self).forward(xs),
            },
        }
    }
}

leaves! { Activation }

/// Converts in both directions.
macro_rules! as_candle {
    ($($variants:tt)+) => {
        converted!(Activation => candle_nn::Activation { $($variants)+ });
        converted!(candle_nn::Activation => Activation { $($variants)+ });
    };
}

as_candle! {
    Gelu, NewGelu, Relu, Relu2, Relu6, Silu, Sigmoid, HardSigmoid, Swiglu, Swish, Mish, HardSwish,
    Elu(alpha), LeakyRelu(slope), GeluPytorchTanh
}

impl TryFrom<Activation> for kernels::FusedActivation {
    type Error = Error;

    fn try_from(activation: Activation) -> crate::error::Result<Self> {
        candle_nn::Activation::from(activation).try_into()
    }
}
