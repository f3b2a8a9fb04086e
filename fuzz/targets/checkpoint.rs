//! A checkpoint with one file from the input: it is read or refused, and tensors that are read have
//! the stated sizes.
//!
//! The first byte selects the file: `r` a safetensors file, `i` an index, `c` a config.json;
//! otherwise the rest, up to the first line break, is the header of a safetensors file, and the
//! remainder its body.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use candle_core::{DType, Device};
use candle_dynquant::{Checkpoint, Error, nn};
use tempfile::TempDir;

const HEADER: &str = r#"{"a.weight":{"dtype":"I8","shape":[2,3],"data_offsets":[8,14]},"a.weight_scale":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}}"#;

fn file(header: &[u8], body: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header, body].concat()
}

/// The folder whose file is replaced; its other files are valid.
fn folder() -> &'static TempDir {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a folder");
        let body = [&1f32.to_le_bytes()[..], &2f32.to_le_bytes(), &[1, 2, 3, 4, 5, 128]].concat();
        let good = file(HEADER.as_bytes(), &body);
        for (name, model) in [
            ("file", None),
            ("index", Some("a.safetensors")),
            ("config", Some("model.safetensors")),
        ] {
            let folder = dir.path().join(name);
            fs::create_dir(&folder).expect("a folder");
            if let Some(model) = model {
                fs::write(folder.join(model), &good).expect("writes");
            }
        }
        dir
    })
}

pub fn run(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let in_folder = |name: &str| folder().path().join(name);
    let (path, name, bytes) = match first {
        b'r' => (in_folder("file"), "model.safetensors", rest.to_vec()),
        b'i' => (in_folder("index"), "model.safetensors.index.json", rest.to_vec()),
        b'c' => (in_folder("config"), "config.json", rest.to_vec()),
        _ => {
            let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            let body = rest.get(end + 1..).unwrap_or_default();
            (in_folder("file"), "model.safetensors", file(&rest[..end], body))
        }
    };
    fs::write(path.join(name), bytes).expect("writes");
    if let Err(error) = read(&path) {
        let message = error.to_string();
        let first = message.lines().next().unwrap_or_default();
        assert!(first.chars().count() < 2_000, "{first}");
    }
}

fn read(path: &Path) -> Result<(), Error> {
    let checkpoint = Checkpoint::open(path)?;
    let vb = checkpoint.var_builder(DType::F32, &Device::Cpu);
    for tensor in checkpoint.tensors() {
        for dtype in [DType::F32, DType::U8, DType::I64] {
            // A tensor may be refused while the next is valid.
            if let Ok(read) = vb.get_unchecked_dtype(&tensor.name, dtype) {
                assert_eq!(read.dims(), tensor.shape, "{tensor:?}");
            }
        }
        let (Some(module), &[n, k]) = (tensor.name.strip_suffix(".weight"), &tensor.shape[..])
        else {
            continue;
        };
        if let Ok(linear) = nn::linear_no_bias(k, n, vb.pp(module)) {
            assert_eq!(linear.weight().dims(), [n, k]);
        }
        if let Ok(table) = nn::embedding(n, k, vb.pp(module)) {
            assert_eq!(table.embeddings().dims(), [n, k]);
        }
    }
    Ok(())
}
