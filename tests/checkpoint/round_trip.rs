//! Saved and loaded by the same code, a model gives the same bits.

use safetensors::Dtype;

use super::fixtures::raw;
use super::model::{Model, quantized, saved, source, specs};
use crate::kit::*;

#[test]
fn bits_are_those_before() -> Result<()> {
    let source = source()?;
    for (name, spec) in specs() {
        let model = quantized(&source.path, &spec)?;
        source.save(&model)?;
        let again = Model::open(&source.out)?;
        assert_eq!(again.bits()?, model.bits()?, "{name}");
        // And once more, from the quantized file itself.
        let twice = source.beside("twice");
        checkpoint::save(&again, &source.saved()?, &twice)?;
        assert_eq!(fs::read(&twice)?, fs::read(&source.out)?, "{name}");
    }
    Ok(())
}

#[test]
fn tensors_are_those_of_compressed_tensors_and_the_rest_is_copied() -> Result<()> {
    let source = saved(&all_int8().embeddings())?;
    let (before, after) = (raw(&source.path)?, raw(&source.out)?);
    for (name, tensor) in &before {
        let is_weight = name.contains("weight") && !name.starts_with("norm");
        if is_weight {
            assert_eq!((after[name].0, &after[name].1), (Dtype::I8, &tensor.1), "{name}");
            let scale = &after[&format!("{name}_scale")];
            assert_eq!((scale.0, &scale.1), (Dtype::F32, &vec![tensor.1[0], 1]), "{name}");
        } else {
            assert_eq!(&after[name], tensor, "{name}");
        }
    }
    assert!(after.contains_key("lstm.weight_hr_l0_scale"));
    assert!(after.contains_key("gru.weight_hh_l1_reverse_scale"));
    assert!(after.contains_key("cell.weight_ih_scale"));
    assert!(after.contains_key("table.weight_zero_point"));
    assert!(!after.contains_key("wide.weight_zero_point"));
    Ok(())
}

#[test]
fn layers_of_candle_get_the_dequantized_weight() -> Result<()> {
    let source = source()?;
    for (name, spec) in specs() {
        source.save(&quantized(&source.path, &spec)?)?;
        let saved = source.saved()?;
        for dtype in [DType::F32, DType::F16, DType::F64] {
            let vb = saved.var_builder(dtype, &Device::Cpu);
            let candles = candle_nn::linear(12, 67, vb.pp("wide"))?;
            let ours = nn::linear(12, 67, vb.pp("wide"))?;
            assert_eq!(candles.weight().dtype(), dtype);
            let expected = ours.weight().to_dtype(dtype)?;
            assert_eq!(values(candles.weight()), values(&expected), "{name}");
            let candles = candle_nn::embedding(50, 24, vb.pp("table"))?;
            let ours = nn::embedding(50, 24, vb.pp("table"))?;
            assert_eq!(values(candles.embeddings()), values(ours.embeddings()), "{name}");
        }
    }
    Ok(())
}

#[test]
fn float_zero_points_survive_to_the_last_bit() -> Result<()> {
    let rows = [[1e-9f32, 0.3, 1.], [0., 0.5, 2.], [-3., -2., -1.], [-1e-20, 1e-20, 0.]];
    let source = Source::of([("weight", Tensor::new(&rows, &Device::Cpu)?)])?;
    let mut layer = nn::embedding(4, 3, source.vb.clone())?;
    source.quantize(&mut layer, &all_int8().embeddings())?;
    let again = nn::embedding(4, 3, source.saved_vb()?)?;
    let (before, after) = (layer.qtable().expect("int8"), again.qtable().expect("int8"));
    assert_eq!(format!("{:?}", before.zero_points()), format!("{:?}", after.zero_points()));
    assert_eq!(before.codes(), after.codes());
    assert_eq!(values(&before.dequantize()?), values(&after.dequantize()?));
    Ok(())
}

#[test]
fn a_layer_without_a_tensor_is_named() -> Result<()> {
    let source = source()?;
    let model = vec![nn::Linear::new(random(&[3, 4]), None)];
    let error = fault(source.quantize(&mut model.clone(), &all_int8()));
    error.starts("0: cannot save").has("0.weight");
    assert!(!source.out.exists());
    // A float layer needs no codes.
    source.save(&model)?;
    assert_eq!(raw(&source.path)?, raw(&source.out)?);
    // A layer of another shape.
    #[derive(Quantizable)]
    struct Named {
        wide: Vec<nn::Linear>,
    }
    let mut wrong = Named { wide: model };
    quantize_dynamic(&mut wrong, &all_int8())?;
    assert!(source.save(&wrong.wide).is_err());
    Ok(())
}

#[test]
fn ordinary_var_builders_are_as_they_were() -> Result<()> {
    let zeros = VarBuilder::zeros(DType::F32, &Device::Cpu);
    let layer = nn::linear(4, 3, zeros.pp("a"))?;
    assert!(!is_quantized(&layer));
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    nn::linear(4, 3, vb.pp("a"))?;
    nn::embedding(4, 3, vb.pp("b"))?;
    let mut names: Vec<_> = vars.data().lock().expect("no panic").keys().cloned().collect();
    names.sort();
    assert_eq!(names, ["a.bias", "a.weight", "b.weight"]);
    Ok(())
}

#[test]
fn renamed_and_prefixed_builders_find_the_weights() -> Result<()> {
    let source = saved(&all_int8())?;
    let renamed = source.saved_vb()?.rename_f(|name| name.replace("broad", "wide"));
    let layer = nn::linear(12, 67, renamed.pp("broad"))?;
    assert!(is_quantized(&layer));
    let xs = Tensor::ones((2, 12), DType::F32, &Device::Cpu)?;
    assert_eq!(layer.forward(&xs)?.dims(), [2, 67]);
    Ok(())
}

#[test]
fn a_layer_of_a_users_own_is_saved_through_its_projection() -> Result<()> {
    use candle_dynquant::StoredWeight;

    #[derive(Quantizable, Clone)]
    #[quantizable(layer)]
    struct Own {
        projection: nn::Projection,
        passes_on: bool,
    }
    impl Layer for Own {
        fn kind(&self) -> LayerKind {
            LayerKind::custom("Own")
        }
        fn weight_infos(&self) -> Vec<WeightInfo> {
            vec![self.projection.info("kernel")]
        }
        fn quantize(&self, qconfig: &QConfig) -> candle_dynquant::Result<Self> {
            let projection = self.projection.quantize(qconfig)?;
            Ok(Self { projection, ..*self })
        }
        fn stored(&self) -> candle_dynquant::Result<Vec<StoredWeight>> {
            if self.passes_on {
                return Ok(vec![self.projection.stored("kernel")]);
            }
            // The message of a layer that cannot be saved.
            let message = "cannot save the layer: expected one, got another";
            Err(candle_dynquant::Error::new(ErrorKind::Unsupported, message))
        }
    }
    let kernel = random(&[3, 4]);
    let source = Source::of([("1.kernel", kernel.clone())])?;
    let projection = nn::Projection::new(kernel, None);
    let mut model = ((), Own { projection, passes_on: true });
    let int8 = QConfig::int8();
    let spec = QConfigSpec::all_kinds(int8.clone()).kind(LayerKind::custom("Own"), int8);
    source.quantize(&mut model, &spec)?;
    assert_eq!(raw(&source.out)?["1.kernel_scale"].1, [3, 1]);
    model.1.passes_on = false;
    fault(source.save(&model)).starts("1: ");
    Ok(())
}

/// A language model whose head is its embedding's table, with one tensor in the file.
#[derive(Quantizable, Clone)]
struct Tied {
    embed: nn::Embedding,
    hidden: nn::Linear,
    head: nn::Linear,
}

impl Tied {
    fn load(vb: &VarBuilder<'_>, way: &str) -> Result<Self> {
        let embed = nn::embedding(40, 16, vb.pp("embed"))?;
        let bias = vb.get(40, "head.bias")?;
        let table = || embed.embeddings().clone();
        let head = match way {
            "from_weights" => nn::Linear::from_weights(table(), None),
            "from_weights with bias" => nn::Linear::from_weights(table(), Some(bias)),
            "from candle_nn" => candle_nn::Linear::new(table(), None).into(),
            _ => nn::Linear::tied(&embed, None),
        };
        Ok(Self { hidden: nn::linear_no_bias(16, 16, vb.pp("hidden"))?, embed, head })
    }

    fn bits(&self) -> Result<Vec<u32>> {
        let xs = self.embed.forward(&Tensor::new(&[3u32, 39, 0], &Device::Cpu)?)?;
        Ok(bits(&self.head.forward(&self.hidden.forward(&xs)?)?))
    }
}

#[test]
fn a_tied_weight_is_one_tensor_in_the_file_and_in_memory() -> Result<()> {
    let source = Source::random([
        ("embed.weight", &[40, 16]),
        ("hidden.weight", &[16, 16]),
        ("head.bias", &[40]),
    ])?;
    let specs = [
        all_int8().embeddings(),
        QConfigSpec::pytorch().embeddings(),
        QConfigSpec::onnxruntime().embeddings(),
        QConfigSpec::float16().kind(LayerKind::Embedding, QConfig::float16()),
        QConfigSpec::bfloat16().embeddings(),
    ];
    for way in ["from_weights", "from_weights with bias", "from candle_nn", "tied"] {
        for spec in &specs {
            let mut model = Tied::load(&source.vb, way)?;
            let report = quantize_dynamic(&mut model, spec)?;
            assert_eq!(report.swapped().count(), 3, "{way}");
            source.save(&model)?;
            let opened = source.saved()?;
            let mut names = opened.tensors().map(|tensor| tensor.name);
            assert!(!names.any(|name| name.starts_with("head.weight")), "{way}");
            let again = Tied::load(&vb_of(&opened), way)?;
            assert_eq!(again.bits()?, model.bits()?, "{way}");
            let [embed, head] = [again.embed.weight_infos(), again.head.weight_infos()];
            assert_eq!(embed[0].id == head[0].id, way == "tied", "{way}");
            let twice = source.beside("twice");
            checkpoint::save(&again, &opened, &twice)?;
            assert_eq!(fs::read(&twice)?, fs::read(&source.out)?, "{way}");
        }
    }
    // A head is built from the table of its embedding, or from rows, while that or the checkpoint
    // lives.
    let vb = source.saved_vb()?;
    let embed = Tied::load(&vb, "tied")?.embed;
    let is_tied =
        |weight: &Tensor| nn::Linear::new(weight.clone(), None).weight_infos()[0].quantized;
    let table = embed.embeddings().clone();
    assert!(is_tied(&table));
    assert!(is_tied(&table.narrow(0, 0, 8)?));
    // A weight changed in place is another weight.
    let other = Tied::load(&vb, "tied")?.embed;
    let changed = other.embeddings();
    changed.slice_set(&Tensor::ones((1, 16), DType::F32, &Device::Cpu)?, 0, 39)?;
    assert!(!is_tied(changed));
    drop((embed, vb));
    assert!(!is_tied(&table) && !is_tied(&table.narrow(0, 0, 8)?));
    // A head alone is saved beside the table, if that came from a checkpoint.
    let mut model = Tied::load(&source.vb, "tied")?;
    source.quantize(&mut model, &all_int8())?;
    assert_eq!(Tied::load(&source.saved_vb()?, "tied")?.bits()?, model.bits()?);
    let mut model = Tied::load(&source.vb, "tied")?;
    model.embed = nn::Embedding::new(random(&[40, 16]), 16);
    model.head = nn::Linear::tied(&model.embed, None);
    fault(source.quantize(&mut model, &all_int8())).starts("head: ").has("tied to an embedding");
    Ok(())
}

#[test]
fn layers_of_one_name_are_quantized_alike() -> Result<()> {
    #[derive(Quantizable)]
    struct Twice {
        first: nn::Linear,
        second: nn::Linear,
    }

    let shapes: [(&str, &[usize]); 1] = [("head.weight", &[6, 8])];
    let (source, other) = (Source::random(shapes)?, Source::random(shapes)?);
    let load = |from: &Source| nn::linear_no_bias(8, 6, from.vb.pp("head"));
    let row = QConfig::int8();
    let mut per_tensor = row.clone();
    if let QConfig::Int8 { activation, .. } = &mut per_tensor {
        activation.granularity = Granularity::PerTensor;
    }
    for (from, qconfig, same) in [
        (&source, row.clone(), true),
        // Other activations, another format, other codes.
        (&source, per_tensor, false),
        (&source, QConfig::pytorch(), false),
        (&other, row.clone(), false),
    ] {
        let mut model = Twice { first: load(&source)?, second: load(from)? };
        let spec = QConfigSpec::new().name("first", row.clone()).name("second", qconfig);
        quantize_dynamic(&mut model, &spec)?;
        let saved = source.save(&model);
        assert_eq!(saved.is_ok(), same, "{spec}: {saved:?}");
    }
    Ok(())
}

/// Signed codes are 128 less than PyTorch's, and so are their zero points.
#[test]
fn float_zero_points_are_written_for_both_kinds_of_codes() -> Result<()> {
    let tensors = raw(&saved(&all_int8().embeddings())?.out)?;
    let zeros = tensors
        .iter()
        .filter(|(name, _)| name.starts_with("table.weight") && name.contains("zero_point"));
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.as_chunks().0.iter().map(|float| f32::from_le_bytes(*float)).collect()
    };
    let zeros: Vec<Vec<f32>> = zeros.map(|(_, (_, _, bytes))| floats(bytes)).collect();
    let [a, b] = &zeros[..] else { panic!("two sets of zero points, got {}", zeros.len()) };
    assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() == 128.), "{a:?} {b:?}");
    Ok(())
}
