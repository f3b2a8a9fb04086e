//! The plain recurrent layer.

use candle_core::Tensor;
use candle_nn::VarBuilder;

use super::{RecurrentConfig, Stack, quantizable_layer};
use crate::error::Result;
use crate::kernels::Gates;
use crate::module::LayerKind;

/// The function that a plain recurrent layer applies to its gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nonlinearity {
    /// The hyperbolic tangent.
    #[default]
    Tanh,
    /// `max(x, 0)`.
    Relu,
}

impl Nonlinearity {
    pub(super) fn gates(self) -> Gates {
        match self {
            Self::Tanh => Gates::Tanh,
            Self::Relu => Gates::Relu,
        }
    }
}

/// A plain recurrent layer over a sequence, `h' = act(W_ih x + b_ih + W_hh h + b_hh)`, with all
/// of `torch.nn.RNN`'s options.
///
/// Shapes, dtypes, names of weights and quantization are as in [`LSTM`](super::LSTM), with a
/// state of `h` alone, `[num_layers * directions, batch, hidden_size]`.
///
/// PyTorch has no quantized form of it: [`QConfigSpec::default`](crate::QConfigSpec::default)
/// leaves it float, [`QConfigSpec::int8`](crate::QConfigSpec::int8) does not.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_dynquant::nn;
/// use candle_nn::{VarBuilder, VarMap};
///
/// let vars = VarMap::new();
/// let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
/// let rnn = nn::RNN::new(16, 32, nn::Nonlinearity::Relu, Default::default(), vb.pp("rnn"))?;
/// let (ys, h) = rnn.forward(&Tensor::ones((7, 16), DType::F32, &Device::Cpu)?, None)?;
/// assert_eq!((ys.dims(), h.dims()), (&[7, 32][..], &[1, 32][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct RNN {
    stack: Stack,
}

quantizable_layer!(RNN, stack, LayerKind::RNN);

impl RNN {
    /// Loads a layer from `vb`.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape, or the configuration makes no sense.
    pub fn new(
        input_size: usize,
        hidden_size: usize,
        nonlinearity: Nonlinearity,
        config: RecurrentConfig,
        vb: VarBuilder<'_>,
    ) -> Result<Self> {
        let stack = Stack::load(nonlinearity.gates(), input_size, hidden_size, config, &vb)?;
        Ok(Self { stack })
    }

    /// Output and last state; the state before the first step is `h`, or zeros.
    ///
    /// # Errors
    /// When the input or the state has a wrong shape or dtype, or is not on the CPU.
    pub fn forward(&self, xs: &Tensor, h: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
        self.stack.forward_h("RNN", xs, None, h)
    }

    /// [`forward`](Self::forward) over sequences of different lengths: the rest of each is
    /// padding, which influences nothing and is zero in the output.
    ///
    /// # Errors
    /// Also when there is not one length a sequence, or one is longer than the input.
    pub fn forward_lengths(
        &self,
        xs: &Tensor,
        lengths: &[usize],
        h: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        self.stack.forward_h("RNN", xs, Some(lengths), h)
    }
}
