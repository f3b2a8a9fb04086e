//! Specs in YAML and JSON: a written spec reads back, missing keys have PyTorch's defaults.

use candle_dynquant::Error;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::common::toy::Toy;
use crate::kit::*;

/// A spec for everything that a spec can state.
fn specs() -> Vec<QConfigSpec> {
    let weight = ObserverConfig::new;
    let symmetric = QScheme::PerTensorSymmetric;
    let averaging_constant = 0.3;
    let mut narrow = ObserverConfig::new(ObserverKind::MinMax, QDType::QInt8, symmetric);
    narrow.quant_range = Some([-127, 127]);
    narrow.eps = 2f32.powi(-12);
    narrow.reduce_range = true;
    let weights = [
        weight(ObserverKind::MinMax, QDType::QInt8, symmetric),
        weight(ObserverKind::PerChannelMinMax, QDType::QInt8, QScheme::PerChannelSymmetric),
        narrow,
        weight(ObserverKind::MinMax, QDType::QUInt8, QScheme::PerTensorAffine),
        weight(ObserverKind::PerChannelMinMax, QDType::QInt8, QScheme::PerChannelAffine),
        weight(ObserverKind::MovingAverageMinMax { averaging_constant }, QDType::QInt8, symmetric),
        weight(
            ObserverKind::MovingAveragePerChannelMinMax { averaging_constant },
            QDType::QInt8,
            QScheme::PerChannelSymmetric,
        ),
        weight(ObserverKind::Histogram { bins: 77 }, QDType::QInt8, symmetric),
        weight(ObserverKind::OnnxRuntime, QDType::QUInt8, QScheme::PerChannelAffine),
    ];
    let QConfig::Int8 { activation, .. } = QConfig::onnxruntime(OnnxRuntimeOptions::default())
    else {
        unreachable!("codes")
    };
    let activations = [
        DynamicConfig::new(Granularity::PerTensor, false),
        DynamicConfig::new(Granularity::PerRow, true),
        activation,
    ];
    let (lead, trail, controls) = (" lead", "trail ", "\u{7f}\u{85}\u{2028}\u{feff}\u{1}");
    let names = [
        "", "0", "1.10", "null", "~", "yes", "a: b", "#", "- x", "'", "\"", "\\", "a\nb", "\t",
        "é😀", "{x}", "[0]", "*a", "&a", "!t", "%", "@", "`", "---", "|", ">", lead, trail, "1e5",
        "0x1", controls,
    ];
    let mut all: Vec<_> =
        QConfigSpec::PRESETS.map(|name| QConfigSpec::preset(name).expect(name)).into();
    all.push(QConfigSpec::new());
    all.push(QConfigSpec::new().embeddings());
    all.push(QConfigSpec::int8().embeddings().min_params(1000).exclude(names));
    all.push(QConfigSpec::default_kinds(QConfig::int8()));
    all.push(QConfigSpec::int8().exclude(["a"]).name("b", QConfig::float16()).name("a", None));
    all.push(
        QConfigSpec::int8().kind(LayerKind::custom("Conv"), None).regex(r"^\d+\.(a|b){1,3}$", None),
    );
    let mut each = QConfigSpec::float16();
    for name in names {
        each = each.name(name, QConfig::float16());
    }
    let mut qconfigs = [HalfType::Float16, HalfType::BFloat16].map(QConfig::Half).to_vec();
    for weight in weights {
        let dynamic = |activation| QConfig::Int8 { weight: weight.clone(), activation };
        qconfigs.extend(activations.map(dynamic));
        qconfigs.push(QConfig::Table(weight));
    }
    for qconfig in qconfigs {
        all.push(QConfigSpec::default_kinds(qconfig.clone()).embeddings());
        each = each.kind(LayerKind::GRU, qconfig);
    }
    all.push(each.regex("x".repeat(2000), None));
    all
}

#[test]
fn specs_come_back_as_they_were_written() {
    for spec in specs() {
        assert_reads_back(&spec);
        let (yaml, json) = (spec.to_yaml().expect("writes"), spec.to_json().expect("writes"));
        assert_eq!(serde_json::from_str::<QConfigSpec>(&json).expect(&json), spec, "{json}");
        assert_eq!(serde_saphyr::from_str::<QConfigSpec>(&yaml).expect(&yaml), spec, "{yaml}");
    }
}

#[track_caller]
fn comes_back<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) {
    let json = serde_json::to_string(value).expect("writes");
    assert_eq!(serde_json::from_str::<T>(&json).expect(&json), *value);
}

#[test]
fn parts_of_a_spec_come_back_too() {
    for name in QConfig::PRESETS {
        let qconfig = QConfig::preset(name).expect(name);
        comes_back(&qconfig);
        if let QConfig::Int8 { weight, activation } = &qconfig {
            comes_back(weight);
            comes_back(activation);
        }
        assert_eq!(serde_json::from_str::<QConfig>(&format!("{name:?}")).expect(name), qconfig);
    }
    fault(serde_json::from_str::<QConfig>(r#"{"weight": {"dtype": "qint9"}}"#))
        .starts("weight.dtype: unknown dtype");
    fault(serde_json::from_str::<QConfigSpec>(r#"{"preset": "int8", "preset": "default"}"#))
        .has("duplicate key `preset`");
}

#[test]
fn what_is_left_out_is_as_in_pytorch() {
    let cases = [
        ("{}", QConfig::pytorch()),
        ("{weight: {qscheme: torch.per_channel_symmetric}}", QConfig::per_channel()),
        (
            "{weight: {observer: PerChannelMinMaxObserver, dtype: torch.qint8}}",
            QConfig::per_channel(),
        ),
        (
            "{weight: {observer: PerChannelMinMaxObserver, eps: 1.1754944e-38}, activation: {granularity: per_row}}",
            QConfig::int8(),
        ),
        ("{weight: {dtype: torch.float16}}", QConfig::float16()),
        ("{weight: {dtype: bfloat16}}", QConfig::bfloat16()),
        ("{weight: {dtype: torch.bfloat16}, activation: bfloat16}", QConfig::bfloat16()),
        ("{weight: {qscheme: per_channel_affine_float_qparams}}", QConfig::table()),
        (
            "{weight: {observer: OnnxRuntimeObserver}, activation: {arithmetic: onnxruntime}}",
            QConfig::onnxruntime(OnnxRuntimeOptions::default()),
        ),
        ("int8", QConfig::int8()),
        ("pytorch_qconfig", QConfig::pytorch()),
    ];
    for (text, expected) in cases {
        let yaml = format!("rules: [{{name: x, qconfig: {text}}}]");
        let spec = QConfigSpec::from_yaml(&yaml).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(spec, QConfigSpec::new().name("x", expected), "{text}");
    }
    let averaging_constant = 0.01;
    let moving = ObserverKind::MovingAverageMinMax { averaging_constant };
    let moving_per_channel = ObserverKind::MovingAveragePerChannelMinMax { averaging_constant };
    let histogram = ObserverKind::Histogram { bins: 2048 };
    let (qint8, quint8) = (QDType::QInt8, QDType::QUInt8);
    let (symmetric, affine) = (QScheme::PerTensorSymmetric, QScheme::PerTensorAffine);
    let channels = QScheme::PerChannelAffine;
    let defaults = [
        ("MinMaxObserver, dtype: quint8", ObserverKind::MinMax, quint8, affine),
        ("HistogramObserver", histogram, qint8, symmetric),
        ("MovingAverageMinMaxObserver", moving, qint8, symmetric),
        (
            "MovingAveragePerChannelMinMaxObserver, dtype: quint8",
            moving_per_channel,
            quint8,
            channels,
        ),
        ("OnnxRuntimeObserver, dtype: quint8", ObserverKind::OnnxRuntime, quint8, affine),
    ];
    for (text, kind, dtype, qscheme) in defaults {
        let config: ObserverConfig =
            serde_saphyr::from_str(&format!("{{observer: {text}}}")).expect(text);
        assert_eq!(config, ObserverConfig::new(kind, dtype, qscheme), "{text}");
    }
}

#[test]
fn aliases_and_comments_are_fine() {
    let yaml = "
# one weight for two rules
rules:
  - kind: Linear
    qconfig: &q {weight: {observer: HistogramObserver}}
  - kind: LSTM
    qconfig: *q
";
    let spec = QConfigSpec::from_yaml(yaml).expect("reads");
    let text = spec.to_string();
    let is_of_both = text.starts_with("kind Linear: qint8") && text.contains("\nkind LSTM: qint8");
    assert!(is_of_both, "{text}");
}

#[test]
fn a_spec_is_written_in_its_shortest_form() {
    let spec = QConfigSpec::int8()
        .embeddings()
        .exclude(["head", "pooler"])
        .name("encoder", QConfig::float16())
        .exclude("encoder.0");
    let yaml = spec.to_yaml().expect("writes");
    let expected = "preset: int8
embeddings: true
exclude:
- head
- pooler
rules:
- name: encoder
  qconfig: float16
- name: encoder.0
  qconfig: null
";
    assert_eq!(yaml, expected);
    let yaml = QConfigSpec::int8().min_params(10).to_yaml().expect("writes");
    assert_eq!(yaml, "preset: int8\nmin_params: 10\n");
}

#[test]
fn every_cut_of_a_spec_is_a_spec_or_an_error() {
    let yaml = specs().pop().expect("the largest").to_yaml().expect("writes");
    let head: String = yaml.chars().take(1500).collect();
    for (cut, _) in head.char_indices() {
        let _ = QConfigSpec::from_yaml(&head[..cut]);
        let _ = QConfigSpec::from_yaml(&head[cut..]);
    }
}

#[test]
fn files_are_read_by_their_extension() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("writes");
        path
    };
    for name in ["a.yaml", "a.yml", "a.YAML"] {
        let path = write(name, b"preset: int8\n");
        assert_eq!(QConfigSpec::from_file(path).expect(name), QConfigSpec::int8());
    }
    let json = write("a.json", br#"{"preset": "default"}"#);
    assert_eq!(QConfigSpec::from_file(&json).expect("json"), QConfigSpec::pytorch());

    let faults = [
        (write("b.json", b"preset: int8\n"), "b.json: line 1, column 1: expected value"),
        (write("b.yaml", b"\n  preset: in8"), "b.yaml: line 2, column 11, preset: unknown preset"),
        (write("c.yaml", b"preset: int8\na: \xff\xfe"), "c.yaml: line 2, column 4: expected UTF-8"),
        (
            write("d.toml", b""),
            r#"d.toml: invalid extension: expected yaml, yml or json, got "toml""#,
        ),
        (write("e", b""), "e: invalid extension: expected yaml, yml or json, got none"),
        (write("f.yaml", b""), "f.yaml: line 1, column 1: expected a spec"),
        (write("g.yaml", &vec![b' '; 3 << 20]), "g.yaml: line 1, column 1: expected at most"),
        (folder.path().join("none.yaml"), "none.yaml: "),
        (folder.path().to_owned(), ": invalid extension"),
    ];
    for (path, expected) in faults {
        let error = QConfigSpec::from_file(&path).map(|_| ()).expect_err(expected);
        assert!(error.file().is_some(), "{error:?}");
        assert!(error.to_string().contains(expected), "{expected}\n{error}");
    }
}

#[test]
fn a_custom_observer_is_not_written_but_reported() {
    let custom = CustomObserver::new("Percentile", |_| {
        Err(Error::new(ErrorKind::InvalidArgument, "never made"))
    });
    let kind = ObserverKind::Custom(custom);
    let config = ObserverConfig::new(kind, QDType::QInt8, QScheme::PerTensorSymmetric);
    let qconfig = QConfig::Table(config);
    let spec = QConfigSpec::of([""], qconfig);
    for error in [spec.to_yaml(), spec.to_json()] {
        fault(error).has("a custom observer is code and cannot be written: Percentile");
    }
    let report = quantize_dynamic(&mut Toy::new(), &spec).expect("a toy takes anything");
    let report = serde_json::to_string(&report).expect("a report");
    assert!(report.contains(r#""observer":"Custom(Percentile)""#), "{report}");
}
