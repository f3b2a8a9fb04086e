//! Mistakes in YAML and JSON: each is reported with its line, column and key.

use std::fmt::Write as _;

use crate::kit::*;

const SPEC: &str = "expected a spec: a map with keys preset, kinds, embeddings, attention, head, min_params, exclude, rules";

#[test]
fn mistakes_are_told_where_they_are() {
    let kinds = "Linear, LSTM, GRU, RNN, LSTMCell, RNNCell, GRUCell, Conv1d, Conv2d, ConvTranspose1d, Embedding, Attention, Custom(name)";
    let observer = "observer, dtype, qscheme, ch_axis, reduce_range, quant_range, eps, averaging_constant, bins";
    let cases: Vec<(&str, String)> = vec![
        ("preset: in8", r#"line 1, column 9, preset: unknown preset: expected one of int8, int8_reduce_range, int8_groups, int4, pytorch, per_channel, float16, bfloat16, onnxruntime, got "in8"; did you mean `int8`?"#.into()),
        ("\npresets: int8", "line 2, column 1, presets: unknown key `presets`: expected one of preset, kinds, embeddings, attention, head, min_params, exclude, rules; did you mean `preset`?".into()),
        ("preset: int8\nwhatever: 1", "line 2, column 1, whatever: unknown key `whatever`: expected one of preset, kinds, embeddings, attention, head, min_params, exclude, rules".into()),
        ("preset: int8\nembeddings: yes", r#"line 2, column 13, embeddings: expected true or false, got "yes""#.into()),
        ("preset: int8\nmin_params: -1", "line 2, column 13, min_params: expected a whole number, 0 or more, got -1".into()),
        ("min_params: 1.5", "line 1, column 13, min_params: expected a whole number, 0 or more, got 1.5".into()),
        ("min_params: lots", r#"line 1, column 13, min_params: expected a whole number, 0 or more, got "lots""#.into()),
        ("exclude: classifier", r#"line 1, column 10, exclude: expected a list of names, got "classifier""#.into()),
        ("exclude: [a, 1.10]", "line 1, column 14, exclude[1]: expected a name, in quotes, got 1.1".into()),
        ("exclude: [~]", "line 1, column 11, exclude[0]: expected a name, got null".into()),
        ("kinds: {Liner: int8}", format!(r#"line 1, column 9, kinds.Liner: unknown kind: expected one of {kinds}, got "Liner"; did you mean `Linear`?"#)),
        ("kinds: {Linear: int9}", r#"line 1, column 17, kinds.Linear: unknown qconfig: expected one of int8, int8_groups, int4, pytorch, per_channel, float16, bfloat16, table, onnxruntime, got "int9"; did you mean `int4`?"#.into()),
        ("kinds: {Linear: null}", "line 1, column 17, kinds.Linear: expected a preset's name or a qconfig: a map with keys weight, activation, got null".into()),
        ("rules:\n  - kind: LSMT\n    qconfig: null", format!(r#"line 2, column 11, rules[0].kind: unknown kind: expected one of {kinds}, got "LSMT"; did you mean `LSTM`?"#)),
        ("rules: {kind: LSTM}", "line 1, column 8, rules: expected a list of rules, got a map".into()),
        ("rules:\n  - kind: LSTM", "line 2, column 5, rules[0]: missing key `qconfig`: null keeps float".into()),
        ("rules:\n  - qconfig: null", "line 2, column 5, rules[0]: expected one of the keys kind, name, regex in a rule".into()),
        ("rules:\n  - name: a\n    regex: a\n    qconfig: null", "line 2, column 5, rules[0]: expected one of the keys kind, name, regex in a rule".into()),
        ("rules:\n  - name: a\n    qconfig: null\n  - name: b\n    config: null", "line 5, column 5, rules[1].config: unknown key `config`: expected one of kind, name, regex, qconfig; did you mean `qconfig`?".into()),
        ("rules:\n  - regex: 'layer('\n    qconfig: null", r#"line 2, column 12, rules[0].regex: malformed regex "layer(": "#.into()),
        ("rules:\n  - regex: '(a{1000}){1000}'\n    qconfig: null", r#"line 2, column 12, rules[0].regex: malformed regex "#.into()),
        (
            "rules:\n  - name: a\n    qconfig:\n      weight:\n        observer: HistogrmObserver",
            r#"line 5, column 19, rules[0].qconfig.weight.observer: unknown observer: expected one of MinMaxObserver, PerChannelMinMaxObserver, MovingAverageMinMaxObserver, MovingAveragePerChannelMinMaxObserver, HistogramObserver, OnnxRuntimeObserver, PlaceholderObserver, got "HistogrmObserver"; did you mean `HistogramObserver`?"#.into(),
        ),
        ("rules: [{name: a, qconfig: {weight: {dtype: int9}}}]", r#"line 1, column 45, rules[0].qconfig.weight.dtype: unknown dtype: expected one of qint8, quint8, float16, bfloat16, int4, int8, got "int9"; did you mean"#.into()),
        ("rules: [{name: a, qconfig: {weight: {dtype: int8}}}]", "expected group_size beside dtype int8, or dtype qint8".into()),
        ("kinds: {Linear: {weight: {dtype: int4, group_size: 48}}}", "group_size: expected channel or a multiple of 32, got 48".into()),
        ("kinds: {Linear: {weight: {dtype: int4, group_size: all}}}", r#"group_size: expected channel or a multiple of 32, got "all""#.into()),
        ("kinds: {Linear: {weight: {dtype: int4, scheme: signed}}}", "unknown scheme of groups: expected one of symmetric, affine, minimum".into()),
        ("kinds: {Linear: {weight: {dtype: int8, group_size: 32, scheme: affine}}}", "expected symmetric groups of int8".into()),
        ("kinds: {Linear: {weight: {dtype: int4, observer: MinMaxObserver}}}", "`observer` does not apply to dtype int4".into()),
        ("kinds: {Linear: {weight: {dtype: int4}, activation: {granularity: per_row}}}", "expected per_group or per_row activations for weights in groups".into()),
        ("rules: [{name: a, qconfig: {weight: {qscheme: per_tensor_sym}}}]", r#"did you mean `per_tensor_symmetric`?"#.into()),
        ("rules: [{name: a, qconfig: {weight: {scheme: x}}}]", format!("line 1, column 38, rules[0].qconfig.weight.scheme: unknown key `scheme`: expected one of {observer}; did you mean `qscheme`?")),
        ("rules: [{name: a, qconfig: {weight: {bins: 5}}}]", "line 1, column 38, rules[0].qconfig.weight.bins: `bins` does not apply to MinMaxObserver".into()),
        ("rules: [{name: a, qconfig: {weight: {observer: HistogramObserver, averaging_constant: 0.1}}}]", "`averaging_constant` does not apply to HistogramObserver".into()),
        ("rules: [{name: a, qconfig: {weight: {observer: OnnxRuntimeObserver, eps: 0.1}}}]", "`eps` does not apply to OnnxRuntimeObserver".into()),
        ("rules: [{name: a, qconfig: {weight: {dtype: float16, qscheme: per_tensor_affine}}}]", "line 1, column 54, rules[0].qconfig.weight.qscheme: `qscheme` does not apply to dtype float16".into()),
        ("rules: [{name: a, qconfig: {weight: {observer: MinMaxObserver, qscheme: per_channel_affine}}}]", "line 1, column 73, rules[0].qconfig.weight.qscheme: MinMaxObserver cannot be per_channel_affine".into()),
        ("rules: [{name: a, qconfig: {weight: {observer: Custom(mine)}}}]", "unknown observer".into()),
        ("rules: [{name: a, qconfig: {weight: {dtype: qint8, qscheme: per_channel_affine_float_qparams}}}]", "needs PerChannelMinMaxObserver and quint8, got PerChannelMinMaxObserver and qint8".into()),
        ("rules: [{name: a, qconfig: {weight: {observer: HistogramObserver, bins: 0}}}]", "line 1, column 73, rules[0].qconfig.weight.bins: expected a whole number from 1 to 1048576, got 0".into()),
        ("rules: [{name: a, qconfig: {weight: {observer: HistogramObserver, bins: 99999999999999999999999999}}}]", "expected a whole number from 1 to 1048576".into()),
        ("rules: [{name: a, qconfig: {weight: {observer: MovingAverageMinMaxObserver, averaging_constant: 0}}}]", "expected a number greater than 0, at most 1, got 0".into()),
        ("rules: [{name: a, qconfig: {weight: {eps: -1}}}]", "line 1, column 43, rules[0].qconfig.weight.eps: expected a number greater than 0, not subnormal, got -1".into()),
        ("rules: [{name: a, qconfig: {weight: {eps: 1e-60}}}]", "expected a number greater than 0".into()),
        ("rules: [{name: a, qconfig: {weight: {eps: 1e60}}}]", "expected a number greater than 0".into()),
        ("rules: [{name: a, qconfig: {weight: {eps: 1e-45}}}]", "line 1, column 43, rules[0].qconfig.weight.eps: expected a number greater than 0, not subnormal, got ".into()),
        ("rules:\n  - regex: '\\pL{200}|'\n    qconfig: null", r#"line 2, column 12, rules[0].regex: malformed regex "\\pL{200}|": "#.into()),
        ("rules: [{name: a, qconfig: {weight: {quant_range: [-300, 127]}}}]", "line 1, column 52, rules[0].qconfig.weight.quant_range[0]: expected [min, max] within -128 to 127, with 0 in it, for qint8, got -300".into()),
        ("rules: [{name: a, qconfig: {weight: {quant_range: [5, 7]}}}]", "with 0 in it, for qint8, got [5, 7]".into()),
        ("rules: [{name: a, qconfig: {weight: {quant_range: [0]}}}]", "got 1 items".into()),
        ("rules: [{name: a, qconfig: {activation: flaot}}]", r#"line 1, column 41, rules[0].qconfig.activation: unknown activation: expected one of float, bfloat16, per_group, per_row, got "flaot"; did you mean `float`?"#.into()),
        ("rules: [{name: a, qconfig: {activation: {granularity: per_token}}}]", r#"unknown granularity: expected one of per_tensor, per_row, got "per_token""#.into()),
        ("rules: [{name: a, qconfig: {activation: {reduce_range: 1}}}]", "expected true or false, got 1".into()),
        ("rules: [{name: a, qconfig: [weight]}]", "expected a preset's name or a qconfig: a map with keys weight, activation, got a list".into()),
        ("preset: int8\npreset: default", "line 2, column 1: duplicate key `preset`".into()),
        ("1: 2", "line 1, column 1, 1: expected a key, in quotes, got 1".into()),
        ("", format!("line 1, column 1: {SPEC}, got null")),
        ("# only a comment\n", format!("line 2, column 1: {SPEC}, got null")),
        ("int8", format!(r#"line 1, column 1: {SPEC}, got "int8""#)),
        ("- preset: int8", format!("line 1, column 1: {SPEC}, got a list")),
        ("rules:\n\t- kind: LSTM", "line 2, column 2: tabs disallowed".into()),
        ("preset: 'int8", "line 1, column ".into()),
        ("exclude: [a, b", "line 1, column ".into()),
        ("preset: int8\n---\npreset: int8", "line 2, column 1: expected one document".into()),
        ("preset: *nowhere", "line 1, column 9: ".into()),
        ("rules: &r [*r]", "line 1, column 12: an alias within its own anchor".into()),
        ("preset: \0", "line 1, column 9: ".into()),
    ];
    for (text, expected) in cases {
        let read = QConfigSpec::from_yaml(text);
        assert!(read.as_ref().is_err_and(|error| error.kind() == ErrorKind::InvalidConfig));
        if expected.starts_with("line ") {
            fault(read).starts(&expected);
        } else {
            fault(read).starts("line 1, ").has(&expected);
        }
    }
}

#[test]
fn json_is_json_and_its_mistakes_have_places_too() {
    let cases = [
        ("{\n  \"preset\": \"in8\"\n}", "line 2, column 13, preset: unknown preset"),
        (
            "{\n\t\"rules\": [\n\t\t{\"kind\": \"LSMT\", \"qconfig\": null}]}",
            "line 3, column 12, rules[0].kind: unknown kind",
        ),
        ("preset: int8", "line 1, column 1: expected value"),
        ("{\"preset\": \"int8\",}", "line 1, column 19: key must be a string"),
        ("{\"preset\": \"int8\"} x", "line 1, column 20: trailing characters"),
        ("{'preset': 1}", "line 1, column 2: key must be a string"),
        ("{\"preset\": \"int8\"", "line 1, column 17: EOF while parsing an object"),
        ("", "line 1, column 0: EOF while parsing a value"),
        ("{\"min_params\": 1e999}", "line 1, column 16: "),
        (
            "{\"preset\": \"int8\", \"preset\": \"int8\"}",
            "line 1, column 20: duplicate key `preset`",
        ),
        ("{\"exclude\": [\"\\ud800\"]}", "line 1, column "),
    ];
    for (text, expected) in cases {
        fault(QConfigSpec::from_json(text)).starts(expected);
    }
    let escaped = r#"{"exclude": ["\ud83d\ude00", "a\/b", "\u0000\u007f", "tab\t"]}"#;
    let names = ["😀", "a/b", "\0\u{7f}", "tab\t"];
    assert_eq!(QConfigSpec::from_json(escaped).expect("reads"), QConfigSpec::new().exclude(names));
}

/// Names longer than YAML accepts as a key without quotes.
#[test]
fn json_is_not_read_as_yaml() {
    let long = format!("Custom({})", "x".repeat(5_000));
    let text = format!(r#"{{"kinds": {{"{long}": "float16_dynamic"}}}}"#);
    let spec = QConfigSpec::from_json(&text).expect("a long key");
    assert!(spec.to_string().contains(&long));

    let escaped = r#"{"exclude": ["\u00e4\ufeff", "<<", "&a"], "min_params": 1E3}"#;
    fault(QConfigSpec::from_json(escaped))
        .is("line 1, column 57, min_params: expected a whole number, 0 or more, got 1000");

    // Columns count characters, whichever stage finds the mistake.
    fault(QConfigSpec::from_json("{\"ä\": 1}")).starts("line 1, column 2, ä: unknown key");
    fault(QConfigSpec::from_json("{\"presetä\" 1}")).starts("line 1, column 12: expected `:`");
    let surrogate = "{\"preset\":\n \"\\ud800\"}";
    fault(QConfigSpec::from_json(surrogate)).starts("line 2, column 2: ");
}

#[test]
fn a_byte_order_mark_is_no_part_of_a_spec() {
    for (text, read) in [
        ("{\"preset\": \"int8\"}", QConfigSpec::from_json as fn(&str) -> _),
        ("preset: int8", QConfigSpec::from_yaml),
    ] {
        let marked = format!("\u{feff}{text}");
        assert_eq!(read(&marked).expect(text), QConfigSpec::int8(), "{text}");
        let mistake = marked.replace("int8", "in8");
        let place = read(&text.replace("int8", "in8")).expect_err(text);
        assert_eq!(read(&mistake).expect_err(text).to_string(), place.to_string());
    }
}

/// Many small rules cost as much as a large rule.
#[test]
fn rules_and_regexes_are_counted() {
    let rules = |count: usize, rule: &str| {
        let rule = format!("- {rule}\n  qconfig: null\n");
        format!("rules:\n{}", rule.repeat(count))
    };
    let usual = [
        r"\.output\.dense$",
        r"^\w+\.\d+\.(\w+\.)*dense$",
        r"(?i)^(?:encoder|decoder)\.layers\.(?:1[0-9]|2[0-9]|[0-9])\.(?:q|k|v|out)_proj$",
        r"\w+\.\w+\.\w+",
    ];
    for pattern in usual {
        let spec = QConfigSpec::from_yaml(&rules(100, &format!("regex: '{pattern}'")));
        assert_reads_back(&spec.expect("regexes as people write them"));
    }
    let cases = [
        (
            rules(200, r"regex: '\pL{200}|'"),
            "line 2, column 10, rules[0].regex: malformed regex \"\\\\pL{200}|\": ",
        ),
        (
            rules(1, &format!("regex: '{}'", "a".repeat(10_001))),
            "line 2, column 10, rules[0].regex: malformed regex ",
        ),
        (
            rules(201, "regex: a"),
            "line 402, column 3, rules[200]: invalid number of regexes: expected at most 200, got 201",
        ),
        (
            rules(11, &format!("regex: '{}'", "a".repeat(999))),
            "line 22, column 3, rules[10]: invalid bytes of regexes: expected at most 10000, got 10989",
        ),
        (
            rules(10_001, "name: a"),
            "line 20002, column 3, rules[10000]: invalid number of rules: expected at most 10000, got 10001",
        ),
        (
            format!("exclude: [{}]", "a,\n".repeat(10_001)),
            "line 10001, column 1, exclude[10000]: invalid number of rules: expected at most 10000, got 10001",
        ),
    ];
    for (text, expected) in cases {
        fault(QConfigSpec::from_yaml(&text)).starts(expected);
    }
}

#[test]
fn hostile_text_is_refused() {
    let mut laughs = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x]\n");
    for i in 1..12 {
        let aliases = vec![format!("*a{}", i - 1); 9].join(",");
        writeln!(laughs, "a{i}: &a{i} [{aliases}]").expect("writes");
    }
    let stairs: String = (0..2000).map(|i| " ".repeat(i) + "a:\n").collect();
    let keys: String = (0..90_000).map(|i| format!("k{i}: 1\n")).collect();
    let rules = format!("exclude: [{}]", "a,".repeat(300_000));
    let texts = [
        ("laughs", laughs),
        ("brackets", "[".repeat(500_000)),
        ("braces", "{a: ".repeat(200_000)),
        ("json deep", format!("{}1{}", "[".repeat(300_000), "]".repeat(300_000))),
        ("stairs", stairs),
        ("dashes", "- ".repeat(400_000)),
        ("many keys", keys),
        ("many names", rules),
        ("too long", " ".repeat(2 << 20)),
        ("long word", format!("preset: {}", "x".repeat(1_000_000))),
        ("long key", format!("{}: 1", "x".repeat(1_000_000))),
        ("digits", format!("min_params: {}", "9".repeat(1_000_000))),
        ("quotes", "\"".repeat(999_999)),
        ("anchors", "&a ".repeat(300_000)),
        ("tags", "! ".repeat(400_000)),
        ("questions", "? ".repeat(400_000)),
    ];
    for (case, text) in texts {
        for read in [QConfigSpec::from_yaml, QConfigSpec::from_json] {
            println!("{case}");
            fault(read(&text)).short();
        }
    }
}
