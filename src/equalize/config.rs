//! How a model is equalized.

/// The options of [`equalize`](super::equalize); [`default`](Self::default) finds the pairs itself.
#[derive(Clone, Debug)]
pub struct Equalization {
    pub(super) alpha: f64,
    pub(super) pairs: Vec<[String; 2]>,
    pub(super) unused: Vec<String>,
    pub(super) between_layers: bool,
}

impl Default for Equalization {
    fn default() -> Self {
        Self { alpha: 0.5, pairs: Vec::new(), unused: Vec::new(), between_layers: false }
    }
}

impl Equalization {
    /// The share of the range of activations that goes to the weights: 0.5 by default, 0 to 1.
    #[must_use]
    pub fn alpha(self, alpha: f64) -> Self {
        Self { alpha, ..self }
    }

    /// Equalizes the norms, or float `Linear` layers, whose paths the regex `source` matches as a
    /// whole, with the layers whose paths `layers` matches, in which `$1` is the text of the first
    /// group of `source`; no other norms are looked for then.
    ///
    /// ```
    /// use candle_dynquant::Equalization;
    ///
    /// Equalization::default().pair(r"blocks\.(\d+)\.norm", r"blocks\.$1\.(query|key|value)");
    /// ```
    #[must_use]
    pub fn pair(mut self, source: impl Into<String>, layers: impl Into<String>) -> Self {
        self.pairs.push([source.into(), layers.into()]);
        self
    }

    /// Layers, by a regex of whole paths, that no output of the model depends on. A layer that the
    /// probe does not reach could read any norm, which is left then.
    #[must_use]
    pub fn unused(mut self, layers: impl Into<String>) -> Self {
        self.unused.push(layers.into());
        self
    }

    /// Looks for layers, too, that read the output of another one after it was multiplied by
    /// something: a down projection reads an up projection times a gate, an output projection the
    /// values of attention. The probe runs once more for each kind of them, and has to show what is
    /// done to the output: a limit that it does not reach is not noticed.
    #[must_use]
    pub fn between_layers(self) -> Self {
        Self { between_layers: true, ..self }
    }
}
