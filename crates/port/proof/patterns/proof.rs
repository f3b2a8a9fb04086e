//! The patterns before and after `dynquant port`: the same floats, every weight swapped except
//! those that the command has listed, and no other field named.

#[allow(dead_code)]
mod random;

use anyhow::{Result, ensure};
use candle_core::{DType, Device, Tensor};
use candle_dynquant::{QConfigSpec, Quantizable, quantize_dynamic};
use candle_dynquant_io::print;
use random::{Named, values};

const SIZE: usize = 64;

fn quantized(
    name: &str,
    mut model: impl Quantizable,
    swapped: usize,
    hidden: &[&str],
) -> Result<()> {
    let report = quantize_dynamic(&mut model, &QConfigSpec::int8().min_params(0))?;
    let paths = report.hidden.iter().map(|field| field.path.as_str());
    ensure!(paths.eq(hidden.iter().copied()), "{name}: expected {hidden:?}, got {report}");
    ensure!(report.swapped().count() == swapped, "{name}: expected {swapped} layers, got {report}");
    Ok(())
}

/// Compares two float outputs and an int8 output.
fn compared(name: &str, outputs: [Tensor; 3]) -> Result<()> {
    let [original, float, int8] = &outputs;
    let (difference, largest, decibels) = random::compared(original, float, int8)?;
    ensure!(difference <= 1e-5 * largest, "{name}: float differs by {difference:e} of {largest:e}");
    ensure!(decibels >= 20., "{name}: {decibels:.1} dB");
    print::note(format_args!("{name}: float differs by {difference:.1e}, int8 {decibels:.1} dB"));
    Ok(())
}

/// Runs an expression of the original, of the port, and of the quantized port.
macro_rules! pattern {
    ($name:expr, $swapped:expr, $hidden:expr, |$krate:ident| $load:expr, |$model:ident| $forward:expr) => {{
        let original = {
            use original as $krate;
            let $model = $load;
            $forward
        };
        let load = || -> Result<_> {
            use ported as $krate;
            Ok($load)
        };
        let float = {
            let $model = load()?;
            $forward
        };
        quantized($name, load()?, $swapped, $hidden)?;
        let int8 = {
            let mut $model = load()?;
            quantize_dynamic(&mut $model, &QConfigSpec::int8())?;
            $forward
        };
        compared($name, [original, float, int8])?;
    }};
}

/// Checks that norms of half-precision tensors are as close to f32 as the norms that they replace.
fn halves(xs: &Tensor, dtype: DType) -> Result<()> {
    let half = xs.to_dtype(dtype)?;
    let exact =
        original::norms::Normed::load(SIZE, Named::vb())?.normed(&half.to_dtype(DType::F32)?)?;
    let vb = || Named::vb().set_dtype(dtype);
    let original = original::norms::Normed::load(SIZE, vb())?.normed(&half)?;
    let ported = ported::norms::Normed::load(SIZE, vb())?.normed(&half)?;
    ensure!(ported.dtype() == dtype, "{:?}", ported.dtype());
    let noise = |ys: &Tensor| -> Result<f32> {
        let square = (ys.to_dtype(DType::F32)? - &exact)?.sqr()?;
        Ok(square.sum_all()?.to_scalar::<f32>()?)
    };
    let (before, after) = (noise(&original)?, noise(&ported)?);
    ensure!(after <= before, "{dtype:?}: expected at most {before:e}, got {after:e}");
    print::note(format_args!("norms in {dtype:?}: {after:.1e}, the original's {before:.1e}"));
    Ok(())
}

fn main() -> Result<()> {
    let xs = values("input", &[2, 6, SIZE])?;
    let ids = Tensor::arange(0u32, 12, &Device::Cpu)?.reshape((2, 6))?;
    let mask = values("mask", &[2, 6])?;
    let config = serde_json::json!({"vocab": 40, "size": SIZE, "heads": 4, "act": "gelu"});
    let config = config.to_string();
    // 4 in each of two layers.
    let encoders = [("encoder", false, 8, None), ("encoder with a head", true, 9, Some(&mask))];
    for (name, has_head, swapped, mask) in encoders {
        pattern!(
            name,
            swapped,
            &[],
            |krate| krate::models::encoder::Encoder::load(
                Named::vb(),
                &serde_json::from_str(&config)?,
                has_head
            )?,
            |model| model.forward(&ids, mask)?
        );
    }
    pattern!(
        "recurrent",
        3,
        &[],
        |krate| krate::recurrent::Recurrent::load(SIZE, Named::vb())?,
        |model| model.forward(&xs)?
    );
    // Conv1D, two of the attention, the router, two in each of four experts, three of LoRA.
    pattern!(
        "mixture",
        15,
        &["merged"],
        |krate| krate::models::experts::Mixture::load(SIZE, Named::vb())?,
        |model| model.forward(&xs)?
    );
    pattern!("norms", 1, &[], |krate| krate::norms::Normed::load(SIZE, Named::vb())?, |model| {
        model.forward(&xs)?
    });
    for dtype in [DType::F16, DType::BF16] {
        halves(&xs, dtype)?;
    }
    let shift = values("shift", &[6, 6])?;
    // Two of the attention, and the head; the table is off by default.
    for (name, tied, shift) in [("window, tied", true, None), ("window", false, Some(&shift))] {
        pattern!(
            name,
            3,
            &[],
            |krate| krate::models::window::Decoder::load(40, SIZE, tied, Named::vb())?,
            |model| model.forward(&ids, shift)?
        );
    }
    Ok(())
}
