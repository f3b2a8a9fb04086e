//! The plain recurrent layer.

use candle_core::{Result as CandleResult, Tensor};
use candle_nn::VarBuilder;

use super::config::RecurrentConfig;
use super::kind::RecurrentKind;
use super::stack::Recurrent;
use super::state::Given;
use crate::error::Result;
use crate::kernels::Gates;
use crate::module::LayerKind;
use crate::module::leaves::leaves;
use crate::trace;

/// The function that a plain recurrent layer applies to its gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nonlinearity {
    /// The hyperbolic tangent.
    #[default]
    Tanh,
    /// `max(x, 0)`.
    Relu,
}

leaves! { Nonlinearity }

/// A plain recurrent layer over a sequence, `h' = act(W_ih x + b_ih + W_hh h + b_hh)`, with all
/// of `torch.nn.RNN`'s options.
///
/// Shapes, dtypes, gradients, names of weights and quantization are as in [`LSTM`](super::LSTM),
/// with a state of `h` alone, `[num_layers * directions, batch, hidden_size]`.
///
/// PyTorch has no quantized form of it: [`QConfigSpec::pytorch`](crate::QConfigSpec::pytorch)
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
pub type RNN = Recurrent<Nonlinearity>;

impl RNN {
    /// Loads the layer from `vb`.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape, or the options make no sense.
    pub fn new(
        input_size: usize,
        hidden_size: usize,
        nonlinearity: Nonlinearity,
        config: RecurrentConfig,
        vb: VarBuilder<'_>,
    ) -> Result<Self> {
        Self::load(nonlinearity, [input_size, hidden_size], config, &vb)
    }
}

impl RecurrentKind for Nonlinearity {
    type Cell = ();
    type State = Tensor;
    const KINDS: [LayerKind; 2] = [LayerKind::RNN, LayerKind::RNNCell];

    fn span(is_cell: bool, name: Option<&str>) -> trace::Span {
        if is_cell { trace::span!("rnn-cell", name) } else { trace::span!("rnn", name) }
    }

    fn gates(self) -> Gates {
        match self {
            Self::Tanh => Gates::Tanh,
            Self::Relu => Gates::Relu,
        }
    }

    fn step(self, [ih, hh]: [&Tensor; 2], _: &Tensor, (): &()) -> CandleResult<(Tensor, ())> {
        let sums = (ih + hh)?;
        let h = match self {
            Self::Tanh => sums.tanh(),
            Self::Relu => sums.relu(),
        };
        Ok((h?, ()))
    }
    fn state(h: Tensor, (): ()) -> Tensor {
        h
    }

    fn given<'a>(xs: &'a Tensor, h: Option<&'a Tensor>) -> Given<'a> {
        Given { xs, h, c: None }
    }
}
