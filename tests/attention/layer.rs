//! Attention as a layer, in specs, reports, checkpoints, inspections and searches.

use Precision::{BFloat16, Float32, Int8};
use candle_dynquant::tune::{LayerPrecision, Strategy};
use candle_dynquant_support::bert::{Bert, Folder, texts};

use crate::common::tensor;
use crate::kit::*;

const HIDDEN: usize = 32;

#[derive(Quantizable, Clone)]
struct Block {
    qkv: nn::Linear,
    attend: nn::Attention,
}

impl Block {
    fn load(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        Ok(Self {
            qkv: nn::linear(HIDDEN, 3 * HIDDEN, vb.pp("qkv"))?,
            attend: nn::Attention::load(0.35, vb.pp("attn")),
        })
    }

    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        let (batch, seq, _) = xs.dims3()?;
        let qkv = self.qkv.forward(xs)?.reshape((batch, seq, 12, 8))?;
        let part = |i: usize| qkv.narrow(2, 4 * i, 4)?.transpose(1, 2);
        let ys = self.attend.forward(&part(0)?, &part(1)?, &part(2)?, Mask::Causal)?;
        ys.transpose(1, 2)?.reshape((batch, seq, HIDDEN)) + xs
    }
}

/// Attention in a `Vec` and in an `Option`.
#[derive(Quantizable, Clone)]
struct Model {
    layers: Vec<Block>,
    pool: Option<nn::Attention>,
    none: Option<nn::Attention>,
}

impl Model {
    fn load(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        let layers = (0..3).map(|i| Block::load(vb.pp("h").pp(i)));
        Ok(Self {
            layers: layers.collect::<candle_core::Result<_>>()?,
            pool: Some(nn::Attention::load(0.2, vb.pp("pool"))),
            none: None,
        })
    }

    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        let mut xs = xs.clone();
        for layer in &self.layers {
            xs = layer.forward(&xs)?;
        }
        let heads = xs.unsqueeze(1)?;
        let pool = self.pool.as_ref().expect("there is one");
        pool.forward(&heads, &heads, &heads, None)
    }

    fn bits(&self) -> Result<Vec<u32>> {
        Ok(bits(&self.forward(&inputs()?)?))
    }

    fn precisions(&self) -> Vec<Precision> {
        let layers = self.layers.iter().map(|layer| &layer.attend);
        layers.chain(&self.pool).map(|own| own.precision()).collect()
    }
}

fn inputs() -> Result<Tensor> {
    Ok((tensor(&[2, 40, HIDDEN], 1)? / 4.)?)
}

/// A float checkpoint, and a model that is loaded from it.
fn source() -> Result<(Source, Model)> {
    let vars = VarMap::new();
    Model::load(VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu))?;
    for (name, var) in vars.data().lock().expect("no panic").iter() {
        let seed = name.bytes().map(u64::from).sum();
        var.set(&(tensor(var.dims(), seed)? * 0.1)?)?;
    }
    let (dir, [path]) = paths(["model.safetensors"]);
    vars.save(&path)?;
    let source = Source::new(dir, path)?;
    let model = Model::load(source.vb.clone())?;
    Ok((source, model))
}

fn float() -> Result<Model> {
    Ok(source()?.1)
}

/// The outcome of quantizing the attention layers: precisions and report, or the error.
fn becomes(spec: &QConfigSpec) -> Result<(Vec<Precision>, Report)> {
    let mut model = float()?;
    let report = quantize_dynamic(&mut model, spec)?;
    Ok((model.precisions(), report))
}

#[test]
fn it_is_off_by_default_and_asked_for_by_preset_kind_and_name() -> Result<()> {
    let off = LeftReason::OffByDefault { by: "attention" };
    for name in QConfigSpec::PRESETS {
        let (precisions, report) = becomes(&QConfigSpec::preset(name)?)?;
        assert_eq!(precisions, [Float32; 4], "{name}");
        let reason = off.clone();
        assert_eq!(report.layers[1].outcome, Outcome::Left { reason }, "{name}");
    }
    assert_eq!(off.to_string(), "left: off by default, see `.attention()`");
    let (kind, int8) = (LayerKind::Attention, QConfig::int8);
    let (new, int8_spec) = (QConfigSpec::new, QConfigSpec::int8);
    let reduced = QConfigSpec::int8_reduce_range();
    let cases = [
        (int8_spec().attention(), [Int8; 4]),
        (QConfigSpec::pytorch().attention(), [Int8; 4]),
        (QConfigSpec::onnxruntime().embeddings().attention(), [Int8; 4]),
        (new().attention(), [Int8; 4]),
        (QConfigSpec::bfloat16().attention(), [BFloat16; 4]),
        (QConfigSpec::float16().attention(), [BFloat16; 4]),
        (int8_spec().kind(kind.clone(), QConfig::bfloat16()), [BFloat16; 4]),
        (QConfigSpec::bfloat16().kind(kind.clone(), int8()), [Int8; 4]),
        (reduced.kind(kind.clone(), int8().reduce_range()), [Int8; 4]),
        (int8_spec().attention().exclude("layers.1"), [Int8, Float32, Int8, Int8]),
        (int8_spec().attention().name("h.2.attn", BFloat16), [Int8, Int8, BFloat16, Int8]),
        (int8_spec().name("pool", int8()), [Float32, Float32, Float32, Int8]),
        (int8_spec().regex(r"\.0\.attend$", int8()), [Int8, Float32, Float32, Float32]),
        (new().name("layers", int8()).min_params(1_000_000), [Int8, Int8, Int8, Float32]),
        (int8_spec().attention().exclude(kind), [Float32; 4]),
    ];
    for (spec, expected) in cases {
        assert_eq!(becomes(&spec)?.0, expected, "{spec}");
        assert_reads_back(&spec);
    }
    Ok(())
}

#[test]
fn a_spec_says_its_precision() {
    let spec = QConfigSpec::new().attention().kind(LayerKind::Attention, BFloat16);
    assert_eq!(spec.to_string(), "kind Attention: int8\nkind Attention: bfloat16\n");
}

#[test]
fn files_ask_for_it() -> Result<()> {
    let cases = [
        ("preset: int8\nattention: true", QConfigSpec::int8().attention()),
        ("preset: bfloat16\nattention: true", QConfigSpec::bfloat16().attention()),
        ("preset: int8\nattention: false", QConfigSpec::int8()),
        ("attention: true", QConfigSpec::new().attention()),
        (
            "preset: int8\nrules: [{kind: Attention, qconfig: bfloat16}]",
            QConfigSpec::int8().kind(LayerKind::Attention, BFloat16),
        ),
    ];
    for (yaml, spec) in cases {
        assert_eq!(QConfigSpec::from_yaml(yaml)?, spec, "{yaml}");
        assert_reads_back(&spec);
    }
    let spec = QConfigSpec::from_yaml("preset: int8\nkinds: {Attention: bfloat16}")?;
    assert_eq!(becomes(&spec)?.0, [BFloat16; 4]);
    assert_eq!(spec.to_yaml()?, "preset: int8\nkinds:\n  Attention: bfloat16\n");
    let written = QConfigSpec::int8().attention().to_yaml()?;
    assert_eq!(written, "preset: int8\nattention: true\n");
    fault(QConfigSpec::from_yaml("attention: int8")).starts("line 1, column 12, attention: ");
    Ok(())
}

/// A rule without a meaning for attention is an error by name, and a reason in the report
/// otherwise.
#[test]
fn what_has_no_meaning_is_told() -> Result<()> {
    for qconfig in [
        QConfig::float16(),
        QConfig::pytorch(),
        QConfig::per_channel(),
        QConfig::onnxruntime(Default::default()),
        QConfig::table(),
    ] {
        let json = serde_json::to_string(&qconfig)?;
        let asked = [
            QConfigSpec::int8().kind(LayerKind::Attention, qconfig.clone()),
            QConfigSpec::int8().name("layers.1.attend", qconfig.clone()),
            QConfigSpec::from_yaml(&format!("preset: int8\nkinds: {{Attention: {json}}}"))?,
        ];
        for spec in asked {
            let mut model = float()?;
            let result = quantize_dynamic(&mut model, &spec);
            assert!(result.as_ref().is_err_and(|e| e.kind() == ErrorKind::Unsupported));
            fault(result)
                .has("attend: ")
                .has("int8 with activations of 8 bits per row, or bfloat16")
                .ends(format!("got {qconfig}"));
            assert_eq!(model.precisions(), [Float32; 4]);
        }
        if matches!(qconfig, QConfig::Table(_)) {
            continue;
        }
        let around = [
            QConfigSpec::new().name("layers", qconfig.clone()),
            QConfigSpec::new().name("", qconfig.clone()),
            QConfigSpec::new().regex("^layers", qconfig.clone()),
        ];
        for spec in around {
            let (precisions, report) = becomes(&spec)?;
            assert_eq!(precisions, [Float32; 4]);
            assert!(matches!(report.layers[0].outcome, Outcome::Swapped { .. }));
            let expected =
                format!("left: attention is float32, bfloat16 or int8 per row, not {qconfig}");
            assert_eq!(report.layers[1].outcome.to_string(), expected);
        }
    }
    Ok(())
}

#[test]
fn the_report_shows_its_precision_and_no_bytes() -> Result<()> {
    let spec = QConfigSpec::int8().attention().name("pool", BFloat16);
    let (_, report) = becomes(&spec)?;
    let text = report.to_string();
    let row = |first: &str| -> Vec<String> {
        let row = text.lines().find(|line| line.trim_start().starts_with(first));
        row.expect(first).split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(
        row("layers.{0-2}.attend"),
        ["layers.{0-2}.attend", "x3", "Attention", "int8", "-", "-"]
    );
    assert_eq!(row("pool"), ["pool", "Attention", "bfloat16", "-", "-"]);
    assert!(text.starts_with("7 of 7 layers swapped, weights 36.9 kB -> "), "{text}");
    let json = serde_json::to_value(&report)?;
    assert_eq!(json["layers"][1]["precision"], "int8");
    assert_eq!(json["layers"][1]["outcome"], "swapped");
    assert_eq!(json["layers"][1]["checkpoint_name"], "h.0.attn");
    assert_eq!(json["layers"][0]["precision"], serde_json::Value::Null);
    // Once more: nothing is left to do.
    let mut model = float()?;
    let only = QConfigSpec::new().attention();
    assert_eq!(quantize_dynamic(&mut model, &only)?.swapped().count(), 4);
    let again = quantize_dynamic(&mut model, &only)?;
    assert!(
        again.to_string().starts_with("0 of 7 layers swapped: 4 are quantized already"),
        "{again}"
    );
    Ok(())
}

#[test]
fn it_computes_what_the_function_does_and_a_clone_keeps_its_precision() -> Result<()> {
    let (q, k, v) =
        (tensor(&[1, 4, 9, 8], 1)?, tensor(&[1, 2, 20, 8], 2)?, tensor(&[1, 2, 20, 8], 3)?);
    for precision in [Float32, BFloat16, Int8] {
        let mut layer = nn::Attention::new(0.3);
        if precision != Float32 {
            quantize_dynamic(
                &mut layer,
                &QConfigSpec::new().kind(LayerKind::Attention, precision),
            )?;
        }
        let layer = layer.clone();
        assert_eq!(layer.precision(), precision);
        let got = layer.forward(&q, &k, &v, Mask::Causal)?;
        let expected =
            ops::scaled_dot_product_attention_with(&q, &k, &v, Mask::Causal, 0.3, precision)?;
        assert_eq!(values(&got), values(&expected));
        assert_eq!(precision.to_string().parse::<Precision>()?, precision);
    }
    fault(nn::Attention::new(0.3).forward(&q, &q, &v, None))
        .starts("Attention: ")
        .has("expected v of");
    fault("float16".parse::<Precision>()).has("expected one of float32, bfloat16, int8");
    Ok(())
}

#[test]
fn a_checkpoint_keeps_its_precision() -> Result<()> {
    let (source, float) = source()?;
    let specs = [
        QConfigSpec::int8().attention(),
        QConfigSpec::bfloat16().attention(),
        QConfigSpec::new().attention().exclude("layers.1"),
        QConfigSpec::int8().attention().name("h.2.attn", BFloat16),
        QConfigSpec::int8(),
    ];
    for spec in specs {
        let mut model = float.clone();
        source.quantize(&mut model, &spec)?;
        let saved = source.saved()?;
        assert!(saved.is_quantized() && !source.checkpoint.is_quantized());
        let again = Model::load(vb_of(&saved))?;
        assert_eq!(again.precisions(), model.precisions(), "{spec}");
        assert_eq!(again.bits()?, model.bits()?, "{spec}");
        // And once more, from the quantized file itself.
        let [twice, floats] = ["twice", "floats"].map(|name| source.beside(name));
        checkpoint::save(&again, &saved, &twice)?;
        assert_eq!(fs::read(&twice)?, fs::read(&source.out)?, "{spec}");
        checkpoint::dequantize(&saved, &floats, |_| {})?;
        assert!(!Checkpoint::open(&floats)?.is_quantized());
    }
    Ok(())
}

/// Nothing would restore the precision of attention without a name.
#[test]
fn attention_that_cannot_be_found_again_is_not_saved() -> Result<()> {
    let (source, mut model) = source()?;
    model.pool = Some(nn::Attention::new(0.2));
    source.save(&model)?;
    let before = fs::read(&source.out)?;
    let error = source.quantize(&mut model, &QConfigSpec::int8().attention()).unwrap_err();
    assert_eq!((error.kind(), error.path()), (ErrorKind::Unsupported, Some("pool")));
    fault(Err::<(), _>(error)).has("nn::Attention::load").has("one in int8 without a name");
    // Two layers with one name cannot be distinguished.
    model.pool = Some(model.layers[0].attend.clone());
    source.save(&model)?;
    model.layers[0] = Model::load(source.vb.clone())?.layers[0].clone();
    fault(source.save(&model)).has("\"h.0.attn\"").has("two layers");
    assert_ne!(fs::read(&source.out)?, before);
    Ok(())
}

#[test]
fn a_record_that_means_nothing_is_an_error() -> Result<()> {
    let (source, _) = source()?;
    let bytes = fs::read(&source.path)?;
    let with = |attention: Value| -> Result<String> {
        let record = json!({"version": 3, "formats": [], "weights": {}, "attention": attention});
        let file = safetensors::SafeTensors::deserialize(&bytes)?;
        let metadata = [("candle_dynquant".to_owned(), record.to_string())];
        let views = file.iter().map(|(name, view)| (name.to_owned(), view));
        safetensors::serialize_to_file(views, Some(metadata.into()), &source.out)?;
        Ok(match source.saved_vb() {
            Ok(vb) => format!("{:?}", Model::load(vb)?.precisions()),
            Err(error) => error.to_string(),
        })
    };
    let got = with(json!({"pool": "int8", "other": "bfloat16"}))?;
    assert_eq!(got, "[Float32, Float32, Float32, Int8]");
    let got = with(json!({"pool": "int7"}))?;
    assert!(got.contains("unknown precision") && got.contains("int7"), "{got}");
    let got = with(json!(["pool"]))?;
    assert!(got.contains("metadata `candle_dynquant`"), "{got}");
    Ok(())
}

#[test]
fn an_inspection_measures_its_output() -> Result<()> {
    assert_eq!(nn::Attention::new(0.5).scale(), 0.5);
    let mut float = float()?;
    let mut quantized = float.clone();
    let spec = QConfigSpec::int8().attention().exclude("layers.1");
    quantize_dynamic(&mut quantized, &spec)?;
    let xs = inputs()?;
    let inspection = inspect::inspect(&mut float, &mut quantized, |model| model.forward(&xs))?;
    let of = |path: &str| inspection.layers.iter().find(|layer| layer.path == path).expect("it");
    for path in ["layers.0.attend", "layers.2.attend", "pool"] {
        let layer = of(path);
        assert!(layer.quantized && layer.weights.is_empty(), "{path}");
        let db = layer.output.expect("measured").sqnr_db();
        assert!((25. ..80.).contains(&db), "{path}: {db}");
        // The queries, keys and values of the float model.
        let input = layer.input.as_ref().expect("activations");
        assert!(input.min < input.max && input.clipped.is_none());
        let json = serde_json::to_value(layer).expect("JSON");
        assert!(layer.bits.is_none() && json["bytes_before"] == 0, "{path}");
    }
    let all = float.layers[0].qkv.forward(&xs)?;
    let ends = [all.min_all()?.to_scalar::<f32>()?, all.max_all()?.to_scalar()?];
    let input = of("layers.0.attend").input.as_ref().expect("activations");
    assert_eq!([input.min, input.max], ends, "of queries, keys and values");
    // The picture of sizes has no bars for layers without weights.
    let page = inspection.page("attention", &[]);
    let (_, sizes) = page.split_once("Weights in kB").expect("the picture");
    let (sizes, _) = sizes.split_once("</table>").expect("its end");
    assert!(sizes.contains("qkv") && !sizes.contains("attend"), "{sizes}");
    let left = of("layers.1.attend");
    assert!(!left.quantized && left.output.is_none() && left.along.is_some());
    let table = inspection.to_string();
    assert!(table.contains(" layers.0.attend   Attention "), "{table}");
    // Computed from one run of the float model.
    let others = inspect::replays(&quantized)?;
    assert!(others.contains_key("pool") && !others.contains_key("layers.1.attend"));
    let observed = inspect::observe(&mut float, others, |model| model.forward(&xs))?;
    assert_eq!(observed.outputs["pool"], of("pool").output.expect("measured"));
    assert!(observed.silent.is_empty());
    Ok(())
}

#[test]
fn masks_of_all_kinds_are_measured_as_they_are() -> Result<()> {
    let [q, k, v] = [1, 2, 3].map(|seed| tensor(&[2, 2, 6, 8], seed));
    let (q, k, v) = (q?, k?, v?);
    let own = tensor(&[6, 6], 4)?;
    let excluded = own.gt(1.)?;
    let float = nn::Attention::new(0.3);
    for mask in [
        Mask::All,
        Mask::Causal,
        Mask::Add(&own),
        Mask::Exclude(&excluded),
        Mask::Include(&excluded),
    ] {
        // Computed by the layer from its report.
        let others = [(String::new(), candle_dynquant::Layer::replay(&float).expect("one"))];
        let observed = inspect::observe(&mut float.clone(), others.into(), |layer| {
            layer.forward(&q, &k, &v, mask)
        })?;
        observed.result?;
        assert_eq!(observed.outputs[""].max_abs(), 0., "{mask:?}");
    }
    Ok(())
}

#[test]
fn a_search_has_it_in_its_ladder() -> Result<()> {
    let float = float()?;
    let xs = inputs()?;
    let expected = float.forward(&xs)?;
    let error = |model: &Model| {
        let ys = model.forward(&xs)?;
        (ys - &expected)?.abs()?.max_all()?.to_scalar::<f32>().map(f64::from)
    };
    let of_attention = |model: &mut Model, config: &TuningConfig| -> Result<Vec<LayerPrecision>> {
        let outcome = tune(model, config, error)?;
        let layers = outcome.layers.iter();
        let own = layers.filter(|layer| layer.kind == LayerKind::Attention);
        Ok(own.map(|layer| layer.precision).collect())
    };
    let config = TuningConfig::default().lower_is_better();
    let all = config.clone().spec(QConfigSpec::int8().attention());
    // Without a request the precision stays.
    let precisions = of_attention(&mut float.clone(), &config.clone().absolute(10.))?;
    assert_eq!(precisions, [LayerPrecision::Float; 4]);
    let mut model = float.clone();
    let precisions = of_attention(&mut model, &all.clone().absolute(10.))?;
    assert_eq!(precisions, [LayerPrecision::Int8; 4]);
    assert_eq!(model.precisions(), [Int8; 4]);

    // Only attention: from 8 bits by bfloat16 to f32.
    let only = config.spec(QConfigSpec::new().attention());
    for strategy in [Strategy::Basic, Strategy::Sensitivity, Strategy::ByKind] {
        let only = only.clone().strategy(strategy);
        let mut seen = Vec::new();
        let mut model = float.clone();
        let outcome = tune(&mut model, &only.clone().absolute(0.), error)?;
        for trial in &outcome.trials {
            seen.extend(trial.layers.keys().copied());
        }
        for rung in [LayerPrecision::Int8, LayerPrecision::BFloat16, LayerPrecision::Float] {
            assert!(seen.contains(&rung), "{strategy}: {outcome}");
        }
        assert!(outcome.met && model.precisions() == [Float32; 4], "{strategy}: {outcome}");
        let text = outcome.to_string();
        assert!(text.contains("Attention") && text.contains("FP32"), "{text}");
        // The bound between the two limits the mix.
        let mut bfloat16 = float.clone();
        quantize_dynamic(&mut bfloat16, &QConfigSpec::new().kind(LayerKind::Attention, BFloat16))?;
        let mut model = float.clone();
        let outcome = tune(&mut model, &only.absolute(error(&bfloat16)?), error)?;
        assert!(outcome.met && !model.precisions().contains(&Float32), "{strategy}: {outcome}");
        assert!(model.precisions().contains(&BFloat16), "{strategy}: {outcome}");
    }
    Ok(())
}

/// A folder keeps the precision of attention, also where nothing else is quantized.
#[test]
fn a_saved_bert_answers_as_before() -> Result<()> {
    let dir = repository().join("assets/bert");
    let folder = Folder::read(&dir)?;
    let texts = ["a game of chess", "a paint program for children, and more"];
    let tokens = texts::tokenize(&folder.tokenizer, &folder.config, &texts, None)?;
    let batches = texts::batches(&tokens, 2, folder.config.pad_token_id)?;
    let answer =
        |model: &Bert| -> Result<Vec<Vec<f32>>> { Ok(model.forward(&batches[0])?.to_vec2()?) };
    let out = tempfile::tempdir()?;
    for (i, spec) in [
        QConfigSpec::int8().attention(),
        QConfigSpec::bfloat16().attention(),
        QConfigSpec::new().attention(),
    ]
    .into_iter()
    .enumerate()
    {
        let mut model = folder.model.clone();
        let report = quantize_dynamic(&mut model, &spec)?;
        let layers = report.swapped().filter(|l| l.kind == LayerKind::Attention);
        assert_eq!(layers.count(), 4, "{report}");
        let out = out.path().join(i.to_string());
        checkpoint::save(&model, &Checkpoint::open(&dir)?, &out)?;
        let again = Folder::read(&out)?;
        assert!(again.is_quantized, "{spec}");
        assert_eq!(answer(&again.model)?, answer(&model)?, "{spec}");
        assert_ne!(answer(&model)?, answer(&folder.model)?, "{spec}");
    }
    Ok(())
}
