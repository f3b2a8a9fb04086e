//! Float tensors that no layer holds: nothing quantizes them, so a report names them.

use std::fmt;

use serde::Serialize;

use super::hidden::BUILDER_ADVICE;
use super::owners::Owners;
use super::survey::{Survey, keeps_more};
use super::text::{human_bytes, shown, some};
use crate::error::{Error, Fault, Result};
use crate::module::WeightDType;

/// A float tensor with two or more dimensions that no layer holds, so that it stays float; or a
/// view that keeps at least twice its own bytes.
///
/// `Display` gives its path, dtype, shape and bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FloatTensor {
    /// Path in the model.
    pub path: String,
    /// The shape of the tensor.
    pub shape: Vec<usize>,
    /// The dtype of the tensor; `Other` is f8e4m3.
    pub dtype: WeightDType,
    /// Bytes in memory. Memory of several tensors is counted with the first, and a view counts the
    /// whole memory.
    pub bytes: usize,
    /// The layer of candle's that holds it, `candle_nn::Conv1d` for example, which is not
    /// quantized.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_by: Option<String>,
    /// Whether it is in or below a strict type.
    #[serde(skip)]
    strict: bool,
    #[serde(skip)]
    own_bytes: usize,
}

pub(super) const ADVICE: &str = "hold a weight in a candle_dynquant::nn::Linear or a layer of your own, \
                                 or mark the field #[quantizable(skip)]";

impl FloatTensor {
    pub(super) fn description(&self) -> String {
        let dtype = match self.dtype {
            // The only other dtype that is found.
            WeightDType::Other => "f8e4m3".to_owned(),
            dtype => format!("{dtype:?}").to_lowercase(),
        };
        let bytes = human_bytes(self.bytes);
        let holder = self.held_by.as_ref();
        let holder = holder.map_or_else(String::new, |holder| format!(", of a {holder}"));
        let held = if keeps_more(self.own_bytes, self.bytes) {
            format!("a view that keeps {bytes} (hold `force_contiguous` of it)")
        } else {
            bytes
        };
        format!("{dtype} {:?}, {held}{holder}", self.shape)
    }
}

impl fmt::Display for FloatTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = shown(&self.path);
        write!(f, "{path}: {}", self.description())
    }
}

/// The tensors that are named, the largest first: all if they exceed 1 % of the model's bytes
/// together, else none.
pub(super) fn named(survey: &Survey, owners: &Owners) -> Vec<FloatTensor> {
    let layers = survey.layers.len();
    let tensors = survey.tensors.iter().enumerate().map(|(index, found)| FloatTensor {
        path: found.path.clone(),
        shape: found.info.shape.clone(),
        dtype: found.info.dtype,
        bytes: owners.bytes(layers + index),
        held_by: found.held_by.map(str::to_owned),
        strict: found.strict,
        own_bytes: found.info.bytes,
    });
    let mut tensors: Vec<_> = tensors.filter(|tensor| tensor.bytes > 0).collect();
    let in_layers: u128 = (0..layers).map(|layer| owners.bytes(layer) as u128).sum();
    let in_none: u128 = tensors.iter().map(|tensor| tensor.bytes as u128).sum();
    if 100 * in_none <= in_layers + in_none {
        return Vec::new();
    }
    tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.bytes));
    tensors
}

fn check_builders(survey: &Survey) -> Result<()> {
    match survey.strict_builders.first() {
        None => Ok(()),
        Some(path) => Err(Error::from(Fault::FloatTensors {
            got: format!("{}, a VarBuilder, which {BUILDER_ADVICE}", shown(path)),
        })),
    }
}

/// The tensors that a report names where these layers are swapped. Neither they nor a `VarBuilder`
/// are in a strict type.
pub(crate) fn checked(
    survey: &Survey,
    is_swapped: impl Fn(usize) -> bool,
) -> Result<Vec<FloatTensor>> {
    let named = named(survey, &Owners::before(survey, is_swapped));
    let refused: Vec<_> = named.iter().filter(|tensor| tensor.strict).collect();
    match listed(&refused) {
        None => check_builders(survey).map(|()| named),
        Some(got) => Err(Error::from(Fault::FloatTensors { got })),
    }
}

/// The float tensors of a model in which nothing is quantized, and advice.
pub(super) fn of_float(survey: &Survey) -> Option<String> {
    let named = named(survey, &Owners::before(survey, |_| false));
    listed(&named.iter().collect::<Vec<_>>())
}

fn listed(tensors: &[&FloatTensor]) -> Option<String> {
    Some(format!("{}; {ADVICE}", some(tensors)?))
}
