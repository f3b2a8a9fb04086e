//! The guide: names of types and variants in `docs` exist. The chapter of errors,
//! `docs/troubleshooting.md`, has every kind of error and every reason of a report, and quotes the
//! messages that come.

mod common;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use candle_dynquant::observer::{
    CustomObserver, Observer, ObserverConfig, ObserverKind, WeightQParams, ZeroPoints,
};
use candle_dynquant::{
    DynamicConfig, Equalization, Error, QDType, QScheme, Result, TuningConfig, equalize, inspect,
    quantize_dynamic_with, tune,
};
use common::*;

const CHAPTER: &str = include_str!("../docs/troubleshooting.md");
const PRESETS: &str = include_str!("../docs/presets.md");

/// Types of other crates, libraries and languages that the guide names.
const FOREIGN: &str = "
    Break Copy Infinity Mutex NaN None Rc RefCell RwLock Span Weak DType Device Tensor
    ThreadPoolBuilder VarBuilder VarMap CompressedTensorsConfig Conv Conv1D Conv1dConfig Dense
    Dropout Gather Gemm Int8DynamicActivationInt8WeightConfig
    Int8DynamicActivationIntxWeightConfig Int8Tensor IntxUnpackedToInt8Tensor LogitScore MatMul
    Normalize Pooling Classifier Config Embedder Encoder Head Int8Vector Model Options Reranker
    EmbeddingModel ImageEmbedder ImageEmbedding LateInteractionTextEmbedding MultiVectorEmbedder MultiVectorMask Picture
    SparseEmbedder SparseTextEmbedding StaticEmbedding TextEmbedding TextRerank TokenClassifier
    UserDefinedEmbeddingModel";

#[test]
fn the_guide_names_types_and_variants_that_exist() {
    let api = include_str!("../docs/public-api.txt");
    let blocks = regex::Regex::new("(?ms)^```.*?^```$").expect("a pattern");
    let name = r"`(?:[a-z_]+::)*(([A-Z]\w*[a-z]\w*)(?:::\w+)?)(?:\([^`]*\)\??)?`";
    let name = regex::Regex::new(name).expect("a pattern");
    let pattern = |text: String| regex::Regex::new(&text).expect("a pattern");
    let exists = |name: &str| {
        // Members of an alias are listed with the type that it stands for.
        let (owner, member) = name.split_once("::").unwrap_or((name, ""));
        let alias = pattern(format!(r"pub type (?:\w+::)*{owner} = (\w+)<")).captures(api);
        let of_alias = alias.map(|alias| format!("{}::{member}", &alias[1]));
        let is_listed = |name: &str| pattern(format!(r"\b{name}\b")).is_match(api);
        is_listed(name) || of_alias.is_some_and(|name| is_listed(&name))
    };
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/docs");
    let files = fs::read_dir(docs).expect("the guide");
    let mut missing = Vec::new();
    for path in files.map(|file| file.expect("a file").path()) {
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a chapter");
        for found in name.captures_iter(&blocks.replace_all(&text, "")) {
            let foreign = FOREIGN.split_whitespace().any(|name| name == &found[2]);
            if !foreign && !exists(&found[1]) {
                missing.push(format!("{}: {}", path.display(), &found[1]));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// The variants of an enum in a source, by its text.
fn variants<'a>(source: &'a str, name: &str) -> Vec<&'a str> {
    let (_, body) = source.split_once(&format!("pub enum {name} {{")).expect("the enum");
    let (body, _) = body.split_once("\n}").expect("its end");
    let lines = body.lines().filter_map(|line| line.strip_prefix("    "));
    let names = lines.filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()));
    names.map(|line| line.split([' ', '(', ',']).next().unwrap_or_default()).collect()
}

#[test]
fn the_chapters_have_every_error_reason_qconfig_and_preset() {
    let enums = [
        (include_str!("../src/error.rs"), "ErrorKind", 13, CHAPTER),
        (include_str!("../src/quantize/outcome.rs"), "LeftReason", 6, CHAPTER),
        (include_str!("../src/tune/stop.rs"), "Stopped", 7, CHAPTER),
        (include_str!("../src/qconfig/mod.rs"), "QConfig", 4, PRESETS),
    ];
    for (source, name, at_least, chapter) in enums {
        let variants = variants(source, name);
        assert!(variants.len() >= at_least, "{name}: {variants:?}");
        for variant in variants {
            let mut forms = ["`", "("].iter().map(|end| format!("`{variant}{end}"));
            let is_named = forms.any(|form| chapter.contains(&form));
            assert!(is_named, "{name}::{variant}");
        }
    }
    for preset in QConfigSpec::PRESETS {
        assert!(PRESETS.contains(&format!("`{preset}`")), "{preset}");
    }
}

#[test]
fn the_readme_counts_the_models_that_were_ported() {
    let lines = include_str!("../docs/porting.md").lines();
    let table = lines.skip_while(|line| !line.starts_with("| model | lines |"));
    let models = table.skip(2).take_while(|line| line.starts_with("| `"));
    let count = models.count();
    let readme = include_str!("../README.md");
    assert!(readme.contains(&format!("[{count} models of candle-transformers]")));
}

/// The messages in the first column of the tables of a section, as patterns.
fn quoted(section: &str) -> Vec<regex::Regex> {
    let (_, text) = CHAPTER.split_once(&format!("\n## {section}\n")).expect("the section");
    let text = text.split_once("\n## ").map_or(text, |(text, _)| text);
    let cells = text.lines().filter_map(|line| line.strip_prefix("| "));
    let cells = cells.filter_map(|line| line.split_once(" | ")).map(|(cell, _)| cell);
    let quoted = cells.filter_map(|cell| {
        let quoted = |quotes: &str| cell.strip_prefix(quotes)?.strip_suffix(quotes);
        quoted("``").map(str::trim).or_else(|| quoted("`"))
    });
    quoted
        .map(|message| {
            let pattern = regex::escape(&message.replace("\\|", "|")).replace(r"\.\.", "(?s:.*)");
            regex::Regex::new(&format!("^{pattern}$")).expect("a pattern")
        })
        .collect()
}

fn own(shape: &[usize]) -> Tensor {
    tensor(shape, 2).expect("a tensor")
}

#[derive(Quantizable, Clone)]
struct Model {
    encoder: Vec<nn::Linear>,
    head: nn::Linear,
    embed: nn::Embedding,
}

impl Model {
    fn new() -> Self {
        Self {
            encoder: vec![linear(8, 8), linear(8, 8)],
            head: linear(4, 8),
            embed: nn::Embedding::new(own(&[10, 8]), 8),
        }
    }
}

/// A model of one layer with a path.
fn of_one(layer: nn::Linear, spec: &QConfigSpec) -> Result<()> {
    quantize_dynamic(&mut vec![layer], spec).map(|_| ())
}

fn with_observer(kind: ObserverKind, qscheme: QScheme) -> QConfigSpec {
    let weight = ObserverConfig::new(kind, QDType::QInt8, qscheme);
    QConfigSpec::all_kinds(QConfig::Int8 { weight, activation: DynamicConfig::default() })
}

fn quantizing() -> Vec<String> {
    let int8 = QConfigSpec::int8;
    let float = |spec: QConfigSpec| text(quantize_dynamic(&mut Model::new(), &spec));
    let per_row = QConfig::int8;
    let mut all = vec![
        float(int8().exclude("heads")),
        float(int8().exclude("nothere")),
        float(int8().exclude("*.dense")),
        float(int8().name("1", None)),
        float(int8().kind(LayerKind::LSTM, per_row())),
        float(int8().regex("xyz", per_row())),
        float(int8().regex("(", per_row())),
        float(int8().min_params(1_000_000)),
        float(QConfigSpec::default_kinds(per_row()).exclude(["encoder", "head"])),
        float(int8().kind(LayerKind::Embedding, per_row())),
        float(QConfigSpec::new().kind(LayerKind::Linear, QConfig::table())),
        text(QConfigSpec::preset("int9")),
        text(QConfigSpec::preset("zzz")),
    ];

    let values = |values: &[f32]| Tensor::new(values, CPU).expect("a tensor");
    let weight = values(&[1., f32::NAN]).reshape((1, 2)).expect("a matrix");
    let ids = Tensor::ones((2, 2), DType::U32, CPU).expect("a tensor");
    all.extend([
        text(of_one(nn::Linear::new(weight, None), &int8())),
        text(of_one(nn::Linear::new(own(&[1, 2]), Some(values(&[f32::INFINITY]))), &int8())),
        text(of_one(nn::Linear::new(ones(&[1, 70_000]), None), &int8())),
        text(of_one(nn::Linear::new(ids, None), &int8())),
        text(of_one(nn::Linear::new(own(&[2, 2, 2]), None), &int8())),
    ]);

    #[derive(Quantizable)]
    struct Inner {
        a: nn::Linear,
    }
    let mut twice = model!(Twice {
        a: nn::Linear = linear(2, 2),
        #[quantizable(flatten)]
        inner: Inner = Inner { a: linear(2, 2) },
    });
    all.push(text(quantize_dynamic(&mut twice, &int8())));

    let mut cell = RefCell::new(linear(2, 2));
    std::mem::forget(cell.borrow_mut());
    all.push(text(quantize_dynamic(&mut cell, &int8())));

    let break_off = |_: &candle_dynquant::Progress<'_>| ControlFlow::Break(());
    all.push(text(quantize_dynamic_with(&mut Model::new(), &int8(), break_off)));

    struct Unsteady(nn::Linear);
    impl Quantizable for Unsteady {
        fn visit(&self, walk: &mut candle_dynquant::Walk<'_>) -> Result<()> {
            walk.child("a", &self.0)
        }
        fn visit_mut(&mut self, walk: &mut candle_dynquant::WalkMut<'_>) -> Result<()> {
            walk.child("b", &mut self.0)
        }
    }
    all.push(text(quantize_dynamic(&mut Unsteady(linear(2, 2)), &int8())));

    let mut nothing = model!(Nothing { _size: usize = 1 });
    all.push(text(quantize_dynamic(&mut nothing, &int8())));
    #[derive(Quantizable)]
    struct OwnLinear {
        weight: Tensor,
    }
    let own_linear = || OwnLinear { weight: own(&[40, 40]) };
    let mut strict = model!(
        #[quantizable(strict)]
        Strict { body: OwnLinear = own_linear(), head: nn::Linear = linear(4, 8) }
    );
    all.push(text(quantize_dynamic(&mut strict, &all_int8())));
    all.push(text(quantize_dynamic(&mut own_linear(), &int8())));
    all.push(text(quantize_dynamic(&mut (Model::new().embed, own_linear()), &int8())));
    let candles = || candle_nn::Linear::new(own(&[2, 2]), None);
    let mut hides = model!(Hides {
        embed: nn::Embedding = Model::new().embed,
        _encoder: candle_nn::Linear = candles(),
    });
    all.push(text(quantize_dynamic(&mut hides, &int8())));
    let linears = QConfigSpec::new().kind(LayerKind::Linear, per_row());
    all.push(text(quantize_dynamic(&mut hides, &linears)));
    let mut candles = model!(Candles { _head: candle_nn::Linear = candles() });
    all.push(text(quantize_dynamic(&mut candles, &int8())));

    #[derive(Debug)]
    struct Wrong(f32);
    impl Observer for Wrong {
        fn observe(&mut self, _: &Tensor) -> Result<()> {
            Ok(())
        }
        fn calculate_qparams(&self) -> Result<WeightQParams> {
            WeightQParams::new(QDType::QUInt8, vec![self.0], ZeroPoints::Int(vec![0]))
        }
    }
    for scale in [0.5, 0.] {
        let kind = CustomObserver::new("Wrong", move |_| Ok(Box::new(Wrong(scale))));
        let spec = with_observer(ObserverKind::Custom(kind), QScheme::PerTensorSymmetric);
        all.push(text(spec.to_yaml()));
        all.push(text(of_one(linear(2, 2), &spec)));
    }
    for (kind, scheme) in [
        (ObserverKind::Placeholder, QScheme::PerTensorSymmetric),
        (ObserverKind::MinMax, QScheme::PerChannelSymmetric),
    ] {
        all.push(text(of_one(linear(2, 2), &with_observer(kind, scheme))));
    }
    all
}

fn files_of_rules() -> Vec<String> {
    let yaml = |text: &str| self::text(QConfigSpec::from_yaml(text));
    vec![
        yaml("preset: int8\nexclud: [a]"),
        yaml("rules:\n- kind: LSMT\n  qconfig: null"),
        yaml("rules:\n- kind: LSTM"),
        yaml("rules:\n- kind: LSTM\n  name: a\n  qconfig: null"),
        yaml("min_params: many"),
        yaml("preset: ["),
        yaml("exclude: [1]"),
        text(QConfigSpec::from_file("no_such.yaml")),
        text(QConfigSpec::from_file("spec.toml")),
        text(TuningConfig::from_yaml("quantization:\n  approach: post_training_static_quant")),
    ]
}

fn calls() -> Vec<String> {
    let mut layer = linear(4, 8);
    quantize(&mut layer);
    let integers = |value: u32, shape: &[usize]| Tensor::full(value, shape, CPU).expect("a tensor");
    let embed = Model::new().embed;
    let var = Var::ones((2, 8), DType::F32, CPU).expect("a variable");
    let ys = layer.forward(var.as_tensor()).expect("a product");
    let vb = VarBuilder::zeros(DType::F32, CPU);
    let lstm = nn::LSTM::new(8, 4, Default::default(), vb.clone()).expect("an LSTM");
    let config = nn::RecurrentConfig { num_layers: 0, ..Default::default() };
    vec![
        text(layer.forward(&zeros(&[2, 7]))),
        text(layer.forward(&integers(0, &[2, 8]))),
        text(embed.forward(&integers(10, &[2]))),
        text(embed.forward(&ones(&[1]))),
        text(ys.sum_all().and_then(|sum| sum.backward().map(|_| ()))),
        text(lstm.forward_lengths(&zeros(&[5, 2, 8]), &[5, 6], None)),
        text(nn::GRU::new(8, 4, config, vb)),
    ]
}

fn checkpoints() -> Vec<String> {
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name: &str| dir.path().join(name);
    let float = path("float.safetensors");
    let tensors = HashMap::from([("head.weight", own(&[4, 8]))]);
    candle_core::safetensors::save(&tensors, &float).expect("saved");
    let source = Checkpoint::open(&float).expect("a checkpoint");
    let vb = source.var_builder(DType::F32, CPU);
    let mut head = nn::linear_no_bias(8, 4, vb.pp("head")).expect("a layer");
    let mut nameless = vec![linear(4, 8)];
    quantize(&mut head);
    quantize(&mut nameless);
    let int8 = path("int8.safetensors");
    checkpoint::save(&head, &source, &int8).expect("saved");
    let weights = fs::read(&float).expect("a file");
    let empty: &[u8] = &[];
    for (file, bytes) in [
        ("empty.safetensors", empty),
        ("junk.safetensors", &[0xff; 64]),
        ("torch.safetensors", b"PK\x03\x04....archive/data.pkl"),
        ("lfs.safetensors", b"version https://git-lfs.github.com"),
        ("torch/pytorch_model.bin", b"PK"),
        ("page/model.safetensors", &weights),
        ("page/config.json", b"<!doctype html>"),
        ("hqq/model.safetensors", &weights),
        ("hqq/config.json", br#"{"quantization_config": {"quant_method": "hqq"}}"#),
        ("key/model.safetensors", &weights),
        ("key/config.json", br#"{"quantization_config": {"kv_cache_scheme": 8}}"#),
        ("adapter/model.safetensors", &weights),
        ("adapter/adapter_config.json", b"{}"),
        ("other/notes.txt", empty),
        ("folder/model.safetensors", &weights),
    ] {
        let file = path(file);
        fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        fs::write(file, bytes).expect("written");
    }
    fs::create_dir(path("none")).expect("a folder");
    let of_folder = Checkpoint::open(path("folder")).expect("a checkpoint");
    let plan = |checkpoint: &Checkpoint, linears: &[String]| {
        text(checkpoint::Plan::new(checkpoint, &all_int8(), linears, &[]))
    };
    let quantized = Checkpoint::open(&int8).expect("a checkpoint");
    let refused = [
        "missing",
        "empty.safetensors",
        "junk.safetensors",
        "torch.safetensors",
        "lfs.safetensors",
        "torch",
        "page",
        "none",
        "hqq",
        "key",
        "adapter",
    ];
    let refused = refused.map(|name| text(Checkpoint::open(path(name))));
    let others = [
        text(candle_core::safetensors::load(&int8, CPU)),
        text(nn::linear_no_bias(8, 5, vb.pp("head"))),
        text(nn::linear_no_bias(8, 4, vb.pp("tail"))),
        text(source.floats("tail.weight")),
        text(checkpoint::save(&nameless, &source, path("out.safetensors"))),
        text(checkpoint::save(&head, &source, &float)),
        text(checkpoint::save(&head, &of_folder, path("other"))),
        text(checkpoint::save(&head, &of_folder, &int8)),
        text(checkpoint::save(&head, &source, path("other"))),
        text(checkpoint::save(&head, &source, path("no/such/folder"))),
        plan(&quantized, &[]),
        plan(&source, &["hed".into()]),
    ];
    // Paths differ from run to run.
    let root = dir.path().display().to_string();
    refused.iter().chain(&others).map(|message| message.replace(&root, "DIR")).collect()
}

fn measuring() -> Vec<String> {
    let xs = tensor(&[3, 8], 4).expect("a tensor");
    let run = |model: &nn::Linear| model.forward(&xs);
    let mut int8 = linear(4, 8);
    quantize(&mut int8);
    let mut one = vec![linear(8, 8)];
    let mut two = vec![linear(8, 8), linear(8, 8)];
    let nan = |_: &nn::Linear| candle_core::Result::Ok(f64::NAN);
    let fails =
        |_: &nn::Linear| candle_core::Result::<f64>::Err(candle_core::Error::Msg("no".into()));
    let config = || TuningConfig::default().spec(all_int8());
    let infinite = |_: &nn::Linear| Tensor::new(&[f32::NAN], CPU);
    let equalized = |config: Equalization| text(equalize(&mut linear(4, 8), &config, run));
    vec![
        text(inspect::inspect(&mut one, &mut two, |model| model[0].forward(&xs))),
        text(tune(&mut linear(4, 8), &config(), nan)),
        text(tune(&mut linear(4, 8), &config(), fails)),
        text(tune(&mut linear(4, 8), &config().relative(2.), nan)),
        text(tune(&mut int8, &config(), |_| candle_core::Result::Ok(1.))),
        text(equalize(&mut linear(4, 8), &Equalization::default(), infinite)),
        equalized(Equalization::default().alpha(2.)),
        equalized(Equalization::default().pair("norm", "up")),
    ]
}

/// The message of the error that has to come.
fn text<T, E: std::fmt::Display>(result: Result<T, E>) -> String {
    match result {
        Ok(_) => "no error".into(),
        // candle's errors have backtraces on further lines, if that is asked for.
        Err(error) => error.to_string().lines().next().unwrap_or_default().to_owned(),
    }
}

#[test]
fn the_chapter_quotes_the_messages_that_come() {
    // The texts that the tests of `Error` check.
    let unavailable = Error::new(
        ErrorKind::Unsupported,
        "DYNQUANT_ISA=amx_int8 is not available on this CPU: expected one of portable, avx2",
    );
    let device = Error::new(
        ErrorKind::Unsupported,
        "unsupported device in forward: expected cpu, got Cuda { gpu_id: 0 }; dynamic quantization \
         runs on the CPU only, move the tensor with `to_device(CPU)`",
    );
    let others = [unavailable.to_string(), device.at("head").to_string()];
    let groups: [(&str, Vec<String>); 5] = [
        ("Quantizing", quantizing().into_iter().chain(others).collect()),
        ("Files of rules", files_of_rules()),
        ("Calling a layer", calls()),
        ("Checkpoints", checkpoints()),
        ("Tuning, inspecting, equalizing", measuring()),
    ];
    let mut missing = Vec::new();
    for (section, messages) in groups {
        let quoted = quoted(section);
        for message in messages {
            println!("{section}: {message}");
            if !quoted.iter().any(|quoted| quoted.is_match(&message)) {
                missing.push(format!("{section}: {message}"));
            }
        }
    }
    assert!(missing.is_empty(), "not in the chapter:\n{}", missing.join("\n"));
}

/// Reports: reasons of layers, and fields that may hold layers.
#[test]
fn the_chapter_quotes_what_reports_say() -> Result<()> {
    trait Block {}
    struct Own(#[allow(dead_code)] nn::Linear);
    let mut done = linear(8, 8);
    quantize(&mut done);
    let mut model = model!(Hiding {
        seen: nn::Linear = linear(8, 8),
        small: nn::Linear = linear(2, 2),
        kept: nn::Linear = linear(8, 8),
        done: nn::Linear = done,
        wide: nn::Linear = nn::Linear::new(ones(&[1, 70_000]), None),
        embed: nn::Embedding = Model::new().embed,
        attention: nn::Attention = nn::Attention::new(1.),
        halved: nn::Attention = nn::Attention::new(1.),
        _namesake: candle_nn::Linear = candle_nn::Linear::new(own(&[2, 2]), None),
        _dynamic: Option<Box<dyn Block>> = None,
        _borrowed: &'static nn::Linear = Box::leak(Box::new(linear(2, 2))),
        _lock: Option<Arc<Mutex<nn::Linear>>> = None,
        _own: Own = Own(linear(2, 2)),
    });
    let spec = QConfigSpec::int8()
        .min_params(0)
        .exclude("kept")
        .regex("^halved$", QConfig::float16())
        .min_params(10);
    let report = quantize_dynamic(&mut model, &spec)?;
    println!("{report}");
    assert_eq!(report.left().count(), 7);
    let one_rule = QConfigSpec::new().name("head", QConfig::int8());
    let of_no_rule = quantize_dynamic(&mut Model::new(), &one_rule)?;
    let reasons = report.left().chain(of_no_rule.left()).map(|layer| layer.outcome.to_string());
    let advice = report.hidden.iter().filter_map(|field| field.advice.clone());
    let said: BTreeSet<String> = reasons.chain(advice).collect();
    let mut quoted = self::quoted("Layers that were left");
    quoted.extend(self::quoted("Fields that may hold layers"));
    let missing: Vec<_> =
        said.iter().filter(|text| !quoted.iter().any(|quoted| quoted.is_match(text))).collect();
    assert_eq!(report.hidden.len(), 5);
    assert!(missing.is_empty(), "not in the chapter: {missing:#?}");
    Ok(())
}
