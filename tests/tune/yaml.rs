//! Neural Compressor's YAML: its meaning here, reports, and refusals with their place.

use std::time::Duration;

use candle_dynquant::Result;
use candle_dynquant::tune::Strategy;

use crate::kit::*;

fn dynamic(quantization: &str) -> String {
    let approach = "quantization:\n  approach: post_training_dynamic_quant\n";
    format!("{approach}{quantization}")
}

/// Asserts that the text reads as the configuration, apart from the reported keys.
fn assert_reads(text: &str, expected: TuningConfig) {
    let config = TuningConfig::from_yaml(text).unwrap_or_else(|e| panic!("{text}\n{e}"));
    let keys = |config: &TuningConfig| format!("{:?}", config.ignored());
    let got = format!("{config:?}").replace(&keys(&config), "[]");
    assert_eq!(got, format!("{expected:?}"), "{text}");
}

#[test]
fn values_are_read_as_neural_compressor_takes_them() {
    let default = TuningConfig::default;
    let tuning = |text: &str| format!("tuning: {{{text}}}");
    let criterion = |text: &str| tuning(&format!("accuracy_criterion: {{{text}}}"));
    let lower = default().absolute(3.).lower_is_better();
    let limited = default().timeout(Duration::from_secs(90)).max_trials(600);
    let by_kind = default().strategy(Strategy::ByKind);
    let cases = [
        ("{}".to_owned(), default()),
        (dynamic(""), default()),
        (criterion("relative: 0.01"), default()),
        (criterion("relative: 1%"), default()),
        (criterion("relative: '2.5%'"), default().relative(0.025)),
        (criterion("absolute: 0.5"), default().absolute(0.5)),
        (criterion("absolute: 3"), default().absolute(3.)),
        (criterion("absolute: 3, higher_is_better: false"), lower),
        (tuning("exit_policy: {timeout: 90, max_trials: 600}"), limited),
        (tuning("exit_policy: {timeout: 0, performance_only: true}"), default().max_trials(1)),
        (tuning("strategy: {name: basic}"), default().strategy(Strategy::Basic)),
        (tuning("strategy: mse_v2"), default()),
        (tuning("strategy: {name: conservative}"), by_kind),
        (tuning("workspace: {path: work}"), default().history("work/history.jsonl")),
        (tuning("workspace: {path: work, resume: old.jsonl}"), default().resume("old.jsonl")),
    ];
    for (text, expected) in cases {
        assert_reads(&text, expected);
    }
}

#[test]
fn layers_are_chosen_by_type_and_by_regex() {
    let int8 = QConfigSpec::int8;
    let mut by_tensor = QConfig::int8();
    if let QConfig::Int8 { activation, .. } = &mut by_tensor {
        *activation = DynamicConfig::new(Granularity::PerTensor, false);
    }
    let minmax =
        "{dtype: [int8, fp32], scheme: [sym], granularity: per_channel, algorithm: minmax}";
    let in_float = "{activation: {dtype: ['fp32']}, weight: {dtype: ['fp32']}}";
    let by_type = |text: &str| format!("  optype_wise: {{{text}}}");
    let by_name = |text: &str| format!("  op_wise: {{{text}}}");
    let table = QConfig::table().eps(f32::MIN_POSITIVE);
    let head = |qconfig| int8().regex("^(?:head)$", qconfig);
    use LayerKind::{Embedding, LSTM, Linear};
    let cases = [
        (
            by_type("Embedding: {weight: {dtype: [uint8]}, activation: {dtype: [fp32]}}"),
            int8().kind(Embedding, table),
        ),
        (
            by_type("LSTM: {weight: {dtype: fp32}, activation: {dtype: fp32}}"),
            int8().kind(LSTM, None),
        ),
        (by_type("MatMul: {weight: {dtype: [fp16]}}"), int8().kind(Linear, QConfig::float16())),
        (
            by_type("MatMul: {weight: {dtype: [bf16]}, activation: {dtype: [bf16]}}"),
            int8().kind(Linear, QConfig::bfloat16()),
        ),
        (by_type("Embedding: {weight: {dtype: [bf16]}}"), int8().kind(Embedding, None)),
        (
            by_name(&format!("'bert.encoder.layer.0.*': {in_float}")),
            int8().regex(r"^(?:bert.encoder.layer.0.*)$", None),
        ),
        (by_name(&format!("head: {{weight: {minmax}}}")), head(QConfig::int8())),
        (by_name("head: {activation: {granularity: per_tensor}}"), head(by_tensor)),
        (
            "  model_wise: {weight: {granularity: per_channel}}".to_owned(),
            QConfigSpec::all_kinds(QConfig::int8()),
        ),
        (by_type("Conv2d: {weight: {dtype: int8}}"), int8()),
    ];
    for (text, spec) in cases {
        assert_reads(&dynamic(&text), TuningConfig::default().spec(spec));
    }
}

#[test]
fn keys_without_meaning_are_reported() -> Result<()> {
    let config = TuningConfig::from_yaml(
        r"
version: 1.0
model: {name: bert, framework: pytorch, inputs: x, outputs: y}
device: cpu
quantization:
  approach: post_training_dynamic_quant
  calibration:
    sampling_size: [100, 200]
    dataloader: {dataset: {ImageNet: {root: /data}}}
  recipes: {first_conv_or_matmul_quantization: true}
  op_wise: {a: {weight: {algorithm: kl, bit: 8}}}
tuning:
  strategy: {name: mse, confidence_batches: 2}
  objective: performance
  random_seed: 9527
  tensorboard: true
evaluation: {accuracy: {metric: {topk: 1}}}
",
    )?;
    let keys: Vec<_> = config
        .ignored()
        .iter()
        .map(|key| key.split(" is ignored: ").next().unwrap_or_default())
        .collect();
    let expected = [
        (2, "version"),
        (3, "model.name"),
        (3, "model.framework"),
        (3, "model.inputs"),
        (3, "model.outputs"),
        (8, "quantization.calibration.sampling_size"),
        (9, "quantization.calibration.dataloader"),
        (10, "quantization.recipes"),
        (11, "quantization.op_wise.a.weight.algorithm"),
        (11, "quantization.op_wise.a.weight.bit"),
        (13, "tuning.strategy.confidence_batches"),
        (14, "tuning.objective"),
        (15, "tuning.random_seed"),
        (16, "tuning.tensorboard"),
        (17, "evaluation"),
    ];
    let expected = expected.map(|(line, key)| format!("line {line}: `{key}`"));
    assert_eq!(keys, expected);
    let line = &config.ignored()[5];
    let text = "line 8: `quantization.calibration.sampling_size` is ignored: dynamic quantization does not calibrate";
    assert_eq!(line, text);
    Ok(())
}

#[test]
fn mistakes_have_a_place() {
    let table = r#"
tunning: {} | line 1, column 1, tunning: unknown key `tunning`: expected one of version, model, device, quantization, tuning, evaluation; did you mean `tuning`?
tuning: {accuracy_criterion: {relative: 1}} | line 1, column 41, tuning.accuracy_criterion.relative: expected a share between -1 and 1, as 0.01 or 1%, got 1
tuning: {accuracy_criterion: {relative: 2}} | line 1, column 41, tuning.accuracy_criterion.relative: expected a share between -1 and 1, as 0.01 or 1%, got 2
tuning: {accuracy_criterion: {relative: '0.01'}} | expected a share between -1 and 1, as 0.01 or 1%, got "0.01"
tuning: {accuracy_criterion: {relative: 0.1, absolute: 1}} | expected one of the keys relative, absolute, got both
tuning: {accuracy_criterion: {absolute: .inf}} | is not a finite number
tuning: {exit_policy: {timeout: -1}} | expected a number of seconds, 0 or more, got -1
tuning: {exit_policy: {timeout: 1e300}} | expected a number of seconds
tuning: {exit_policy: {max_trials: 0}} | expected a whole number, 1 or more, got 0
tuning: {strategy: {name: bayesian}} | unknown strategy: expected one of basic, sensitivity, by_kind
tuning: {strategy: {name: sensitivty}} | did you mean `sensitivity`?
tuning: {strategy: {}} | missing key `name`
quantization: {approach: post_training_static_quant} | line 1, column 26, quantization.approach: approach `post_training_static_quant` is not offered: expected `post_training_dynamic_quant`
quantization: {approach: quant_aware_training} | approach `quant_aware_training` is not offered
quantization: {approach: post_training_auto_quant} | approach `post_training_auto_quant` is not offered
quantization: {approach: post_training_dinamic_quant} | did you mean `post_training_dynamic_quant`?
quantization: {calibration: {sampling_size: 8}} | missing key `approach`: expected `post_training_dynamic_quant`
model: {name: bert, framework: onnxrt_integerop} | did you mean `onnxrt_integerops`?
device: gpu | expected cpu
quantization: {approach: post_training_dynamic_quant, calibration: {sampling_size: 8 or 9}} | expected one or several whole numbers, 1 or more, got "8 or 9"
quantization: {approach: post_training_dynamic_quant, op_wise: {'(': {weight: {dtype: fp32}}}} | line 1, column 65, quantization.op_wise.(: malformed regex
quantization: {approach: post_training_dynamic_quant, optype_wise: {Liner: {}}} | did you mean `Linear`?
quantization: {approach: post_training_dynamic_quant, optype_wise: {Linear: {weight: {dtype: int4}}}} | unknown dtype
quantization: {approach: post_training_dynamic_quant, optype_wise: {Linear: {weight: {dtype: []}}}} | expected one or several words, got none
a: [ | line 1, column
"#;
    let of_lines = [
        ["tuning:\n  exit_polcy: {}", "line 2, column 3, tuning.exit_polcy: unknown key"],
        ["tuning:\n  exit_policy:\n    time_out: 3", "did you mean `timeout`?"],
    ];
    for [text, message] in rows(table).chain(of_lines) {
        fault(TuningConfig::from_yaml(text)).has(message);
    }
}

#[test]
fn sizes_of_a_calibration_are_whole_numbers_in_any_form() {
    let read = |sizes: &str| {
        let calibration = format!("  calibration: {{sampling_size: {sizes}}}\n");
        TuningConfig::from_yaml(&dynamic(&calibration))
    };
    for good in ["8", "[8, 16]", "'8'", "8, 16", "'8, 16'", "8 16 32", "'8,16'"] {
        // A comma ends an entry within braces.
        let quoted = good.starts_with(['\'', '[']) || !good.contains(',');
        assert_eq!(read(good).is_ok(), quoted, "{good}");
    }
    for wrong in ["0", "[8, 0]", "''", "' , '", "'8, 0'", "'0'", "'8, x'", "'-8'", "8.5", "{a: 1}"]
    {
        fault(read(wrong)).has("one or several whole numbers, 1 or more");
    }
}
