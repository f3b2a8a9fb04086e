//! The report: pairs that were equalized, and those that were left and why.

use std::fmt;

use serde::Serialize;

/// A norm and its readers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NormPair {
    /// The norm, by path.
    pub norm: String,
    /// The layers that multiply its output.
    pub layers: Vec<String>,
    /// The norms that add its output as a residual.
    pub residuals: Vec<String>,
}

/// Why a norm cannot be folded into its readers.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Unfoldable {
    /// This layer was not called on the probe: it may read the norm.
    NotCalled {
        /// Its path.
        layer: String,
    },
    /// This layer reads the norm, and is no float `Linear`.
    NotLinear {
        /// Its path.
        layer: String,
    },
    /// This layer reads other tensors as well.
    ReadsOthers {
        /// Its path.
        layer: String,
    },
    /// This layer shares its weight with another, which would be held twice.
    Tied {
        /// Its path.
        layer: String,
    },
    /// The output of the float model is another.
    ChangesOutput {
        /// The maximum difference, in units of the maximum element.
        by: f64,
    },
}

impl fmt::Display for Unfoldable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotCalled { layer } => write!(f, "the probe does not reach {layer}"),
            Self::NotLinear { layer } => write!(f, "read by {layer}, which is no float Linear"),
            Self::ReadsOthers { layer } => write!(f, "{layer} reads other tensors too"),
            Self::Tied { layer } => write!(f, "{layer} shares its weight"),
            Self::ChangesOutput { by } => write!(f, "would change the output by {by:.1e}"),
        }
    }
}

/// A norm that was left as it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LeftNorm {
    /// Its path.
    pub path: String,
    /// Why.
    pub reason: Unfoldable,
}

/// The outcome of [`equalize`](super::equalize). Norms that no layer multiplies are not listed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct EqualizeReport {
    /// The pairs that were equalized.
    pub pairs: Vec<NormPair>,
    /// The norms that were left.
    pub left: Vec<LeftNorm>,
}

impl fmt::Display for EqualizeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.pairs.len() + self.left.len();
        write!(f, "{} of {total} norms equalized", self.pairs.len())?;
        for NormPair {
            norm,
            layers,
            residuals,
        } in &self.pairs
        {
            write!(f, "\n  {norm} -> {}", layers.join(", "))?;
            if !residuals.is_empty() {
                write!(f, "; residual of {}", residuals.join(", "))?;
            }
        }
        for LeftNorm { path, reason } in &self.left {
            write!(f, "\n  {path} left: {reason}")?;
        }
        Ok(())
    }
}
