//! Float weights that were changed after they were loaded are saved as in the model.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Result;
use candle_core::{DType, Device, Module, Tensor};
use candle_dynquant::checkpoint::{self, Saved, TensorInfo};
use candle_dynquant::{
    Checkpoint, Equalization, QConfigSpec, Quantizable, equalize, nn, quantize_dynamic,
};
use candle_nn::VarBuilder;

#[derive(Quantizable)]
struct Model {
    query: nn::Linear,
    fused: Vec<nn::Linear>,
    norm: nn::LayerNorm,
    words: nn::Embedding,
    lstm: nn::LSTM,
}

fn load(vb: &VarBuilder<'static>) -> Result<Model> {
    let fused = vb.get((12, 8), "fused.weight")?.chunk(2, 0)?;
    Ok(Model {
        query: nn::linear(8, 6, vb.pp("query"))?,
        fused: fused.into_iter().map(|part| nn::Linear::new(part, None)).collect(),
        norm: nn::layer_norm(8, 1e-5, vb.pp("norm"))?,
        words: nn::embedding(9, 8, vb.pp("words"))?,
        lstm: nn::LSTM::new(8, 3, Default::default(), vb.pp("lstm"))?,
    })
}

fn random(shape: &[usize]) -> Result<Tensor> {
    Ok(Tensor::randn(0f32, 1., shape, &Device::Cpu)?)
}

fn write(path: &Path, dtype: DType) -> Result<()> {
    let shapes: [(&str, &[usize]); 10] = [
        ("query.weight", &[6, 8]),
        ("query.bias", &[6]),
        ("fused.weight", &[12, 8]),
        ("norm.weight", &[8]),
        ("norm.bias", &[8]),
        ("words.weight", &[9, 8]),
        ("lstm.weight_ih_l0", &[12, 8]),
        ("lstm.weight_hh_l0", &[12, 3]),
        ("lstm.bias_ih_l0", &[12]),
        ("lstm.bias_hh_l0", &[12]),
    ];
    let tensors = shapes.map(|(name, shape)| Ok((name, random(shape)?.to_dtype(dtype)?)));
    let tensors = tensors.into_iter().collect::<Result<HashMap<_, _>>>()?;
    Ok(candle_core::safetensors::save(&tensors, path)?)
}

/// The tensors whose elements differ.
fn changed(a: &Path, b: &Path) -> Result<Vec<String>> {
    let [a, b] = [Checkpoint::open(a)?, Checkpoint::open(b)?];
    let mut names = Vec::new();
    for tensor in a.tensors() {
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        if bits(a.floats(&tensor.name)?) != bits(b.floats(&tensor.name)?) {
            names.push(tensor.name);
        }
    }
    Ok(names)
}

fn add_in_place(tensor: &Tensor) -> Result<()> {
    Ok(tensor.slice_set(&(tensor.copy()? + 1.)?, 0, 0)?)
}

#[test]
fn each_change_is_written_and_nothing_else() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| dir.path().join(name));
    type Change = fn(&mut Model) -> Result<()>;
    let changes: [(&[&str], Change); 7] = [
        (&[], |_| Ok(())),
        // A LoRA that is merged into a layer's memory.
        (&["query.weight"], |model| add_in_place(model.query.weight())),
        (&["query.bias"], |model| add_in_place(model.query.bias().expect("bias"))),
        (&["fused.weight"], |model| {
            let part = model.fused[1].weight();
            Ok(part.slice_set(&random(&[2, 8])?, 0, 3)?)
        }),
        (&["norm.bias"], |model| add_in_place(model.norm.bias().expect("bias"))),
        (&["words.weight"], |model| add_in_place(model.words.embeddings())),
        (&["query.weight", "words.weight"], |model| {
            add_in_place(model.query.weight())?;
            add_in_place(model.words.embeddings())
        }),
    ];
    for dtype in [DType::F32, DType::BF16, DType::F64] {
        write(&float, dtype)?;
        let source = Checkpoint::open(&float)?;
        for (names, change) in changes {
            let mut model = load(&source.var_builder(DType::F32, &Device::Cpu))?;
            change(&mut model)?;
            let saved = checkpoint::save(&model, &source, &out)?;
            assert_eq!(saved, Saved::default());
            if dtype == DType::F64 && !names.is_empty() {
                // Written tensors have the model's dtype.
                continue;
            }
            assert_eq!(changed(&float, &out)?, names, "{dtype:?}");
            let opened = Checkpoint::open(&out)?;
            // Unchanged tensors are copied.
            let module = |name: &str| name.rsplit_once('.').map(|(module, _)| module.to_owned());
            let copied = |tensor: &TensorInfo| {
                let own = module(&tensor.name);
                names.iter().all(|name| module(name) != own)
            };
            let pairs = source.tensors().zip(opened.tensors());
            assert!(pairs.filter(|(a, _)| copied(a)).all(|(a, b)| a == b));
            let again = load(&opened.var_builder(DType::F32, &Device::Cpu))?;
            let xs = random(&[3, 8])?;
            let pairs = model.fused.iter().zip(&again.fused);
            for (a, b) in pairs.chain([(&model.query, &again.query)]) {
                assert_eq!(a.forward(&xs)?.to_vec2::<f32>()?, b.forward(&xs)?.to_vec2::<f32>()?);
            }
        }
    }
    Ok(())
}

#[test]
fn a_bias_of_a_quantized_layer_too() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| dir.path().join(name));
    write(&float, DType::F32)?;
    let source = Checkpoint::open(&float)?;
    let mut model = load(&source.var_builder(DType::F32, &Device::Cpu))?;
    add_in_place(model.query.bias().expect("bias"))?;
    quantize_dynamic(&mut model, &QConfigSpec::int8().min_params(0))?;
    checkpoint::save(&model, &source, &out)?;
    let again = load(&Checkpoint::open(&out)?.var_builder(DType::F32, &Device::Cpu))?;
    let xs = random(&[3, 8])?;
    let [a, b] = [&model, &again].map(|model| model.query.forward(&xs));
    assert_eq!(a?.to_vec2::<f32>()?, b?.to_vec2::<f32>()?);
    Ok(())
}

#[test]
fn a_float_weight_that_was_not_loaded_is_named() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| dir.path().join(name));
    write(&float, DType::F32)?;
    let source = Checkpoint::open(&float)?;
    let model = load(&source.var_builder(DType::F32, &Device::Cpu))?;
    let computed = nn::Linear::new(random(&[4, 8])?, None);
    let saved = checkpoint::save(&(model, computed), &source, &out)?;
    assert_eq!(saved.unsaved, ["1"]);
    let text = saved.to_string();
    assert!(text.starts_with("1: its float weight is not written"), "{text}");
    // A weight that a loader computes from the tensor at its path would be computed again.
    let mut model = load(&source.var_builder(DType::F32, &Device::Cpu))?;
    model.query = nn::Linear::new((model.query.weight() * 2.)?, None);
    let weight = (model.norm.weight() + 1.)?;
    model.norm = nn::LayerNorm::new(weight, random(&[8])?, 1e-5);
    let saved = checkpoint::save(&model, &source, &out)?;
    assert_eq!(saved.unsaved, ["query", "norm"]);
    assert!(changed(&float, &out)?.is_empty());
    Ok(())
}

#[test]
fn layers_of_two_checkpoints_with_equal_names_are_not_mixed() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [a, b, copy, out] = ["a", "b", "copy", "out"].map(|name| dir.path().join(name));
    write(&a, DType::F32)?;
    write(&b, DType::F32)?;
    std::fs::copy(&a, &copy)?;
    let source = Checkpoint::open(&a)?;
    let specs = [None, Some(QConfigSpec::int8().min_params(0))];
    for (spec, is_closed) in specs.iter().flat_map(|spec| [(spec, false), (spec, true)]) {
        let saved = |path: &Path| {
            let opened = Checkpoint::open(path)?;
            let vb = opened.var_builder(DType::F32, &Device::Cpu);
            let mut layer = nn::linear(8, 6, vb.pp("query"))?;
            if let Some(spec) = &spec {
                quantize_dynamic(&mut layer, spec)?;
            }
            let kept = (!is_closed).then_some((opened, vb));
            let saved = checkpoint::save(&layer, &source, &out);
            drop(kept);
            Ok::<_, candle_dynquant::Error>(saved)
        };
        let error = saved(&b)?.expect_err("a layer of another checkpoint");
        let error = error.to_string();
        assert!(error.contains("another checkpoint"), "{error}");
        // A clone with the same tensor is saved as well.
        saved(&copy)??;
    }
    // Closed quantized checkpoints.
    let load = |path: &Path| {
        let vb = Checkpoint::open(path)?.var_builder(DType::F32, &Device::Cpu);
        nn::linear(8, 6, vb.pp("query"))
    };
    let [a8, b8] = ["a8", "b8"].map(|name| dir.path().join(name));
    for (float, int8) in [(&a, &a8), (&b, &b8)] {
        let mut layer = load(float)?;
        quantize_dynamic(&mut layer, &QConfigSpec::int8().min_params(0))?;
        checkpoint::save(&layer, &Checkpoint::open(float)?, int8)?;
    }
    let layer = load(&a8)?;
    checkpoint::save(&layer, &Checkpoint::open(&a8)?, &out)?;
    let error = checkpoint::save(&layer, &Checkpoint::open(&b8)?, &out);
    let error = error.expect_err("another checkpoint").to_string();
    assert!(error.contains("another checkpoint"), "{error}");
    Ok(())
}

/// A layer of a known tensor is saved in its place, or is an error; other layers are listed.
#[test]
fn tensors_of_other_shapes_and_layers_at_odds_are_told_apart() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| dir.path().join(name));
    write(&float, DType::F32)?;
    let source = Checkpoint::open(&float)?;
    let vb = source.var_builder(DType::F32, &Device::Cpu);
    // A computed weight whose path has a tensor of another shape.
    let mut model = load(&vb)?;
    model.query = nn::Linear::new(random(&[4, 8])?, None);
    assert_eq!(checkpoint::save(&model, &source, &out)?.unsaved, ["query"]);
    // Two layers with one tensor, one of which is changed.
    let table =
        || -> Result<nn::Linear> { Ok(nn::Linear::new(vb.get((9, 8), "words.weight")?, None)) };
    let model = load(&vb)?;
    let (head, other) = (table()?, table()?);
    add_in_place(head.weight())?;
    for layers in [vec![head.clone(), other.clone()], vec![other, head.clone()]] {
        let error = checkpoint::save(&layers, &source, &out);
        let error = error.expect_err("two layers").to_string();
        assert!(error.contains("one weight for the tensor \"words.weight\""), "{error}");
    }
    assert!(checkpoint::save(&(model, head), &source, &out).is_err());
    // Different norms with one name.
    let norm = || -> Result<nn::LayerNorm> { Ok(nn::layer_norm(8, 1e-5, vb.pp("norm"))?) };
    let norms = vec![norm()?, norm()?];
    for (norm, by) in norms.iter().zip([1., 2.]) {
        let weight = norm.weight();
        weight.slice_set(&(weight.copy()? + by)?, 0, 0)?;
    }
    let error = checkpoint::save(&norms, &source, &out).expect_err("two norms");
    assert!(error.to_string().contains("norm.weight"), "{error}");
    // A changed float layer beside a quantized layer with the same tensor.
    let mut quantized = nn::linear_no_bias(8, 6, vb.pp("query"))?;
    quantize_dynamic(&mut quantized, &QConfigSpec::int8().min_params(0))?;
    let changed = nn::linear_no_bias(8, 6, vb.pp("query"))?;
    add_in_place(changed.weight())?;
    let error = checkpoint::save(&(quantized, changed), &source, &out);
    assert!(error.is_err());
    Ok(())
}

#[derive(Quantizable, Clone)]
struct Block {
    norm: nn::LayerNorm,
    up: nn::Linear,
}

impl Block {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        self.up.forward(&self.norm.forward(xs)?)
    }
}

#[test]
fn equalized_layers_and_norms_need_their_tensors() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, other, out] = ["float", "other", "out"].map(|name| dir.path().join(name));
    let gain = Tensor::new(&[1f32, 1., 50., 1.], &Device::Cpu)?;
    let up = random(&[6, 4])?;
    let tensors = |gain: &Tensor| {
        HashMap::from([
            ("norm.weight", gain.clone()),
            ("norm.bias", gain.clone()),
            ("up.weight", up.clone()),
        ])
    };
    candle_core::safetensors::save(&tensors(&gain), &float)?;
    let source = Checkpoint::open(&float)?;
    let vb = source.var_builder(DType::F32, &Device::Cpu);
    let mut model = Block {
        norm: nn::layer_norm(4, 1e-5, vb.pp("norm"))?,
        up: nn::linear_no_bias(4, 6, vb.pp("up"))?,
    };
    let mut computed = model.clone();
    computed.up = nn::Linear::new((model.up.weight() * 2.)?, None);
    let probe = random(&[48, 4])?;
    for model in [&mut model, &mut computed] {
        let report = equalize(model, &Equalization::default(), |model| model.forward(&probe))?;
        assert_eq!(report.pairs.len(), 1);
    }
    assert_eq!(checkpoint::save(&model, &source, &out)?, Saved::default());
    // Tensors of other shapes or of integers, or missing tensors.
    let long = Tensor::ones(5, DType::F32, &Device::Cpu)?;
    let integers = Tensor::ones(4, DType::U32, &Device::Cpu)?;
    for gain in [&long, &integers] {
        candle_core::safetensors::save(&tensors(gain), &other)?;
        let error = checkpoint::save(&model, &Checkpoint::open(&other)?, &out);
        let error = error.expect_err("another norm").to_string();
        assert!(error.contains("norm.weight") && error.contains("floats [4]"), "{error}");
    }
    let mut without = tensors(&gain);
    without.remove("up.weight");
    candle_core::safetensors::save(&without, &other)?;
    let error = checkpoint::save(&computed, &Checkpoint::open(&other)?, &out);
    let error = error.expect_err("no tensor").to_string();
    assert!(error.contains("up.weight"), "{error}");
    Ok(())
}

/// A layer of a weight in groups is float, and its change replaces codes and scales.
#[test]
fn a_changed_layer_of_quantized_groups_is_written_as_floats() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [groups, out] = ["groups", "out"].map(|name| dir.path().join(name));
    let header = br#"{"a.weight":{"dtype":"I8","shape":[2,4],"data_offsets":[16,24]},"a.weight_scale":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.extend([1f32, 2., 3., 4.].iter().flat_map(|scale| scale.to_le_bytes()));
    bytes.extend([1u8; 8]);
    std::fs::write(&groups, bytes)?;
    let source = Checkpoint::open(&groups)?;
    let layer = nn::linear_no_bias(4, 2, source.var_builder(DType::F32, &Device::Cpu).pp("a"))?;
    add_in_place(layer.weight())?;
    checkpoint::save(&layer, &source, &out)?;
    let opened = Checkpoint::open(&out)?;
    let names: Vec<_> = opened.tensors().map(|tensor| tensor.name).collect();
    assert_eq!(names, ["a.weight"]);
    assert_eq!(opened.floats("a.weight")?, [2., 2., 3., 3., 4., 4., 5., 5.]);
    Ok(())
}
