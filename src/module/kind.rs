//! Kinds of layers.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::words::{lookup, serde_as_word};

/// The kind of a layer; rules by kind match on it.
///
/// It is parsed from its name, your own kinds from `Custom(name)`; serde uses the same text:
///
/// ```
/// use candle_dynquant::LayerKind;
///
/// assert_eq!("LSTM".parse::<LayerKind>()?, LayerKind::LSTM);
/// assert_eq!("Custom(Conv3d)".parse::<LayerKind>()?, LayerKind::custom("Conv3d"));
/// let typo = "Liner".parse::<LayerKind>().unwrap_err();
/// assert!(typo.to_string().ends_with("did you mean `Linear`?"));
/// # Ok::<(), candle_dynquant::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LayerKind {
    /// `y = x W^T + b`.
    Linear,
    /// Long short-term memory over a sequence.
    LSTM,
    /// Gated recurrent unit over a sequence.
    GRU,
    /// A plain recurrent network over a sequence; not among PyTorch's default kinds.
    RNN,
    /// A step of an LSTM.
    LSTMCell,
    /// A step of a plain recurrent network.
    RNNCell,
    /// A step of a GRU.
    GRUCell,
    /// A convolution over signals.
    Conv1d,
    /// A convolution over images.
    Conv2d,
    /// A transposed convolution over signals.
    ConvTranspose1d,
    /// A table of vectors.
    Embedding,
    /// Attention: it multiplies, and has no weights.
    Attention,
    /// A custom layer, by its name.
    Custom(Cow<'static, str>),
}

const WORDS: [(&str, LayerKind); 13] = [
    ("Linear", LayerKind::Linear),
    ("LSTM", LayerKind::LSTM),
    ("GRU", LayerKind::GRU),
    ("RNN", LayerKind::RNN),
    ("LSTMCell", LayerKind::LSTMCell),
    ("RNNCell", LayerKind::RNNCell),
    ("GRUCell", LayerKind::GRUCell),
    ("Conv1d", LayerKind::Conv1d),
    ("Conv2d", LayerKind::Conv2d),
    ("ConvTranspose1d", LayerKind::ConvTranspose1d),
    ("Embedding", LayerKind::Embedding),
    ("Attention", LayerKind::Attention),
    // For the list of words only: it is parsed separately.
    ("Custom(name)", LayerKind::custom("name")),
];

impl LayerKind {
    /// The six kinds that PyTorch's `quantize_dynamic` swaps by default.
    pub(crate) const DEFAULT: [Self; 6] =
        [Self::Linear, Self::LSTM, Self::GRU, Self::LSTMCell, Self::RNNCell, Self::GRUCell];

    /// The seven kinds that multiply by weights: PyTorch's six and [`RNN`](Self::RNN).
    #[doc(hidden)]
    pub const MULTIPLYING: [Self; 7] = [
        Self::Linear,
        Self::LSTM,
        Self::GRU,
        Self::RNN,
        Self::LSTMCell,
        Self::RNNCell,
        Self::GRUCell,
    ];

    /// The kinds of convolutions.
    pub(crate) const CONVOLUTIONS: [Self; 3] = [Self::Conv1d, Self::Conv2d, Self::ConvTranspose1d];

    /// The kind of a custom layer.
    pub const fn custom(name: &'static str) -> Self {
        Self::Custom(Cow::Borrowed(name))
    }
}

impl fmt::Display for LayerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = WORDS.into_iter().find(|(_, kind)| kind == self);
        match (self, word) {
            (Self::Custom(name), _) => f.pad(&format!("Custom({name})")),
            (_, word) => f.pad(word.map_or("", |(word, _)| word)),
        }
    }
}

impl FromStr for LayerKind {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self> {
        let custom = word.strip_prefix("Custom(").and_then(|w| w.strip_suffix(')'));
        match custom.filter(|name| !name.is_empty()) {
            Some(name) => Ok(Self::Custom(name.to_owned().into())),
            None => lookup("kind", word, WORDS),
        }
    }
}

serde_as_word!(LayerKind);
