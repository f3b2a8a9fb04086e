//! Folders, shards and files that are replaced.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use candle_core::{DType, Device, Tensor};
use candle_dynquant::checkpoint::Plan;
use candle_dynquant::{Checkpoint, QConfigSpec, Quantizable, checkpoint, nn, quantize_dynamic};
use serde_json::{Value, json};

use super::model::{Model, quantized, write_float};

/// A folder with a config, a tokenizer and other files, in a number of shards.
fn folder(dir: &Path, shards: usize) -> Result<PathBuf> {
    let folder = dir.join("float");
    fs::create_dir(&folder)?;
    fs::create_dir(folder.join("1_Pooling"))?;
    fs::write(folder.join("1_Pooling/config.json"), "{\"pooling\": true}")?;
    fs::write(folder.join("config.json"), "{\"hidden_size\": 24, \"eps\": 1e-12}")?;
    fs::write(folder.join("tokenizer.json"), "{}")?;
    fs::write(folder.join("pytorch_model.bin"), "other weights")?;
    let float = write_float(&folder)?;
    if shards > 1 {
        let tensors = candle_core::safetensors::load(&float, &Device::Cpu)?;
        let mut names: Vec<_> = tensors.keys().cloned().collect();
        names.sort();
        let mut files: HashMap<String, HashMap<String, Tensor>> = HashMap::new();
        let mut map = serde_json::Map::new();
        for (i, name) in names.into_iter().enumerate() {
            let file = format!("model-{}.safetensors", i % shards);
            map.insert(name.clone(), file.clone().into());
            files.entry(file).or_default().insert(name.clone(), tensors[&name].clone());
        }
        for (file, tensors) in &files {
            candle_core::safetensors::save(tensors, folder.join(file))?;
        }
        fs::remove_file(&float)?;
        let index = serde_json::json!({"metadata": {"total_size": 1}, "weight_map": map});
        fs::write(folder.join("model.safetensors.index.json"), index.to_string())?;
    }
    Ok(folder)
}

#[test]
fn a_folder_for_a_folder() -> Result<()> {
    for shards in [1, 3] {
        let dir = tempfile::tempdir()?;
        let float = folder(dir.path(), shards)?;
        let out = dir.path().join("int8");
        let model = quantized(&float, &QConfigSpec::int8().min_params(0).embeddings())?;
        let source = Checkpoint::open(&float)?;
        // Twice: the second replaces the first.
        for _ in 0..2 {
            checkpoint::save(&model, &source, &out)?;
        }
        assert_eq!(Model::open(&out)?.bits()?, model.bits()?);
        let missing = Checkpoint::open(&out)?.floats("nothing").unwrap_err();
        let file = match shards {
            1 => "model.safetensors",
            _ => "model.safetensors.index.json",
        };
        let file = format!("{}: ", out.join(file).display());
        assert!(missing.to_string().starts_with(&file), "{missing}");
        assert!(out.join("tokenizer.json").exists() && out.join("1_Pooling/config.json").exists());
        assert!(!out.join("pytorch_model.bin").exists());
        assert_eq!(out.join("model.safetensors.index.json").exists(), shards > 1);
        if shards > 1 {
            let index = fs::read(out.join("model.safetensors.index.json"))?;
            let index: Value = serde_json::from_slice(&index)?;
            let tensors = Checkpoint::open(&out)?;
            let bytes: u64 = tensors.tensors().map(|tensor| tensor.bytes).sum();
            assert_eq!(index["metadata"]["total_size"], bytes);
        }
        let config: Value = serde_json::from_slice(&fs::read(out.join("config.json"))?)?;
        assert_eq!(config["hidden_size"], 24);
        let quantization = &config["quantization_config"];
        assert_eq!(quantization["quant_method"], "compressed-tensors");
        assert_eq!(quantization["format"], "int-quantized");
        let group = &quantization["config_groups"]["group_0"];
        assert_eq!(group["targets"], serde_json::json!(["Linear"]));
        assert_eq!(group["weights"]["strategy"], "channel");
        assert_eq!(group["input_activations"]["strategy"], "token");
        // No temporary file is left.
        let left: Vec<_> = fs::read_dir(dir.path())?.collect::<Result<_, _>>()?;
        assert_eq!(left.len(), 2, "{left:?}");
    }
    Ok(())
}

/// A table that was not loaded has the name of its place in the model.
#[test]
fn a_table_of_ones_own_is_named_by_its_path() -> Result<()> {
    #[derive(Quantizable)]
    struct Named {
        table: nn::Embedding,
    }
    let dir = tempfile::tempdir()?;
    let source = Checkpoint::open(folder(dir.path(), 1)?)?;
    let rows = Tensor::randn(0f32, 1., (50, 24), &Device::Cpu)?;
    let mut model = Named { table: nn::Embedding::new(rows, 24) };
    quantize_dynamic(&mut model, &QConfigSpec::int8().min_params(0).embeddings())?;
    let out = dir.path().join("int8");
    checkpoint::save(&model, &source, &out)?;
    let config: Value = serde_json::from_slice(&fs::read(out.join("config.json"))?)?;
    let group = &config["quantization_config"]["config_groups"]["group_0"];
    assert_eq!(group["targets"], json!(["table"]), "{config}");
    Ok(())
}

/// Files that belong to a model, and are not another form of its weights, are copied.
#[test]
fn folders_are_kept_whole() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let float = folder(dir.path(), 1)?;
    let kept = "modules.json 1_Pooling/config.json 2_Dense/model.safetensors 2_Dense/config.json \
                3_Dense/pytorch_model.bin voices/a.pt voice.safetensors styles.npz modeling_own.py \
                text_encoder/model.safetensors.index.json text_encoder/model-1.safetensors";
    let gone = "model.fp16.safetensors model.onnx model_quantized.onnx onnx/model.onnx tf_model.h5 \
                openvino/openvino_model.bin pytorch_model.bin.index.json .cache/model.safetensors \
                voices/.hidden";
    let [kept, gone] = [kept, gone].map(|names| names.split(' ').collect::<Vec<_>>());
    for name in kept.iter().chain(&gone) {
        let path = float.join(name);
        fs::create_dir_all(path.parent().expect("a folder"))?;
        fs::write(&path, name)?;
    }
    // The layout of sentence-transformers.
    fs::create_dir(float.join("4_Normalize"))?;
    let out = dir.path().join("out");
    let source = Checkpoint::open(&float)?;
    let spec = QConfigSpec::int8().min_params(0);
    let plan = checkpoint::Plan::new(&source, &spec, &[], &[])?;
    let check = || -> Result<()> {
        for name in &kept {
            assert_eq!(fs::read_to_string(out.join(name))?, *name);
        }
        for name in &gone {
            assert!(!out.join(name).exists(), "{name}");
        }
        assert!(out.join("4_Normalize").is_dir());
        Ok(())
    };
    checkpoint::quantize(&source, &plan, &out, |_| {})?;
    check()?;
    checkpoint::save(&quantized(&float, &spec)?, &source, &out)?;
    check()
}

/// The error names the way to convert the folder to safetensors.
#[test]
fn folders_of_other_forms_are_refused() -> Result<()> {
    let zip = |name: &str| [b"PK\x03\x04.......................", name.as_bytes()].concat();
    let (pickle, pytorch) = (b"\x80\x02}q\x00.".to_vec(), "scripts/convert_pytorch.py");
    let numpy = "safetensors.numpy.save_file";
    for (name, begin, cure) in [
        ("pytorch_model.bin", zip("archive/data.pkl"), pytorch),
        ("model.pt", zip("model/data.pkl"), pytorch),
        ("model.pth", pickle, pytorch),
        ("weights.npz", zip("embed.npy"), numpy),
    ] {
        let dir = tempfile::tempdir()?;
        fs::write(dir.path().join(name), &begin)?;
        for path in [dir.path(), &dir.path().join(name)] {
            let error = Checkpoint::open(path).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(cure), "{error}");
        }
    }
    Ok(())
}

/// An adapter changes the results of its model.
#[test]
fn adapters_are_refused() -> Result<()> {
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        let dir = tempfile::tempdir()?;
        let float = folder(dir.path(), 1)?;
        fs::write(float.join(name), "{}")?;
        let error = Checkpoint::open(&float).unwrap_err().to_string();
        assert!(error.contains("merge the adapter") && error.ends_with(name), "{error}");
    }
    Ok(())
}

#[test]
fn folders_are_copied_to_a_depth_of_eight() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let float = folder(dir.path(), 1)?;
    let [last, beyond] = [8, 9].map(|depth| ["f"; 9][..depth].join("/"));
    fs::create_dir_all(float.join(&last))?;
    fs::write(float.join(&last).join("file"), "text")?;
    let out = dir.path().join("out");
    let model = quantized(&float, &QConfigSpec::int8().min_params(0))?;
    checkpoint::save(&model, &Checkpoint::open(&float)?, &out)?;
    assert!(out.join(&last).join("file").exists());
    fs::create_dir(float.join(&beyond))?;
    let error = checkpoint::save(&model, &Checkpoint::open(&float)?, &out).unwrap_err();
    assert!(error.to_string().contains("at most 8 folders"), "{error}");
    Ok(())
}

/// A reader builds a separate layer for a head that has no tensor.
#[test]
fn a_config_tells_which_layers_stay_float() -> Result<()> {
    #[derive(Quantizable)]
    struct Tied {
        words: nn::Embedding,
        inner: nn::Linear,
        other: nn::Linear,
        head: nn::Linear,
    }

    let dir = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| dir.path().join(name));
    fs::create_dir(&float)?;
    fs::write(float.join("config.json"), "{}")?;
    let names = ["words.weight", "inner.weight", "other.weight"];
    let weight = || Tensor::randn(0f32, 1., (8, 8), &Device::Cpu);
    let tensors = names.map(|name| Ok((name, weight()?)));
    let tensors = tensors.into_iter().collect::<Result<HashMap<_, _>>>()?;
    candle_core::safetensors::save(&tensors, float.join("model.safetensors"))?;
    let source = Checkpoint::open(&float)?;
    let int8 = QConfigSpec::int8().min_params(0);
    let int8 = int8.exclude("other");
    let load = |by_name: bool| -> Result<Tied> {
        let vb = source.var_builder(DType::F32, &Device::Cpu);
        let words = nn::embedding(8, 8, vb.pp("words"))?;
        let inner = if by_name {
            nn::linear_no_bias(8, 8, vb.pp("inner"))?
        } else {
            nn::Linear::new(vb.get((8, 8), "inner.weight")?, None)
        };
        Ok(Tied {
            inner,
            other: nn::linear_no_bias(8, 8, vb.pp("other"))?,
            head: nn::Linear::new(words.embeddings().clone(), None),
            words,
        })
    };
    for (spec, targets, ignored) in [
        (int8.clone().exclude("head"), json!([["Linear"]]), json!(["head", "other"])),
        (int8.clone().embeddings(), json!([["Linear"], ["words"]]), json!(["head", "other"])),
    ] {
        for by_name in [true, false] {
            let mut model = load(by_name)?;
            quantize_dynamic(&mut model, &spec)?;
            checkpoint::save(&model, &source, &out)?;
            let config: Value = serde_json::from_slice(&fs::read(out.join("config.json"))?)?;
            let entry = &config["quantization_config"];
            assert_eq!(entry["ignore"], ignored, "{spec}");
            let groups = entry["config_groups"].as_object().context("groups")?;
            let found: Vec<&Value> = groups.values().map(|group| &group["targets"]).collect();
            assert_eq!(json!(found), targets, "{spec}");
        }
    }
    // A table beside the float table would not be found again.
    let mut model = load(true)?;
    quantize_dynamic(&mut model, &int8.exclude("head").embeddings())?;
    let error = checkpoint::save(&model, &source, &out).unwrap_err();
    assert!(error.to_string().starts_with("words: cannot save"), "{error}");
    Ok(())
}

#[cfg(unix)]
#[test]
fn a_link_to_a_folder_around_it_is_not_followed() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let float = folder(dir.path(), 1)?;
    for (target, link) in [(".", "latest"), ("..", "up")] {
        std::os::unix::fs::symlink(target, float.join(link))?;
    }
    fs::create_dir(float.join("voices"))?;
    fs::write(float.join("voices/a.pt"), "voice")?;
    std::os::unix::fs::symlink("..", float.join("voices/back"))?;
    // An output within the source.
    let out = float.join("out");
    let source = Checkpoint::open(&float)?;
    let plan = Plan::new(&source, &QConfigSpec::int8().min_params(0), &[], &[])?;
    for _ in 0..2 {
        checkpoint::quantize(&source, &plan, &out, |_| ())?;
        assert_eq!(fs::read(out.join("voices/a.pt"))?, b"voice");
        for gone in ["latest", "voices/back", "out"] {
            assert!(!out.join(gone).exists(), "{gone}");
        }
    }
    Ok(())
}

#[test]
fn nothing_is_lost_where_a_folder_is_replaced() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let float = folder(dir.path(), 1)?;
    let model = quantized(&float, &QConfigSpec::int8().min_params(0))?;
    let source = Checkpoint::open(&float)?;
    let out = dir.path().join("out");
    fs::create_dir(&out)?;
    fs::write(out.join("thesis.txt"), "years of work")?;
    let error = checkpoint::save(&model, &source, &out).unwrap_err().to_string();
    assert!(error.contains("thesis.txt"), "{error}");
    assert_eq!(fs::read(out.join("thesis.txt"))?, b"years of work");
    for same in [&float, &float.join("../float")] {
        let error = checkpoint::save(&model, &source, same).unwrap_err().to_string();
        assert!(error.contains("another place"), "{error}");
    }
    Ok(())
}

#[test]
fn an_open_file_stays_readable_where_it_is_replaced() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let float = write_float(dir.path())?;
    let source = Checkpoint::open(&float)?;
    let out = dir.path().join("out.safetensors");
    checkpoint::save(&quantized(&float, &QConfigSpec::int8().min_params(0))?, &source, &out)?;
    let (before, opened) = (Model::open(&out)?.bits()?, Checkpoint::open(&out)?);
    checkpoint::save(&quantized(&float, &QConfigSpec::float16())?, &source, &out)?;
    let model = Model::load(opened.var_builder(DType::F32, &Device::Cpu))?;
    assert_eq!(model.bits()?, before);
    assert_ne!(Model::open(&out)?.bits()?, before);
    Ok(())
}

/// A live writer holds a lock; a writer that has just begun may not hold it yet.
#[test]
fn what_killed_writers_left_is_removed() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let float = write_float(dir.path())?;
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    let make = |name: &str, is_folder: bool, modified| -> Result<fs::File> {
        let path = dir.path().join(name);
        if is_folder {
            fs::create_dir(&path)?;
            fs::write(path.join("model.safetensors"), "half of it")?;
        } else {
            fs::write(&path, "half of it")?;
        }
        let file = fs::File::open(&path)?;
        file.set_modified(modified)?;
        Ok(file)
    };
    let stale = [(".dynquant-0123456789abcdef", false), (".dynquant-0123456789ABCDEF", true)];
    for (name, is_folder) in stale {
        make(name, is_folder, old)?;
    }
    let now = std::time::SystemTime::now();
    let kept = [
        (".dynquant-alive00123456789", old),
        (".dynquant-begun00123456789", now),
        (".dynquant-models", old),
        (".dynquant-0123456789abcdef.old", old),
        ("dynquant-0123456789abcdef", old),
    ];
    let kept = kept.map(|(name, modified)| Ok((name, make(name, true, modified)?)));
    let kept = kept.into_iter().collect::<Result<Vec<_>>>()?;
    kept[0].1.lock()?;

    let source = Checkpoint::open(&float)?;
    let model = Model::open(&float)?;
    checkpoint::save(&model, &source, dir.path().join("saved.safetensors"))?;
    for (name, _) in stale {
        assert!(!dir.path().join(name).exists(), "{name}");
    }
    for (name, _) in kept {
        assert!(dir.path().join(name).join("model.safetensors").exists(), "{name}");
    }
    Ok(())
}

#[test]
fn a_file_in_memory_is_as_that_on_a_disk() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let float = write_float(dir.path())?;
    let spec = QConfigSpec::int8().min_params(0).embeddings();
    let model = quantized(&float, &spec)?;
    let (saved, again) = (dir.path().join("saved"), dir.path().join("again"));
    checkpoint::save(&model, &Checkpoint::open(&float)?, &saved)?;

    let bytes = fs::read(&saved)?;
    // The name of an existing file may be written, since the checkpoint does not use that file.
    let name = again.to_string_lossy();
    fs::write(&again, "old")?;
    let memory = Checkpoint::from_bytes(&name, bytes.clone())?;
    let disk = Checkpoint::open(&saved)?;
    assert!(memory.tensors().eq(disk.tensors()));
    let loaded = Model::load(memory.var_builder(DType::F32, &Device::Cpu))?;
    assert_eq!(loaded.bits()?, model.bits()?);
    checkpoint::save(&loaded, &memory, &again)?;
    assert_eq!(fs::read(&again)?, bytes);

    for length in [0, 7, 100, bytes.len() - 1] {
        let Err(error) = Checkpoint::from_bytes("from the page", bytes[..length].to_vec()) else {
            anyhow::bail!("{length} bytes: expected an error");
        };
        assert!(error.to_string().contains("from the page"), "{error}");
    }
    Ok(())
}
