//! The figures that the commands print for checkpoints and sources.

mod common;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use candle_dynquant::QConfigSpec;
use candle_dynquant::candle_core::{DType, Device, Result, Tensor, safetensors};
use common::{SMALL, dynquant, file, has, printed, random, stderr, stdout};
use serde_json::{Value, json};
use tempfile::TempDir;

fn save<const N: usize>(folder: &TempDir, name: &str, tensors: [(&str, Tensor); N]) -> PathBuf {
    let path = folder.path().join(name);
    safetensors::save(&HashMap::from(tensors), &path).unwrap();
    path
}

fn tensor(values: &[f32]) -> Tensor {
    Tensor::new(values, &Device::Cpu).unwrap()
}

/// A checkpoint whose scales and zero points are larger than the two printed decimals.
fn float(folder: &TempDir) -> PathBuf {
    let shapes: [(&str, &[usize]); 5] = [
        ("embed.weight", &[20_000, 4]),
        ("head.weight", &[30_000, 4]),
        ("lstm.weight_ih_l0", &[400, 50]),
        ("lstm.weight_hh_l0", &[400, 100]),
        ("norm.weight", &[10_000]),
    ];
    random(folder.path(), "float", &shapes)
}

/// `X MB -> Y MB` in the output.
fn sizes(text: &str) -> &str {
    let line = text.lines().rfind(|line| line.contains(" MB -> ")).unwrap();
    let at = line.rfind(", ").map_or(0, |at| at + 2);
    &line[at..]
}

#[test]
fn a_dry_run_knows_the_sizes() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let (float, out) = (float(&folder), folder.path().join("out"));
    for preset in QConfigSpec::PRESETS {
        for embeddings in [&[][..], &["--embeddings"], &["--exclude", "head"]] {
            let args = [&["quantize", "--preset", preset], embeddings].concat();
            let dry = printed(&[&args[..], &["--dry-run"]].concat(), &[&float]);
            let written = printed(&[&args[..], &["-o"]].concat(), &[&out, &float]);
            assert_eq!(sizes(&dry), sizes(&written), "{preset}, {embeddings:?}");
            assert!(sizes(&dry).starts_with("1.08 MB -> "), "{dry}");
            let count = if embeddings == ["--embeddings"] { 3 } else { 2 };
            let count = count - usize::from(embeddings.len() == 2);
            let said = format!("{}: {count} of 3 layers quantized, ", out.display());
            assert!(written.starts_with(&said), "{preset}, {embeddings:?}: {written}");
        }
    }
    Ok(())
}

#[test]
fn a_dry_run_shows_a_row_for_each_matrix() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let float = float(&folder);
    let args = ["quantize", "--dry-run", "--embedding", "head"];
    let printed = printed(&args, &[&float]);
    let rows: Vec<_> = printed.lines().collect();
    let expected = "\
layer  kind       shape       is   becomes
embed  Embedding  [20000, 4]  F32  left: off by default, see `.embeddings()`
head   Embedding  [30000, 4]  F32  left: off by default, see `.embeddings()`
lstm   LSTM       [400, 100]  F32  qint8 per channel, u8 per row
       LSTM       [400, 50]   F32  qint8 per channel, u8 per row
1 other tensors are copied";
    assert_eq!(rows[..6], expected.lines().collect::<Vec<_>>(), "{printed}");
    // The sizes, then what stays float: a line and the two tables.
    assert_eq!(rows.len(), 10);
    Ok(())
}

#[test]
fn a_spec_is_that_of_its_options() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let float = float(&folder);
    let spec = "preset: float16\nembeddings: true\nexclude: [head]\n";
    let spec = file(&folder, "spec.yaml", spec);
    let written = |options: &[&str]| {
        let out = folder.path().join("out");
        printed(&[&["quantize"], options, &["-o"]].concat(), &[&out, &float]);
        fs::read(out)
    };
    let options = ["--preset", "float16", "--embeddings", "--exclude", "head"];
    let by_options = written(&options)?;
    assert!(by_options == written(&["--spec", spec.to_str().unwrap()])?);
    // The default preset.
    let plain = written(&[])?;
    assert!(plain == written(&["--preset", "int8"])? && plain != by_options);
    Ok(())
}

/// The entries of a safetensors file's header, and its data.
fn parts(path: &Path) -> (BTreeMap<String, Value>, Vec<u8>) {
    let bytes = fs::read(path).unwrap();
    let (length, rest) = bytes.split_at(8);
    let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
    let mut header: BTreeMap<String, Value> = serde_json::from_slice(&rest[..length]).unwrap();
    header.remove("__metadata__");
    (header, rest[length..].to_vec())
}

fn place(entry: &Value) -> std::ops::Range<usize> {
    let offset = |i: usize| entry["data_offsets"][i].as_u64().unwrap() as usize;
    offset(0)..offset(1)
}

/// The minimum and the maximum.
fn extent(entry: &Value, floats: &[u8]) -> [f32; 2] {
    let floats: Vec<f32> = if entry["dtype"] == "F16" {
        let float = |bytes: &[u8]| half::f16::from_le_bytes(bytes.try_into().unwrap()).to_f32();
        floats.chunks(2).map(float).collect()
    } else {
        let float = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
        floats.chunks(4).map(float).collect()
    };
    let fold = |choose: fn(f32, f32) -> f32| floats.iter().copied().reduce(choose).unwrap();
    [fold(f32::min), fold(f32::max)]
}

#[test]
fn inspect_has_each_weight_once_with_its_figures() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let (float, out) = (float(&folder), folder.path().join("out"));
    for preset in QConfigSpec::PRESETS {
        let args = ["quantize", "--embeddings", "--preset", preset, "-o"];
        printed(&args, &[&out, &float]);
        let (entries, bytes) = parts(&out);
        let shown = common::json(&["inspect", "--json"], &out);
        // The shapes of packed weights are not tensors of the model.
        let shapes = entries.iter().filter(|(name, _)| name.ends_with("_shape"));
        let shapes: usize = shapes.map(|(_, entry)| place(entry).len()).sum();
        assert_eq!(shown["bytes"], bytes.len() - shapes, "{preset}");
        let tensors = shown["tensors"].as_array().unwrap();
        let names = tensors.iter().map(|one| one["name"].as_str().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort_unstable();
        let expected = [
            "embed.weight",
            "head.weight",
            "lstm.weight_hh_l0",
            "lstm.weight_ih_l0",
            "norm.weight",
        ];
        assert_eq!(names, expected, "{preset}");
        for shown in tensors {
            let name = shown["name"].as_str().unwrap();
            let packed = entries.get(&format!("{name}_packed"));
            let entry = packed.unwrap_or_else(|| &entries[name]);
            if packed.is_some() {
                let rows = &entry["shape"][0];
                assert_eq!(shown["shape"][0], *rows, "{preset}: {name}");
                assert_eq!(shown["dtype"], "I4", "{preset}: {name}");
            } else {
                assert_eq!(shown["shape"], entry["shape"], "{preset}: {name}");
                assert_eq!(shown["dtype"], entry["dtype"], "{preset}: {name}");
            }
            assert_eq!(shown["bytes"], place(entry).len(), "{preset}: {name}");
            let is_quantized = name != "norm.weight";
            assert_eq!(shown["quantized"], is_quantized, "{preset}: {name}");
            let scales = entries.get(&format!("{name}_scale"));
            let scales = scales.filter(|_| entry["dtype"] == "I8" || packed.is_some());
            let scales = scales.map(|entry| extent(entry, &bytes[place(entry)]));
            // Parsed as f64, the scales differ in the last bit.
            let shown: Option<[f32; 2]> = serde_json::from_value(shown["scales"].clone()).unwrap();
            assert_eq!(shown, scales, "{preset}: {name}");
        }
        let text = printed(&["inspect"], &[&out]);
        let megabytes = bytes.len() as f64 / 1e6;
        let names = entries.keys().filter(|name| !name.ends_with("_shape"));
        let count = names.count();
        let last = format!("{count} tensors, {megabytes:.2} MB; 4 quantized weights");
        assert_eq!(text.lines().last(), Some(last.as_str()), "{preset}");
    }
    Ok(())
}

#[test]
fn inspect_shows_a_row_for_each_tensor() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let ones = Tensor::ones((2, 3), DType::F32, &Device::Cpu)?;
    let float = save(&folder, "float", [("a.weight", ones), ("b", tensor(&[1.]))]);
    let out = folder.path().join("out");
    let args = ["quantize", "--preset", "pytorch", "-o"];
    printed(&args, &[&out, &float]);
    let shown = printed(&["inspect"], &[&out]);
    let words = |line: &'_ str| line.split_whitespace().map(str::to_owned).collect();
    let rows: Vec<Vec<_>> = shown.lines().map(words).collect();
    assert_eq!(rows[0], ["tensor", "dtype", "shape", "size", "scales"]);
    let (entries, bytes) = parts(&out);
    let scales = &entries["a.weight_scale"];
    let [scale, _] = extent(scales, &bytes[place(scales)]);
    let scale = format!("{scale:.3e}");
    let first = ["a.weight", "I8", "[2,", "3]", "0.00", "MB", &scale, "to", &scale];
    assert_eq!(rows[1], first);
    assert_eq!(rows[2], ["b", "F32", "[1]", "0.00", "MB"]);
    Ok(())
}

#[test]
fn diff_has_a_row_for_each_difference() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let numbers = |values: &[u32]| Tensor::new(values, &Device::Cpu);
    let a = [
        ("changed", tensor(&[3., 4.])),
        ("half", tensor(&[1., 2048.5])),
        ("integers", numbers(&[1, 2])?),
        ("nan", tensor(&[1., 2.])),
        ("only_a", tensor(&[1.])),
        ("same", tensor(&[1., f32::NAN, f32::INFINITY])),
        ("shape", tensor(&[1., 2.])),
    ];
    let b = [
        ("changed", tensor(&[3., 3.])),
        ("half", tensor(&[1., 2048.5]).to_dtype(DType::F16)?),
        ("integers", numbers(&[1, 3])?),
        ("nan", tensor(&[1., f32::NAN])),
        ("only_b", tensor(&[1.]).to_dtype(DType::F16)?),
        ("same", tensor(&[1., f32::NAN, f32::INFINITY])),
        ("shape", tensor(&[1.])),
    ];
    let (a, b) = (save(&folder, "a", a), save(&folder, "b", b));
    let expected = "\
tensor   A     B     SQNR dB  max difference
changed  F32   F32   13.98    1.000e0
half     F32   F16   72.25    5.000e-1
nan      F32   F32   NaN      NaN
only_a   F32   none
shape    F32   F32            [1], not [2]
only_b   none  F16
1 tensors are the same
";
    assert_eq!(printed(&["diff"], &[&a, &b]), expected);
    assert_eq!(printed(&["diff"], &[&a, &a]), "6 tensors are the same\n");
    Ok(())
}

#[test]
fn port_counts_lines_files_and_places() {
    let folder = tempfile::tempdir().unwrap();
    let one = file(&folder, "a.rs", SMALL);
    let left = "pub struct B {\n    b: Box<dyn Module>,\n}\n";
    let left = file(&folder, "b.rs", left);
    let broken = file(&folder, "c.rs", "fn f() {\n");
    let all = [&one, &left, &broken].map(PathBuf::as_path);
    let names = all.map(|path| path.display().to_string());

    let output = dynquant(&["port"], &all);
    assert_eq!(output.status.code(), Some(1));
    let diff = stdout(&output);
    let expected = format!(
        "--- {0}\n+++ {0}\n@@ -1,5 +1,7 @@\n-use candle_nn::Linear;\n+use candle_dynquant::nn::Linear;\n\
         +use candle_dynquant::Quantizable;\n \n+#[derive(Clone, Quantizable)]\n pub struct A {{\n     \
         a: Linear,\n }}\n",
        names[0]
    );
    assert_eq!(diff, expected);
    let said = stderr(&output);
    let last = "1 of 3 files to change (+3 -1), 1 places left to you, 1 errors";
    assert_eq!(said.lines().last(), Some(last));
    let hidden = "`dyn Module` hides the layers in it\n    take an enum";
    has(&said, &format!("{}:2: {hidden}", names[1]));
    has(&said, &format!("{}:1: error: ", names[2]));
    assert!(!said.contains("not ported"), "{said}");
    assert!(!said.contains("not formatted"), "{said}");

    let output = dynquant(&["port", "--check"], &all[..1]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    assert!(stderr(&output).starts_with(&format!("{}: not ported\n", names[0])));

    let output = dynquant(&["port", "--json"], &all);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let first = json!({
        "file": names[0], "changed": true, "lines_added": 3, "lines_removed": 1, "todo": [],
    });
    assert_eq!(report["files"][0], first);
    assert_eq!(report["files"][1]["todo"][0]["line"], 2);
    let third = &report["files"][2];
    assert_eq!([&third["changed"], &third["lines_added"]], [&json!(false), &json!(0)]);
    assert!(third["error"].is_string());
    assert_eq!((output.status.code(), output.stderr.len()), (Some(1), 0));

    let output = dynquant(&["port", "--write"], &all[..1]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0));
    let said = "1 of 1 files changed (+3 -1), 0 places left to you, 0 errors\n";
    assert_eq!(stderr(&output), said);
    let output = dynquant(&["port"], &all[..2]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0));
    let last = "0 of 2 files to change (+0 -0), 1 places left to you, 0 errors\n";
    assert!(stderr(&output).ends_with(last));
}
