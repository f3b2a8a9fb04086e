//! Small random models of candle-transformers as they are and as `dynquant port` makes them: the
//! float port against the original, the quantized one against it, and what was swapped. A row of JSON
//! for each.

use candle::{DType, Device, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::VarBuilder;

/// Layers found and swapped.
pub type Counts = Option<(usize, usize)>;

/// Values that depend on the name alone.
pub fn values(name: &str, dims: &[usize]) -> candle::Result<Tensor> {
    let mut state = name.bytes().fold(0x9e3779b97f4a7c15u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x100000001b3)
    });
    let count = dims.iter().product::<usize>();
    let last = *dims.last().unwrap_or(&1) as f32;
    let norm = dims.len() == 1 && name.ends_with("weight");
    let scale = if dims.len() > 1 {
        (3. / last).sqrt()
    } else {
        0.1
    };
    let values: Vec<f32> = (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let value = ((state >> 40) as f32 / (1u64 << 24) as f32 * 2. - 1.) * scale;
            if norm {
                1. + value
            } else {
                value
            }
        })
        .collect();
    Tensor::from_vec(values, dims, &Device::Cpu)
}

pub fn mask(batch: usize, len: usize) -> candle::Result<Tensor> {
    let mask = (0..batch * len)
        .map(|i| u32::from(i % len + i / len * 3 < len))
        .collect::<Vec<_>>();
    Tensor::from_vec(mask, (batch, len), &Device::Cpu)
}

/// Tensors whose values depend on their names.
struct Named;

impl SimpleBackend for Named {
    fn get(
        &self,
        s: Shape,
        name: &str,
        _: candle_nn::Init,
        dtype: DType,
        _: &Device,
    ) -> candle::Result<Tensor> {
        values(name, s.dims())?.to_dtype(dtype)
    }
    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> candle::Result<Tensor> {
        candle::bail!("{name} without a shape")
    }
    fn contains_tensor(&self, name: &str) -> bool {
        name == "shared" || name.ends_with("shared.weight")
    }
}

mod first {
    use super::{mask, values, Counts};
    use candle::{DType, Device, IndexOp, Tensor};
    use candle_nn::VarBuilder;
    use original::models;
    macro_rules! quantize {
        ($model:expr, $on:expr) => {{
            let _ = (&mut $model, $on);
            None
        }};
    }
    include!("models.rs");
}

mod second {
    use super::{mask, values, Counts};
    use candle::{DType, Device, IndexOp, Tensor};
    use candle_nn::VarBuilder;
    use ported::models;
    macro_rules! quantize {
        ($model:expr, $on:expr) => {
            match $on {
                true => {
                    let report = candle_dynquant::quantize_dynamic(
                        &mut $model,
                        &candle_dynquant::QConfigSpec::int8(),
                    )?;
                    if std::env::var_os("PROOF_REPORT").is_some() {
                        eprintln!("{report}");
                    }
                    let swapped = report.swapped().count();
                    Some((swapped + report.left().count(), swapped))
                }
                false => None,
            }
        };
    }
    include!("models.rs");
}

fn main() -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for name in [
        "bert",
        "distilbert",
        "xlm_roberta",
        "modernbert",
        "t5",
        "marian",
        "whisper",
        "vit",
        "clip/text_model",
        "llama",
        "qwen2",
        "phi",
    ] {
        let vb = || VarBuilder::from_backend(Box::new(Named), DType::F32, Device::Cpu);
        let run = || -> anyhow::Result<_> {
            let (original, _) = first::run(name, vb(), false)?;
            let (float, _) = second::run(name, vb(), false)?;
            let (int8, counts) = second::run(name, vb(), true)?;
            let flat = |t: &Tensor| t.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>();
            let (original, float, int8) = (flat(&original)?, flat(&float)?, flat(&int8)?);
            anyhow::ensure!(
                original.len() == float.len(),
                "{} and {} values",
                original.len(),
                float.len()
            );
            let same = original
                .iter()
                .zip(&float)
                .map(|(a, b)| (a - b).abs())
                .fold(0f32, f32::max);
            let largest = original.iter().fold(0f32, |a, b| a.max(b.abs()));
            let power: f64 = original.iter().map(|a| f64::from(*a).powi(2)).sum();
            let noise: f64 = original
                .iter()
                .zip(&int8)
                .map(|(a, b)| f64::from(a - b).powi(2))
                .sum();
            let (found, swapped) = counts.unwrap_or_default();
            Ok(
                serde_json::json!({"model": name, "found": found, "swapped": swapped, 
                "float_difference": same, "largest": largest, "sqnr_db": 10. * (power / noise).log10()}),
            )
        };
        rows.push(match run() {
            Ok(row) => row,
            Err(error) => serde_json::json!({"model": name, "error": format!("{error:#}")}),
        });
    }
    for row in rows {
        println!("{row}");
    }
    Ok(())
}
