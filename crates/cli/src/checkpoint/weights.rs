//! Tensors as a person counts them.

use std::collections::BTreeSet;

use candle_dynquant::checkpoint::TensorInfo;

/// The tensors that are no scales, zero points or orders of others.
pub fn weights(tensors: Vec<TensorInfo>) -> Vec<TensorInfo> {
    let quantized = tensors.iter().filter(|tensor| tensor.quantized);
    let suffixes = [
        "_scale",
        "_zero_point",
        "_zero_point_unsigned",
        "_minimum",
        "_g_idx",
    ];
    let companions: BTreeSet<String> = quantized
        .flat_map(|tensor| suffixes.map(|suffix| format!("{}{suffix}", tensor.name)))
        .collect();
    let own = |tensor: &TensorInfo| !companions.contains(&tensor.name);
    tensors.into_iter().filter(own).collect()
}
