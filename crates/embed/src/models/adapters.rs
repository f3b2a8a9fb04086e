//! Low-rank adapters (LoRA) in a checkpoint, a pair of matrices for each task and weight, as torch's
//! parametrizations. Those of one task are added to the weights when these are loaded.

use anyhow::Result;
use candle_core::{DType, Device, Result as CandleResult, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};

use crate::keys::Keys;

/// The key of the tasks that have adapters.
pub(crate) const TASKS: &str = "lora_adaptations";

struct Adapters<'a> {
    vb: VarBuilder<'a>,
    tasks: usize,
    rank: usize,
    /// The index of the task, and the scale of its products.
    task: Option<(usize, f64)>,
}

/// The weights for a task, or without one the weights that adapters are added to.
pub(crate) fn adapted<'a>(
    keys: &Keys,
    task: Option<&str>,
    vb: VarBuilder<'a>,
) -> Result<VarBuilder<'a>> {
    let names: Option<Vec<String>> = keys.optional(TASKS, "a list of tasks")?;
    let names = names.unwrap_or_default();
    let index = task.map(|task| {
        let index = names.iter().position(|name| name == task);
        index.ok_or_else(|| keys.fault(TASKS, &format!("a list with the task {task:?}")))
    });
    let index = index.transpose()?;
    if names.is_empty() {
        return Ok(vb);
    }
    let rank = keys.size_or("lora_rank", 4)?;
    let scale = keys.positive("lora_alpha")?.unwrap_or(1.) / rank as f64;
    let adapters = Adapters {
        vb: vb.clone(),
        tasks: names.len(),
        rank,
        task: index.map(|index| (index, scale)),
    };
    let (all, device) = (Box::new(adapters), vb.device().clone());
    Ok(VarBuilder::from_backend(all, vb.dtype(), device))
}

impl Adapters<'_> {
    /// The name of a weight's parametrization, if the checkpoint has one.
    fn place(&self, name: &str) -> Option<String> {
        let place = name.strip_suffix(".weight")?;
        let place = format!("{place}.parametrizations.weight");
        let is_there = self.vb.contains_tensor(&format!("{place}.original"));
        is_there.then_some(place)
    }
}

impl SimpleBackend for Adapters<'_> {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        init: Init,
        dtype: DType,
        _: &Device,
    ) -> CandleResult<Tensor> {
        let get = |shape, name: &str| self.vb.get_with_hints_dtype(shape, name, init, dtype);
        let Some(place) = self.place(name) else {
            if self.task.is_some() && shape.rank() == 2 {
                candle_core::bail!("{name}: expected a weight with adapters, got one without");
            }
            return get(shape, name);
        };
        let (rows, columns) = shape.dims2()?;
        let Self { tasks, rank, .. } = *self;
        // The first matrix of a product has a column for each input, that of a table a row for each word.
        let [mut of_a, mut of_b] = [(tasks, rank, columns), (tasks, rows, rank)];
        let is_table = name.ends_with("_embeddings.weight");
        if is_table {
            (of_a, of_b) = (of_b, of_a);
        }
        let a = get(of_a.into(), &format!("{place}.0.lora_A"))?;
        let b = get(of_b.into(), &format!("{place}.0.lora_B"))?;
        let weight = get(shape, &format!("{place}.original"))?;
        let Some((task, scale)) = self.task else {
            return Ok(weight);
        };
        let (left, right) = if is_table { (a, b) } else { (b, a) };
        weight + (left.get(task)?.matmul(&right.get(task)?)? * scale)?
    }

    fn get_unchecked(&self, name: &str, dtype: DType, _: &Device) -> CandleResult<Tensor> {
        self.vb.get_unchecked_dtype(name, dtype)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.vb.contains_tensor(name) || self.place(name).is_some()
    }
}
