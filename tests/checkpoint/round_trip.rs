//! Saved and loaded by the same code, a model gives the same bits.

use std::collections::{BTreeMap, HashMap};

use anyhow::Result;
use candle_core::{DType, Device, Module, Tensor};
use candle_dynquant::{
    Checkpoint, ErrorKind, Granularity, QConfig, QConfigSpec, QTable, Quantizable, checkpoint, nn,
    quantize_dynamic,
};
use safetensors::SafeTensors;

use super::model::{Model, quantized, saved, specs, write_float};

#[test]
fn bits_are_those_before() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let float = write_float(dir.path())?;
    let source = Checkpoint::open(&float)?;
    let out = dir.path().join("quantized.safetensors");
    for (name, spec) in specs() {
        let model = quantized(&float, &spec)?;
        checkpoint::save(&model, &source, &out)?;
        let again = Model::open(&out)?;
        assert_eq!(again.bits()?, model.bits()?, "{name}");
        // And once more, from the quantized file itself.
        let twice = dir.path().join("twice.safetensors");
        checkpoint::save(&again, &Checkpoint::open(&out)?, &twice)?;
        assert_eq!(std::fs::read(&twice)?, std::fs::read(&out)?, "{name}");
    }
    Ok(())
}

/// Dtype, shape and bytes.
type Raw = (String, Vec<usize>, Vec<u8>);

/// The tensors of a file.
fn tensors(path: &std::path::Path) -> Result<BTreeMap<String, Raw>> {
    let bytes = std::fs::read(path)?;
    let file = SafeTensors::deserialize(&bytes)?;
    let tensors = file.iter().map(|(name, view)| {
        let entry = (view.dtype().to_string(), view.shape().to_vec(), view.data().to_vec());
        (name.to_owned(), entry)
    });
    Ok(tensors.collect())
}

#[test]
fn tensors_are_those_of_compressed_tensors_and_the_rest_is_copied() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let spec = QConfigSpec::int8().min_params(0).embeddings();
    let [float, out] = saved(dir.path(), &spec)?;
    let (before, after) = (tensors(&float)?, tensors(&out)?);
    for (name, tensor) in &before {
        let is_weight = name.contains("weight") && !name.starts_with("norm");
        if is_weight {
            assert_eq!(after[name].0, "I8", "{name}");
            assert_eq!(after[name].1, tensor.1, "{name}");
            let scale = &after[&format!("{name}_scale")];
            assert_eq!((&*scale.0, &scale.1), ("F32", &vec![tensor.1[0], 1]), "{name}");
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
    let dir = tempfile::tempdir()?;
    let float = write_float(dir.path())?;
    let out = dir.path().join("out.safetensors");
    for (name, spec) in specs() {
        let model = quantized(&float, &spec)?;
        checkpoint::save(&model, &Checkpoint::open(&float)?, &out)?;
        let checkpoint = Checkpoint::open(&out)?;
        for dtype in [DType::F32, DType::F16, DType::F64] {
            let vb = checkpoint.var_builder(dtype, &Device::Cpu);
            let candles = candle_nn::linear(12, 67, vb.pp("wide"))?;
            let ours = nn::linear(12, 67, vb.pp("wide"))?;
            let expected = ours.weight().to_dtype(dtype)?;
            assert_eq!(candles.weight().dtype(), dtype);
            let difference = (candles.weight() - expected)?.abs()?.max_all()?;
            assert_eq!(difference.to_dtype(DType::F32)?.to_scalar::<f32>()?, 0., "{name}");
            let candles = candle_nn::embedding(50, 24, vb.pp("table"))?;
            let ours = nn::embedding(50, 24, vb.pp("table"))?;
            let difference = (candles.embeddings() - ours.embeddings())?.abs()?.max_all()?;
            assert_eq!(difference.to_dtype(DType::F32)?.to_scalar::<f32>()?, 0., "{name}");
        }
    }
    Ok(())
}

#[test]
fn float_zero_points_survive_to_the_last_bit() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let float = dir.path().join("float.safetensors");
    let rows = [[1e-9f32, 0.3, 1.], [0., 0.5, 2.], [-3., -2., -1.], [-1e-20, 1e-20, 0.]];
    let table = Tensor::new(&rows, &Device::Cpu)?;
    candle_core::safetensors::save(&HashMap::from([("weight", table)]), &float)?;
    let source = Checkpoint::open(&float)?;
    let load = |c: &Checkpoint| nn::embedding(4, 3, c.var_builder(DType::F32, &Device::Cpu));
    let mut layer = load(&source)?;
    quantize_dynamic(&mut layer, &QConfigSpec::int8().min_params(0).embeddings())?;
    let out = dir.path().join("out.safetensors");
    checkpoint::save(&layer, &source, &out)?;
    let again = load(&Checkpoint::open(&out)?)?;
    let (before, after) = (layer.qtable().expect("int8"), again.qtable().expect("int8"));
    assert_eq!(format!("{:?}", before.zero_points()), format!("{:?}", after.zero_points()));
    assert_eq!(before.codes(), after.codes());
    let values = |table: &QTable| Ok::<_, anyhow::Error>(table.dequantize()?.to_vec2::<f32>()?);
    assert_eq!(values(before)?, values(after)?);
    Ok(())
}

#[test]
fn a_layer_without_a_tensor_is_named() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let float = write_float(dir.path())?;
    let source = Checkpoint::open(&float)?;
    let weight = Tensor::randn(0f32, 1., (3, 4), &Device::Cpu)?;
    let out = dir.path().join("out.safetensors");
    let model = vec![nn::Linear::new(weight, None)];
    let quantized = {
        let mut quantized = model.clone();
        quantize_dynamic(&mut quantized, &QConfigSpec::int8().min_params(0))?;
        quantized
    };
    let error = checkpoint::save(&quantized, &source, &out).unwrap_err().to_string();
    assert!(error.starts_with("0: cannot save") && error.contains("0.weight"), "{error}");
    assert!(!out.exists());
    // A float layer needs no codes.
    checkpoint::save(&model, &source, &out)?;
    assert_eq!(tensors(&float)?, tensors(&out)?);
    // A layer of another shape.
    let vb = source.var_builder(DType::F32, &Device::Cpu);
    let mut wrong = vec![nn::linear(12, 67, vb.pp("wide"))?];
    wrong[0] = nn::Linear::new(Tensor::randn(0f32, 1., (3, 4), &Device::Cpu)?, None);
    #[derive(candle_dynquant::Quantizable)]
    struct Named {
        wide: Vec<nn::Linear>,
    }
    let mut wrong = Named { wide: wrong };
    quantize_dynamic(&mut wrong, &QConfigSpec::int8().min_params(0))?;
    assert!(checkpoint::save(&wrong.wide, &source, &out).is_err());
    Ok(())
}

#[test]
fn ordinary_var_builders_are_as_they_were() -> Result<()> {
    let zeros = candle_nn::VarBuilder::zeros(DType::F32, &Device::Cpu);
    let layer = nn::linear(4, 3, zeros.pp("a"))?;
    assert!(layer.projection().qweight().is_none());
    let vars = candle_nn::VarMap::new();
    let vb = candle_nn::VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    nn::linear(4, 3, vb.pp("a"))?;
    nn::embedding(4, 3, vb.pp("b"))?;
    let mut names: Vec<_> = vars.data().lock().expect("no panic").keys().cloned().collect();
    names.sort();
    assert_eq!(names, ["a.bias", "a.weight", "b.weight"]);
    Ok(())
}

#[test]
fn renamed_and_prefixed_builders_find_the_weights() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [_, out] = saved(dir.path(), &QConfigSpec::int8().min_params(0))?;
    let vb = Checkpoint::open(&out)?.var_builder(DType::F32, &Device::Cpu);
    let renamed = vb.rename_f(|name| name.replace("broad", "wide"));
    let layer = nn::linear(12, 67, renamed.pp("broad"))?;
    assert!(layer.projection().qweight().is_some());
    let xs = Tensor::ones((2, 12), DType::F32, &Device::Cpu)?;
    assert_eq!(layer.forward(&xs)?.dims(), [2, 67]);
    Ok(())
}

#[test]
fn a_layer_of_a_users_own_is_saved_through_its_projection() -> Result<()> {
    use candle_dynquant::{Layer, LayerKind, Quantizable, StoredWeight, WeightInfo};

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
    let dir = tempfile::tempdir()?;
    let float = dir.path().join("float.safetensors");
    let kernel = Tensor::randn(0f32, 1., (3, 4), &Device::Cpu)?;
    candle_core::safetensors::save(&HashMap::from([("1.kernel", kernel.clone())]), &float)?;
    let source = Checkpoint::open(&float)?;
    let out = dir.path().join("out.safetensors");
    let layer =
        |passes_on| Own { projection: nn::Projection::new(kernel.clone(), None), passes_on };
    let mut model = ((), layer(true));
    quantize_dynamic(
        &mut model,
        &QConfigSpec::all_kinds(QConfig::int8()).kind(LayerKind::custom("Own"), QConfig::int8()),
    )?;
    checkpoint::save(&model, &source, &out)?;
    assert_eq!(tensors(&out)?["1.kernel_scale"].1, [3, 1]);
    model.1.passes_on = false;
    let error = checkpoint::save(&model, &source, &out).unwrap_err().to_string();
    assert!(error.starts_with("1: "), "{error}");
    Ok(())
}

/// A language model whose head is its embedding's table, with one tensor in the file.
#[derive(candle_dynquant::Quantizable, Clone)]
struct Tied {
    embed: nn::Embedding,
    hidden: nn::Linear,
    head: nn::Linear,
}

impl Tied {
    fn load(vb: &candle_nn::VarBuilder<'_>, way: &str) -> Result<Self> {
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
        let ys = self.head.forward(&self.hidden.forward(&xs)?)?.flatten_all()?;
        Ok(ys.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
    }
}

#[test]
fn a_tied_weight_is_one_tensor_in_the_file_and_in_memory() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let float = dir.path().join("float.safetensors");
    let random = |shape: &[usize]| Tensor::randn(0f32, 1., shape, &Device::Cpu);
    let all = [
        ("embed.weight", random(&[40, 16])?),
        ("hidden.weight", random(&[16, 16])?),
        ("head.bias", random(&[40])?),
    ];
    candle_core::safetensors::save(&HashMap::from(all), &float)?;
    let source = Checkpoint::open(&float)?;
    let out = dir.path().join("out.safetensors");
    let specs = [
        QConfigSpec::int8().min_params(0).embeddings(),
        QConfigSpec::pytorch().embeddings(),
        QConfigSpec::onnxruntime().embeddings(),
        QConfigSpec::float16().kind(candle_dynquant::LayerKind::Embedding, QConfig::float16()),
        QConfigSpec::bfloat16().embeddings(),
    ];
    for way in ["from_weights", "from_weights with bias", "from candle_nn", "tied"] {
        for spec in &specs {
            let vb = source.var_builder(DType::F32, &Device::Cpu);
            let mut model = Tied::load(&vb, way)?;
            let report = quantize_dynamic(&mut model, spec)?;
            assert_eq!(report.swapped().count(), 3, "{way}");
            checkpoint::save(&model, &source, &out)?;
            let tensors = tensors(&out)?;
            assert!(!tensors.keys().any(|name| name.starts_with("head.weight")), "{way}");
            let opened = Checkpoint::open(&out)?;
            let again = Tied::load(&opened.var_builder(DType::F32, &Device::Cpu), way)?;
            assert_eq!(again.bits()?, model.bits()?, "{way}");
            let ids = |model: &Tied| {
                use candle_dynquant::Layer;
                [model.embed.weight_infos()[0].id.clone(), model.head.weight_infos()[0].id.clone()]
            };
            let [embed, head] = ids(&again);
            assert_eq!(embed == head, way == "tied", "{way}");
            let twice = dir.path().join("twice.safetensors");
            checkpoint::save(&again, &opened, &twice)?;
            assert_eq!(std::fs::read(&twice)?, std::fs::read(&out)?, "{way}");
        }
    }
    // A head is built from the table of its embedding, or from rows, while that or the checkpoint
    // lives.
    let vb = Checkpoint::open(&out)?.var_builder(DType::F32, &Device::Cpu);
    let embed = Tied::load(&vb, "tied")?.embed;
    let is_tied = |weight: &Tensor| {
        use candle_dynquant::Layer;
        nn::Linear::new(weight.clone(), None).weight_infos()[0].quantized
    };
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
    let vb = source.var_builder(DType::F32, &Device::Cpu);
    let mut model = Tied::load(&vb, "tied")?;
    quantize_dynamic(&mut model, &QConfigSpec::int8().min_params(0))?;
    checkpoint::save(&model, &source, &out)?;
    let again = Checkpoint::open(&out)?;
    let again = Tied::load(&again.var_builder(DType::F32, &Device::Cpu), "tied")?;
    assert_eq!(again.bits()?, model.bits()?);
    let mut model = Tied::load(&vb, "tied")?;
    model.embed = nn::Embedding::new(random(&[40, 16])?, 16);
    model.head = nn::Linear::tied(&model.embed, None);
    quantize_dynamic(&mut model, &QConfigSpec::int8().min_params(0))?;
    let error = checkpoint::save(&model, &source, &out).unwrap_err().to_string();
    assert!(error.starts_with("head: ") && error.contains("tied to an embedding"), "{error}");
    Ok(())
}

#[test]
fn layers_of_one_name_are_quantized_alike() -> Result<()> {
    #[derive(Quantizable)]
    struct Twice {
        first: nn::Linear,
        second: nn::Linear,
    }

    let dir = tempfile::tempdir()?;
    let [float, other, out] = ["float", "other", "out"].map(|name| dir.path().join(name));
    for path in [&float, &other] {
        let weight = Tensor::randn(0f32, 1., (6, 8), &Device::Cpu)?;
        candle_core::safetensors::save(&HashMap::from([("head.weight", weight)]), path)?;
    }
    let (source, other) = (Checkpoint::open(&float)?, Checkpoint::open(&other)?);
    let load = |from: &Checkpoint| {
        let vb = from.var_builder(DType::F32, &Device::Cpu);
        nn::linear_no_bias(8, 6, vb.pp("head"))
    };
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
        let saved = checkpoint::save(&model, &source, &out);
        assert_eq!(saved.is_ok(), same, "{spec}: {saved:?}");
    }
    Ok(())
}

/// Signed codes are 128 less than PyTorch's, and so are their zero points.
#[test]
fn float_zero_points_are_written_for_both_kinds_of_codes() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let spec = QConfigSpec::int8().min_params(0).embeddings();
    let [_, out] = saved(dir.path(), &spec)?;
    let floats = |(_, _, bytes): &Raw| -> Vec<f32> {
        let values = bytes.chunks_exact(4);
        values.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    let tensors = tensors(&out)?;
    let zeros = tensors
        .iter()
        .filter(|(name, _)| name.starts_with("table.weight") && name.contains("zero_point"));
    let zeros: Vec<Vec<f32>> = zeros.map(|(_, raw)| floats(raw)).collect();
    let [a, b] = &zeros[..] else {
        panic!("two sets of zero points, got {}", zeros.len());
    };
    assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() == 128.), "{a:?} {b:?}");
    Ok(())
}
