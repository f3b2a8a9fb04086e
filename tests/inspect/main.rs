//! Measuring quantized models: taps, figures, pages.

mod figures;
#[path = "../common/kit.rs"]
mod kit;
mod page;
mod taps;

use candle_dynquant::inspect::{Inspection, LayerInspection};

use crate::kit::*;

/// The bytes of a layer's weights before and after, as its JSON has them.
fn bytes(layer: &LayerInspection) -> [u64; 2] {
    let layer = serde_json::to_value(layer).unwrap();
    ["bytes_before", "bytes_after"].map(|key| layer[key].as_u64().unwrap())
}

/// Quantizes a copy of a model and inspects it.
fn inspect_quantized<M: Quantizable + Clone>(
    float: &mut M,
    spec: &QConfigSpec,
    run: impl Fn(&M) -> candle_core::Result<Tensor>,
) -> (M, Inspection) {
    let mut quantized = float.clone();
    quantize_dynamic(&mut quantized, spec).unwrap();
    let inspection = inspect::inspect(float, &mut quantized, run).unwrap();
    (quantized, inspection)
}
