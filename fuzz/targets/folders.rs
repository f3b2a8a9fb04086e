//! One file of a folder that the examples read, beside valid files: the folder is read or refused.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use candle_core::{DType, Device, Tensor};
use candle_dynquant_support::bert;
use candle_dynquant_support::checkpoint::Checkpoint;
use candle_dynquant_support::lstm::Folder;
use tempfile::TempDir;

const CONFIG: &str = r#"{"vocab_size": 3, "embedding_size": 2, "hidden_size": 2, "num_layers": 1}"#;
const VOCAB: &str = r#"{"a": 0, "b": 1, "\n": 2}"#;
const INDEX: &str = r#"{"weight_map": {"bias": "a.safetensors", "weight": "a.safetensors"}}"#;

/// A folder with files that are right.
struct Sample {
    dir: TempDir,
    /// The files by name.
    files: BTreeMap<&'static str, Vec<u8>>,
}

fn sample() -> &'static Sample {
    static SAMPLE: OnceLock<Sample> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a folder");
        let shapes: [(&str, &[usize]); 7] = [
            ("embedding.weight", &[3, 2]),
            ("lstm.weight_ih_l0", &[8, 2]),
            ("lstm.weight_hh_l0", &[8, 2]),
            ("lstm.bias_ih_l0", &[8]),
            ("lstm.bias_hh_l0", &[8]),
            ("decoder.weight", &[3, 2]),
            ("decoder.bias", &[3]),
        ];
        let files = BTreeMap::from([
            ("config.json", CONFIG.into()),
            ("vocab.json", VOCAB.into()),
            ("lstm.safetensors", safetensors(&shapes)),
            ("a.safetensors", safetensors(&[("bias", &[2]), ("weight", &[2, 2])])),
            ("model.safetensors.index.json", INDEX.into()),
        ]);
        for (name, bytes) in &files {
            fs::write(dir.path().join(name), bytes).expect("writes");
        }
        Sample { dir, files }
    })
}

fn safetensors(shapes: &[(&str, &[usize])]) -> Vec<u8> {
    let tensors = shapes.iter().map(|(name, shape)| {
        let tensor = Tensor::zeros(*shape, DType::F32, &Device::Cpu).expect("a tensor");
        (*name, tensor)
    });
    safetensors::serialize(tensors, None).expect("a file")
}

/// Runs the input; its first byte selects the file.
pub fn run(data: &[u8]) {
    let Some((file, data)) = data.split_first() else {
        return;
    };
    let sample = sample();
    let dir = sample.dir.path();
    match file {
        b'0' => with_file("config.json", data, |_| lstm(dir)),
        b'1' => with_file("vocab.json", data, |_| lstm(dir)),
        b'2' => with_file("lstm.safetensors", data, |_| lstm(dir)),
        b'3' => with_file("a.safetensors", data, |_| sharded(dir)),
        b'4' => with_file("model.safetensors.index.json", data, |_| sharded(dir)),
        b'5' => with_file("bert.json", data, |path| {
            if let Err(error) = bert::Config::read(path) {
                check(&error);
            }
        }),
        _ => {}
    }
}

/// Runs `f` while the file holds these bytes.
fn with_file(name: &'static str, bytes: &[u8], f: impl FnOnce(&Path)) {
    let sample = sample();
    let path = sample.dir.path().join(name);
    fs::write(&path, bytes).expect("writes");
    f(&path);
    match sample.files.get(name) {
        Some(right) => fs::write(&path, right).expect("writes"),
        None => fs::remove_file(&path).expect("removes"),
    }
}

fn lstm(dir: &Path) {
    match Folder::read(dir, false) {
        Err(error) => check(&error),
        Ok(folder) => {
            let text = folder.vocab.encode("text", "ab");
            if let Ok(ids) = text {
                folder.model.read(&ids).expect("a model that was read");
            }
        }
    }
}

fn sharded(dir: &Path) {
    let read = || -> anyhow::Result<()> {
        let checkpoint = Checkpoint::read_folder(dir, |key| key.starts_with("extra"))?;
        let vb = checkpoint.var_builder();
        vb.get((2, 2), "weight")?;
        vb.get(2, "bias")?;
        drop(vb);
        checkpoint.finish("a layer")?;
        Ok(())
    };
    if let Err(error) = read() {
        check(&error);
    }
}

/// An error says something.
fn check(error: &anyhow::Error) {
    assert!(!format!("{error:#}").is_empty());
}
