//! Weights that a model renames, slices from a tensor, transposes or holds twice: saved, and loaded
//! unchanged.

use super::contested::saved;
use super::text::{f32s, header, tensors, with_header};
use crate::kit::*;

/// The bits of an answer.
fn answer(layer: &nn::Linear) -> Result<Vec<u32>> {
    let inputs = layer.weight().dims()[1];
    let xs = (0..3 * inputs).map(|i| (i * 7 % 11) as f32 - 5.);
    Ok(bits(&layer.forward(&Tensor::from_vec(xs.collect(), (3, inputs), &Device::Cpu)?)?))
}

/// Loads, quantizes, saves and loads again: returns the saved model and the file, which a second
/// save must reproduce. All Linears must give the same bits, and stay quantized if they were.
pub fn round_trip_of<M: Quantizable>(
    source: &Checkpoint,
    out: &Path,
    spec: &QConfigSpec,
    dtype: DType,
    load: impl Fn(VarBuilder<'static>) -> candle_core::Result<M>,
    layers: impl Fn(&M) -> Vec<&nn::Linear>,
) -> Result<Saved> {
    let mut model = load(source.var_builder(dtype, &Device::Cpu))?;
    let saved = save_quantized(&mut model, spec, source, out)?;
    let opened = Checkpoint::open(out)?;
    let again = load(opened.var_builder(dtype, &Device::Cpu))?;
    for (a, b) in layers(&model).into_iter().zip(layers(&again)) {
        assert_eq!(is_quantized(a), is_quantized(b), "{spec}");
        assert_eq!(answer(a)?, answer(b)?, "{spec}");
    }
    let twice = out.with_extension("twice");
    checkpoint::save(&again, &opened, &twice)?;
    assert_eq!(fs::read(&twice)?, fs::read(out)?, "{spec}");
    Ok(saved)
}

pub fn round_trip<M: Quantizable>(
    source: &Source,
    spec: &QConfigSpec,
    load: impl Fn(VarBuilder<'static>) -> candle_core::Result<M>,
    layers: impl Fn(&M) -> Vec<&nn::Linear>,
) -> Result<Saved> {
    round_trip_of(&source.checkpoint, &source.out, spec, DType::F32, load, layers)
}

#[allow(clippy::ptr_arg, reason = "the model that `round_trip` loads")]
pub fn each(layers: &Vec<nn::Linear>) -> Vec<&nn::Linear> {
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
        all_int8(),
        QConfigSpec::pytorch(),
        QConfigSpec::float16(),
        QConfigSpec::bfloat16(),
        QConfigSpec::onnxruntime(),
    ]
}

/// The names of the quantized tensors.
pub fn quantized(path: &Path) -> Result<Vec<String>> {
    let checkpoint = Checkpoint::open(path)?;
    let tensors = checkpoint.tensors().filter(|tensor| tensor.quantized);
    Ok(tensors.map(|tensor| tensor.name).collect())
}

#[test]
fn a_renamed_layer_is_saved_under_the_name_of_the_file() -> Result<()> {
    let source = Source::random([
        ("layers.0.q_proj.weight", &[6, 8]),
        ("layers.0.q_proj.bias", &[6]),
        ("embeddings.weight", &[9, 8]),
        ("lstm.weight_ih_l0", &[12, 8]),
        ("lstm.weight_hh_l0", &[12, 3]),
        ("lstm.bias_ih_l0", &[12]),
        ("lstm.bias_hh_l0", &[12]),
    ])?;
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
        for spec in
            [all_int8().embeddings(), QConfigSpec::pytorch().embeddings(), QConfigSpec::float16()]
        {
            let load = |vb: VarBuilder<'static>| {
                let vb = vb.rename_f(rename).pp("model");
                let lstm = nn::LSTM::new(8, 3, Default::default(), vb.pp("lstm"))
                    .map_err(candle_core::Error::wrap)?;
                let linear = nn::linear(8, 6, vb.pp("layers.0.q_proj"))?;
                Ok((nn::embedding(9, 8, vb.pp("embeddings"))?, linear, lstm))
            };
            round_trip(&source, &spec, load, |model| vec![&model.1])?;
            let names = quantized(&source.out)?;
            let all = ["layers.0.q_proj.weight", "lstm.weight_hh_l0", "lstm.weight_ih_l0"];
            assert!(all.iter().all(|name| names.contains(&(*name).to_owned())), "{names:?}");
            let table = names.contains(&"embeddings.weight".to_owned());
            assert_eq!(table, spec != QConfigSpec::float16(), "{names:?}");
        }
    }
    Ok(())
}

pub const IN_PROJ: [(&str, &[usize]); 2] =
    [("attn.in_proj_weight", &[24, 16]), ("attn.in_proj_bias", &[24])];

/// The attention of siglip, openclip and mimi.
pub fn in_proj(vb: &VarBuilder<'_>) -> candle_core::Result<Vec<nn::Linear>> {
    let weights = vb.get((24, 16), "attn.in_proj_weight")?.chunk(3, 0)?;
    let biases = vb.get(24, "attn.in_proj_bias")?.chunk(3, 0)?;
    let all = weights.into_iter().zip(biases);
    Ok(all.map(|(weight, bias)| nn::Linear::new(weight, Some(bias))).collect())
}

#[test]
fn slices_of_a_tensor_are_written_in_its_place_or_beside_it() -> Result<()> {
    let source = Source::random(IN_PROJ)?;
    let load = |vb: VarBuilder<'static>| in_proj(&vb);
    for dtype in [DType::F32, DType::BF16] {
        for spec in specs() {
            let saved = round_trip_of(&source.checkpoint, &source.out, &spec, dtype, load, each)?;
            let names = quantized(&source.out)?;
            // A scale per slice cannot be stored beside a scale per row.
            let per_slice = [QConfigSpec::pytorch(), QConfigSpec::onnxruntime()].contains(&spec);
            let counts = if per_slice { (3, 3) } else { (1, 0) };
            assert_eq!((names.len(), saved.beside.len()), counts, "{spec} {names:?}");
            let lines = saved.to_string();
            assert_eq!(lines.contains("beside \"attn.in_proj_weight\""), per_slice, "{lines}");
        }
    }
    // Only some of the slices.
    let saved = round_trip(&source, &all_int8().exclude("1"), load, each)?;
    assert_eq!(saved.beside.len(), 2);
    assert_eq!(saved.beside[1].layer, "2");
    let bytes: u64 = saved.beside.iter().map(|own| own.bytes).sum();
    assert_eq!(bytes, 2 * (8 * 16 + 4 * 8));
    assert!(fs::metadata(&source.out)?.len() > fs::metadata(&source.path)?.len());
    Ok(())
}

/// Elements are compared in blocks of a million.
#[test]
fn a_large_tensor_is_compared_to_its_last_row() -> Result<()> {
    let source = Source::random([("w.weight", &[1_100, 1_000])])?;
    source.convert(&QConfigSpec::int8(), &[])?;
    let is_found = |weight: &Tensor| is_quantized(&nn::Linear::new(weight.clone(), None));
    let vb = source.saved_vb()?;
    let weight = vb.get((1_100, 1_000), "w.weight")?;
    assert!(is_found(&weight) && is_found(&weight.narrow(0, 1_060, 40)?));
    weight.slice_set(&Tensor::ones((1, 1_000), DType::F32, &Device::Cpu)?, 0, 1_099)?;
    assert!(!is_found(&weight) && is_found(&weight.narrow(0, 1_060, 39)?));
    Ok(())
}

#[test]
fn a_table_is_compared_with_its_heads_weight_to_the_last_row() -> Result<()> {
    let source = Source::random([("embed.weight", &[1_500, 16])])?;
    source.convert(&QConfigSpec::int8(), &["embed"])?;
    let vb = source.saved_vb()?;
    let embed = nn::embedding(1_500, 16, vb.pp("embed"))?;
    let head = || nn::Linear::new(embed.embeddings().clone(), None);
    assert!(is_quantized(&head()));
    let ones = Tensor::ones((1, 16), DType::F32, &Device::Cpu)?;
    embed.embeddings().slice_set(&ones, 0, 1_499)?;
    assert!(!is_quantized(&head()));
    Ok(())
}

#[test]
fn transposed_weights_columns_and_rows_are_saved() -> Result<()> {
    let source = Source::random([
        ("c_attn", &[16, 24]),
        ("square", &[8, 8]),
        ("whole", &[24, 16]),
        ("row", &[1, 16]),
        ("column", &[16, 1]),
    ])?;
    let load = |vb: VarBuilder<'static>| {
        let [c_attn, square] = [vb.get((16, 24), "c_attn")?, vb.get((8, 8), "square")?];
        let whole = vb.get((24, 16), "whole")?;
        let weights = [
            // GPT-2 has `[in, out]`.
            c_attn.t()?,
            c_attn.t()?.narrow(0, 8, 8)?,
            c_attn.narrow(1, 4, 8)?,
            square.t()?,
            square,
            // Two numbers of rows, from the first on.
            whole.narrow(0, 0, 8)?,
            whole.narrow(0, 0, 16)?,
            vb.get((1, 16), "row")?,
            vb.get((16, 1), "column")?,
        ];
        Ok(weights.map(|weight| nn::Linear::new(weight, None)).to_vec())
    };
    for spec in specs() {
        let saved = round_trip(&source, &spec, load, each)?;
        let is_whole = |tensor: &str| ["row", "column"].contains(&tensor);
        assert!(!saved.beside.iter().any(|own| is_whole(&own.tensor)), "{spec}");
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
    let source = Source::random([("embed_tokens.weight", &[40, 16])])?;
    type Head = fn(&nn::Embedding, &VarBuilder<'static>) -> candle_core::Result<nn::Linear>;
    let heads: [Head; 3] = [
        |_, vb| nn::linear_no_bias(16, 40, vb.pp("model.embed_tokens")),
        |_, vb| Ok(nn::Linear::new(vb.get((40, 16), "model.embed_tokens.weight")?, None)),
        |embed, _| Ok(nn::Linear::from_weights(embed.embeddings().clone(), None)),
    ];
    for head in heads {
        let load = |vb: VarBuilder<'static>| {
            let vb = vb.rename_f(|name| name.trim_start_matches("model.").to_owned());
            let embed = nn::embedding(40, 16, vb.pp("model.embed_tokens"))?;
            Ok(Tied { head: head(&embed, &vb)?, embed })
        };
        for spec in specs() {
            let saved = round_trip(&source, &spec, load, |m| vec![&m.head])?;
            let [beside] = &saved.beside[..] else { panic!("{saved:?}") };
            assert_eq!((&*beside.layer, &*beside.tensor), ("head", "embed_tokens.weight"));
            let opened = source.saved()?;
            // A reader without this support finds the floats.
            let expected = source.checkpoint.floats("embed_tokens.weight")?;
            assert_eq!(opened.floats("embed_tokens.weight")?, expected);
            assert!(load(vb_of(&opened))?.embed.qtable().is_none());
            let floats = source.beside("floats");
            checkpoint::dequantize(&opened, &floats, |_| {})?;
            assert_eq!(Checkpoint::open(&floats)?.tensors().count(), 1);
        }
        // A head beside a separate table.
        let table = all_int8().kind(LayerKind::Linear, QConfig::pytorch()).embeddings();
        round_trip(&source, &table, load, |m| vec![&m.head])?;
    }
    Ok(())
}

#[test]
fn memory_that_is_used_again_is_no_origin() -> Result<()> {
    let source = Source::random(IN_PROJ)?;
    for _ in 0..50 {
        drop(source.vb.get((24, 16), "attn.in_proj_weight")?);
        let other = random(&[24, 16]);
        let mut model = vec![nn::Linear::new(other.narrow(0, 0, 8)?, None)];
        fault(source.quantize(&mut model, &all_int8())).starts("0: cannot save");
    }
    Ok(())
}

#[test]
fn a_tensor_that_was_changed_in_place_is_no_origin() -> Result<()> {
    let source = Source::random([("qkv.weight", &[24, 16])])?;
    let whole = |vb: VarBuilder<'static>| nn::linear_no_bias(16, 24, vb.pp("qkv"));
    round_trip(&source, &all_int8(), whole, |m| vec![m])?;
    let vb = source.saved_vb()?;
    let weight = vb.get((24, 16), "qkv.weight")?;
    assert!(is_quantized(&nn::Linear::new(weight.clone(), None)));
    weight.zero_set()?;
    let layer = nn::Linear::new(weight, None);
    assert!(!is_quantized(&layer) && answer(&layer)?.iter().all(|y| *y == 0));
    Ok(())
}

#[test]
fn a_convolution_that_was_changed_in_place_is_no_origin() -> Result<()> {
    let source = Source::random([("stem.weight", &[8, 4, 3])])?;
    let stem = nn::conv1d_no_bias(4, 8, 3, Default::default(), source.vb.pp("stem"))?;
    let spec = QConfigSpec::of("0", QConfig::int8()).min_params(0);
    source.quantize(&mut vec![stem], &spec)?;
    let saved = source.saved()?;
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let weight = saved.var_builder(dtype, &Device::Cpu).get((8, 4, 3), "stem.weight")?;
        let of_weight = || nn::Conv1d::new(weight.clone(), None, Default::default());
        let is_quantized = |layer: &nn::Conv1d| layer.weight_infos()[0].quantized;
        assert!(is_quantized(&of_weight()), "{dtype:?}");
        weight.zero_set()?;
        let layer = of_weight();
        assert!(!is_quantized(&layer), "{dtype:?}");
        let ys = layer.forward(&Tensor::ones((1, 4, 5), dtype, &Device::Cpu)?)?;
        assert!(values(&ys).iter().all(|y| *y == 0.));
    }
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
fn a_float_layer_reads_its_tensor_once() -> Result<()> {
    let bytes_read = || -> Result<u64> {
        let io = fs::read_to_string("/proc/thread-self/io")?;
        let read = io.lines().find_map(|line| line.strip_prefix("rchar: "));
        Ok(read.expect("rchar").parse()?)
    };
    let vb = &Source::random([("a.weight", &[512, 300])])?.vb;
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
    let source = Source::random([("embed.weight", &[64, 8])])?;
    source.convert(&all_int8(), &["embed"])?;
    let vb = source.saved_vb()?;
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
            let error = layer.forward(&random(&[2, 8])).err();
            let error = error.map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(expected), "{error}");
            assert_eq!(error.is_empty(), is_quantized(&layer), "{error}");
        }
    }
    Ok(())
}

#[test]
fn a_table_that_would_not_be_found_again_is_refused() -> Result<()> {
    let source = Source::random([("embed.weight", &[40, 16])])?;
    let embed = nn::embedding(40, 16, source.vb.pp("embed"))?;
    // A padded vocabulary.
    let head = nn::Linear::new(embed.embeddings().narrow(0, 0, 30)?, None);
    let spec = all_int8().embeddings().exclude("head");
    fault(source.quantize(&mut Tied { embed, head }, &spec)).starts("embed: cannot save");
    Ok(())
}

#[test]
fn rows_of_a_quantized_tensor_give_a_quantized_layer() -> Result<()> {
    let source = Source::random([("qkv.weight", &[24, 16])])?;
    let whole = |vb: VarBuilder<'static>| nn::linear_no_bias(16, 24, vb.pp("qkv"));
    round_trip(&source, &all_int8(), whole, |m| vec![m])?;
    let opened = source.saved()?;
    let vb = vb_of(&opened);
    let whole = whole(vb.clone())?.weight().to_vec2::<f32>()?;
    let weight = vb.get((24, 16), "qkv.weight")?;
    let slices = [(0, 16), (16, 4), (20, 4)];
    let slices = slices.map(|(at, n)| nn::Linear::new(weight.narrow(0, at, n).unwrap(), None));
    for (layer, at) in slices.iter().zip([0, 16, 20]) {
        assert!(is_quantized(layer));
        let rows = layer.weight().to_vec2::<f32>()?;
        assert_eq!(rows, whole[at..at + rows.len()]);
    }
    let twice = source.beside("twice");
    checkpoint::save(&slices.to_vec(), &opened, &twice)?;
    assert_eq!(fs::read(&twice)?, fs::read(&source.out)?);
    Ok(())
}

/// The command quantizes them on request.
#[test]
fn tensors_of_several_layers_are_quantized_by_their_names() -> Result<()> {
    let experts: (_, &[usize]) = ("experts.gate_up_proj", &[3, 10, 16]);
    let source = Source::random([IN_PROJ[0], IN_PROJ[1], experts, ("head.weight", &[4, 16])])?;
    let load = |vb: &VarBuilder<'static>| -> Result<Vec<nn::Linear>> {
        let mut layers = in_proj(vb)?;
        let experts = vb.get((3, 10, 16), "experts.gate_up_proj")?;
        for i in 0..3 {
            layers.push(nn::Linear::new(experts.get(i)?, None));
            layers.push(nn::Linear::new(experts.get(i)?.narrow(0, 5, 5)?, None));
        }
        Ok(layers)
    };
    let spec = all_int8();
    source.convert(&spec, &["attn.in_proj_weight", "experts.gate_up_proj"])?;
    let opened = source.saved()?;
    let scales: Vec<_> = opened.tensors().filter(|t| t.name.ends_with("_scale")).collect();
    let shapes: Vec<_> = scales.iter().map(|tensor| &tensor.shape[..]).collect();
    assert_eq!(shapes, [&[24, 1][..], &[3, 10, 1], &[4, 1]]);
    // The bits of a model that is quantized, and of a model that is saved.
    let mut model = load(&source.vb)?;
    quantize_dynamic(&mut model, &spec)?;
    let again = load(&vb_of(&opened))?;
    for (a, b) in model.iter().zip(&again) {
        assert!(is_quantized(b));
        assert_eq!(answer(a)?, answer(b)?);
    }
    let all = again.into_iter().enumerate();
    let tiles = all.filter(|(i, _)| *i < 3 || i % 2 == 1).map(|(_, layer)| layer);
    let twice = source.beside("twice");
    checkpoint::save(&tiles.collect::<Vec<_>>(), &opened, &twice)?;
    assert_eq!(fs::read(&twice)?, fs::read(&source.out)?);
    // A reader without this support gets floats.
    let floats = source.beside("floats");
    checkpoint::dequantize(&opened, &floats, |_| {})?;
    let floats = candle_core::safetensors::load(&floats, &Device::Cpu)?;
    let experts = values(&floats["experts.gate_up_proj"]);
    assert_eq!(experts, opened.floats("experts.gate_up_proj")?);
    fault(source.plan(&spec, &["attn.in_proj"])).has("attn.in_proj");

    let names = ["experts.gate_up_proj", "experts.down_proj", "experts.other"];
    let of_experts =
        |shapes: [[usize; 3]; 3]| Source::random([0, 1, 2].map(|i| (names[i], &shapes[i][..])));
    // The rows here are inputs: a scale for each has no meaning for outputs.
    for [first, second] in [[[3, 16, 20], [3, 10, 16]], [[3, 16, 32], [3, 16, 16]]] {
        let source = Source::random([(names[0], &first[..]), (names[1], &second)])?;
        for name in &names[..2] {
            fault(source.plan(&spec, &[name])).has("whose rows are inputs");
        }
    }
    // The usual orientation, and sizes that only one of the two products determines.
    for [first, second] in
        [[[3, 12, 8], [3, 8, 6]], [[3, 7, 12], [3, 6, 8]], [[3, 8, 10], [3, 6, 8]]]
    {
        of_experts([first, second, first])?.plan(&spec, &names)?;
    }
    // Another tensor beside such experts.
    of_experts([[3, 8, 12], [3, 6, 8], [3, 8, 12]])?.plan(&spec, &names[2..])?;
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
    let source = Source::random([("words.weight", &[12, 16])])?;
    let load = |vb: &VarBuilder<'static>, head_first: bool| -> Result<Vec<Part>> {
        let mut parts = Vec::new();
        for rows in vb.get((12, 16), "words.weight")?.chunk(2, 0)? {
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
            Part::Head(head) => Some(answer(head)),
            Part::Table(_) => None,
        });
        heads.collect()
    };
    let spec = QConfigSpec::int4().min_params(0).kind(LayerKind::Embedding, QConfig::int4());
    for head_first in [true, false] {
        let mut model = load(&source.vb, head_first)?;
        source.quantize(&mut model, &spec)?;
        let again = load(&source.saved_vb()?, head_first)?;
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
            let first = values(&tensor.narrow(1, 0, 1)?);
            self.0 = first.iter().map(|x| 5 * i32::from(*x >= 10.)).collect();
            Ok(())
        }

        fn calculate_qparams(&self) -> candle_dynquant::Result<WeightQParams> {
            let scales = vec![0.25; self.0.len()];
            WeightQParams::new(QDType::QInt8, scales, ZeroPoints::Int(self.0.clone()))
        }
    }

    let load = |vb: &VarBuilder<'static>| -> Result<Vec<nn::Linear>> {
        let parts = vb.get((6, 16), "qkv.weight")?.chunk(2, 0)?;
        Ok(parts.into_iter().map(|part| nn::Linear::new(part, None)).collect())
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
        let source = Source::of([("qkv.weight", Tensor::from_vec(rows, (6, 16), &Device::Cpu)?)])?;
        let mut model = load(&source.vb)?;
        source.quantize(&mut model, &spec)?;
        for (a, b) in model.iter().zip(load(&source.saved_vb()?)?) {
            assert!(is_quantized(&b));
            assert_eq!(answer(a)?, answer(&b)?);
        }
    }
    Ok(())
}

/// Only the file that holds a tensor records the layers that are sliced from it.
#[test]
fn parts_are_recorded_where_their_tensor_is() -> Result<()> {
    let (_dir, [float, out]) = paths(["float", "out"]);
    fs::create_dir(&float)?;
    let tensors = [("qkv.weight", random(&[9, 16])), ("head.weight", random(&[4, 16]))];
    let mut map = serde_json::Map::new();
    for (i, (name, tensor)) in tensors.into_iter().enumerate() {
        let file = format!("model-{i}.safetensors");
        write(&float.join(&file), [(name, tensor)])?;
        map.insert(name.to_owned(), file.into());
    }
    let index = json!({"metadata": {}, "weight_map": map});
    fs::write(float.join("model.safetensors.index.json"), index.to_string())?;
    let source = Checkpoint::open(&float)?;
    let vb = vb_of(&source);
    // Some rows twice and unordered, which a record of views stores.
    let qkv = vb.get((9, 16), "qkv.weight")?;
    let mut model = vec![nn::linear_no_bias(16, 4, vb.pp("head"))?];
    for (start, len) in [(0, 6), (3, 6)] {
        model.push(nn::Linear::new(qkv.narrow(0, start, len)?, None));
    }
    save_quantized(&mut model, &QConfigSpec::pytorch(), &source, &out)?;
    let header = |number: usize| -> Result<String> {
        Ok(header(&fs::read(out.join(format!("model-{number}.safetensors")))?).to_string())
    };
    assert!(header(0)?.contains("views"), "{}", header(0)?);
    assert!(!header(1)?.contains("qkv"), "{}", header(1)?);
    Ok(())
}

#[test]
fn views_that_do_not_fit_are_refused() -> Result<()> {
    let source = Source::random([("embed.weight", &[40, 16])])?;
    let embed = nn::embedding(40, 16, source.vb.pp("embed"))?;
    let head = nn::Linear::tied(&embed, None);
    source.quantize(&mut Tied { embed, head }, &all_int8())?;
    let (bytes, bad) = (fs::read(&source.out)?, source.beside("bad"));
    let header = header(&bytes);
    let key = "candle_dynquant";
    let record = header["__metadata__"][key].as_str().unwrap_or_default();
    let record: Value = serde_json::from_str(record)?;
    assert_eq!(record["version"], 2);
    let open_with = |change: &dyn Fn(&mut Value)| -> Result<String> {
        let (mut header, mut record) = (header.clone(), record.clone());
        change(&mut record);
        header["__metadata__"][key] = record.to_string().into();
        fs::write(&bad, with_header(&bytes, &header))?;
        let opened = Checkpoint::open(&bad);
        Ok(opened.err().map_or(String::new(), |error| error.to_string()))
    };
    assert_eq!(open_with(&|_| ())?, "");
    for (path, value, expected) in [
        ("/of", json!("none"), "no such tensor"),
        ("/of", json!("embed.weight.quantized"), "a view of a view"),
        ("/part/offset", json!(1), "640 elements"),
        ("/part/offset", json!(u64::MAX), "640 elements"),
        ("/part/strides", json!([u64::MAX, 1]), "640 elements"),
        ("/part/shape", json!([20, 16]), "[40, 16]"),
        ("/part/shape", json!([0, 16]), "640 elements"),
        ("/part/shape", json!([40]), "candle_dynquant"),
        ("/part", json!({}), "candle_dynquant"),
    ] {
        let path = format!("/views/embed.weight.quantized{path}");
        let set = |record: &mut Value| *record.pointer_mut(&path).expect("a value") = value.clone();
        let error = open_with(&set)?;
        assert!(error.contains(expected) && error.len() < 1_000, "{path}: {error}");
    }
    let error = open_with(&|record| {
        record["views"]["other"] = record["views"]["embed.weight.quantized"].clone()
    })?;
    assert!(error.contains("\"other\""), "{error}");
    let error = open_with(&|record| record["version"] = 4.into())?;
    assert!(error.contains("1 or 2 or 3"), "{error}");
    // A scale that is NaN, which building the head would detect.
    let scale = &header["embed.weight.quantized_scale"]["data_offsets"][0];
    let body = 8 + usize::try_from(u64::from_le_bytes(bytes[..8].try_into()?))?;
    let at = body + usize::try_from(scale.as_u64().expect("an offset"))?;
    let mut damaged = bytes.clone();
    damaged[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&bad, damaged)?;
    let embed = nn::embedding(40, 16, open(&bad)?.pp("embed"));
    fault(embed).has("quantized_scale").has("NaN");
    Ok(())
}

#[test]
fn rows_that_saturate_are_counted_together() -> Result<()> {
    let mut values = vec![1f32; 24 * 16];
    for at in [3, 4, 8 * 16, 8 * 16 + 1, 16 * 16] {
        values[at] = 1e6;
    }
    let weight = Tensor::from_vec(values, (24, 16), &Device::Cpu)?;
    let source = Source::of([(IN_PROJ[0].0, weight), (IN_PROJ[1].0, random(&[24]))])?;
    let mut layers = in_proj(&source.vb)?;
    source.quantize(&mut layers, &QConfigSpec::float16().min_params(0))?;
    let opened = source.saved()?;
    let vb = vb_of(&opened);
    let whole = nn::Linear::new(vb.get((24, 16), "attn.in_proj_weight")?, None);
    let whole = whole.projection().qweight().expect("float16").saturated();
    assert_eq!(whole, 5);
    // Rows that were loaded do not know theirs.
    let twice = source.beside("twice");
    checkpoint::save(&in_proj(&vb)?, &opened, &twice)?;
    assert_eq!(fs::read(&twice)?, fs::read(&source.out)?);
    Ok(())
}

#[test]
fn columns_of_a_quantized_tensor_are_its_values() -> Result<()> {
    let source = Source::random([("w.weight", &[8, 16])])?;
    let spec = all_int8();
    let whole = |vb: VarBuilder<'static>| nn::linear_no_bias(16, 8, vb.pp("w"));
    round_trip(&source, &spec, whole, |m| vec![m])?;
    // Groups of inputs in another library's layout.
    let [groups, out] = ["groups", "columns"].map(|name| source.beside(name));
    let codes: Vec<u8> = (0..128).map(|i| (i * 37 % 251) as u8).collect();
    let scales: Vec<f32> = (0..32).map(|i| 0.5 + i as f32).collect();
    let groups_of_four = [
        ("w.weight", "I8", json!([8, 16]), &codes[..]),
        ("w.weight_scale", "F32", json!([8, 4]), &f32s(&scales)[..]),
    ];
    fs::write(&groups, tensors(&groups_of_four, Value::Null))?;
    // Quantized once more, they find their place by their values.
    for path in [&source.out, &groups] {
        let opened = Checkpoint::open(path)?;
        for (axis, at) in [(1, 4), (0, 5)] {
            let load = |vb: VarBuilder<'static>| {
                let weight = vb.get((8, 16), "w.weight")?;
                Ok(nn::Linear::new(weight.narrow(axis, at, 3)?, None))
            };
            let saved = round_trip_of(&opened, &out, &spec, DType::F32, load, |m| vec![m])?;
            assert_eq!(saved.beside.len(), 1, "{axis} of {}", path.display());
        }
    }
    Ok(())
}

/// The register drops tensors of closed checkpoints, at the latest after a thousand.
#[test]
fn a_tensor_keeps_its_origin_among_thousands() -> Result<()> {
    let source = Source::random([("w.weight", &[6, 8])])?;
    let whole = |vb: VarBuilder<'static>| nn::linear_no_bias(8, 6, vb.pp("w"));
    round_trip(&source, &all_int8(), whole, |m| vec![m])?;
    let vb = source.saved_vb()?;
    let first = vb.get((6, 8), "w.weight")?;
    let others = (0..3_000).map(|_| vb.get((6, 8), "w.weight"));
    let others = others.collect::<candle_core::Result<Vec<_>>>()?;
    assert_eq!(others.len(), 3_000);
    assert!(is_quantized(&nn::Linear::new(first, None)));
    Ok(())
}

#[test]
fn the_bias_beside_a_tensor_is_not_that_of_its_parts() -> Result<()> {
    let source = Source::random([("qkv.weight", &[6, 8]), ("qkv.bias", &[3])])?;
    let load = |vb: VarBuilder<'static>| {
        let weight = vb.get((6, 8), "qkv.weight")?;
        let bias = Tensor::ones(3, DType::F32, &Device::Cpu)?;
        let part = |at| Ok(nn::Linear::new(weight.narrow(0, at, 3)?, Some(bias.clone())));
        [0, 3].into_iter().map(part).collect()
    };
    round_trip(&source, &all_int8(), load, each)?;
    assert_eq!(source.checkpoint.floats("qkv.bias")?, source.saved()?.floats("qkv.bias")?);
    Ok(())
}

#[test]
fn a_part_without_elements_is_no_origin() -> Result<()> {
    let load = |vb: VarBuilder<'static>| {
        let weight = vb.get((24, 16), "w.weight")?;
        Ok(vec![nn::Linear::new(weight.narrow(0, 8, 0)?, None)])
    };
    let error = saved([("w.weight", random(&[24, 16]))], load, &all_int8())?;
    assert!(error.starts_with("0: cannot save"), "{error}");
    Ok(())
}

#[test]
fn a_table_of_a_quantized_tensor_is_quantized() -> Result<()> {
    let source = Source::random([("embed.weight", &[40, 16])])?;
    let mut table = nn::embedding(40, 16, source.vb.pp("embed"))?;
    source.quantize(&mut table, &all_int8().embeddings())?;
    let vb = source.saved_vb()?;
    let weight = vb.get((40, 16), "embed.weight")?;
    assert!(nn::Embedding::new(weight, 16).qtable().is_some());
    Ok(())
}

#[test]
fn layers_of_one_tensor_have_equal_descriptions() -> Result<()> {
    let source = Source::random([("w.weight", &[6, 8])])?;
    let weight = source.vb.get((6, 8), "w.weight")?;
    let layers = [0; 2].map(|_| nn::Linear::new(weight.clone(), None));
    assert_eq!(layers[0].weight_infos(), layers[1].weight_infos());
    Ok(())
}
