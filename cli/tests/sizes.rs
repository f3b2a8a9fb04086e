//! What the commands on checkpoints say of tensors before and after.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use candle_dynquant::QConfigSpec;
use candle_dynquant::candle_core::{DType, Device, Tensor, safetensors};

fn dynquant(args: &[&str], paths: &[&Path]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dynquant"));
    // The matrices of these tests are small.
    if args.first() == Some(&"quantize") {
        command.args(["quantize", "--min-params", "0"]);
    }
    let args = args.strip_prefix(&["quantize"]).unwrap_or(args);
    let output = command.args(args).args(paths).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{args:?}: {text}");
    text
}

fn random(shape: &[usize]) -> Tensor {
    Tensor::randn(0f32, 1., shape, &Device::Cpu).unwrap()
}

/// The last words of the line with the sizes, such as `10.3 MB -> 2.7 MB`.
fn sizes(text: &str) -> &str {
    let line = text
        .lines()
        .rfind(|line| line.contains(" -> "))
        .unwrap_or_default();
    let arrow = line.find(" -> ").unwrap_or_else(|| panic!("{text}"));
    let start = line[..arrow].rfind(", ").map_or(0, |comma| comma + 2);
    &line[start..]
}

#[test]
fn a_dry_run_tells_the_size_that_the_output_has() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| folder.path().join(name));
    // Narrow, so that scales and zero points are a part that is seen.
    let tensors = HashMap::from([
        ("embed.weight", random(&[90_000, 4])),
        ("head.weight", random(&[120_000, 3])),
        ("gru.weight_ih_l0", random(&[300, 2_000])),
        ("gru.weight_hh_l0", random(&[300, 100])),
        ("other", random(&[300_000])),
    ]);
    safetensors::save(&tensors, &float)?;
    let mut all = Vec::new();
    for preset in QConfigSpec::PRESETS {
        let quantize = ["quantize", "--embeddings", "--preset", preset];
        let args = |last| [&quantize[..], &[last]].concat();
        let dry = dynquant(&args("--dry-run"), &[&float]);
        let real = dynquant(&args("-o"), &[&out, &float]);
        assert_eq!(sizes(&dry), sizes(&real), "{preset}");
        all.push(sizes(&real).to_owned());
    }
    all.sort();
    all.dedup();
    assert!(all.len() > 2, "{all:?}");
    Ok(())
}

#[test]
fn a_difference_names_tensors_that_one_has_and_the_other_has_not() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    let (same, other) = (random(&[3, 4]), random(&[3, 4]));
    let integers = |value: u32| Tensor::full(value, 3, &Device::Cpu);
    let half = same.to_dtype(DType::F16)?;
    safetensors::save(
        &HashMap::from([
            ("only_a", other.clone()),
            ("same", same.clone()),
            ("half", same.clone()),
            ("shape", same.clone()),
            // Not compared.
            ("integers", integers(1)?),
        ]),
        &a,
    )?;
    safetensors::save(
        &HashMap::from([
            ("only_b", other),
            ("same", same.clone()),
            ("half", half),
            ("shape", same.reshape((4, 3))?),
            ("integers", integers(2)?),
        ]),
        &b,
    )?;
    let text = dynquant(&["diff"], &[&a, &b]);
    let lines: Vec<Vec<&str>> = (text.lines())
        .map(|line| line.split_whitespace().collect())
        .collect();
    let starts = |start: &[&str]| lines.iter().any(|line| line.starts_with(start));
    for start in [
        &["only_a", "F32", "none"][..],
        &["only_b", "none", "F32"],
        &["half", "F32", "F16"],
        &["shape", "F32", "F32", "[4,", "3],", "not", "[3,", "4]"],
    ] {
        assert!(starts(start), "{start:?}: {text}");
    }
    // A header, these four, and the last line.
    assert!(
        text.trim_end().ends_with("1 tensors are the same"),
        "{text}"
    );
    assert!(!starts(&["same"]) && !starts(&["integers"]), "{text}");
    // One with itself has no table.
    assert_eq!(dynquant(&["diff"], &[&a, &a]), "4 tensors are the same\n");
    Ok(())
}

#[test]
fn only_int8_weights_have_scales() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| folder.path().join(name));
    let tensors = HashMap::from([("head.weight", random(&[4, 5])), ("norm", random(&[4]))]);
    safetensors::save(&tensors, &float)?;
    for (preset, scales) in [("int8", true), ("float16", false)] {
        dynquant(&["quantize", "--preset", preset, "-o"], &[&out, &float]);
        let json = dynquant(&["inspect", "--json"], &[&out]);
        let json: serde_json::Value = serde_json::from_str(&json)?;
        let tensors = json["tensors"].as_array().expect("a list");
        for tensor in tensors {
            let is_head = tensor["name"] == "head.weight";
            assert_eq!(tensor["quantized"], is_head, "{tensor}");
            assert_eq!(tensor["scales"].is_array(), is_head && scales, "{tensor}");
        }
        let text = dynquant(&["inspect"], &[&out]);
        assert!(text.contains("1 quantized weights"), "{text}");
    }
    Ok(())
}
