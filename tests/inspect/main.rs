//! Measuring quantized models: taps, figures, pages.

mod figures;
mod page;
mod taps;

use candle_dynquant::inspect::LayerInspection;

/// The bytes of a layer's weights before and after, as its JSON has them.
fn bytes(layer: &LayerInspection) -> [u64; 2] {
    let layer = serde_json::to_value(layer).unwrap();
    ["bytes_before", "bytes_after"].map(|key| layer[key].as_u64().unwrap())
}
