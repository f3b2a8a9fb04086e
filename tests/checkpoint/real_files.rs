//! Files as they occur: JSON as Python and editors write it, and other formats in place of
//! safetensors.

use super::text::file;
use crate::kit::*;

/// A folder with one matrix and this configuration.
fn folder(config: impl AsRef<[u8]>) -> Result<Source> {
    Source::folder(config, &[("head.weight", &[8, 8])])
}

#[test]
fn a_config_that_python_wrote_is_read_and_keeps_its_values() -> Result<()> {
    let config = r#"{
  "eps": 1e-05,
  "infinite": Infinity,
  "large": 123456789012345678901234567890,
  "limits": [
    -Infinity,
    NaN,
    "NaN, \"Infinity\"",
    1E400
  ],
  "quantization_config": null,
  "title": "\u00e9 Infinity"
}"#;
    for mark in ["", "\u{feff}"] {
        let source = folder(format!("{mark}{config}"))?;
        source.convert(&all_int8(), &[])?;
        let written = fs::read_to_string(source.out.join("config.json"))?;
        let (before, entry) = written.split_once("  \"quantization_config\": {").expect("an entry");
        let (_, after) = entry.split_once("\n  },\n").expect("its end");
        let (own_before, own_after) =
            config.split_once("  \"quantization_config\": null,\n").expect("an entry");
        assert_eq!((before, after), (own_before, &*format!("{own_after}\n")));
        // The tensor is read again, and restored.
        let again = source.beside("again");
        checkpoint::dequantize(&source.saved()?, &again, |_| ())?;
        let written = fs::read_to_string(again.join("config.json"))?;
        assert_eq!(written, format!("{own_before}{own_after}\n"));
    }
    Ok(())
}

#[test]
fn a_config_of_one_line_stays_json() -> Result<()> {
    for (config, others) in [
        ("{}", json!({})),
        (r#"{"b":{"c":[1,2]},"a":"\"\\"}"#, json!({"a": "\"\\", "b": {"c": [1, 2]}})),
        (r#"{"a":2,"compression_config":{}}"#, json!({"a": 2})),
        (r#"{"text_config":{"b":1,"quantization_config":{}}}"#, json!({"text_config": {"b": 1}})),
    ] {
        let source = folder(config)?;
        source.convert(&all_int8(), &[])?;
        let mut written = read_json(source.out.join("config.json"))?;
        let entry = written["quantization_config"].take();
        assert_eq!(entry["format"], "int-quantized");
        written.as_object_mut().map(|all| all.remove("quantization_config"));
        assert_eq!(written, others);
    }
    Ok(())
}

#[test]
fn an_index_may_begin_with_a_byte_order_mark() -> Result<()> {
    let source = folder(b"\xef\xbb\xbf{}")?;
    let shard = "a.safetensors";
    fs::rename(source.path.join("model.safetensors"), source.path.join(shard))?;
    let map = json!({"metadata": {"total_size": 1}, "weight_map": {"head.weight": shard}});
    let index = format!("\u{feff}{map}").replace(":1}", ":NaN}");
    fs::write(source.path.join("model.safetensors.index.json"), index)?;
    assert_eq!(Checkpoint::open(&source.path)?.tensors().count(), 1);
    Ok(())
}

#[test]
fn another_format_given_as_safetensors_is_named_with_its_cure() -> Result<()> {
    let (dir, [path]) = paths(["model.safetensors"]);
    let torch = "scripts/convert_pytorch.py";
    let cases: [(&[u8], &str, &str); 8] = [
        (b"PK\x03\x04\0\0\x08\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\x12\0archive/data.pkl", "PyTorch", torch),
        (b"PK\x03\x04\x2d\0\0\0\0\0\0\0\x21\0\0\0\0\0\0\0\0\0\0\0\0\0\x05\0\0\0w.npy", "NumPy", "save_file"),
        (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", "pickle", torch),
        (b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0", "HDF5", "framework"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\x03", "gzip", "unpack"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n", "Git LFS", "git lfs pull"),
        (b"<!doctype html>\n<html><body>404", "HTML", "download"),
        (b"{\"metadata\": {}, \"weight_map\": {}}", "JSON", "*.index.json"),
    ];
    for (bytes, name, cure) in cases {
        // Whole files are longer, and their header may be shorter than they are.
        for length in [bytes.len(), 300, 1 << 20] {
            let mut file = bytes.to_vec();
            file.resize(length.max(bytes.len()), 0);
            fs::write(&path, &file)?;
            let messages = [
                Checkpoint::open(&path).err(),
                Checkpoint::open(dir.path()).err(),
                Checkpoint::from_bytes("model.safetensors", file).err(),
            ];
            for message in messages.map(|e| e.map(|e| e.to_string()).unwrap_or_default()) {
                let expected =
                    "model.safetensors: malformed file of tensors: expected safetensors, got ";
                assert!(message.contains(expected), "{name}: {message}");
                assert!(message.contains(name) && message.contains(cure), "{name}: {message}");
            }
        }
    }
    // The same in place of JSON.
    fs::remove_file(&path)?;
    write(&path, [("head.weight", random(&[8, 8]))])?;
    fs::write(dir.path().join("config.json"), "version https://git-lfs.github.com/spec/v1\n")?;
    let words = "config.json: malformed config.json: expected an object";
    fault(Checkpoint::open(dir.path())).has(words).ends("`git lfs pull`");
    Ok(())
}

#[test]
fn a_folder_with_weights_in_another_format_is_told_their_names() -> Result<()> {
    let dir = tempfile::tempdir()?;
    for name in ["pytorch_model.bin", "notes.txt", "model.onnx"] {
        fs::write(dir.path().join(name), "other")?;
    }
    fault(Checkpoint::open(dir.path())).ends("got none, but model.onnx, pytorch_model.bin");
    Ok(())
}

#[test]
fn a_weight_at_fault_is_reported_with_the_file_that_has_it() -> Result<()> {
    let source = folder("{}")?;
    let file = source.path.join("model.safetensors");
    let weight = Tensor::new(&[[1f32, 2.], [f32::NAN, 4.]], &Device::Cpu)?;
    write(&file, [("head.weight", weight)])?;
    let half = QConfigSpec::new().kind(LayerKind::Linear, QConfig::float16());
    let (of_folder, of_file) = (Checkpoint::open(&source.path)?, Checkpoint::open(&file)?);
    for spec in [all_int8(), QConfigSpec::pytorch(), QConfigSpec::int4().min_params(0), half] {
        for (from, to) in [(&of_folder, "int8"), (&of_file, "one.safetensors")] {
            let fault = fault(convert(from, &spec, &source.beside(to)));
            fault.is(format!(
                "{}: head.weight: non-finite weight: expected finite numbers, got NaN at index [1, 0]",
                file.display()
            ));
        }
    }
    // The output that cannot be written is at fault itself.
    let nowhere = source.beside("no/such/folder/out.safetensors");
    fault(convert(&of_file, &all_int8(), &nowhere)).starts(nowhere.to_string_lossy());
    Ok(())
}

#[test]
fn a_scale_at_fault_is_reported_with_the_file_that_has_it() -> Result<()> {
    let source = folder("{}")?;
    source.convert(&all_int8(), &[])?;
    let path = source.out.join("model.safetensors");
    let mut bytes = fs::read(&path)?;
    // Scales come first, since they are wider than codes.
    let header = u64::from_le_bytes(bytes[..8].try_into()?) as usize;
    bytes[8 + header..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&path, bytes)?;
    let float = checkpoint::dequantize(&source.saved()?, source.beside("float-again"), |_| ());
    fault(float).starts(path.to_string_lossy());
    Ok(())
}

/// A comparison of all names with each other would take minutes.
#[test]
fn as_many_targets_as_fit_into_a_config_are_looked_up() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut header, mut at) = (serde_json::Map::new(), 0);
    let mut tensor = |name: String, dtype: &str, bytes: usize| {
        let entry = json!({"dtype": dtype, "shape": [1, 1], "data_offsets": [at, at + bytes]});
        header.insert(name, entry);
        at += bytes;
    };
    let weights = 50_000;
    for i in 0..weights {
        tensor(format!("m{i}.weight"), "I8", 1);
        tensor(format!("m{i}.weight_scale"), "F32", 4);
    }
    let header = Value::Object(header).to_string();
    let body = 1f32.to_le_bytes().repeat(at / 4 + 1);
    fs::write(dir.path().join("model.safetensors"), file(header.as_bytes(), &body[..at]))?;
    let names: Vec<String> = (0..350_000).map(|i| format!("n{i}")).collect();
    let patterns: Vec<String> = (0..180).map(|i| format!(r"re:.*\.q{i}_proj")).collect();
    let group = |targets: &[String]| json!({"targets": targets, "input_activations": null});
    let groups = json!({"a": group(&names), "b": group(&patterns), "c": group(&["m7".into()])});
    let entry = json!({"quant_method": "compressed-tensors", "config_groups": groups});
    let config = json!({"quantization_config": entry}).to_string();
    fs::write(dir.path().join("config.json"), config)?;
    let checkpoint = Checkpoint::open(dir.path())?;
    assert_eq!(checkpoint.tensors().filter(|tensor| tensor.quantized).count(), weights);
    assert_eq!(values(&vb_of(&checkpoint).get((1, 1), "m7.weight")?).len(), 1);
    Ok(())
}
