//! Weights that are computed while a model is loaded.

use std::cell::Cell;

use super::contested::saved;
use super::origins::quantized;
use crate::kit::*;

/// Query, scaled, and key as one layer with a bias.
fn stacked(vb: &VarBuilder<'_>, name: &str) -> candle_core::Result<nn::Linear> {
    nn::Linear::computed(32, 8, vb.pp(name), || {
        let query = (vb.get((4, 32), "query.weight")? * 0.5)?;
        let weight = Tensor::cat(&[query, vb.get((4, 32), "key.weight")?], 0)?;
        Ok((weight, Some(vb.get(8, "key.bias")?)))
    })
}

fn tensors() -> [(&'static str, Tensor); 3] {
    [
        ("query.weight", random(&[4, 32])),
        ("key.weight", random(&[4, 32])),
        ("key.bias", random(&[8])),
    ]
}

#[test]
fn a_computed_weight_is_saved_under_its_name_and_loaded_without_computing() -> Result<()> {
    let xs = random(&[3, 32]);
    let bits = |layer: &nn::Linear| layer.forward(&xs).map(|ys| bits(&ys));
    let source = Source::of(tensors())?;
    for spec in [QConfigSpec::int8(), QConfigSpec::int4(), QConfigSpec::float16()] {
        let mut model = stacked(&source.vb, "both")?;
        let saved = source.quantize(&mut model, &spec.min_params(0))?;
        assert_eq!(saved.beside.len(), 1);
        assert_eq!(saved.beside[0].tensor, "both.weight");

        let opened = source.saved()?;
        let is_computed = Cell::new(false);
        let vb = vb_of(&opened);
        let again = nn::Linear::computed(32, 8, vb.pp("both"), || {
            is_computed.set(true);
            Ok((random(&[8, 32]), None))
        })?;
        assert!(!is_computed.get());
        assert_eq!(bits(&again)?, bits(&model)?);
        // Its own file, and the float one, take it again.
        for checkpoint in [&opened, &source.checkpoint] {
            let next = source.beside("again");
            checkpoint::save(&again, checkpoint, &next)?;
            assert_eq!(quantized(&next)?, ["both.weight"]);
            assert_eq!(bits(&stacked(&open(&next)?, "both")?)?, bits(&model)?);
        }
        // The sources are as they were.
        let key = |vb: &VarBuilder<'_>| vb.get((4, 32), "key.weight")?.to_vec2::<f32>();
        assert_eq!(key(&vb)?, key(&source.vb)?);
    }
    Ok(())
}

#[test]
fn computed_weights_of_one_name_are_equal_or_refused() -> Result<()> {
    let spec = all_int8();
    let twice = |vb: VarBuilder<'static>| Ok(vec![stacked(&vb, "both")?, stacked(&vb, "both")?]);
    let lines = saved(tensors(), twice, &spec)?;
    assert_eq!(lines.lines().count(), 1, "{lines}");
    let two = |vb: VarBuilder<'static>| {
        let other = nn::Linear::computed(4, 32, vb.pp("both"), || {
            Ok((vb.get((4, 32), "key.weight")?.t()?.contiguous()?, None))
        })?;
        Ok(vec![stacked(&vb, "both")?, other])
    };
    let error = saved(tensors(), two, &spec)?;
    assert!(error.contains("one weight for the tensor \"both.weight\""), "{error}");
    let wrong = |vb: VarBuilder<'static>| stacked(&vb, "key");
    fault(saved(tensors(), wrong, &spec)).has("key");
    Ok(())
}
