//! The tensors of a model without the companions of quantized weights.

use std::collections::BTreeSet;

use candle_dynquant::checkpoint::TensorInfo;

/// The tensors without the scales, zero points and orders of other tensors.
pub fn weights(tensors: Vec<TensorInfo>) -> Vec<TensorInfo> {
    let quantized = tensors.iter().filter(|tensor| tensor.quantized);
    let suffixes = ["_scale", "_zero_point", "_zero_point_unsigned", "_minimum", "_g_idx"];
    let companions: BTreeSet<String> = quantized
        .flat_map(|tensor| suffixes.map(|suffix| format!("{}{suffix}", tensor.name)))
        .collect();
    let is_weight = |tensor: &TensorInfo| !companions.contains(&tensor.name);
    tensors.into_iter().filter(is_weight).collect()
}
