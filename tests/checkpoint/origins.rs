//! Weights that a model renames, slices from a tensor, transposes or holds twice: saved, and loaded
//! unchanged.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Result;
use candle_core::{DType, Device, Module, Tensor};
use candle_dynquant::checkpoint::Saved;
use candle_dynquant::observer::{
    CustomObserver, Observer, ObserverConfig, ObserverKind, WeightQParams, ZeroPoints,
};
use candle_dynquant::{
    Checkpoint, DynamicConfig, Layer, LayerKind, OnnxRuntimeOptions, QConfig, QConfigSpec, QDType,
    QScheme, Quantizable, checkpoint, nn, quantize_dynamic,
};
use candle_nn::VarBuilder;

use super::contested::saved;

pub fn random(shape: &[usize]) -> Result<Tensor> {
    Ok(Tensor::randn(0f32, 1., shape, &Device::Cpu)?)
}

pub fn write<const N: usize>(path: &Path, tensors: [(&str, Tensor); N]) -> Result<()> {
    Ok(candle_core::safetensors::save(&HashMap::from(tensors), path)?)
}

fn bits(layer: &impl Module, inputs: usize) -> Result<Vec<u32>> {
    let xs = (0..3 * inputs).map(|i| (i * 7 % 11) as f32 - 5.);
    let xs = Tensor::from_vec(xs.collect(), (3, inputs), &Device::Cpu)?;
    let ys = layer.forward(&xs)?.to_dtype(DType::F32)?.flatten_all()?;
    Ok(ys.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
}

/// Loads, quantizes, saves and loads again: returns the saved model and the file, which a second
/// save must reproduce. All Linears must give the same bits, and stay quantized if they were.
pub fn round_trip<M: Quantizable>(
    source: &Path,
    out: &Path,
    spec: &QConfigSpec,
    dtype: DType,
    load: impl Fn(VarBuilder<'static>) -> candle_core::Result<M>,
    layers: impl Fn(&M) -> Vec<&nn::Linear>,
) -> Result<Saved> {
    let source = Checkpoint::open(source)?;
    let mut model = load(source.var_builder(dtype, &Device::Cpu))?;
    quantize_dynamic(&mut model, spec)?;
    let saved = checkpoint::save(&model, &source, out)?;
    let opened = Checkpoint::open(out)?;
    let again = load(opened.var_builder(dtype, &Device::Cpu))?;
    for (a, b) in layers(&model).into_iter().zip(layers(&again)) {
        let is_quantized = |layer: &nn::Linear| layer.projection().qweight().is_some();
        assert_eq!(is_quantized(a), is_quantized(b), "{spec}");
        let inputs = a.weight().dims()[1];
        assert_eq!(bits(a, inputs)?, bits(b, inputs)?, "{spec}");
    }
    let twice = out.with_extension("twice");
    checkpoint::save(&again, &opened, &twice)?;
    assert_eq!(std::fs::read(&twice)?, std::fs::read(out)?, "{spec}");
    Ok(saved)
}

#[allow(clippy::ptr_arg, reason = "the model that `round_trip` loads")]
fn each(layers: &Vec<nn::Linear>) -> Vec<&nn::Linear> {
    layers.iter().collect()
}

fn specs() -> [QConfigSpec; 6] {
    let affine = QConfig::onnxruntime(OnnxRuntimeOptions {
        weight_type: QDType::QUInt8,
        per_channel: true,
        ..Default::default()
    });
    [
        QConfigSpec::all_kinds(affine),
        QConfigSpec::int8().min_params(0),
        QConfigSpec::pytorch(),
        QConfigSpec::float16(),
        QConfigSpec::bfloat16(),
        QConfigSpec::onnxruntime(),
    ]
}

pub fn quantized(path: &Path) -> Result<Vec<String>> {
    let tensors = Checkpoint::open(path)?;
    let tensors = tensors.tensors().filter(|tensor| tensor.quantized);
    Ok(tensors.map(|tensor| tensor.name).collect())
}

#[test]
fn a_renamed_layer_is_saved_under_the_name_of_the_file() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| dir.path().join(name));
    write(
        &float,
        [
            ("layers.0.q_proj.weight", random(&[6, 8])?),
            ("layers.0.q_proj.bias", random(&[6])?),
            ("embeddings.weight", random(&[9, 8])?),
            ("lstm.weight_ih_l0", random(&[12, 8])?),
            ("lstm.weight_hh_l0", random(&[12, 3])?),
            ("lstm.bias_ih_l0", random(&[12])?),
            ("lstm.bias_hh_l0", random(&[12])?),
        ],
    )?;
    // A rule for any name, and a table of the model's names.
    let prefix: fn(&str) -> String = |name| name.trim_start_matches("model.").to_owned();
    let exact: fn(&str) -> String = |name| match name {
        "model.layers.0.q_proj.weight" => "layers.0.q_proj.weight".into(),
        "model.layers.0.q_proj.bias" => "layers.0.q_proj.bias".into(),
        "model.embeddings.weight" => "embeddings.weight".into(),
        name => match name.strip_prefix("model.lstm.") {
            Some(end @ ("weight_ih_l0" | "weight_hh_l0" | "bias_ih_l0" | "bias_hh_l0")) => {
                format!("lstm.{end}")
            }
            _ => name.to_owned(),
        },
    };
    for rename in [prefix, exact] {
        for spec in [
            QConfigSpec::int8().min_params(0).embeddings(),
            QConfigSpec::pytorch().embeddings(),
            QConfigSpec::float16(),
        ] {
            let load = |vb: VarBuilder<'static>| {
                let vb = vb.rename_f(rename).pp("model");
                let lstm = nn::LSTM::new(8, 3, Default::default(), vb.pp("lstm"))
                    .map_err(candle_core::Error::wrap)?;
                let linear = nn::linear(8, 6, vb.pp("layers.0.q_proj"))?;
                Ok((nn::embedding(9, 8, vb.pp("embeddings"))?, linear, lstm))
            };
            round_trip(&float, &out, &spec, DType::F32, load, |model| vec![&model.1])?;
            let names = quantized(&out)?;
            let all = ["layers.0.q_proj.weight", "lstm.weight_hh_l0", "lstm.weight_ih_l0"];
            assert!(all.iter().all(|name| names.contains(&(*name).to_owned())), "{names:?}");
            let table = names.contains(&"embeddings.weight".to_owned());
            assert_eq!(table, spec != QConfigSpec::float16(), "{names:?}");
        }
    }
    Ok(())
}

/// The attention of siglip, openclip and mimi.
pub fn in_proj(vb: &VarBuilder<'_>) -> candle_core::Result<Vec<nn::Linear>> {
    let weights = vb.get((24, 16), "attn.in_proj_weight")?.chunk(3, 0)?;
    let biases = vb.get(24, "attn.in_proj_bias")?.chunk(3, 0)?;
    let all = weights.into_iter().zip(biases);
    Ok(all.map(|(weight, bias)| nn::Linear::new(weight, Some(bias))).collect())
}

pub fn write_in_proj(path: &Path) -> Result<()> {
    write(
        path,
        [("attn.in_proj_weight", random(&[24, 16])?), ("attn.in_proj_bias", random(&[24])?)],
    )
}

#[test]
fn slices_of_a_tensor_are_written_in_its_place_or_beside_it() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| dir.path().join(name));
    write_in_proj(&float)?;
    for dtype in [DType::F32, DType::BF16] {
        for spec in specs() {
            let load = |vb: VarBuilder<'static>| in_proj(&vb);
            let saved = round_trip(&float, &out, &spec, dtype, load, each)?;
            let names = quantized(&out)?;
            // A scale per slice cannot be stored beside a scale per row.
            let per_slice = [QConfigSpec::pytorch(), QConfigSpec::onnxruntime()].contains(&spec);
            if per_slice {
                assert_eq!((names.len(), saved.beside.len()), (3, 3), "{spec} {names:?}");
                let lines = saved.to_string();
                assert!(lines.contains("beside \"attn.in_proj_weight\""), "{lines}");
            } else {
                assert_eq!((names.len(), saved.beside.len()), (1, 0), "{spec} {names:?}")
            }
        }
    }
    // Only some of the slices.
    let spec = QConfigSpec::int8().min_params(0).exclude("1");
    let load = |vb: VarBuilder<'static>| in_proj(&vb);
    let saved = round_trip(&float, &out, &spec, DType::F32, load, each)?;
    assert_eq!(saved.beside.len(), 2);
    assert_eq!(saved.beside[1].layer, "2");
    let size = |path: &Path| std::fs::metadata(path).map(|meta| meta.len());
    let bytes: u64 = saved.beside.iter().map(|own| own.bytes).sum();
    assert_eq!(bytes, 2 * (8 * 16 + 4 * 8));
    assert!(size(&out)? > size(&float)?);
    Ok(())
}

/// Elements are compared in blocks of a million.
#[test]
fn a_large_tensor_is_compared_to_its_last_row() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, int8] = ["float", "int8"].map(|name| dir.path().join(name));
    write(&float, [("w.weight", random(&[1_100, 1_000])?)])?;
    let source = Checkpoint::open(&float)?;
    let plan = checkpoint::Plan::new(&source, &QConfigSpec::int8(), &[], &[])?;
    checkpoint::quantize(&source, &plan, &int8, |_| {})?;
    let vb = Checkpoint::open(&int8)?.var_builder(DType::F32, &Device::Cpu);
    let is_quantized = |weight: &Tensor| {
        let layer = nn::Linear::new(weight.clone(), None);
        layer.projection().qweight().is_some()
    };
    let weight = vb.get((1_100, 1_000), "w.weight")?;
    assert!(is_quantized(&weight) && is_quantized(&weight.narrow(0, 1_060, 40)?));
    weight.slice_set(&Tensor::ones((1, 1_000), DType::F32, &Device::Cpu)?, 0, 1_099)?;
    assert!(!is_quantized(&weight) && is_quantized(&weight.narrow(0, 1_060, 39)?));
    Ok(())
}

#[test]
fn a_table_is_compared_with_its_heads_weight_to_the_last_row() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, int8] = ["float", "int8"].map(|name| dir.path().join(name));
    write(&float, [("embed.weight", random(&[1_500, 16])?)])?;
    let source = Checkpoint::open(&float)?;
    let linear = ["embed".to_owned()];
    let plan = checkpoint::Plan::new(&source, &QConfigSpec::int8(), &linear, &[])?;
    checkpoint::quantize(&source, &plan, &int8, |_| {})?;
    let vb = Checkpoint::open(&int8)?.var_builder(DType::F32, &Device::Cpu);
    let embed = nn::embedding(1_500, 16, vb.pp("embed"))?;
    let head = || nn::Linear::new(embed.embeddings().clone(), None);
    assert!(head().projection().qweight().is_some());
    let ones = Tensor::ones((1, 16), DType::F32, &Device::Cpu)?;
    embed.embeddings().slice_set(&ones, 0, 1_499)?;
    assert!(head().projection().qweight().is_none());
    Ok(())
}

#[test]
fn transposed_weights_and_columns_are_saved() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| dir.path().join(name));
    write(&float, [("c_attn.weight", random(&[16, 24])?), ("square.weight", random(&[8, 8])?)])?;
    // GPT-2 has `[in, out]`.
    let load = |vb: VarBuilder<'static>| {
        let weight = vb.get((16, 24), "c_attn.weight")?;
        let square = vb.get((8, 8), "square.weight")?;
        Ok(vec![
            nn::Linear::new(weight.t()?, None),
            nn::Linear::new(weight.t()?.narrow(0, 8, 8)?, None),
            nn::Linear::new(weight.narrow(1, 4, 8)?, None),
            nn::Linear::new(square.t()?, None),
            nn::Linear::new(square, None),
        ])
    };
    for spec in specs() {
        round_trip(&float, &out, &spec, DType::F32, load, each)?;
    }
    Ok(())
}

#[derive(Quantizable)]
struct Tied {
    embed: nn::Embedding,
    head: nn::Linear,
}

#[test]
fn a_tied_head_is_saved_beside_a_table_that_stays_float() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| dir.path().join(name));
    write(&float, [("embed_tokens.weight", random(&[40, 16])?)])?;
    let by_clone: fn(VarBuilder<'static>) -> candle_core::Result<Tied> = |vb| {
        let embed = nn::embedding(40, 16, vb.pp("model.embed_tokens"))?;
        let head = nn::Linear::from_weights(embed.embeddings().clone(), None);
        Ok(Tied { embed, head })
    };
    let again: fn(VarBuilder<'static>) -> candle_core::Result<Tied> = |vb| {
        let embed = nn::embedding(40, 16, vb.pp("model.embed_tokens"))?;
        let head = nn::Linear::new(vb.get((40, 16), "model.embed_tokens.weight")?, None);
        Ok(Tied { embed, head })
    };
    let by_name: fn(VarBuilder<'static>) -> candle_core::Result<Tied> = |vb| {
        let embed = nn::embedding(40, 16, vb.pp("model.embed_tokens"))?;
        let head = nn::linear_no_bias(16, 40, vb.pp("model.embed_tokens"))?;
        Ok(Tied { embed, head })
    };
    for load in [by_clone, again, by_name] {
        let load = |vb: VarBuilder<'static>| {
            load(vb.rename_f(|name| name.trim_start_matches("model.").to_owned()))
        };
        for spec in specs() {
            let saved = round_trip(&float, &out, &spec, DType::F32, load, |m| vec![&m.head])?;
            let [beside] = &saved.beside[..] else {
                panic!("{saved:?}");
            };
            assert_eq!((&*beside.layer, &*beside.tensor), ("head", "embed_tokens.weight"));
            let opened = Checkpoint::open(&out)?;
            // A reader without this support finds the floats.
            assert_eq!(
                opened.floats("embed_tokens.weight")?,
                Checkpoint::open(&float)?.floats("embed_tokens.weight")?
            );
            let embed = load(opened.var_builder(DType::F32, &Device::Cpu))?.embed;
            assert!(embed.qtable().is_none());
            let floats = dir.path().join("floats");
            checkpoint::dequantize(&opened, &floats, |_| {})?;
            assert_eq!(Checkpoint::open(&floats)?.tensors().count(), 1);
        }
        // A head beside a separate table.
        let table = QConfigSpec::int8()
            .min_params(0)
            .kind(LayerKind::Linear, QConfig::pytorch())
            .embeddings();
        round_trip(&float, &out, &table, DType::F32, load, |m| vec![&m.head])?;
    }
    Ok(())
}

#[test]
fn memory_that_is_used_again_is_no_origin() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let float = dir.path().join("float");
    write_in_proj(&float)?;
    let source = Checkpoint::open(&float)?;
    let vb = source.var_builder(DType::F32, &Device::Cpu);
    for _ in 0..50 {
        drop(vb.get((24, 16), "attn.in_proj_weight")?);
        let other = random(&[24, 16])?;
        let mut model = vec![nn::Linear::new(other.narrow(0, 0, 8)?, None)];
        quantize_dynamic(&mut model, &QConfigSpec::int8().min_params(0))?;
        let error = checkpoint::save(&model, &source, dir.path().join("out")).unwrap_err();
        assert!(error.to_string().starts_with("0: cannot save"), "{error}");
    }
    Ok(())
}

#[test]
fn a_tensor_that_was_changed_in_place_is_no_origin() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| dir.path().join(name));
    write(&float, [("qkv.weight", random(&[24, 16])?)])?;
    let whole = |vb: VarBuilder<'static>| nn::linear_no_bias(16, 24, vb.pp("qkv"));
    let spec = QConfigSpec::int8().min_params(0);
    round_trip(&float, &out, &spec, DType::F32, whole, |m| vec![m])?;
    let opened = Checkpoint::open(&out)?;
    let weight = opened.var_builder(DType::F32, &Device::Cpu);
    let weight = weight.get((24, 16), "qkv.weight")?;
    assert!(nn::Linear::new(weight.clone(), None).projection().qweight().is_some());
    weight.zero_set()?;
    let layer = nn::Linear::new(weight, None);
    assert!(layer.projection().qweight().is_none());
    assert!(bits(&layer, 16)?.iter().all(|y| *y == 0));
    Ok(())
}

#[test]
fn a_convolution_that_was_changed_in_place_is_no_origin() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, int8] = ["float", "int8"].map(|name| dir.path().join(name));
    write(&float, [("stem.weight", random(&[8, 4, 3])?)])?;
    let source = Checkpoint::open(&float)?;
    let vb = source.var_builder(DType::F32, &Device::Cpu);
    let mut stem = vec![nn::conv1d_no_bias(4, 8, 3, Default::default(), vb.pp("stem"))?];
    let spec = QConfigSpec::of("0", QConfig::int8()).min_params(0);
    quantize_dynamic(&mut stem, &spec)?;
    checkpoint::save(&stem, &source, &int8)?;
    let source = Checkpoint::open(&int8)?;
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let vb = source.var_builder(dtype, &Device::Cpu);
        let weight = vb.get((8, 4, 3), "stem.weight")?;
        let of_weight = || nn::Conv1d::new(weight.clone(), None, Default::default());
        let is_quantized = |layer: &nn::Conv1d| layer.weight_infos()[0].quantized;
        assert!(is_quantized(&of_weight()), "{dtype:?}");
        weight.zero_set()?;
        let layer = of_weight();
        assert!(!is_quantized(&layer), "{dtype:?}");
        let xs = Tensor::ones((1, 4, 5), dtype, &Device::Cpu)?;
        let ys = layer.forward(&xs)?.to_dtype(DType::F32)?.flatten_all()?;
        assert!(ys.to_vec1::<f32>()?.iter().all(|y| *y == 0.));
    }
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
fn a_float_layer_reads_its_tensor_once() -> Result<()> {
    let bytes_read = || -> Result<u64> {
        let io = std::fs::read_to_string("/proc/thread-self/io")?;
        let read = io.lines().find_map(|line| line.strip_prefix("rchar: "));
        Ok(read.expect("rchar").parse()?)
    };
    let dir = tempfile::tempdir()?;
    let float = dir.path().join("float");
    write(&float, [("a.weight", random(&[512, 300])?)])?;
    let vb = Checkpoint::open(&float)?.var_builder(DType::F32, &Device::Cpu);
    let whole = || vb.get((512, 300), "a.weight");
    let loads: [&dyn Fn() -> candle_core::Result<nn::Linear>; 4] = [
        &|| nn::linear_no_bias(300, 512, vb.pp("a")),
        &|| nn::embedding(512, 300, vb.pp("a")).map(|table| nn::Linear::tied(&table, None)),
        &|| Ok(nn::Linear::new(whole()?.t()?, None)),
        &|| Ok(nn::Linear::new(whole()?.narrow(0, 100, 200)?, None)),
    ];
    for load in loads {
        let before = bytes_read()?;
        load()?;
        let read = bytes_read()? - before;
        assert!((614_400..630_000).contains(&read), "{read}");
    }
    Ok(())
}

#[test]
fn a_bias_that_does_not_fit_a_quantized_weight_is_an_error() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, int8] = ["float", "int8"].map(|name| dir.path().join(name));
    write(&float, [("embed.weight", random(&[64, 8])?)])?;
    let (source, linear) = (Checkpoint::open(&float)?, ["embed".to_owned()]);
    let plan = checkpoint::Plan::new(&source, &specs()[1], &linear, &[])?;
    checkpoint::quantize(&source, &plan, &int8, |_| {})?;
    let vb = Checkpoint::open(&int8)?.var_builder(DType::F32, &Device::Cpu);
    let embed = nn::embedding(64, 8, vb.pp("embed"))?;
    let nan = "non-finite bias: expected finite numbers, got NaN at index 3";
    for (len, value, expected) in [
        (64, 1f32, ""),
        (64, f32::NAN, nan),
        (64, f32::INFINITY, "non-finite bias"),
        (63, 1., "shape mismatch in bias: expected [64], got [63]"),
    ] {
        let bias: Vec<_> = (0..len).map(|i| if i == 3 { value } else { 0. }).collect();
        let bias = Some(Tensor::new(bias, &Device::Cpu)?);
        let weight = vb.get((64, 8), "embed.weight")?;
        for layer in [nn::Linear::tied(&embed, bias.clone()), nn::Linear::new(weight, bias)] {
            let error = layer.forward(&random(&[2, 8])?).err();
            let error = error.map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(expected), "{error}");
            let is_quantized = layer.projection().qweight().is_some();
            assert_eq!(error.is_empty(), is_quantized, "{error}");
        }
    }
    Ok(())
}

#[test]
fn rows_of_two_numbers_from_the_first_on_are_saved() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| dir.path().join(name));
    write_in_proj(&float)?;
    let load = |vb: VarBuilder<'static>| {
        let weight = vb.get((24, 16), "attn.in_proj_weight")?;
        let rows = |n| Ok(nn::Linear::new(weight.narrow(0, 0, n)?, None));
        [8, 16].into_iter().map(rows).collect()
    };
    for spec in specs() {
        round_trip(&float, &out, &spec, DType::F32, load, each)?;
    }
    Ok(())
}

#[test]
fn a_table_that_would_not_be_found_again_is_refused() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| dir.path().join(name));
    write(&float, [("embed.weight", random(&[40, 16])?)])?;
    let source = Checkpoint::open(&float)?;
    let vb = source.var_builder(DType::F32, &Device::Cpu);
    let embed = nn::embedding(40, 16, vb.pp("embed"))?;
    // A padded vocabulary.
    let head = nn::Linear::new(embed.embeddings().narrow(0, 0, 30)?, None);
    let mut model = Tied { embed, head };
    let spec = QConfigSpec::int8().min_params(0).embeddings().exclude("head");
    quantize_dynamic(&mut model, &spec)?;
    let error = checkpoint::save(&model, &source, &out).unwrap_err().to_string();
    assert!(error.starts_with("embed: cannot save"), "{error}");
    Ok(())
}

#[test]
fn rows_of_a_quantized_tensor_give_a_quantized_layer() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, out, twice] = ["float", "out", "twice"].map(|name| dir.path().join(name));
    write(&float, [("qkv.weight", random(&[24, 16])?)])?;
    let whole = |vb: VarBuilder<'static>| nn::linear_no_bias(16, 24, vb.pp("qkv"));
    let spec = QConfigSpec::int8().min_params(0);
    round_trip(&float, &out, &spec, DType::F32, whole, |m| vec![m])?;
    let opened = Checkpoint::open(&out)?;
    let vb = opened.var_builder(DType::F32, &Device::Cpu);
    let whole = whole(vb.clone())?.weight().to_vec2::<f32>()?;
    let weight = vb.get((24, 16), "qkv.weight")?;
    let slices = [(0, 16), (16, 4), (20, 4)];
    let slices = slices.map(|(at, n)| nn::Linear::new(weight.narrow(0, at, n).unwrap(), None));
    for (layer, at) in slices.iter().zip([0, 16, 20]) {
        assert!(layer.projection().qweight().is_some());
        let rows = layer.weight().to_vec2::<f32>()?;
        assert_eq!(rows, whole[at..at + rows.len()]);
    }
    checkpoint::save(&slices.to_vec(), &opened, &twice)?;
    assert_eq!(std::fs::read(&twice)?, std::fs::read(&out)?);
    Ok(())
}

/// The command quantizes them on request.
#[test]
fn tensors_of_several_layers_are_quantized_by_their_names() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, out, twice] = ["float", "out", "twice"].map(|name| dir.path().join(name));
    write(
        &float,
        [
            ("attn.in_proj_weight", random(&[24, 16])?),
            ("attn.in_proj_bias", random(&[24])?),
            ("experts.gate_up_proj", random(&[3, 10, 16])?),
            ("head.weight", random(&[4, 16])?),
        ],
    )?;
    let load = |vb: &VarBuilder<'static>| -> Result<Vec<nn::Linear>> {
        let mut layers = in_proj(vb)?;
        let experts = vb.get((3, 10, 16), "experts.gate_up_proj")?;
        for i in 0..3 {
            layers.push(nn::Linear::new(experts.get(i)?, None));
            layers.push(nn::Linear::new(experts.get(i)?.narrow(0, 5, 5)?, None));
        }
        Ok(layers)
    };
    let source = Checkpoint::open(&float)?;
    let spec = QConfigSpec::int8().min_params(0);
    let names = ["attn.in_proj_weight", "experts.gate_up_proj"].map(str::to_owned);
    let plan = checkpoint::Plan::new(&source, &spec, &names, &[])?;
    checkpoint::quantize(&source, &plan, &out, |_| {})?;
    let opened = Checkpoint::open(&out)?;
    let scales: Vec<_> = opened.tensors().filter(|t| t.name.ends_with("_scale")).collect();
    let shapes: Vec<_> = scales.iter().map(|tensor| &tensor.shape[..]).collect();
    assert_eq!(shapes, [&[24, 1][..], &[3, 10, 1], &[4, 1]]);
    // The bits of a model that is quantized, and of a model that is saved.
    let mut model = load(&source.var_builder(DType::F32, &Device::Cpu))?;
    quantize_dynamic(&mut model, &spec)?;
    let again = load(&opened.var_builder(DType::F32, &Device::Cpu))?;
    for (a, b) in model.iter().zip(&again) {
        assert!(b.projection().qweight().is_some());
        assert_eq!(bits(a, 16)?, bits(b, 16)?);
    }
    let all = again.into_iter().enumerate();
    let tiles = all.filter(|(i, _)| *i < 3 || i % 2 == 1).map(|(_, layer)| layer);
    checkpoint::save(&tiles.collect::<Vec<_>>(), &opened, &twice)?;
    assert_eq!(std::fs::read(&twice)?, std::fs::read(&out)?);
    // A reader without this support gets floats.
    let floats = dir.path().join("floats");
    checkpoint::dequantize(&opened, &floats, |_| {})?;
    let floats = candle_core::safetensors::load(&floats, &Device::Cpu)?;
    let experts = floats["experts.gate_up_proj"].flatten_all()?.to_vec1::<f32>()?;
    assert_eq!(experts, opened.floats("experts.gate_up_proj")?);
    let error = checkpoint::Plan::new(&source, &spec, &["attn.in_proj".to_owned()], &[]);
    assert!(error.unwrap_err().to_string().contains("attn.in_proj"));
    // The rows here are inputs: a scale for each has no meaning for outputs.
    for [first, second] in [[[3, 16, 20], [3, 10, 16]], [[3, 16, 32], [3, 16, 16]]] {
        let experts =
            [("experts.gate_up_proj", random(&first)?), ("experts.down_proj", random(&second)?)];
        write(&float, experts)?;
        let source = Checkpoint::open(&float)?;
        for name in ["experts.gate_up_proj", "experts.down_proj"] {
            let error = checkpoint::Plan::new(&source, &spec, &[name.to_owned()], &[]);
            let error = error.expect_err("inputs as rows").to_string();
            assert!(error.contains("whose rows are inputs"), "{error}");
        }
    }
    // The usual orientation, and sizes that only one of the two products determines.
    for [first, second] in
        [[[3, 12, 8], [3, 8, 6]], [[3, 7, 12], [3, 6, 8]], [[3, 8, 10], [3, 6, 8]]]
    {
        let names = ["experts.gate_up_proj", "experts.down_proj", "experts.other"];
        let shapes = [first, second, first];
        let experts = names.iter().zip(shapes);
        let experts = experts.map(|(name, shape)| Ok((*name, random(&shape)?)));
        let experts = experts.collect::<Result<Vec<_>>>()?;
        candle_core::safetensors::save(&experts.into_iter().collect::<HashMap<_, _>>(), &float)?;
        let source = Checkpoint::open(&float)?;
        checkpoint::Plan::new(&source, &spec, &names.map(str::to_owned), &[])?;
    }
    // Another tensor beside such experts.
    let names = ["experts.gate_up_proj", "experts.down_proj", "experts.other"];
    let experts = [[3, 8, 12], [3, 6, 8], [3, 8, 12]];
    let experts = names.iter().zip(experts);
    let experts = experts.map(|(name, shape)| Ok((*name, random(&shape)?)));
    let experts = experts.collect::<Result<HashMap<_, _>>>()?;
    candle_core::safetensors::save(&experts, &float)?;
    let source = Checkpoint::open(&float)?;
    checkpoint::Plan::new(&source, &spec, &["experts.other".to_owned()], &[])?;
    Ok(())
}

/// The head decides, since a table has no activations.
#[test]
fn rows_of_a_table_and_a_head_keep_the_activations_of_the_head() -> Result<()> {
    #[derive(Quantizable, Clone)]
    enum Part {
        Head(nn::Linear),
        Table(nn::Embedding),
    }
    let dir = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| dir.path().join(name));
    write(&float, [("words.weight", random(&[12, 16])?)])?;
    let load = |checkpoint: &Checkpoint, head_first: bool| -> Result<Vec<Part>> {
        let vb = checkpoint.var_builder(DType::F32, &Device::Cpu);
        let all = vb.get((12, 16), "words.weight")?;
        let mut parts = Vec::new();
        for rows in all.chunk(2, 0)? {
            parts.push(Part::Head(nn::Linear::new(rows.clone(), None)));
            parts.push(Part::Table(nn::Embedding::new(rows, 16)));
        }
        if !head_first {
            parts.reverse();
        }
        Ok(parts)
    };
    let heads = |parts: &[Part]| -> Result<Vec<Vec<u32>>> {
        let heads = parts.iter().filter_map(|part| match part {
            Part::Head(head) => Some(bits(head, 16)),
            Part::Table(_) => None,
        });
        heads.collect()
    };
    let source = Checkpoint::open(&float)?;
    for head_first in [true, false] {
        let mut model = load(&source, head_first)?;
        let spec = QConfigSpec::int4().min_params(0);
        quantize_dynamic(&mut model, &spec.kind(LayerKind::Embedding, QConfig::int4()))?;
        checkpoint::save(&model, &source, &out)?;
        let again = load(&Checkpoint::open(&out)?, head_first)?;
        assert_eq!(heads(&again)?, heads(&model)?, "{head_first}");
    }
    Ok(())
}

/// A user's symmetric observer may give zero points, and give only zeros for some parts.
#[test]
fn parts_with_and_without_zero_points_are_one_tensor() -> Result<()> {
    /// The zero point is 5 for weights from 10 on.
    #[derive(Debug, Default)]
    struct Shifted(Vec<i32>);

    impl Observer for Shifted {
        fn observe(&mut self, tensor: &Tensor) -> candle_dynquant::Result<()> {
            let first = tensor.narrow(1, 0, 1)?.flatten_all()?.to_vec1::<f32>()?;
            self.0 = first.iter().map(|x| 5 * i32::from(*x >= 10.)).collect();
            Ok(())
        }

        fn calculate_qparams(&self) -> candle_dynquant::Result<WeightQParams> {
            let scales = vec![0.25; self.0.len()];
            WeightQParams::new(QDType::QInt8, scales, ZeroPoints::Int(self.0.clone()))
        }
    }

    let dir = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| dir.path().join(name));
    let load = |checkpoint: &Checkpoint| -> Result<Vec<nn::Linear>> {
        let vb = checkpoint.var_builder(DType::F32, &Device::Cpu);
        let parts = vb.get((6, 16), "qkv.weight")?.chunk(2, 0)?;
        let parts = parts.into_iter().map(|part| nn::Linear::new(part, None));
        Ok(parts.collect())
    };
    let custom = CustomObserver::new("Shifted", |_| Ok(Box::<Shifted>::default()));
    let kind = ObserverKind::Custom(custom);
    let weight = ObserverConfig::new(kind, QDType::QInt8, QScheme::PerChannelSymmetric);
    let activation = DynamicConfig::default();
    let spec = QConfigSpec::all_kinds(QConfig::Int8 { weight, activation });
    // The part with zero points is the second, or the first.
    for large in [48..96, 0..48] {
        let value = |i: usize| (i % 9) as f32 + 10. * f32::from(large.contains(&i));
        let rows: Vec<f32> = (0..96).map(value).collect();
        write(&float, [("qkv.weight", Tensor::from_vec(rows, (6, 16), &Device::Cpu)?)])?;
        let source = Checkpoint::open(&float)?;
        let mut model = load(&source)?;
        quantize_dynamic(&mut model, &spec)?;
        checkpoint::save(&model, &source, &out)?;
        for (a, b) in model.iter().zip(load(&Checkpoint::open(&out)?)?) {
            assert!(b.projection().qweight().is_some());
            assert_eq!(bits(a, 16)?, bits(&b, 16)?);
        }
    }
    Ok(())
}

/// Only the file that holds a tensor records the layers that are sliced from it.
#[test]
fn parts_are_recorded_where_their_tensor_is() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| dir.path().join(name));
    std::fs::create_dir(&float)?;
    let tensors = [("qkv.weight", random(&[9, 16])?), ("head.weight", random(&[4, 16])?)];
    let mut map = serde_json::Map::new();
    for (i, (name, tensor)) in tensors.into_iter().enumerate() {
        let file = format!("model-{i}.safetensors");
        write(&float.join(&file), [(name, tensor)])?;
        map.insert(name.to_owned(), file.into());
    }
    let index = serde_json::json!({"metadata": {}, "weight_map": map});
    std::fs::write(float.join("model.safetensors.index.json"), index.to_string())?;
    let source = Checkpoint::open(&float)?;
    let vb = source.var_builder(DType::F32, &Device::Cpu);
    // Some rows twice and unordered, which a record of views stores.
    let qkv = vb.get((9, 16), "qkv.weight")?;
    let mut model = vec![nn::linear_no_bias(16, 4, vb.pp("head"))?];
    for (start, len) in [(0, 6), (3, 6)] {
        model.push(nn::Linear::new(qkv.narrow(0, start, len)?, None));
    }
    quantize_dynamic(&mut model, &QConfigSpec::pytorch())?;
    checkpoint::save(&model, &source, &out)?;
    let header = |number: usize| -> Result<String> {
        let bytes = std::fs::read(out.join(format!("model-{number}.safetensors")))?;
        let length = u64::from_le_bytes(bytes[..8].try_into()?) as usize;
        Ok(String::from_utf8(bytes[8..8 + length].to_vec())?)
    };
    assert!(header(0)?.contains("views"), "{}", header(0)?);
    assert!(!header(1)?.contains("qkv"), "{}", header(1)?);
    Ok(())
}

#[test]
fn views_that_do_not_fit_are_refused() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, out, bad] = ["float", "out", "bad"].map(|name| dir.path().join(name));
    write(&float, [("embed.weight", random(&[40, 16])?)])?;
    let source = Checkpoint::open(&float)?;
    let vb = source.var_builder(DType::F32, &Device::Cpu);
    let embed = nn::embedding(40, 16, vb.pp("embed"))?;
    let head = nn::Linear::tied(&embed, None);
    let mut model = Tied { embed, head };
    quantize_dynamic(&mut model, &QConfigSpec::int8().min_params(0))?;
    checkpoint::save(&model, &source, &out)?;
    let bytes = std::fs::read(&out)?;
    let length = usize::try_from(u64::from_le_bytes(bytes[..8].try_into()?))?;
    let (header, rest) = bytes[8..].split_at(length);
    let header: serde_json::Value = serde_json::from_slice(header)?;
    let key = "candle_dynquant";
    let record = header["__metadata__"][key].as_str().unwrap_or_default();
    let record: serde_json::Value = serde_json::from_str(record)?;
    assert_eq!(record["version"], 2);
    let open = |change: &dyn Fn(&mut serde_json::Value)| -> Result<String> {
        let (mut header, mut record) = (header.clone(), record.clone());
        change(&mut record);
        header["__metadata__"][key] = record.to_string().into();
        let mut header = header.to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        let length = (header.len() as u64).to_le_bytes();
        std::fs::write(&bad, [&length[..], &header, rest].concat())?;
        let opened = Checkpoint::open(&bad);
        Ok(opened.err().map_or(String::new(), |error| error.to_string()))
    };
    assert_eq!(open(&|_| ())?, "");
    const VIEW: &str = "/views/embed.weight.quantized";
    let set = |path: &str, value: serde_json::Value| {
        let path = format!("{VIEW}{path}");
        open(&|record| *record.pointer_mut(&path).expect("a value") = value.clone())
    };
    for (path, value, expected) in [
        ("/of", "none".into(), "no such tensor"),
        ("/of", "embed.weight.quantized".into(), "a view of a view"),
        ("/part/offset", 1.into(), "640 elements"),
        ("/part/offset", u64::MAX.into(), "640 elements"),
        ("/part/strides", serde_json::json!([u64::MAX, 1]), "640 elements"),
        ("/part/shape", serde_json::json!([20, 16]), "[40, 16]"),
        ("/part/shape", serde_json::json!([0, 16]), "640 elements"),
        ("/part/shape", serde_json::json!([40]), "candle_dynquant"),
        ("/part", serde_json::json!({}), "candle_dynquant"),
    ] {
        let error = set(path, value)?;
        assert!(error.contains(expected) && error.len() < 1_000, "{path}: {error}");
    }
    let error = open(&|record| {
        record["views"]["other"] = record["views"]["embed.weight.quantized"].clone()
    })?;
    assert!(error.contains("\"other\""), "{error}");
    let error = open(&|record| record["version"] = 4.into())?;
    assert!(error.contains("1 or 2 or 3"), "{error}");
    // A scale that is NaN, which building the head would detect.
    let scale = &header["embed.weight.quantized_scale"]["data_offsets"][0];
    let at = 8 + length + usize::try_from(scale.as_u64().expect("an offset"))?;
    let mut damaged = bytes.clone();
    damaged[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&bad, damaged)?;
    let vb = Checkpoint::open(&bad)?.var_builder(DType::F32, &Device::Cpu);
    let error = nn::embedding(40, 16, vb.pp("embed")).expect_err("a NaN").to_string();
    assert!(error.contains("quantized_scale") && error.contains("NaN"), "{error}");
    Ok(())
}

#[test]
fn rows_that_saturate_are_counted_together() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| dir.path().join(name));
    let mut values = vec![1f32; 24 * 16];
    for at in [3, 4, 8 * 16, 8 * 16 + 1, 16 * 16] {
        values[at] = 1e6;
    }
    let weight = Tensor::from_vec(values, (24, 16), &Device::Cpu)?;
    let bias = random(&[24])?;
    write(&float, [("attn.in_proj_weight", weight), ("attn.in_proj_bias", bias)])?;
    let source = Checkpoint::open(&float)?;
    let mut layers = in_proj(&source.var_builder(DType::F32, &Device::Cpu))?;
    quantize_dynamic(&mut layers, &QConfigSpec::float16().min_params(0))?;
    checkpoint::save(&layers, &source, &out)?;
    let opened = Checkpoint::open(&out)?;
    let vb = opened.var_builder(DType::F32, &Device::Cpu);
    let whole = nn::Linear::new(vb.get((24, 16), "attn.in_proj_weight")?, None);
    let whole = whole.projection().qweight().expect("float16").saturated();
    assert_eq!(whole, 5);
    // Rows that were loaded do not know theirs.
    let twice = dir.path().join("twice");
    checkpoint::save(&in_proj(&vb)?, &opened, &twice)?;
    assert_eq!(std::fs::read(&twice)?, std::fs::read(&out)?);
    Ok(())
}

#[test]
fn columns_of_a_quantized_tensor_are_its_values() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, int8, out] = ["float", "int8", "out"].map(|name| dir.path().join(name));
    write(&float, [("w.weight", random(&[8, 16])?)])?;
    let spec = QConfigSpec::int8().min_params(0);
    let whole = |vb: VarBuilder<'static>| nn::linear_no_bias(16, 8, vb.pp("w"));
    round_trip(&float, &int8, &spec, DType::F32, whole, |m| vec![m])?;
    // Groups of inputs in another library's layout.
    let groups = dir.path().join("groups");
    let codes: Vec<u8> = (0..128).map(|i| (i * 37 % 251) as u8).collect();
    let scales: Vec<f32> = (0..32).map(|i| 0.5 + i as f32).collect();
    let groups_of_four = [
        ("w.weight", "I8", serde_json::json!([8, 16]), &codes[..]),
        ("w.weight_scale", "F32", serde_json::json!([8, 4]), &super::text::f32s(&scales)[..]),
    ];
    std::fs::write(&groups, super::text::tensors(&groups_of_four, serde_json::Value::Null))?;
    // Quantized once more, they find their place by their values.
    for source in [&int8, &groups] {
        for (axis, at) in [(1, 4), (0, 5)] {
            let load = |vb: VarBuilder<'static>| {
                let weight = vb.get((8, 16), "w.weight")?;
                let part = weight.narrow(axis, at, 3)?;
                Ok(nn::Linear::new(part, None))
            };
            let saved = round_trip(source, &out, &spec, DType::F32, load, |m| vec![m])?;
            assert_eq!(saved.beside.len(), 1, "{axis} of {}", source.display());
        }
    }
    Ok(())
}

#[test]
fn weights_of_one_row_or_one_column_are_found() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| dir.path().join(name));
    write(&float, [("row", random(&[1, 16])?), ("column", random(&[16, 1])?)])?;
    let load = |vb: VarBuilder<'static>| {
        Ok(vec![
            nn::Linear::new(vb.get((1, 16), "row")?, None),
            nn::Linear::new(vb.get((16, 1), "column")?, None),
        ])
    };
    for spec in specs() {
        let saved = round_trip(&float, &out, &spec, DType::F32, load, each)?;
        assert_eq!(saved.beside.len(), 0, "{spec}");
    }
    Ok(())
}

/// The register drops tensors of closed checkpoints, at the latest after a thousand.
#[test]
fn a_tensor_keeps_its_origin_among_thousands() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, int8] = ["float", "int8"].map(|name| dir.path().join(name));
    write(&float, [("w.weight", random(&[6, 8])?)])?;
    let spec = QConfigSpec::int8().min_params(0);
    let whole = |vb: VarBuilder<'static>| nn::linear_no_bias(8, 6, vb.pp("w"));
    round_trip(&float, &int8, &spec, DType::F32, whole, |m| vec![m])?;
    let vb = Checkpoint::open(&int8)?.var_builder(DType::F32, &Device::Cpu);
    let first = vb.get((6, 8), "w.weight")?;
    let others = (0..3_000).map(|_| vb.get((6, 8), "w.weight"));
    let others = others.collect::<candle_core::Result<Vec<_>>>()?;
    assert_eq!(others.len(), 3_000);
    let layer = nn::Linear::new(first, None);
    assert!(layer.projection().qweight().is_some());
    Ok(())
}

#[test]
fn the_bias_beside_a_tensor_is_not_that_of_its_parts() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| dir.path().join(name));
    write(&float, [("qkv.weight", random(&[6, 8])?), ("qkv.bias", random(&[3])?)])?;
    let load = |vb: VarBuilder<'static>| {
        let weight = vb.get((6, 8), "qkv.weight")?;
        let bias = Tensor::ones(3, DType::F32, &Device::Cpu)?;
        let part = |at| Ok(nn::Linear::new(weight.narrow(0, at, 3)?, Some(bias.clone())));
        [0, 3].into_iter().map(part).collect()
    };
    let spec = QConfigSpec::int8().min_params(0);
    round_trip(&float, &out, &spec, DType::F32, load, each)?;
    let [before, after] = [&float, &out].map(|path| Checkpoint::open(path)?.floats("qkv.bias"));
    assert_eq!(before?, after?);
    Ok(())
}

#[test]
fn a_part_without_elements_is_no_origin() -> Result<()> {
    let load = |vb: VarBuilder<'static>| {
        let weight = vb.get((24, 16), "w.weight")?;
        Ok(vec![nn::Linear::new(weight.narrow(0, 8, 0)?, None)])
    };
    let spec = QConfigSpec::int8().min_params(0);
    let error = saved([("w.weight", random(&[24, 16])?)], load, &spec)?;
    assert!(error.starts_with("0: cannot save"), "{error}");
    Ok(())
}

#[test]
fn a_table_of_a_quantized_tensor_is_quantized() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, int8] = ["float", "int8"].map(|name| dir.path().join(name));
    write(&float, [("embed.weight", random(&[40, 16])?)])?;
    let source = Checkpoint::open(&float)?;
    let mut table =
        nn::embedding(40, 16, source.var_builder(DType::F32, &Device::Cpu).pp("embed"))?;
    let spec = QConfigSpec::int8().min_params(0).embeddings();
    quantize_dynamic(&mut table, &spec)?;
    checkpoint::save(&table, &source, &int8)?;
    let vb = Checkpoint::open(&int8)?.var_builder(DType::F32, &Device::Cpu);
    let weight = vb.get((40, 16), "embed.weight")?;
    let again = nn::Embedding::new(weight, 16);
    assert!(again.qtable().is_some());
    Ok(())
}

#[test]
fn layers_of_one_tensor_have_equal_descriptions() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let float = dir.path().join("float");
    write(&float, [("w.weight", random(&[6, 8])?)])?;
    let vb = Checkpoint::open(&float)?.var_builder(DType::F32, &Device::Cpu);
    let weight = vb.get((6, 8), "w.weight")?;
    let layers = [0; 2].map(|_| nn::Linear::new(weight.clone(), None));
    assert_eq!(layers[0].weight_infos(), layers[1].weight_infos());
    Ok(())
}
