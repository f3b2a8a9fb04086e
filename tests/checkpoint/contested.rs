//! Layers that compete for a tensor: each is saved, beside it or once, or is refused by its path.

use super::origins::{IN_PROJ, each, in_proj, quantized, round_trip};
use crate::kit::*;

/// Saves layers that were loaded from a file with these tensors: the lines or the error.
pub fn saved<M: Quantizable, const N: usize>(
    tensors: [(&str, Tensor); N],
    load: impl Fn(VarBuilder<'static>) -> candle_core::Result<M>,
    spec: &QConfigSpec,
) -> Result<String> {
    let source = Source::of(tensors)?;
    let mut model = load(source.vb.clone())?;
    quantize_dynamic(&mut model, spec)?;
    let saved = source.save(&model);
    Ok(saved.map_or_else(|error| error.to_string(), |saved| saved.to_string()))
}

const CONTESTED: &str = "one weight for the tensor";

#[test]
fn a_part_of_two_layers_is_saved_once_if_they_are_quantized_alike() -> Result<()> {
    let source = Source::random(IN_PROJ)?;
    let load = |vb: VarBuilder<'static>| {
        let layers = [in_proj(&vb)?, in_proj(&vb)?];
        Ok(layers.into_iter().flatten().take(4).collect::<Vec<_>>())
    };
    let saved_alike = round_trip(&source, &all_int8(), load, each)?;
    assert_eq!((quantized(&source.out)?.len(), saved_alike.beside.len()), (1, 0));
    let unlike = all_int8().name("3", QConfig::pytorch());
    let error = saved(IN_PROJ.map(|(name, shape)| (name, random(shape))), load, &unlike)?;
    assert!(error.starts_with("3: ") && error.contains(CONTESTED), "{error}");
    Ok(())
}

#[test]
fn rows_of_a_tensor_that_another_layer_needs_are_saved_beside_it() -> Result<()> {
    let source = Source::random(IN_PROJ)?;
    let spec = all_int8().exclude("3");
    let with = |layer: fn(&VarBuilder<'static>) -> candle_core::Result<Tensor>| {
        move |vb: VarBuilder<'static>| {
            let mut layers = in_proj(&vb)?;
            layers.push(nn::Linear::new(layer(&vb)?, None));
            Ok(layers)
        }
    };
    let with_whole = with(|vb| vb.get((24, 16), "attn.in_proj_weight"));
    assert_eq!(round_trip(&source, &spec, with_whole, each)?.beside.len(), 3);
    // A layer that is in no file needs no tensor.
    let with_other = with(|_| Tensor::ones((5, 16), DType::F32, &Device::Cpu));
    let saved = round_trip(&source, &spec, with_other, each)?;
    assert_eq!((quantized(&source.out)?.len(), saved.beside.len()), (1, 0));
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
    let source = Source::random([("embed.weight", &[40, 16])])?;
    let load = |vb: VarBuilder<'static>| {
        let head = |_| Ok(nn::Linear::new(vb.get((40, 16), "embed.weight")?, None));
        let heads = (0..2).map(head).collect::<candle_core::Result<_>>()?;
        Ok(TwoHeads { embed: nn::embedding(40, 16, vb.pp("embed"))?, heads })
    };
    let per_channel = QConfig::per_channel();
    let alike = QConfigSpec::all_kinds(per_channel.clone()).min_params(0);
    let beside = round_trip(&source, &alike, load, |m| m.heads.iter().collect())?;
    assert_eq!(beside.beside.len(), 1);
    // Equal codes, but another treatment of activations.
    let mut per_row = per_channel.clone();
    if let QConfig::Int8 { activation, .. } = &mut per_row {
        activation.granularity = Granularity::PerRow;
    }
    for other in [per_row, QConfig::float16()] {
        let unlike = alike.clone().name("heads.1", other);
        let error = saved([("embed.weight", random(&[40, 16]))], load, &unlike)?;
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
    let spec = all_int8();
    let other_of = |first: &'static str| {
        move |vb: VarBuilder<'static>| {
            let first = nn::linear_no_bias(8, 6, vb.pp(first))?;
            Ok(Two { first, w: nn::Linear::new(random(&[6, 8]), None) })
        }
    };
    let error = saved([("w.weight", random(&[6, 8]))], other_of("w"), &spec)?;
    assert!(error.starts_with("w: ") && error.contains(CONTESTED), "{error}");
    // A tensor that is not a weight.
    let ids = Tensor::ones((6, 8), DType::U8, &Device::Cpu)?;
    let tensors = [("w.weight", ids), ("first.weight", random(&[6, 8]))];
    let error = saved(tensors, other_of("first"), &spec)?;
    assert!(error.starts_with("w: ") && error.contains("a float dtype"), "{error}");
    // Equal codes in another shape are another weight.
    let load = |vb: VarBuilder<'static>| {
        let first = nn::linear_no_bias(8, 6, vb.pp("first"))?;
        let w = nn::Linear::new(first.weight().copy()?.reshape((8, 6))?, None);
        Ok(Two { first, w })
    };
    let spec = QConfigSpec::pytorch().min_params(0);
    let error = saved([("first.weight", random(&[6, 8]))], load, &spec)?;
    assert!(error.starts_with("w: ") && error.contains("in the checkpoint"), "{error}");
    Ok(())
}

#[test]
fn a_renamed_layer_of_another_checkpoint_is_refused() -> Result<()> {
    let shapes: [(&str, &[usize]); 1] = [("layers.0.weight", &[6, 8])];
    let (source, other) = (Source::random(shapes)?, Source::random(shapes)?);
    let vb = other.vb.clone().rename_f(|name| name.trim_start_matches("model.").to_owned());
    let mut layer = nn::linear_no_bias(8, 6, vb.pp("model.layers.0"))?;
    fault(source.quantize(&mut layer, &all_int8())).has("another checkpoint");
    Ok(())
}
