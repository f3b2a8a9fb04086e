//! `dynquant inspect`.

use anyhow::Result;
use candle_dynquant::Checkpoint;
use candle_dynquant_io::print;
use serde::Serialize;

use super::args::InspectArgs;
use super::table::{megabytes, table};
use super::weights::weights;

#[derive(Serialize)]
struct Shown {
    name: String,
    dtype: String,
    shape: Vec<usize>,
    bytes: u64,
    quantized: bool,
    /// The smallest and the largest scale of a quantized weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    scales: Option<[f32; 2]>,
}

pub fn run(args: &InspectArgs) -> Result<()> {
    let checkpoint = Checkpoint::open(&args.path)?;
    checkpoint.notes().iter().for_each(print::note);
    let tensors: Vec<_> = checkpoint.tensors().collect();
    let bytes: u64 = tensors.iter().map(|tensor| tensor.bytes).sum();
    let count = tensors.len();
    let shown = weights(tensors).into_iter().map(|tensor| {
        let scale = format!("{}_scale", tensor.name);
        let has_scales = tensor.quantized && ["I4", "I8"].contains(&&*tensor.dtype);
        let scales = has_scales.then(|| checkpoint.floats(&scale)).transpose()?;
        let scales = scales.filter(|scales| !scales.is_empty()).map(|scales| {
            let fold = |choose: fn(f32, f32) -> f32| scales.iter().copied().fold(scales[0], choose);
            [fold(f32::min), fold(f32::max)]
        });
        Ok(Shown {
            name: tensor.name,
            dtype: tensor.dtype,
            shape: tensor.shape,
            bytes: tensor.bytes,
            quantized: tensor.quantized,
            scales,
        })
    });
    let shown = shown.collect::<Result<Vec<_>>>()?;
    if args.json {
        let all = serde_json::json!({"tensors": shown, "bytes": bytes});
        return Ok(print::data(all)?);
    }
    let header = ["tensor", "dtype", "shape", "size", "scales"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for tensor in &shown {
        rows.push(vec![
            tensor.name.clone(),
            tensor.dtype.clone(),
            format!("{:?}", tensor.shape),
            megabytes(tensor.bytes),
            tensor.scales.map_or(String::new(), |[min, max]| format!("{min:.3e} to {max:.3e}")),
        ]);
    }
    let quantized = shown.iter().filter(|tensor| tensor.quantized).count();
    let table = table(&rows);
    let bytes = megabytes(bytes);
    Ok(print::line(format_args!(
        "{table}\n{count} tensors, {bytes}; {quantized} quantized weights"
    ))?)
}
