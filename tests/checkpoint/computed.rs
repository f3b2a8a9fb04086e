//! Weights that are computed while a model is loaded.

use std::cell::Cell;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use candle_dynquant::{Checkpoint, QConfigSpec, checkpoint, nn, quantize_dynamic};
use candle_nn::{Module, VarBuilder};

use super::contested::saved;
use super::origins::{quantized, random, write};

/// Query, scaled, and key as one layer with a bias.
fn stacked(vb: &VarBuilder<'_>, name: &str) -> candle_core::Result<nn::Linear> {
    nn::Linear::computed(32, 8, vb.pp(name), || {
        let query = (vb.get((4, 32), "query.weight")? * 0.5)?;
        let weight = Tensor::cat(&[query, vb.get((4, 32), "key.weight")?], 0)?;
        Ok((weight, Some(vb.get(8, "key.bias")?)))
    })
}

fn tensors() -> Result<[(&'static str, Tensor); 3]> {
    Ok([
        ("query.weight", random(&[4, 32])?),
        ("key.weight", random(&[4, 32])?),
        ("key.bias", random(&[8])?),
    ])
}

#[test]
fn a_computed_weight_is_saved_under_its_name_and_loaded_without_computing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = |name: &str| dir.path().join(name);
    let xs = random(&[3, 32])?;
    write(&path("float"), tensors()?)?;
    let source = Checkpoint::open(path("float"))?;
    let load = |source: &Checkpoint| stacked(&source.var_builder(DType::F32, &Device::Cpu), "both");
    let specs = [QConfigSpec::int8(), QConfigSpec::int4(), QConfigSpec::float16()];
    for (number, spec) in specs.into_iter().enumerate() {
        let mut model = load(&source)?;
        quantize_dynamic(&mut model, &spec.min_params(0))?;
        let out = path(&number.to_string());
        let saved = checkpoint::save(&model, &source, &out)?;
        assert_eq!(saved.beside.len(), 1);
        assert_eq!(saved.beside[0].tensor, "both.weight");

        let opened = Checkpoint::open(&out)?;
        let is_computed = Cell::new(false);
        let vb = opened.var_builder(DType::F32, &Device::Cpu);
        let again = nn::Linear::computed(32, 8, vb.pp("both"), || {
            is_computed.set(true);
            Ok((random(&[8, 32]).map_err(candle_core::Error::msg)?, None))
        })?;
        assert!(!is_computed.get());
        let bits = |layer: &nn::Linear| layer.forward(&xs)?.to_vec2::<f32>();
        assert_eq!(bits(&again)?, bits(&model)?);
        // Its own file, and the float one, take it again.
        for source in [&opened, &source] {
            let next = path(&format!("{number} again"));
            checkpoint::save(&again, source, &next)?;
            assert_eq!(quantized(&next)?, ["both.weight"]);
            assert_eq!(bits(&load(&Checkpoint::open(&next)?)?)?, bits(&model)?);
        }
        // The sources are as they were.
        let float = source.var_builder(DType::F32, &Device::Cpu);
        let key = |vb: &VarBuilder<'_>| vb.get((4, 32), "key.weight")?.to_vec2::<f32>();
        assert_eq!(key(&vb)?, key(&float)?);
    }
    Ok(())
}

#[test]
fn computed_weights_of_one_name_are_equal_or_refused() -> Result<()> {
    let spec = QConfigSpec::int8().min_params(0);
    let twice = |vb: VarBuilder<'static>| Ok(vec![stacked(&vb, "both")?, stacked(&vb, "both")?]);
    let lines = saved(tensors()?, twice, &spec)?;
    assert_eq!(lines.lines().count(), 1, "{lines}");
    let two = |vb: VarBuilder<'static>| {
        let other = nn::Linear::computed(4, 32, vb.pp("both"), || {
            Ok((vb.get((4, 32), "key.weight")?.t()?.contiguous()?, None))
        })?;
        Ok(vec![stacked(&vb, "both")?, other])
    };
    let error = saved(tensors()?, two, &spec)?;
    assert!(error.contains("one weight for the tensor \"both.weight\""), "{error}");
    let wrong = |vb: VarBuilder<'static>| stacked(&vb, "key");
    let error = saved(tensors()?, wrong, &spec);
    assert!(error.is_err_and(|e| e.to_string().contains("key")));
    Ok(())
}
