//! compressed-tensors' `pack-quantized`: `weight_packed` I32, codes of 4 or 8 bits, eight or four a
//! number, the first in the lowest bits, `weight_scale`, `weight_shape`, and `weight_zero_point`
//! packed alike along the rows.

use safetensors::Dtype;

use super::super::config::Quantization;
use super::super::files::Files;
use super::super::header::{Axis, Packing, invalid};
use super::super::weights::is_in_order;
use super::layout::tensor;
use crate::error::Result;
use crate::weight::{G_IDX, PACKED, SCALE, SHAPE, ZERO_POINT};

/// Gives packed weights the names and shapes that others have.
///
/// # Errors
/// When a weight lacks a tensor, or is none of 4 or 8 bits.
pub fn translate(files: &mut Files, config: &Quantization) -> Result<()> {
    let names = files.tensors().filter_map(|(name, _, entry)| {
        let weight = name.strip_suffix(PACKED)?;
        // Others have tensors of that name, too.
        let is_weight = files.find(&format!("{weight}{SCALE}")).is_some();
        (is_weight || entry.dtype == Dtype::I32).then(|| weight.to_owned())
    });
    for weight in names.collect::<Vec<_>>() {
        translate_weight(files, &weight, config.bits(&weight))?;
    }
    Ok(())
}

fn translate_weight(files: &mut Files, weight: &str, said: Option<u64>) -> Result<()> {
    let name = |suffix: &str| format!("{weight}{suffix}");
    let (packed, scale, zero_point) = (name(PACKED), name(SCALE), name(ZERO_POINT));
    let shape = shape(files, &name(SHAPE))?;
    let [n, k] = shape;
    let entry = tensor(files, &packed)?;
    // The shape tells the bits, except of codes that are one number either way.
    let is_8 = entry.shape == [n, k.div_ceil(4)] && (k > 4 || said == Some(8));
    let bits = if is_8 { 8 } else { 4 };
    let codes = 32 / bits;
    entry.check(&packed, Dtype::I32, &[n, k.div_ceil(codes)], &format!(", for {shape:?}"))?;
    let scales = tensor(files, &scale)?;
    scales.check_float(&scale)?;
    let &[_, groups] = &scales.shape[..] else {
        return Err(invalid(&scale, format!("[{n}, groups]"), format!("{:?}", scales.shape)));
    };
    let g_idx = name(G_IDX);
    let has_order = files.find(&g_idx).is_some();
    if has_order && is_in_order(files, &g_idx, groups, k)? {
        files.remove(&g_idx);
    }
    let entry = tensor(files, &packed)?.packed(shape, Packing::plain(Axis::Columns, bits));
    files.replace(&packed, weight, entry)?;
    if let Some((_, zeros)) = files.find(&zero_point) {
        zeros.check(&zero_point, Dtype::I32, &[n.div_ceil(codes), groups], "")?;
        let zeros = zeros.packed([n, groups], Packing::plain(Axis::Rows, bits));
        files.replace(&zero_point, &zero_point, zeros)?;
    }
    files.remove(&name(SHAPE));
    Ok(())
}

/// The shape of a weight, which is a tensor of two numbers.
fn shape(files: &Files, name: &str) -> Result<[usize; 2]> {
    let (shard, entry) = files.get(name, "the shape of a packed weight")?;
    let is_shape = matches!(entry.dtype, Dtype::I64 | Dtype::I32) && entry.shape == [2];
    let sizes = if is_shape {
        shard.tensor(name, entry)?.to_dtype(candle_core::DType::I64)?.to_vec1::<i64>()?
    } else {
        Vec::new()
    };
    let sizes: Vec<_> = sizes.iter().filter_map(|size| usize::try_from(*size).ok()).collect();
    match sizes[..] {
        // The numbers of a weight that is there can be counted.
        [n, k] if n.checked_mul(k.max(1)).is_some() => Ok([n, k]),
        _ => {
            let got = format!("{}, {sizes:?}", entry.kind());
            Err(invalid(name, "I64 [2], out_features and in_features", got))
        }
    }
}
