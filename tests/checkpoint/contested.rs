//! Layers that compete for a tensor: each is saved, beside it or once, or is refused by its path.

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use candle_dynquant::{
    Checkpoint, Granularity, QConfig, QConfigSpec, Quantizable, checkpoint, nn, quantize_dynamic,
};
use candle_nn::VarBuilder;

use super::origins::{in_proj, quantized, random, round_trip, write, write_in_proj};

/// Saves layers that were loaded from a file with these tensors.
pub fn saved<M: Quantizable, const N: usize>(
    tensors: [(&str, Tensor); N],
    load: impl Fn(VarBuilder<'static>) -> candle_core::Result<M>,
    spec: &QConfigSpec,
) -> Result<String> {
    let dir = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| dir.path().join(name));
    write(&float, tensors)?;
    let source = Checkpoint::open(&float)?;
    let mut model = load(source.var_builder(DType::F32, &Device::Cpu))?;
    quantize_dynamic(&mut model, spec)?;
    let saved = checkpoint::save(&model, &source, &out);
    Ok(saved.map_or_else(|error| error.to_string(), |saved| saved.to_string()))
}

const CONTESTED: &str = "one weight for the tensor";

#[test]
fn a_part_of_two_layers_is_saved_once_if_they_are_quantized_alike() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| dir.path().join(name));
    write_in_proj(&float)?;
    let load = |vb: VarBuilder<'static>| {
        let layers = [in_proj(&vb)?, in_proj(&vb)?];
        Ok(layers.into_iter().flatten().take(4).collect::<Vec<_>>())
    };
    let int8 = QConfigSpec::int8().min_params(0);
    let saved_alike = round_trip(&float, &out, &int8, DType::F32, load, |m| m.iter().collect())?;
    assert_eq!((quantized(&out)?.len(), saved_alike.beside.len()), (1, 0));
    let tensors = || -> Result<_> {
        Ok([("attn.in_proj_weight", random(&[24, 16])?), ("attn.in_proj_bias", random(&[24])?)])
    };
    let unlike = int8.name("3", QConfig::pytorch());
    let error = saved(tensors()?, load, &unlike)?;
    assert!(error.starts_with("3: ") && error.contains(CONTESTED), "{error}");
    Ok(())
}

#[test]
fn rows_of_a_tensor_that_another_layer_needs_are_saved_beside_it() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| dir.path().join(name));
    write_in_proj(&float)?;
    let spec = QConfigSpec::int8().min_params(0).exclude("3");
    let with_whole = |vb: VarBuilder<'static>| {
        let mut layers = in_proj(&vb)?;
        let whole = vb.get((24, 16), "attn.in_proj_weight")?;
        layers.push(nn::Linear::new(whole, None));
        Ok(layers)
    };
    let saved = round_trip(&float, &out, &spec, DType::F32, with_whole, |m| m.iter().collect())?;
    assert_eq!(saved.beside.len(), 3);
    // A layer that is in no file needs no tensor.
    let with_other = |vb: VarBuilder<'static>| {
        let mut layers = in_proj(&vb)?;
        let other = Tensor::ones((5, 16), DType::F32, &Device::Cpu)?;
        layers.push(nn::Linear::new(other, None));
        Ok(layers)
    };
    let saved = round_trip(&float, &out, &spec, DType::F32, with_other, |m| m.iter().collect())?;
    assert_eq!((quantized(&out)?.len(), saved.beside.len()), (1, 0));
    assert_eq!(saved.unsaved, ["3"]);
    Ok(())
}

#[derive(Quantizable)]
struct TwoHeads {
    embed: nn::Embedding,
    heads: Vec<nn::Linear>,
}

#[test]
fn two_heads_of_a_float_table_are_saved_once_if_they_multiply_alike() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| dir.path().join(name));
    write(&float, [("embed.weight", random(&[40, 16])?)])?;
    let load = |vb: VarBuilder<'static>| {
        let [first, second] = [0; 2].map(|_| vb.get((40, 16), "embed.weight"));
        let head = |weight| nn::Linear::new(weight, None);
        Ok(TwoHeads {
            embed: nn::embedding(40, 16, vb.pp("embed"))?,
            heads: vec![head(first?), head(second?)],
        })
    };
    let per_channel = QConfig::per_channel();
    let alike = QConfigSpec::all_kinds(per_channel.clone()).min_params(0);
    let beside = round_trip(&float, &out, &alike, DType::F32, load, |m| m.heads.iter().collect())?;
    assert_eq!(beside.beside.len(), 1);
    // Equal codes, but another treatment of activations.
    let mut per_row = per_channel.clone();
    if let QConfig::Int8 { activation, .. } = &mut per_row {
        activation.granularity = Granularity::PerRow;
    }
    for other in [per_row, QConfig::float16()] {
        let unlike = alike.clone().name("heads.1", other);
        let error = saved([("embed.weight", random(&[40, 16])?)], load, &unlike)?;
        assert!(error.starts_with("heads.1: ") && error.contains(CONTESTED), "{error}");
    }
    Ok(())
}

#[derive(Quantizable)]
struct Two {
    first: nn::Linear,
    w: nn::Linear,
}

#[test]
fn a_layer_whose_path_is_another_layers_tensor_is_refused() -> Result<()> {
    let load = |vb: VarBuilder<'static>| {
        let other = Tensor::randn(0f32, 1., (6, 8), &Device::Cpu)?;
        Ok(Two { first: nn::linear_no_bias(8, 6, vb.pp("w"))?, w: nn::Linear::new(other, None) })
    };
    let spec = QConfigSpec::int8().min_params(0);
    let error = saved([("w.weight", random(&[6, 8])?)], load, &spec)?;
    assert!(error.starts_with("w: ") && error.contains(CONTESTED), "{error}");
    // A tensor that is not a weight.
    let ids = Tensor::ones((6, 8), DType::U8, &Device::Cpu)?;
    let tensors = [("w.weight", ids), ("first.weight", random(&[6, 8])?)];
    let load = |vb: VarBuilder<'static>| {
        let other = Tensor::randn(0f32, 1., (6, 8), &Device::Cpu)?;
        Ok(Two {
            first: nn::linear_no_bias(8, 6, vb.pp("first"))?,
            w: nn::Linear::new(other, None),
        })
    };
    let error = saved(tensors, load, &spec)?;
    assert!(error.starts_with("w: ") && error.contains("a float dtype"), "{error}");
    // Equal codes in another shape are another weight.
    let load = |vb: VarBuilder<'static>| {
        let first = nn::linear_no_bias(8, 6, vb.pp("first"))?;
        let w = first.weight().copy()?.reshape((8, 6))?;
        let w = nn::Linear::new(w, None);
        Ok(Two { first, w })
    };
    let spec = QConfigSpec::pytorch().min_params(0);
    let error = saved([("first.weight", random(&[6, 8])?)], load, &spec)?;
    assert!(error.starts_with("w: ") && error.contains("in the checkpoint"), "{error}");
    Ok(())
}

#[test]
fn a_renamed_layer_of_another_checkpoint_is_refused() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, other, out] = ["float", "other", "out"].map(|name| dir.path().join(name));
    for path in [&float, &other] {
        write(path, [("layers.0.weight", random(&[6, 8])?)])?;
    }
    let opened = Checkpoint::open(&other)?;
    let vb = opened.var_builder(DType::F32, &Device::Cpu);
    let vb = vb.rename_f(|name| name.trim_start_matches("model.").to_owned());
    let mut layer = nn::linear_no_bias(8, 6, vb.pp("model.layers.0"))?;
    quantize_dynamic(&mut layer, &QConfigSpec::int8().min_params(0))?;
    let error = checkpoint::save(&layer, &Checkpoint::open(&float)?, &out);
    let error = error.expect_err("of another checkpoint").to_string();
    assert!(error.contains("another checkpoint"), "{error}");
    Ok(())
}
