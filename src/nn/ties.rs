//! Output projections that are made of an embedding's table, as models with tied weights make them:
//! `Linear::new(embedding.embeddings().clone(), None)`.
//!
//! Where the table was read from a checkpoint as a quantized weight, that tensor is the dequantized
//! table. It is known by its memory while the embedding lives, so the projection gets the quantized
//! weight: it computes the same and takes the same memory as the model that was saved.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use candle_core::{Device, Result, Tensor};

use crate::module::WeightId;
use crate::qweight::QWeight;
use crate::tensor::{MemoryId, bits};

/// The rows that are compared at once, so that little memory is needed.
const BLOCK: usize = 1024;

/// By the memory of the dequantized table.
static TIES: Mutex<BTreeMap<MemoryId, Weak<QWeight>>> = Mutex::new(BTreeMap::new());

fn ties() -> MutexGuard<'static, BTreeMap<MemoryId, Weak<QWeight>>> {
    TIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A dequantized table, known while this lives. As it keeps the memory, no other tensor can have
/// the same.
#[derive(Debug)]
pub(super) struct Dequantized {
    tensor: Tensor,
    tied: bool,
}

impl Dequantized {
    pub fn new(tensor: Tensor, tied: Option<&Arc<QWeight>>) -> Self {
        if let Some(weight) = tied {
            let memory = WeightId::of_tensor(&tensor).memory();
            ties().insert(memory, Arc::downgrade(weight));
        }
        let tied = tied.is_some();
        Self { tensor, tied }
    }

    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }
}

impl Drop for Dequantized {
    fn drop(&mut self) {
        if self.tied {
            ties().remove(&WeightId::of_tensor(&self.tensor).memory());
        }
    }
}

/// Calls `make` with the weight whose dequantized table this is, as a whole.
pub(super) fn find<T>(tensor: &Tensor, make: impl FnOnce(&Arc<QWeight>) -> T) -> Option<T> {
    let weight = {
        let ties = ties();
        if ties.is_empty() {
            return None;
        }
        ties.get(&WeightId::of_tensor(tensor).memory())?.upgrade()?
    };
    // It may have been changed in place.
    let is_it = tensor.dims() == weight.shape() && equals(tensor, &weight).unwrap_or(false);
    is_it.then(|| make(&weight))
}

/// Whether a table has the elements of a weight, in its dtype.
fn equals(table: &Tensor, weight: &QWeight) -> Result<bool> {
    let [rows, columns] = weight.shape();
    for first in (0..rows).step_by(BLOCK) {
        let count = BLOCK.min(rows - first);
        let mut values = Vec::new();
        for row in first..first + count {
            weight.read_channel(row, |chunk| values.extend_from_slice(chunk));
        }
        let values = Tensor::from_vec(values, (count, columns), &Device::Cpu)?;
        let expected = bits(&values.to_dtype(table.dtype())?)?;
        if bits(&table.narrow(0, first, count)?)? != expected {
            return Ok(false);
        }
    }
    Ok(true)
}
