//! Folders, shards and files that are replaced.

use super::model::{Model, quantized, saved, source, write_float};
use crate::kit::*;

/// A folder with a config, a tokenizer and other files, in a number of shards.
fn folder(shards: usize) -> Result<Source> {
    let (dir, [folder]) = paths(["float"]);
    fs::create_dir_all(folder.join("1_Pooling"))?;
    for (name, content) in [
        ("1_Pooling/config.json", r#"{"pooling": true}"#),
        ("config.json", r#"{"hidden_size": 24, "eps": 1e-12}"#),
        ("tokenizer.json", "{}"),
        ("pytorch_model.bin", "other weights"),
    ] {
        fs::write(folder.join(name), content)?;
    }
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
        let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
        fs::write(folder.join("model.safetensors.index.json"), index.to_string())?;
    }
    Ok(Source::new(dir, folder)?)
}

#[test]
fn a_folder_for_a_folder() -> Result<()> {
    for shards in [1, 3] {
        let source = folder(shards)?;
        let model = quantized(&source.path, &all_int8().embeddings())?;
        // Twice: the second replaces the first.
        for _ in 0..2 {
            source.save(&model)?;
        }
        let out = &source.out;
        assert_eq!(Model::open(out)?.bits()?, model.bits()?);
        let index = out.join("model.safetensors.index.json");
        let file = if shards == 1 { out.join("model.safetensors") } else { index.clone() };
        fault(source.saved()?.floats("nothing")).starts(format!("{}: ", file.display()));
        assert!(out.join("tokenizer.json").exists() && out.join("1_Pooling/config.json").exists());
        assert!(!out.join("pytorch_model.bin").exists());
        assert_eq!(index.exists(), shards > 1);
        if shards > 1 {
            let bytes: u64 = source.saved()?.tensors().map(|tensor| tensor.bytes).sum();
            assert_eq!(read_json(&index)?["metadata"]["total_size"], bytes);
        }
        let config = read_json(out.join("config.json"))?;
        assert_eq!(config["hidden_size"], 24);
        let quantization = &config["quantization_config"];
        assert_eq!(quantization["quant_method"], "compressed-tensors");
        assert_eq!(quantization["format"], "int-quantized");
        let group = &quantization["config_groups"]["group_0"];
        assert_eq!(group["targets"], json!(["Linear"]));
        assert_eq!(group["weights"]["strategy"], "channel");
        assert_eq!(group["input_activations"]["strategy"], "token");
        // No temporary file is left.
        let left: Vec<_> = fs::read_dir(source.beside(""))?.collect::<Result<_, _>>()?;
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
    let source = folder(1)?;
    let mut model = Named { table: nn::Embedding::new(random(&[50, 24]), 24) };
    source.quantize(&mut model, &all_int8().embeddings())?;
    let config = read_json(source.out.join("config.json"))?;
    let group = &config["quantization_config"]["config_groups"]["group_0"];
    assert_eq!(group["targets"], json!(["table"]), "{config}");
    Ok(())
}

/// Files that belong to a model, and are not another form of its weights, are copied.
#[test]
fn folders_are_kept_whole() -> Result<()> {
    let source = folder(1)?;
    let (float, out) = (&source.path, &source.out);
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
    source.convert(&all_int8(), &[])?;
    check()?;
    source.save(&quantized(float, &all_int8())?)?;
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
            fault(Checkpoint::open(path)).has(name).has(cure);
        }
    }
    Ok(())
}

/// An adapter changes the results of its model.
#[test]
fn adapters_are_refused() -> Result<()> {
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        let source = folder(1)?;
        fs::write(source.path.join(name), "{}")?;
        fault(Checkpoint::open(&source.path)).has("merge the adapter").ends(name);
    }
    Ok(())
}

#[test]
fn folders_are_copied_to_a_depth_of_eight() -> Result<()> {
    let source = folder(1)?;
    let [last, beyond] = [8, 9].map(|depth| ["f"; 9][..depth].join("/"));
    fs::create_dir_all(source.path.join(&last))?;
    fs::write(source.path.join(&last).join("file"), "text")?;
    let model = quantized(&source.path, &all_int8())?;
    checkpoint::save(&model, &Checkpoint::open(&source.path)?, &source.out)?;
    assert!(source.out.join(&last).join("file").exists());
    fs::create_dir(source.path.join(&beyond))?;
    fault(checkpoint::save(&model, &Checkpoint::open(&source.path)?, &source.out))
        .has("at most 8 folders");
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

    let names = ["words.weight", "inner.weight", "other.weight"];
    let source = Source::folder("{}", &names.map(|name| (name, &[8, 8][..])))?;
    let int8 = all_int8().exclude("other");
    let load = |by_name: bool| -> Result<Tied> {
        let vb = &source.vb;
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
            source.quantize(&mut load(by_name)?, &spec)?;
            let config = read_json(source.out.join("config.json"))?;
            let entry = &config["quantization_config"];
            assert_eq!(entry["ignore"], ignored, "{spec}");
            let groups = entry["config_groups"].as_object().context("groups")?;
            let found: Vec<&Value> = groups.values().map(|group| &group["targets"]).collect();
            assert_eq!(json!(found), targets, "{spec}");
        }
    }
    // A table beside the float table would not be found again.
    let spec = int8.exclude("head").embeddings();
    fault(source.quantize(&mut load(true)?, &spec)).starts("words: cannot save");
    Ok(())
}

#[cfg(unix)]
#[test]
fn a_link_to_a_folder_around_it_is_not_followed() -> Result<()> {
    use std::os::unix::fs::symlink;
    let source = folder(1)?;
    let float = &source.path;
    symlink(".", float.join("latest"))?;
    symlink("..", float.join("up"))?;
    fs::create_dir(float.join("voices"))?;
    fs::write(float.join("voices/a.pt"), "voice")?;
    symlink("..", float.join("voices/back"))?;
    // An output within the source.
    let out = float.join("out");
    let opened = Checkpoint::open(float)?;
    for _ in 0..2 {
        convert(&opened, &all_int8(), &out)?;
        assert_eq!(fs::read(out.join("voices/a.pt"))?, b"voice");
        for gone in ["latest", "voices/back", "out"] {
            assert!(!out.join(gone).exists(), "{gone}");
        }
    }
    Ok(())
}

#[test]
fn nothing_is_lost_where_a_folder_is_replaced() -> Result<()> {
    let source = folder(1)?;
    let model = quantized(&source.path, &all_int8())?;
    let thesis = source.out.join("thesis.txt");
    fs::create_dir(&source.out)?;
    fs::write(&thesis, "years of work")?;
    fault(source.save(&model)).has("thesis.txt");
    assert_eq!(fs::read(&thesis)?, b"years of work");
    for same in [&source.path, &source.path.join("../float")] {
        fault(checkpoint::save(&model, &source.checkpoint, same)).has("another place");
    }
    Ok(())
}

#[test]
fn an_open_file_stays_readable_where_it_is_replaced() -> Result<()> {
    let source = saved(&all_int8())?;
    let (before, opened) = (Model::open(&source.out)?.bits()?, source.saved_vb()?);
    source.save(&quantized(&source.path, &QConfigSpec::float16())?)?;
    assert_eq!(Model::load(opened)?.bits()?, before);
    assert_ne!(Model::open(&source.out)?.bits()?, before);
    Ok(())
}

/// A live writer holds a lock; a writer that has just begun may not hold it yet.
#[test]
fn what_killed_writers_left_is_removed() -> Result<()> {
    let source = source()?;
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    let make = |name: &str, is_folder: bool, modified| -> Result<fs::File> {
        let path = source.beside(name);
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

    source.save(&Model::load(source.vb.clone())?)?;
    for (name, _) in stale {
        assert!(!source.beside(name).exists(), "{name}");
    }
    for (name, _) in kept {
        assert!(source.beside(name).join("model.safetensors").exists(), "{name}");
    }
    Ok(())
}

#[test]
fn a_file_in_memory_is_as_that_on_a_disk() -> Result<()> {
    let source = saved(&all_int8().embeddings())?;
    let (disk, again) = (source.saved()?, source.beside("again"));
    let bytes = fs::read(&source.out)?;
    // The name of an existing file may be written, since the checkpoint does not use that file.
    fs::write(&again, "old")?;
    let memory = Checkpoint::from_bytes(&again.to_string_lossy(), bytes.clone())?;
    assert!(memory.tensors().eq(disk.tensors()));
    let loaded = Model::load(vb_of(&memory))?;
    assert_eq!(loaded.bits()?, Model::load(vb_of(&disk))?.bits()?);
    checkpoint::save(&loaded, &memory, &again)?;
    assert_eq!(fs::read(&again)?, bytes);

    for length in [0, 7, 100, bytes.len() - 1] {
        let cut = bytes[..length].to_vec();
        fault(Checkpoint::from_bytes("from the page", cut)).has("from the page");
    }
    Ok(())
}
