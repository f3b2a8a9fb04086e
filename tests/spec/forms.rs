//! The forms of a spec: precedence pair by pair, lists, sizes, presets, words.

use candle_dynquant::Target;

use crate::common::toy::Toy;
use crate::kit::*;

#[derive(Quantizable, Clone)]
struct Block {
    query: Toy,
    value: Toy,
}

#[derive(Quantizable, Clone)]
struct Model {
    encoder: Vec<Block>,
    table: Toy,
    head: Toy,
}

fn model() -> Model {
    let block = || Block { query: Toy::new(), value: Toy::new() };
    Model {
        encoder: vec![block(), block()],
        table: Toy::of(LayerKind::Embedding),
        head: Toy::new(),
    }
}

#[track_caller]
fn quantize(spec: &QConfigSpec) -> Report {
    quantize_dynamic(&mut model(), spec).unwrap_or_else(|e| panic!("{e}\n{spec}"))
}

#[track_caller]
fn outcome(report: &Report, path: &str) -> Outcome {
    let layer = report.layers.iter().find(|l| l.path == path);
    layer.expect(path).outcome.clone()
}

fn swapped(report: &Report) -> Vec<&str> {
    report.swapped().map(|l| l.path.as_str()).collect()
}

/// The ways to reach `encoder.0.query`, from the least specific to the most specific.
type Reach = fn(QConfigSpec, Option<QConfig>) -> QConfigSpec;
const RANKS: [(&str, Reach); 6] = [
    ("kind", |s, q| s.kind(LayerKind::Linear, q)),
    ("name of the model", |s, q| s.name("", q)),
    ("name far above", |s, q| s.name("encoder", q)),
    ("name right above", |s, q| s.name("encoder.0", q)),
    ("regex", |s, q| s.regex("query", q)),
    ("exact name", |s, q| s.name("encoder.0.query", q)),
];

#[test]
fn every_pair_of_ranks_in_both_orders() {
    let choices = [Some(QConfig::pytorch()), Some(QConfig::per_channel()), None];
    // Something is always swapped, whatever the pair does.
    let base = || QConfigSpec::new().name("table", QConfig::int8());
    let mut pairs = 0;
    for (i, (first, add_first)) in RANKS.iter().enumerate() {
        for (j, (second, add_second)) in RANKS.iter().enumerate() {
            for a in &choices {
                for b in choices.iter().filter(|b| *b != a) {
                    let spec = add_second(add_first(base(), a.clone()), b.clone());
                    let case = format!("{first} {a:?}, then {second} {b:?}");
                    // The more particular; of equals the later.
                    let expected = if i > j { a } else { b };
                    let got = match outcome(&quantize(&spec), "encoder.0.query") {
                        Outcome::Swapped { to } => Some(to),
                        _ => None,
                    };
                    assert_eq!(got, *expected, "{case}");
                    pairs += 1;
                }
            }
        }
    }
    assert_eq!(pairs, 6 * 6 * 6);
}

#[test]
fn every_rank_beats_a_preset_and_only_an_exact_name_beats_min_params() {
    let table = |spec: QConfigSpec| spec.name("table", QConfig::pytorch());
    for (rank, add) in RANKS {
        for qconfig in [Some(QConfig::pytorch()), None] {
            let report = quantize(&table(add(all_int8(), qconfig.clone())));
            match (outcome(&report, "encoder.0.query"), qconfig) {
                (Outcome::Swapped { to }, Some(qconfig)) => assert_eq!(to, qconfig, "{rank}"),
                (Outcome::Left { reason: LeftReason::KeptFloat { .. } }, None) => {}
                other => panic!("{rank}: {other:?}"),
            }
        }
        let spec = add(all_int8(), Some(QConfig::pytorch())).min_params(5);
        let got = outcome(&quantize(&table(spec)), "encoder.0.query");
        let small = LeftReason::TooSmall { parameters: 4, min_params: 5 };
        match rank {
            "exact name" => assert!(matches!(got, Outcome::Swapped { .. }), "{rank}: {got:?}"),
            _ => assert_eq!(got, Outcome::Left { reason: small }, "{rank}"),
        }
    }
}

#[test]
fn min_params_counts_elements_and_says_so() {
    assert_eq!(quantize(&all_int8().min_params(4)).swapped().count(), 5);
    fault(quantize_dynamic(&mut model(), &all_int8().min_params(5))).is(
        "nothing to quantize: min_params is 5, and what rules match is smaller, such as encoder.0.query with 4 weight elements; min_params(0) leaves none"
    );
    let spec = all_int8().min_params(5).name("head", QConfig::int8());
    let report = quantize(&spec);
    assert_eq!(swapped(&report), ["head"]);
    let text = report.to_string();
    assert!(text.contains("left: 4 weight elements, fewer than min_params = 5"), "{text}");
    // A layer that stays float, or was quantized before, reports that instead of its size.
    let mut twice = model();
    quantize_dynamic(&mut twice, &all_int8()).expect("quantizes");
    let report = quantize_dynamic(&mut twice, &spec).expect("finds all done");
    assert_eq!(outcome(&report, "head"), Outcome::Left { reason: LeftReason::AlreadyQuantized });
    let report = quantize(&spec.exclude(["encoder"]));
    let left = outcome(&report, "encoder.1.value");
    assert!(matches!(left, Outcome::Left { reason: LeftReason::KeptFloat { .. } }), "{left:?}");
}

#[test]
fn lists_of_names_and_of_kinds() {
    let spec = all_int8().exclude(["encoder.0", "head"]);
    assert_eq!(swapped(&quantize(&spec)), ["encoder.1.query", "encoder.1.value"]);
    let none: [&str; 0] = [];
    assert_eq!(all_int8().exclude(none), all_int8());
    let typo = all_int8().exclude(["head", "encodre"]);
    fault(quantize_dynamic(&mut model(), &typo)).has(r#"nearest name is "encoder""#);

    let q = QConfig::per_channel();
    let kinds = QConfigSpec::of([LayerKind::Embedding], q.clone());
    assert_eq!(swapped(&quantize(&kinds)), ["table"]);
    let names = QConfigSpec::of(vec!["encoder.1".to_owned(), "head".to_owned()], q.clone());
    assert_eq!(swapped(&quantize(&names)), ["encoder.1.query", "encoder.1.value", "head"]);
    let both = QConfigSpec::of([Target::from(LayerKind::Embedding), "head".into()], q.clone());
    assert_eq!(swapped(&quantize(&both)), ["table", "head"]);
    let absent = quantize_dynamic(&mut model(), &QConfigSpec::of([LayerKind::GRU], q));
    assert!(absent.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unmatched));
}

#[test]
fn presets_give_what_they_say() {
    let to = |spec: &QConfigSpec, path: &str| outcome(&quantize(spec), path);
    let swapped_to = |to: QConfig| Outcome::Swapped { to };
    let left = |reason| Outcome::Left { reason };
    let cases = [
        ("int8", QConfig::int8(), 10),
        ("int8_reduce_range", QConfig::int8().reduce_range(), 10),
        ("int8_groups", QConfig::int8_groups(), 7),
        ("int4", QConfig::int4(), 7),
        ("pytorch", QConfig::pytorch(), 6),
        ("per_channel", QConfig::per_channel(), 6),
        ("float16", QConfig::float16(), 7),
        ("bfloat16", QConfig::bfloat16(), 7),
        ("onnxruntime", QConfig::onnxruntime(OnnxRuntimeOptions::default()), 9),
    ];
    assert_eq!(cases.each_ref().map(|(name, ..)| *name), QConfigSpec::PRESETS);
    for (name, qconfig, kinds) in cases {
        let spec = QConfigSpec::preset(name).expect(name);
        // The minimum, and the output projection.
        let minimum = usize::from(name.starts_with("int")) + usize::from(name == "int4");
        assert_eq!(spec.to_string().lines().count(), kinds + minimum, "{name}");
        let spec = spec.min_params(0);
        assert_eq!(to(&spec, "head"), swapped_to(qconfig), "{name}");
        assert_eq!(
            to(&spec, "table"),
            left(LeftReason::OffByDefault { by: "embeddings" }),
            "{name}"
        );
        let table = swapped_to(QConfig::table().eps(f32::MIN_POSITIVE));
        assert_eq!(to(&spec.embeddings(), "table"), table, "{name}");
    }
    assert_eq!(to(&QConfigSpec::new().embeddings(), "head"), left(LeftReason::NoRule));
}

#[test]
fn groups_are_written_and_read() -> candle_dynquant::Result<()> {
    for yaml in [
        "{dtype: int4}",
        "{dtype: int4, group_size: 128, scheme: affine}",
        "{dtype: torch.int4, group_size: channel}",
        "{dtype: int8, group_size: 64}",
    ] {
        let text = format!("kinds: {{Linear: {{weight: {yaml}}}}}");
        assert_reads_back(&QConfigSpec::from_yaml(&text)?);
    }
    let spec = QConfigSpec::from_yaml("kinds: {Linear: {weight: {dtype: int4}}}")?;
    assert_eq!(spec.to_yaml()?.trim(), "kinds:\n  Linear: int4");

    let text = "kinds: {Linear: {weight: {dtype: int4}, activation: per_row}}";
    let spec = QConfigSpec::from_yaml(text)?;
    assert!(spec.to_yaml()?.contains("activation: per_row"));
    assert_reads_back(&spec);
    assert!(spec.to_string().contains("int4 in groups of 32, activations per row"));
    Ok(())
}

#[test]
fn onnxruntimes_options_are_its_own() {
    let cases = [
        (QDType::QInt8, None, false, QScheme::PerTensorSymmetric),
        (QDType::QUInt8, None, false, QScheme::PerTensorAffine),
        (QDType::QInt8, Some(false), true, QScheme::PerChannelAffine),
        (QDType::QUInt8, Some(true), true, QScheme::PerChannelSymmetric),
    ];
    for (weight_type, weight_symmetric, per_channel, qscheme) in cases {
        for reduce_range in [false, true] {
            let qconfig = QConfig::onnxruntime(OnnxRuntimeOptions {
                weight_type,
                per_channel,
                reduce_range,
                weight_symmetric,
            });
            let mut expected = ObserverConfig::new(ObserverKind::OnnxRuntime, weight_type, qscheme);
            expected.reduce_range = reduce_range;
            // Weights alone are reduced.
            let mut activation = DynamicConfig::new(Granularity::PerTensor, false);
            activation.arithmetic = Arithmetic::OnnxRuntime;
            let expected = QConfig::Int8 { weight: expected, activation };
            assert_eq!(qconfig, expected);
        }
    }
}

#[test]
fn words_are_read_as_they_are_written_and_typos_get_the_nearest() {
    let kinds = [
        LayerKind::MULTIPLYING.as_slice(),
        &[LayerKind::Embedding, LayerKind::custom("my Conv(1)")],
    ];
    for kind in kinds.concat() {
        assert_eq!(kind.to_string().parse::<LayerKind>().expect("a kind"), kind);
        let json = serde_json::to_string(&kind).expect("writes");
        assert_eq!(serde_json::from_str::<LayerKind>(&json).expect("reads"), kind);
    }
    assert_eq!("torch.qint8".parse::<QDType>().expect("a dtype"), QDType::QInt8);
    for word in [
        "per_tensor_symmetric",
        "per_tensor_affine",
        "per_channel_symmetric",
        "per_channel_affine",
        "per_channel_affine_float_qparams",
    ] {
        assert_eq!(word.parse::<QScheme>().expect(word).to_string(), word);
        assert!(format!("torch.{word}").parse::<QScheme>().is_ok(), "{word}");
    }
    let errors = [
        (
            QConfigSpec::preset("in8").map(|_| ()),
            r#"unknown preset: expected one of int8, int8_reduce_range, int8_groups, int4, pytorch, per_channel, float16, bfloat16, onnxruntime, got "in8"; did you mean `int8`?"#,
        ),
        (QConfig::preset("pytroch").map(|_| ()), "did you mean `pytorch`?"),
        ("Liner".parse::<LayerKind>().map(|_| ()), "did you mean `Linear`?"),
        (
            "Pooling".parse::<LayerKind>().map(|_| ()),
            r#"GRUCell, Conv1d, Conv2d, ConvTranspose1d, Embedding, Attention, Custom(name), got "Pooling""#,
        ),
        ("Custom()".parse::<LayerKind>().map(|_| ()), "unknown kind"),
        ("int8".parse::<QDType>().map(|_| ()), "did you mean `qint8`?"),
        ("torch.qint9".parse::<QDType>().map(|_| ()), "did you mean `qint8`?"),
        ("per_chanel_affine".parse::<QScheme>().map(|_| ()), "did you mean `per_channel_affine`?"),
        ("per_token".parse::<Granularity>().map(|_| ()), "expected one of per_tensor, per_row"),
        ("onnx".parse::<Arithmetic>().map(|_| ()), "did you mean `onnxruntime`?"),
    ];
    for (result, expected) in errors {
        fault(result).has(expected);
    }
    for name in QConfig::PRESETS {
        let long = format!("{name}_qconfig");
        assert_eq!(QConfig::preset(&long).expect(&long), QConfig::preset(name).expect(name));
    }
}

#[test]
fn a_spec_as_text_has_a_line_for_each_rule() {
    let int8 = QConfig::int8();
    let spec = QConfigSpec::new()
        .kind(LayerKind::Linear, int8.clone())
        .exclude(["head"])
        .min_params(1_000);
    let expected = format!(
        "kind Linear: {int8}\nname \"head\": keep float\nfewer than 1000 weight elements: keep float\n"
    );
    assert_eq!(spec.to_string(), expected);
    let unlimited = spec.min_params(0);
    assert_eq!(unlimited.to_string().lines().count(), 2);
}

#[test]
fn rules_take_one_or_many() {
    let q = QConfig::int8();
    let new = QConfigSpec::new;
    let (array, list) = (["a", "b"].map(str::to_owned), vec!["a", "b"]);
    let pairs = [
        (new().exclude("head"), new().exclude(["head"])),
        (new().exclude("head".to_owned()), new().name("head", None)),
        (new().exclude(&["a", "b"][..]), new().exclude(vec!["a", "b"])),
        (new().exclude(&list), new().exclude(&array)),
        (new().exclude(LayerKind::LSTM), new().kind(LayerKind::LSTM, None)),
        (QConfigSpec::of("head", q.clone()), new().name("head", q.clone())),
        (QConfigSpec::of(LayerKind::GRU, q.clone()), new().kind([LayerKind::GRU], q.clone())),
        (
            new().kind([LayerKind::GRU, LayerKind::LSTM], q.clone()),
            new().kind(LayerKind::GRU, q.clone()).kind(LayerKind::LSTM, q),
        ),
        (new().exclude(array), new().exclude(list)),
    ];
    for (got, expected) in pairs {
        assert_eq!(got, expected);
    }
}

#[derive(Quantizable, Clone)]
struct Decoder {
    embed: nn::Embedding,
    inner: nn::Linear,
    lm_head: nn::Linear,
    tied: nn::Linear,
}

/// The output projection, by its name or by its matrix, is of 8 bits beside layers of 4.
#[test]
fn heads_have_a_configuration_of_their_own() -> candle_dynquant::Result<()> {
    let matrix = |rows: usize| Tensor::ones((rows, 64), DType::F32, &Device::Cpu);
    let table = matrix(100)?;
    let model = Decoder {
        embed: nn::Embedding::new(table.clone(), 64),
        inner: nn::Linear::new(matrix(64)?, None),
        lm_head: nn::Linear::new(matrix(90)?, None),
        tied: nn::Linear::new(table, None),
    };
    let to = |spec: &QConfigSpec, path: &str| {
        let report = quantize_dynamic(&mut model.clone(), spec)?;
        Ok::<_, candle_dynquant::Error>(outcome(&report, path))
    };
    let (int4, int8) = (QConfigSpec::int4(), QConfig::int8());
    let swapped_to = |to: QConfig| Outcome::Swapped { to };
    assert_eq!(to(&int4, "inner")?, swapped_to(QConfig::int4()));
    for path in ["lm_head", "tied"] {
        assert_eq!(to(&int4, path)?, swapped_to(int8.clone()), "{path}");
        let spec = int4.clone().head(None);
        assert_eq!(to(&spec, path)?, swapped_to(QConfig::int4()), "{path}");
        let spec = int4.clone().name(path, QConfig::float16());
        assert_eq!(to(&spec, path)?, swapped_to(QConfig::float16()), "{path}");
    }
    for (spec, text) in [
        (int4.clone(), "preset: int4"),
        (int4.clone().head(None), "preset: int4\nhead: null"),
        (QConfigSpec::int8().head(QConfig::float16()), "preset: int8\nhead: float16"),
    ] {
        assert_eq!(spec.to_yaml()?.trim(), text);
        assert_eq!(QConfigSpec::from_yaml(text)?, spec);
    }
    Ok(())
}
