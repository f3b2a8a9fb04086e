//! The report: pairs that were equalized, and those that were left and why.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use crate::quantize::Skipped;

/// A norm or a layer, and the readers of its output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct EqualizedPair {
    /// The norm, or the layer, by path.
    pub source: String,
    /// The layers that multiply its output, or what it is a factor of.
    pub layers: Vec<String>,
    /// The norms that add its output as a residual.
    pub residuals: Vec<String>,
}

impl EqualizedPair {
    /// The paths of the pair, with a sign for each number: equal for pairs of equal blocks.
    pub(super) fn kind(&self) -> Vec<String> {
        let paths = std::iter::once(&self.source).chain(&self.layers);
        let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let pattern = |path: &String| {
            let parts = path.split('.');
            let parts = parts.map(|part| if is_number(part) { "*" } else { part });
            parts.collect::<Vec<_>>().join(".")
        };
        paths.map(pattern).collect()
    }
}

/// The outcome of [`equalize`](super::equalize). Norms that no layer multiplies are not listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct EqualizeReport {
    /// The pairs that were equalized.
    pub pairs: Vec<EqualizedPair>,
    /// The norms, and layers, that were left.
    pub left: Vec<Skipped>,
}

impl EqualizeReport {
    /// The layers of the pairs that were equalized.
    pub(super) fn readers(&self) -> BTreeSet<String> {
        let layers = self.pairs.iter().flat_map(|pair| &pair.layers);
        layers.cloned().collect()
    }
}

impl fmt::Display for EqualizeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.pairs.len() + self.left.len();
        write!(f, "{} of {total} pairs equalized", self.pairs.len())?;
        for pair in &self.pairs {
            write!(f, "\n  {} -> {}", pair.source, pair.layers.join(", "))?;
            if !pair.residuals.is_empty() {
                write!(f, "; residual of {}", pair.residuals.join(", "))?;
            }
        }
        for Skipped { path, reason } in &self.left {
            write!(f, "\n  {path} left: {reason}")?;
        }
        Ok(())
    }
}
