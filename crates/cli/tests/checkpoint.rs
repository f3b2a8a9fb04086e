//! The commands on checkpoints, run as a user runs them.

mod common;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use anyhow::{Context, Result};
use candle_dynquant::candle_core::{DType, Device, Module, Tensor, safetensors};
use candle_dynquant::{
    Checkpoint, Layer, QConfig, QConfigSpec, Quantizable, checkpoint, nn, quantize_dynamic,
};
use common::{command, command_for_small, has, random, stderr, stdout};
use tempfile::TempDir;

fn dynquant(args: &[&str], paths: &[&Path]) -> Output {
    command_for_small(args, paths).output().unwrap()
}

fn text(output: &Output) -> String {
    stdout(output) + &stderr(output)
}

/// The stdout of the command, which must succeed.
#[track_caller]
fn done(args: &[&str], paths: &[&Path]) -> String {
    let output = dynquant(args, paths);
    assert!(output.status.success(), "{output:?}");
    text(&output)
}

/// A checkpoint with an embedding, a Linear, a GRU and a norm.
fn float(folder: &TempDir) -> PathBuf {
    let shapes: [(&str, &[usize]); 8] = [
        ("word_embeddings.weight", &[20, 8]),
        ("gru.weight_ih_l0", &[15, 8]),
        ("gru.weight_hh_l0", &[15, 5]),
        ("gru.bias_ih_l0", &[15]),
        ("gru.bias_hh_l0", &[15]),
        ("head.weight", &[6, 5]),
        ("head.bias", &[6]),
        ("norm.weight", &[6]),
    ];
    random(folder.path(), "float.safetensors", &shapes)
}

/// The line of the output that begins with `start`.
#[track_caller]
fn line<'a>(output: &'a str, start: &str) -> &'a str {
    let line = output.lines().find(|line| line.starts_with(start));
    line.unwrap_or_else(|| panic!("{start}: {output}"))
}

/// The signal-to-noise ratio in the row of a tensor.
#[track_caller]
fn sqnr(diff: &str, name: &str) -> f64 {
    line(diff, name).split_whitespace().nth(3).unwrap().parse().unwrap()
}

/// Experts of each layout, without their routers.
#[test]
fn experts_are_quantized_on_request() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("out");
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/reference/decoders");
    let names = ["qwen3_moe", "olmoe", "mixtral", "granite_moe"];
    for (name, expected) in names.into_iter().zip([36, 30, 24, 4]) {
        let path = fixtures.join(format!("{name}.safetensors"));
        let quantized = |more: &[&str]| -> Result<Vec<String>> {
            let args = [&["quantize"], more, &["-o"]].concat();
            done(&args, &[&out, &path]);
            let written = Checkpoint::open(&out)?;
            let all = written.tensors().filter(|tensor| tensor.quantized);
            Ok(all.map(|tensor| tensor.name).collect())
        };
        let is_expert = |name: &&String| name.contains("experts") || name.contains("put_linear");
        let [plain, all] = [quantized(&[])?, quantized(&["--experts"])?];
        assert_eq!(plain.iter().filter(is_expert).count(), 0, "{name}");
        let experts = all.iter().filter(is_expert).count();
        assert_eq!(experts, expected, "{name}: {all:?}");
        assert_eq!(all.len(), plain.len() + expected, "{name}");
        let routers = ["mlp.gate.", "moe.gate.", "router"];
        let is_router = |name: &String| routers.iter().any(|router| name.contains(router));
        assert!(!all.iter().any(is_router), "{all:?}");
    }
    Ok(())
}

#[test]
fn clamped_weights_are_told() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [path, out] = ["float", "out"].map(|name| folder.path().join(name));
    let weight = Tensor::full(3e38f32, (40, 64), &Device::Cpu)?;
    safetensors::save(&HashMap::from([("head.weight", weight)]), &path)?;
    let text = done(&["quantize", "--preset", "float16", "-o"], &[&out, &path]);
    has(&text, "head.weight: 2560 weights beyond the range of float16 clamped to it");
    Ok(())
}

#[derive(Quantizable)]
struct Model {
    word_embeddings: nn::Embedding,
    gru: nn::GRU,
    head: nn::Linear,
}

impl Model {
    fn load(path: &Path) -> Result<Self> {
        let vb = Checkpoint::open(path)?.var_builder(DType::F32, &Device::Cpu);
        Ok(Self {
            word_embeddings: nn::embedding(20, 8, vb.pp("word_embeddings"))?,
            gru: nn::GRU::new(8, 5, Default::default(), vb.pp("gru"))?,
            head: nn::linear(5, 6, vb.pp("head"))?,
        })
    }
}

#[test]
fn a_file_is_that_of_a_saved_model() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let float = float(&folder);
    let (saved, written) = (folder.path().join("saved"), folder.path().join("written"));
    for preset in QConfigSpec::PRESETS {
        let mut spec = QConfigSpec::preset(preset)?.embeddings().min_params(0);
        // Layers without whole groups become int8.
        if ["int4", "int8_groups"].contains(&preset) {
            spec = spec.name("word_embeddings", QConfig::table());
            spec = spec.name("head", QConfig::int8());
        }
        let mut model = Model::load(&float)?;
        quantize_dynamic(&mut model, &spec)?;
        checkpoint::save(&model, &Checkpoint::open(&float)?, &saved)?;
        let args = ["quantize", "--embeddings", "--preset", preset, "-o"];
        has(&done(&args, &[&written, &float]), "3 of 3 layers quantized");
        assert!(fs::read(&saved)? == fs::read(&written)?, "{preset}");
    }
    Ok(())
}

/// The convolutions of a file as torch writes it, beside a batch norm.
#[derive(Quantizable)]
struct Convolutions {
    tall: nn::Conv2d,
    signal: nn::Conv1d,
    up: nn::ConvTranspose1d,
}

const SHAPES: [(&str, &[usize]); 8] = [
    ("features.0.weight", &[32, 3, 3, 3]),
    ("features.1.weight", &[32]),
    ("features.1.num_batches_tracked", &[]),
    ("features.3.weight", &[80, 64, 3, 1]),
    ("features.4.weight", &[48, 1, 3, 3]),
    ("conv.weight", &[80, 40, 3]),
    ("conv.bias", &[80]),
    ("up.weight", &[80, 80, 4]),
];

impl Convolutions {
    fn load(path: &Path) -> Result<Self> {
        let vb = Checkpoint::open(path)?.var_builder(DType::F32, &Device::Cpu);
        let tall = vb.get((80, 64, 3, 1), "features.3.weight")?;
        Ok(Self {
            tall: nn::Conv2d::new(tall, None, Default::default()),
            signal: nn::conv1d(40, 80, 3, Default::default(), vb.pp("conv"))?,
            up: nn::conv_transpose1d_no_bias(80, 80, 4, Default::default(), vb.pp("up"))?,
        })
    }

    fn outputs(&self) -> Result<Vec<f32>> {
        let xs = Tensor::arange(0., 2560f32, &Device::Cpu)?.sin()?;
        let ys = self.tall.forward(&xs.reshape((2, 64, 10, 2))?)?;
        let zs = self.signal.forward(&xs.reshape((1, 40, 64))?)?;
        let zs = self.up.forward(&zs)?.flatten_all()?;
        Ok(Tensor::cat(&[ys.flatten_all()?, zs], 0)?.to_vec1()?)
    }
}

const KINDS: [&str; 6] = ["--conv1d", "", "--conv2d", "", "--conv-transpose1d", "up"];

#[test]
fn convolutions_are_those_of_a_saved_model() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [saved, written, back, yaml] =
        ["saved", "written", "back", "spec.yaml"].map(|name| folder.path().join(name));
    let float = random(folder.path(), "float", &SHAPES);
    for spec in ["preset: int8\nrules: [{kind: Conv2d, qconfig: pytorch}]\n", "preset: int8\n"] {
        let mut model = Convolutions::load(&float)?;
        quantize_dynamic(&mut model, &QConfigSpec::from_yaml(spec)?.min_params(0))?;
        checkpoint::save(&model, &Checkpoint::open(&float)?, &saved)?;
        fs::write(&yaml, spec)?;
        let args = [&["quantize"], &KINDS[..], &["-o"]].concat();
        let output = done(&args, &[&written, &float, Path::new("--spec"), &yaml]);
        has(&output, "3 of 5 layers quantized");
        assert!(fs::read(&saved)? == fs::read(&written)?, "{spec}");
        let loaded = Convolutions::load(&written)?;
        assert_eq!(loaded.outputs()?, model.outputs()?);
        assert_ne!(loaded.outputs()?, Convolutions::load(&float)?.outputs()?);
    }
    let args = [&["quantize", "--dry-run"], &KINDS[..]].concat();
    let output = done(&args, &[&float]);
    let words = output.split_whitespace().collect::<Vec<_>>().join(" ");
    for line in [
        "features.0 Conv2d [32, 3, 3, 3] F32 left: a convolution of 3 input channels",
        "features.4 Conv2d [48, 1, 3, 3] F32 left: a convolution of 1 input channels",
        "conv Conv1d [80, 40, 3] F32 qint8 per channel, u8 per row; this library's",
        "up ConvTranspose1d [80, 80, 4] F32 qint8",
    ] {
        has(&words, line);
    }
    has(&done(&["inspect"], &[&written]), "[80, 64, 3, 1]");
    let output = done(&["diff"], &[&float, &written]);
    for name in ["features.3", "conv", "up"] {
        assert!(sqnr(&output, name) > 35., "{output}");
    }
    has(&output, "5 tensors are the same");
    done(&["dequantize", "-o"], &[&back, &written]);
    let output = done(&["diff"], &[&written, &back]);
    has(&output, "8 tensors are the same");
    Ok(())
}

#[test]
fn convolutions_of_another_kind_or_of_groups_are_refused_or_float() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (float, out) = (random(folder.path(), "float", &SHAPES), folder.path().join("out"));
    let args = ["quantize", "--conv1d", "", "--exclude", "conv", "-o"];
    done(&args, &[&out, &float]);
    let vb = Checkpoint::open(&out)?.var_builder(DType::F32, &Device::Cpu);
    let error = nn::conv_transpose1d_no_bias(80, 80, 4, Default::default(), vb.pp("up"));
    let error = error.map(drop).unwrap_err().to_string();
    has(&error, "\"up.weight\": expected [1, 4, 1, 1, 80, 80], got");
    assert!(!vb.contains_tensor("conv.weight_scale"));
    let mut groups = nn::Conv1dConfig::default();
    groups.groups += 1;
    let error = nn::conv1d_no_bias(160, 80, 4, groups, vb.pp("up"));
    let error = error.map(drop).unwrap_err().to_string();
    has(&error, "\"up.weight\": expected [2, 4, 40, 80], got");
    // By the floats, which are right for any layer.
    let weight = vb.get((80, 80, 4), "up.weight")?;
    let of_groups = nn::Conv1d::new(weight.clone(), None, groups);
    let transposed = nn::ConvTranspose1d::new(weight, None, Default::default());
    assert!(!of_groups.weight_infos()[0].quantized && !transposed.weight_infos()[0].quantized);
    for (option, name, expected) in [
        ("--conv2d", "conv", "unknown weight of four dimensions"),
        ("--conv1d", "upp", "did you mean `up`?"),
        ("--exclude", "features.3", "expected one with a matrix"),
    ] {
        let output = dynquant(&["quantize", "--dry-run", option, name], &[&float]);
        has(&text(&output), expected);
    }
    Ok(())
}

/// The peak memory of a process, in kB.
#[cfg(target_os = "linux")]
fn peak(mut child: std::process::Child) -> Result<u64> {
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait()?.is_none() {
        // A process that has just ended has no status.
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let number = line.and_then(|line| line.trim().split(' ').next()?.parse().ok());
        peak = number.unwrap_or(peak);
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert!(child.wait()?.success());
    Ok(peak)
}

/// The range, scale and zero point of each row take more than its elements.
#[cfg(target_os = "linux")]
#[test]
fn a_weight_of_short_rows_is_quantized_in_little_memory() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| folder.path().join(name));
    let rows = 1 << 22;
    let entry =
        serde_json::json!({"dtype": "F32", "shape": [rows, 1], "data_offsets": [0, 4 * rows]});
    let header = serde_json::json!({"head.weight": entry}).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.into_bytes());
    file.extend((0..rows).flat_map(|i: u32| (i as f32).sin().to_le_bytes()));
    fs::write(&float, file)?;
    for args in [
        &["--preset", "int8"][..],
        &["--preset", "pytorch"],
        &["--embedding", "head", "--embeddings"],
    ] {
        let args = [&["quantize"], args, &["-o"]].concat();
        let mut command = command(&args, &[&out, &float]);
        let peak = peak(command.stdout(Stdio::null()).spawn()?)?;
        assert!(peak < 60_000, "{args:?}: {peak} kB");
    }
    Ok(())
}

#[test]
fn a_dry_run_shows_every_layer_and_writes_nothing() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let float = float(&folder);
    let args = ["quantize", "--dry-run", "--exclude", "head"];
    let output = text(&dynquant(&args, &[&float]));
    let line = |start| line(&output, start);
    assert!(line("gru").contains("GRU") && line("gru").contains("qint8 per channel, u8 per row"));
    let left = "left: kept float by name \"head\"";
    assert!(line("head").contains("Linear") && line("head").ends_with(left));
    assert!(line("word_embeddings").contains("Embedding"));
    has(&output, "4 other tensors are copied");
    assert_eq!(fs::read_dir(folder.path())?.count(), 1);
    let args = ["quantize", "--dry-run", "--linear", "word_embeddings"];
    let output = text(&dynquant(&args, &[&float]));
    assert!(
        output.lines().nth(3).is_some_and(|l| l.contains("Linear"))
            || output.contains("word_embeddings  Linear"),
        "{output}"
    );
    Ok(())
}

#[test]
fn a_report_ends_with_the_matrices_that_stay_float() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let shapes: [(&str, &[usize]); 5] = [
        ("head.weight", &[16, 16]),
        ("norm.weight", &[16]),
        ("attn.in_proj_weight", &[48, 16]),
        ("layers.0.experts.up", &[4, 16, 16]),
        ("layers.1.experts.up", &[4, 16, 16]),
    ];
    let path = random(folder.path(), "float.safetensors", &shapes);
    let out = folder.path().join("out");
    for args in [&["quantize", "--dry-run"][..], &["quantize", "-o", out.to_str().unwrap()]] {
        let output = text(&dynquant(args, &[&path]));
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<_> = output.lines().map(words).collect();
        let end = &lines[lines.len().saturating_sub(3)..];
        // The left matrices take 11,264 of 11,648 bytes: head.weight takes 256 + 64, norm.weight
        // 64.
        assert_eq!(
            end,
            [
                "matrices that stay float: 0.01 MB, 96.7 % of the bytes",
                "layers.*.experts.up [4, 16, 16] x 2 0.01 MB 70.3 %",
                "attn.in_proj_weight [48, 16] x 1 0.00 MB 26.4 %",
            ],
            "{output}"
        );
    }
    Ok(())
}

#[test]
fn a_tied_head_and_a_norm_can_be_excluded_and_a_linear_is_named_by_its_tensor() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let float = float(&folder);
    let names = ["lm_head", "norm", "cls.predictions.decoder"];
    let exclude: Vec<_> = names.iter().flat_map(|name| ["--exclude", name]).collect();
    for args in [&exclude[..], &["--linear", "word_embeddings.weight"]] {
        let args = [&["quantize", "--dry-run"], args].concat();
        has(&done(&args, &[&float]), "word_embeddings");
    }
    Ok(())
}

/// A folder with the checkpoint of [`float`], and the path of an output folder.
fn model_folder(folder: &TempDir) -> Result<(PathBuf, String)> {
    let [model, out] = ["float", "out"].map(|name| folder.path().join(name));
    fs::create_dir(&model)?;
    fs::rename(float(folder), model.join("model.safetensors"))?;
    Ok((model, out.to_str().context("a path")?.to_owned()))
}

/// A table that transformers ties is left, and a model that it does not read is written.
#[test]
fn what_transformers_does_not_read_is_told_in_a_line() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (float, out) = model_folder(&folder)?;
    let masked = r#"{"architectures": ["BertForMaskedLM"]}"#;
    let [bert, dino] = [r#"{"model_type": "bert"}"#, r#"{"model_type": "dinov2"}"#];
    let [table, model] =
        ["transformers reads no codes in a table", "transformers 5.24 reads no int8 of dinov2"];
    for (config, args, note, expected) in [
        (masked, &["--embeddings", "--dry-run"][..], table, true),
        (masked, &["--embeddings", "-o", &out], table, true),
        (masked, &["-o", &out], table, false),
        (masked, &["--embedding", "word_embeddings", "--embeddings", "-o", &out], table, false),
        (dino, &["--dry-run"], model, true),
        (dino, &["-o", &out], model, true),
        (dino, &["--preset", "float16", "-o", &out], model, false),
        (bert, &["-o", &out], model, false),
    ] {
        fs::write(float.join("config.json"), config)?;
        let output = text(&dynquant(&[&["quantize"], args].concat(), &[&float]));
        assert_eq!(output.contains(note), expected, "{config} {args:?}: {output}");
    }
    Ok(())
}

#[test]
fn a_layer_without_whole_groups_is_int8_with_a_line() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [out, spec] = ["b", "spec.yaml"].map(|name| folder.path().join(name));
    let shapes: [(&str, &[usize]); 2] = [("fc1.weight", &[40, 64]), ("fc2.weight", &[40, 80])];
    let float = random(folder.path(), "a.safetensors", &shapes);
    fs::write(&spec, "kinds: {Linear: int4}")?;
    let int8 = "fc2: they are int8 per channel";
    for (preset, note, scales) in [
        (["--preset", "int4"], int8, [40, 1]),
        (["--preset", "int8_groups"], int8, [40, 1]),
        (["--spec", spec.to_str().context("a path")?], "fc2: they have a shorter group", [40, 3]),
    ] {
        let args = [&["quantize"], &preset[..]].concat();
        has(&done(&[&args[..], &["--dry-run"]].concat(), &[&float]), note);
        let said = done(&[&args[..], &["-o"]].concat(), &[&out, &float]);
        has(&said, "not a multiple of the group size in 1 of the layers");
        has(&said, note);
        for tensor in Checkpoint::open(&out)?.tensors() {
            match &*tensor.name {
                "fc1.weight_scale" => assert_eq!(tensor.shape, [40, 2]),
                "fc2.weight_scale" => assert_eq!(tensor.shape, scales),
                _ => {}
            }
        }
    }
    Ok(())
}

/// A layer of 70,000 inputs with the largest code can overflow an i32.
#[test]
fn a_layer_that_int8_has_no_room_for_is_left_with_its_reason() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let float = folder.path().join("float.safetensors");
    let ones = |rows: usize, columns| Tensor::ones((rows, columns), DType::F32, &Device::Cpu);
    let head = Tensor::randn(0f32, 1., (64, 64), &Device::Cpu)?;
    let tensors = HashMap::from([
        ("head.weight", head),
        ("rnn.weight_ih", ones(3, 70_000)?),
        ("rnn.weight_hh", ones(3, 1)?),
        ("wide.weight", ones(2, 70_000)?),
        ("wide_embeddings.weight", ones(2, 70_000)?),
    ]);
    safetensors::save(&tensors, &float)?;
    let out = folder.path().join("out.safetensors");
    let left = "left: output channel 0 can overflow the i32 accumulator";
    let args = ["quantize", "--embeddings", "--dry-run"];
    let dry = text(&dynquant(&args, &[&float]));
    let lines = dry.lines().filter(|line| line.ends_with(left)).count();
    assert_eq!(lines, 3, "two layers, one of which has two weights: {dry}");
    let said = done(&["quantize", "--embeddings", "-o"], &[&out, &float]);
    has(&said, "2 of 4 layers quantized");
    has(&said, &format!("wide: {left}"));
    has(&said, &format!("rnn: {left}"));
    let args = ["quantize", "--preset", "float16", "-o"];
    has(&done(&args, &[&out, &float]), "3 of 4 layers quantized");
    // A layer that is named alone or exactly was asked for.
    let spec = folder.path().join("spec.yaml");
    for rules in ["kinds: {GRUCell: int8}", "rules: [{name: wide, qconfig: int8}]"] {
        fs::write(&spec, rules)?;
        let args = ["quantize", "--spec", spec.to_str().unwrap(), "-o"];
        let output = dynquant(&args, &[&out, &float]);
        let said = text(&output);
        assert!(!output.status.success(), "{said}");
        has(&said, "float.safetensors: ");
        has(&said, ": output channel 0 can overflow");
    }
    Ok(())
}

#[test]
fn presets_are_listed_and_shown() {
    let names = done(&["presets"], &[]);
    assert_eq!(names.lines().collect::<Vec<_>>(), QConfigSpec::PRESETS);
    has(&done(&["presets", "int4"], &[]), "output projection: qint8");
}

#[test]
fn mistakes_are_named_and_change_nothing() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let float = float(&folder);
    let out = folder.path().join("out.safetensors");
    fs::write(&out, "old")?;
    let broken = folder.path().join("broken.safetensors");
    fs::write(&broken, &fs::read(&float)?[..100])?;
    let empty = folder.path().join("empty.safetensors");
    fs::write(&empty, b"\x02\0\0\0\0\0\0\0{}")?;
    let cases: [(&[&str], &Path, &str); 7] = [
        (&["--preset", "int9"], &float, "int9"),
        (&["--exclude", "heed"], &float, "head"),
        (&["--linear", "hed"], &float, "did you mean `head`?"),
        (&["--spec", "nothing.yaml"], &float, "nothing.yaml"),
        (&[], &broken, "broken.safetensors"),
        (&[], &empty, "expected one with a matrix called `name.weight`"),
        (&[], Path::new("nowhere"), "cannot open"),
    ];
    for (args, source, expected) in cases {
        let args = [&["quantize"], args, &["-o"]].concat();
        let output = dynquant(&args, &[&out, source]);
        assert!(!output.status.success(), "{args:?}");
        has(&text(&output), expected);
        assert_eq!(fs::read(&out)?, b"old");
    }
    done(&["quantize", "-o"], &[&out, &float]);
    let twice = dynquant(&["quantize", "-o"], &[&folder.path().join("twice"), &out]);
    has(&text(&twice), "expected one that is float");
    Ok(())
}

#[test]
fn inspect_diff_and_dequantize() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let float = float(&folder);
    let [int8, back] = ["int8", "back"].map(|name| folder.path().join(name));
    done(&["quantize", "-o"], &[&int8, &float]);
    let output = done(&["inspect"], &[&int8]);
    for part in ["gru.weight_ih_l0", "I8", "3 quantized weights"] {
        has(&output, part);
    }
    assert!(!output.contains("_scale "), "{output}");
    let json = common::json(&["inspect", "--json"], &int8);
    let mut tensors = json["tensors"].as_array().expect("a list").iter();
    let head = tensors.find(|tensor| tensor["name"] == "head.weight");
    let head = head.expect("a head");
    assert!(head["scales"][0].as_f64() > Some(0.) && head["shape"] == serde_json::json!([6, 5]));
    let output = text(&dynquant(&["diff"], &[&float, &int8]));
    assert!((30. ..70.).contains(&sqnr(&output, "head.weight")), "{output}");
    has(&output, "5 tensors are the same");
    done(&["dequantize", "-o"], &[&back, &int8]);
    has(&done(&["diff"], &[&int8, &back]), "8 tensors are the same");
    let tensors = safetensors::load(&back, &Device::Cpu)?;
    assert!(tensors.len() == 8 && tensors.values().all(|tensor| tensor.dtype() == DType::F32));
    Ok(())
}

/// Folders of 4-bit weights, in the layouts of other libraries.
#[test]
fn folders_of_others_are_inspected_compared_and_dequantized() -> Result<()> {
    let out = tempfile::tempdir()?;
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/reference");
    let names = ["layout_gptq", "layout_gptq_v2", "layout_awq", "pack_quantized"];
    for name in names {
        let (folder, float) = (reference.join(name), out.path().join(name));
        let output = text(&dynquant(&["inspect"], &[&folder]));
        let dtype = line(&output, "up.weight ").split_whitespace().nth(1);
        assert_eq!(dtype, Some("I4"), "{output}");
        has(&output, "3 quantized weights");
        done(&["dequantize", "-o"], &[&float, &folder]);
        has(&done(&["diff"], &[&folder, &float]), "7 tensors are the same");
    }
    Ok(())
}

/// The files of a folder, with their bytes.
fn files(folder: &Path) -> HashMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap();
    let entries = entries.map(|entry| entry.unwrap().path());
    let read = |path: PathBuf| (path.file_name().unwrap().into(), fs::read(&path).unwrap());
    entries.map(read).collect()
}

#[test]
fn killed_at_any_time_it_leaves_the_old_output_or_the_new() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, out, new] = ["float", "out", "new"].map(|name| dir.path().join(name));
    fs::create_dir(&float)?;
    fs::write(float.join("config.json"), "{}")?;
    let names = ["0.weight", "1.weight", "2.weight", "3.weight", "4.weight", "5.weight"];
    random(&float, "model.safetensors", &names.map(|name| (name, &[300, 400][..])));
    done(&["quantize", "--preset", "pytorch", "-o"], &[&out, &float]);
    let start = std::time::Instant::now();
    done(&["quantize", "-o"], &[&new, &float]);
    let whole = start.elapsed();
    let (old, new) = (files(&out), files(&new));
    assert_ne!(old, new);
    let mut left_old = 0;
    for tries in 0..24 {
        let mut command = command(&["quantize", "-o"], &[&out, &float]);
        let mut child = command.stdout(Stdio::null()).spawn()?;
        std::thread::sleep(whole * tries / 20);
        match tries % 2 {
            0 => child.kill()?,
            // Ctrl-c sends this signal; the command may have ended already.
            _ => {
                let id = child.id().to_string();
                std::process::Command::new("kill").args(["-INT", &id]).status()?;
            }
        }
        child.wait()?;
        let now = files(&out);
        assert!(now == old || now == new, "try {tries}");
        left_old += usize::from(now == old);
    }
    assert!(left_old > 0, "none was early enough");
    Ok(())
}

#[cfg(unix)]
#[test]
fn no_fifo_is_waited_for_and_no_device_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let float = float(&folder);
    for name in ["fifo.safetensors", "fifo.yaml"] {
        common::fifo(&path(name));
    }
    std::os::unix::fs::symlink("/dev/null", path("null")).unwrap();
    let (fifo, out) = (path("fifo.safetensors"), path("out"));
    let spec = path("fifo.yaml");
    let (null, with_spec) = (path("null"), ["quantize", "--dry-run", "--spec"]);
    let cases: [(&[&str], &[&Path], &str); 7] = [
        (&["quantize", "-o"], &[&out, &fifo], "a regular file, got a fifo"),
        (&["dequantize", "-o"], &[&out, &fifo], "a regular file, got a fifo"),
        (&["inspect"], &[&fifo], "a regular file, got a fifo"),
        (&["diff"], &[&float, &fifo], "a regular file, got a fifo"),
        (&with_spec, &[&spec, &float], "a regular file, got a fifo"),
        (&["quantize", "-o"], &[&fifo, &float], "a file, got a fifo"),
        (&["quantize", "-o"], &[&null, &float], "a file, got a character device"),
    ];
    for (args, paths, expected) in cases {
        let output = dynquant(args, paths);
        assert!(!output.status.success(), "{args:?}");
        has(&text(&output), &format!("expected {expected}"));
    }
    assert!(!out.exists() && path("null").is_symlink());
}
