//! Float weights that were changed after they were loaded are saved as in the model.

use candle_dynquant::checkpoint::TensorInfo;

use super::text::written;
use crate::kit::*;

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

fn source(dtype: DType) -> Result<Source> {
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
    let tensor = |shape| random(shape).to_dtype(dtype).expect("a float dtype");
    Ok(Source::of(shapes.map(|(name, shape)| (name, tensor(shape))))?)
}

/// The tensors whose elements differ in the saved file.
fn changed(source: &Source) -> Result<Vec<String>> {
    let (a, b) = (&source.checkpoint, source.saved()?);
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
    type Change = fn(&mut Model) -> Result<()>;
    let changes: [(&[&str], Change); 7] = [
        (&[], |_| Ok(())),
        // A LoRA that is merged into a layer's memory.
        (&["query.weight"], |model| add_in_place(model.query.weight())),
        (&["query.bias"], |model| add_in_place(model.query.bias().expect("bias"))),
        (&["fused.weight"], |model| {
            Ok(model.fused[1].weight().slice_set(&random(&[2, 8]), 0, 3)?)
        }),
        (&["norm.bias"], |model| add_in_place(model.norm.bias().expect("bias"))),
        (&["words.weight"], |model| add_in_place(model.words.embeddings())),
        (&["query.weight", "words.weight"], |model| {
            add_in_place(model.query.weight())?;
            add_in_place(model.words.embeddings())
        }),
    ];
    for dtype in [DType::F32, DType::BF16, DType::F64] {
        let source = source(dtype)?;
        for (names, change) in changes {
            let mut model = load(&source.vb)?;
            change(&mut model)?;
            assert_eq!(source.save(&model)?, Saved::default());
            if dtype == DType::F64 && !names.is_empty() {
                // Written tensors have the model's dtype.
                continue;
            }
            assert_eq!(changed(&source)?, names, "{dtype:?}");
            let opened = source.saved()?;
            // Unchanged tensors are copied.
            let module = |name: &str| name.rsplit_once('.').map(|(module, _)| module.to_owned());
            let copied = |tensor: &TensorInfo| {
                let own = module(&tensor.name);
                names.iter().all(|name| module(name) != own)
            };
            let pairs = source.checkpoint.tensors().zip(opened.tensors());
            assert!(pairs.filter(|(a, _)| copied(a)).all(|(a, b)| a == b));
            let again = load(&vb_of(&opened))?;
            let xs = random(&[3, 8]);
            let pairs = model.fused.iter().zip(&again.fused);
            for (a, b) in pairs.chain([(&model.query, &again.query)]) {
                assert_eq!(values(&a.forward(&xs)?), values(&b.forward(&xs)?));
            }
        }
    }
    Ok(())
}

#[test]
fn a_bias_of_a_quantized_layer_too() -> Result<()> {
    let source = source(DType::F32)?;
    let mut model = load(&source.vb)?;
    add_in_place(model.query.bias().expect("bias"))?;
    source.quantize(&mut model, &all_int8())?;
    let again = load(&source.saved_vb()?)?;
    let xs = random(&[3, 8]);
    assert_eq!(values(&model.query.forward(&xs)?), values(&again.query.forward(&xs)?));
    Ok(())
}

#[test]
fn a_float_weight_that_was_not_loaded_is_named() -> Result<()> {
    let source = source(DType::F32)?;
    let computed = nn::Linear::new(random(&[4, 8]), None);
    let saved = source.save(&(load(&source.vb)?, computed))?;
    assert_eq!(saved.unsaved, ["1"]);
    let text = saved.to_string();
    assert!(text.starts_with("1: its float weight is not written"), "{text}");
    // A weight that a loader computes from the tensor at its path would be computed again.
    let mut model = load(&source.vb)?;
    model.query = nn::Linear::new((model.query.weight() * 2.)?, None);
    model.norm = nn::LayerNorm::new((model.norm.weight() + 1.)?, random(&[8]), 1e-5);
    assert_eq!(source.save(&model)?.unsaved, ["query", "norm"]);
    assert!(changed(&source)?.is_empty());
    Ok(())
}

#[test]
fn layers_of_two_checkpoints_with_equal_names_are_not_mixed() -> Result<()> {
    let (a, b, copy) = (source(DType::F32)?, source(DType::F32)?, source(DType::F32)?);
    fs::copy(&a.path, &copy.path)?;
    for (quantized, is_closed) in [(false, false), (false, true), (true, false), (true, true)] {
        let saved = |path: &Path| {
            let opened = Checkpoint::open(path)?;
            let vb = vb_of(&opened);
            let mut layer = nn::linear(8, 6, vb.pp("query"))?;
            if quantized {
                quantize_dynamic(&mut layer, &all_int8())?;
            }
            let kept = (!is_closed).then_some((opened, vb));
            let saved = a.save(&layer);
            drop(kept);
            Ok::<_, candle_dynquant::Error>(saved)
        };
        fault(saved(&b.path)?).has("another checkpoint");
        // A clone with the same tensor is saved as well.
        saved(&copy.path)??;
    }
    // Closed quantized checkpoints.
    let load = |path: &Path| nn::linear(8, 6, open(path).expect("opens").pp("query"));
    for source in [&a, &b] {
        source.quantize(&mut load(&source.path)?, &all_int8())?;
    }
    let layer = load(&a.out)?;
    checkpoint::save(&layer, &a.saved()?, &copy.out)?;
    fault(checkpoint::save(&layer, &b.saved()?, &copy.out)).has("another checkpoint");
    Ok(())
}

/// A layer of a known tensor is saved in its place, or is an error; other layers are listed.
#[test]
fn tensors_of_other_shapes_and_layers_at_odds_are_told_apart() -> Result<()> {
    let source = source(DType::F32)?;
    let vb = &source.vb;
    // A computed weight whose path has a tensor of another shape.
    let mut model = load(vb)?;
    model.query = nn::Linear::new(random(&[4, 8]), None);
    assert_eq!(source.save(&model)?.unsaved, ["query"]);
    // Two layers with one tensor, one of which is changed.
    let table = || vb.get((9, 8), "words.weight").map(|weight| nn::Linear::new(weight, None));
    let model = load(vb)?;
    let (head, other) = (table()?, table()?);
    add_in_place(head.weight())?;
    for layers in [vec![head.clone(), other.clone()], vec![other, head.clone()]] {
        fault(source.save(&layers)).has("one weight for the tensor \"words.weight\"");
    }
    assert!(source.save(&(model, head)).is_err());
    // Different norms with one name.
    let norm = || nn::layer_norm(8, 1e-5, vb.pp("norm"));
    let norms = vec![norm()?, norm()?];
    for (norm, by) in norms.iter().zip([1., 2.]) {
        let weight = norm.weight();
        weight.slice_set(&(weight.copy()? + by)?, 0, 0)?;
    }
    fault(source.save(&norms)).has("norm.weight");
    // A changed float layer beside a quantized layer with the same tensor.
    let query = || nn::linear_no_bias(8, 6, vb.pp("query"));
    let (mut quantized, changed) = (query()?, query()?);
    quantize_dynamic(&mut quantized, &all_int8())?;
    add_in_place(changed.weight())?;
    assert!(source.save(&(quantized, changed)).is_err());
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
    let gain = Tensor::new(&[1f32, 1., 50., 1.], &Device::Cpu)?;
    let norms = |gain: &Tensor| [("norm.weight", gain.clone()), ("norm.bias", gain.clone())];
    let with = |gain: &Tensor, up: &Tensor| {
        let [weight, bias] = norms(gain);
        Source::of([weight, bias, ("up.weight", up.clone())])
    };
    let up = random(&[6, 4]);
    let source = with(&gain, &up)?;
    let mut model = Block {
        norm: nn::layer_norm(4, 1e-5, source.vb.pp("norm"))?,
        up: nn::linear_no_bias(4, 6, source.vb.pp("up"))?,
    };
    let mut computed = model.clone();
    computed.up = nn::Linear::new((model.up.weight() * 2.)?, None);
    let probe = random(&[48, 4]);
    for model in [&mut model, &mut computed] {
        let report = equalize(model, &Equalization::default(), |model| model.forward(&probe))?;
        assert_eq!(report.pairs.len(), 1);
    }
    assert_eq!(source.save(&model)?, Saved::default());
    // Tensors of other shapes or of integers, or missing tensors.
    let long = Tensor::ones(5, DType::F32, &Device::Cpu)?;
    let integers = Tensor::ones(4, DType::U32, &Device::Cpu)?;
    for gain in [&long, &integers] {
        fault(with(gain, &up)?.save(&model)).has("norm.weight").has("floats [4]");
    }
    fault(Source::of(norms(&gain))?.save(&computed)).has("up.weight");
    Ok(())
}

/// A layer of a weight in groups is float, and its change replaces codes and scales.
#[test]
fn a_changed_layer_of_quantized_groups_is_written_as_floats() -> Result<()> {
    let (_dir, [groups, out]) = paths(["groups", "out"]);
    let tensors = "a.weight_scale F32 [2,2] 1 2 3 4; a.weight I8 [2,4] 8*1";
    fs::write(&groups, written(tensors, Value::Null))?;
    let source = Checkpoint::open(&groups)?;
    let layer = nn::linear_no_bias(4, 2, vb_of(&source).pp("a"))?;
    add_in_place(layer.weight())?;
    checkpoint::save(&layer, &source, &out)?;
    let opened = Checkpoint::open(&out)?;
    let names: Vec<_> = opened.tensors().map(|tensor| tensor.name).collect();
    assert_eq!(names, ["a.weight"]);
    assert_eq!(opened.floats("a.weight")?, [2., 2., 3., 3., 4., 4., 5., 5.]);
    Ok(())
}
