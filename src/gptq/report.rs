//! The report: layers that were quantized by their inputs, and those that were not and why.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::quantize::{Report, Skipped};

/// Why a layer is rounded that was not called, or reports no calls.
pub(super) const NOT_CALLED: &str = "the run does not reach it";
/// Why an embedding, a recurrent layer or a custom layer without
/// [`Layer::quantize_for`](crate::Layer::quantize_for) is rounded.
pub(super) const KIND: &str = "its kind has no form for given inputs";
/// Why a layer of very many inputs is rounded.
pub(super) const LARGE: &str = "its sums take more than GptqConfig::memory and than 4 GiB";

/// The outcome of [`gptq`](super::gptq()).
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct GptqReport {
    /// The layers of which errors were fed back, by path, with the rows of inputs of each.
    pub fed_back: BTreeMap<String, usize>,
    /// The layers in groups that were rounded without their inputs, as
    /// [`quantize_dynamic`](crate::quantize_dynamic) does it.
    pub rounded: Vec<Skipped>,
    /// How often the model was run.
    pub(crate) runs: usize,
    /// The layers that were quantized, as [`quantize_dynamic`](crate::quantize_dynamic) reports
    /// them.
    pub quantized: Report,
}

impl fmt::Display for GptqReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fed_back = self.fed_back.len();
        let total = fed_back + self.rounded.len();
        writeln!(f, "{fed_back} of {total} layers in groups quantized by their inputs")?;
        for Skipped { path, reason } in &self.rounded {
            writeln!(f, "  {path} rounded: {reason}")?;
        }
        self.quantized.fmt(f)
    }
}
