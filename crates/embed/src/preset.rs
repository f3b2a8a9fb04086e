//! The presets of weights by name.

use std::fmt;
use std::str::FromStr;

use candle_dynquant::QConfigSpec;

/// The quantization of a float model's weights when it is opened: a preset of
/// [`QConfigSpec::preset`] by name, or none. The default is `int8`.
///
/// ```
/// use dynquant_embed::{Options, Preset};
///
/// let preset: Preset = "int8_groups".parse()?;
/// let options = Options::new().preset(preset);
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset(&'static str);

impl Preset {
    /// No quantization: the model stays f32.
    pub const NONE: Self = Self("none");

    /// All presets.
    pub fn all() -> impl Iterator<Item = Self> {
        QConfigSpec::PRESETS.into_iter().map(Self).chain([Self::NONE])
    }

    fn names() -> String {
        Self::all().map(|it| it.0).collect::<Vec<_>>().join(", ")
    }

    /// The help on an option of the command line.
    #[cfg(feature = "program")]
    pub fn help() -> String {
        format!("Weights of a float model: {} [default: int8]", Self::names())
    }

    pub(crate) fn spec(self) -> candle_dynquant::Result<Option<QConfigSpec>> {
        let is_quantized = self != Self::NONE;
        is_quantized.then(|| QConfigSpec::preset(self.0)).transpose()
    }
}

impl Default for Preset {
    fn default() -> Self {
        Self("int8")
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

impl FromStr for Preset {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let known = Self::all().find(|it| it.0 == word);
        known.ok_or_else(|| format!("expected one of {}, got {word:?}", Self::names()))
    }
}
