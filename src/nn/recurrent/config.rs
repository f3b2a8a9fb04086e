//! The options of recurrent layers.

use crate::module::leaves::leaves;

/// How a recurrent layer is built, under PyTorch's names and with its defaults.
///
/// ```
/// use candle_dynquant::nn::RecurrentConfig;
///
/// let config = RecurrentConfig { num_layers: 2, bidirectional: true, ..Default::default() };
/// assert!(config.bias && !config.batch_first);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentConfig {
    /// Layers, each of which reads the output of the one before.
    pub num_layers: usize,
    /// Whether the layers have `bias_ih` and `bias_hh`.
    pub bias: bool,
    /// Input and output are `[batch, steps, features]` instead of `[steps, batch, features]`.
    pub batch_first: bool,
    /// A second set of weights reads the sequence from its end; outputs are concatenated.
    pub bidirectional: bool,
    /// LSTM only: the size the hidden state is projected to, 0 for none.
    pub proj_size: usize,
}

impl Default for RecurrentConfig {
    fn default() -> Self {
        Self { num_layers: 1, bias: true, batch_first: false, bidirectional: false, proj_size: 0 }
    }
}

leaves! { RecurrentConfig }
