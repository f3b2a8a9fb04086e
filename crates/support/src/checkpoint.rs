//! The tensors of a safetensors file or of a folder's shards, checked before candle reads them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use candle_core::safetensors::Load;
use candle_core::{DType, Device, Result as CandleResult, Shape, Tensor};
use candle_dynquant_io::{format, input};
use candle_nn::VarBuilder;
use candle_nn::var_builder::SimpleBackend;
use safetensors::{Dtype, SafeTensors};

use candle_dynquant_decoder::json;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Loads a model from quantized weights, which `dynquant quantize` or `checkpoint::save` wrote at
/// `path`, else from `floats`. `load` also gets a function that says whether any tensor's name
/// begins with a prefix.
///
/// Returns the bytes of the model's tensors, floats as f32, and whether the weights were quantized.
/// It is an error if the floats contain a tensor that the model, described by `what`, does not use.
pub fn load<M>(
    path: &Path,
    floats: impl FnOnce() -> Result<Checkpoint>,
    what: &str,
    load: impl FnOnce(VarBuilder<'_>, &dyn Fn(&str) -> bool) -> CandleResult<M>,
) -> Result<(M, usize, bool)> {
    if let Ok(checkpoint) = candle_dynquant::Checkpoint::open(path)
        && checkpoint.is_quantized()
    {
        let has = |prefix: &str| checkpoint.tensors().any(|tensor| tensor.name.starts_with(prefix));
        let model = load(checkpoint.var_builder(DType::F32, &Device::Cpu), &has)?;
        let bytes: u64 = checkpoint.tensors().map(|tensor| tensor.bytes).sum();
        return Ok((model, bytes as usize, true));
    }
    let checkpoint = floats()?;
    let has = |prefix: &str| checkpoint.tensors.keys().any(|name| name.starts_with(prefix));
    let model = load(checkpoint.var_builder(), &has)?;
    Ok((model, checkpoint.finish(what)?, false))
}

/// Tensors by name, all f32; records which of them were read.
pub struct Checkpoint {
    /// The path in error messages: the file, or the index.
    path: PathBuf,
    tensors: HashMap<String, Tensor>,
    used: Mutex<BTreeSet<String>>,
}

impl Checkpoint {
    /// Reads a file.
    pub fn read_file(path: &Path) -> Result<Self> {
        let mut tensors = HashMap::new();
        read_file(path, |_| true, &mut tensors)?;
        Ok(Self { path: path.to_owned(), tensors, used: Mutex::default() })
    }

    /// Reads `model.safetensors` of the folder or, without it, the shards of its index. A file may
    /// hold tensors that `is_extra` declares unused.
    pub fn read_folder(dir: &Path, is_extra: fn(&str) -> bool) -> Result<Self> {
        let (single, index) = (dir.join(SINGLE), dir.join(INDEX));
        let mut tensors = HashMap::new();
        let path = if single.exists() {
            read_file(&single, |key| !is_extra(key), &mut tensors)?;
            single
        } else if index.exists() {
            for (shard, keys) in shards(&index)? {
                let keys = keys.into_iter().filter(|key| !is_extra(key)).collect();
                read_shard(&index, &dir.join(shard), &keys, &mut tensors)?;
            }
            index
        } else {
            bail!("{}: expected {SINGLE} or {INDEX}, got neither", dir.display());
        };
        Ok(Self { path, tensors, used: Mutex::default() })
    }

    /// The tensors as an ordinary VarBuilder.
    pub fn var_builder(&self) -> VarBuilder<'_> {
        VarBuilder::from_backend(Box::new(Backend(self)), DType::F32, Device::Cpu)
    }

    /// The bytes of the tensors that were read; an error if others are left, which calls the model
    /// `model`.
    pub fn finish(self, model: &str) -> Result<usize> {
        let used = self.used.into_inner().unwrap_or_else(PoisonError::into_inner);
        let unused: BTreeSet<_> = self.tensors.keys().filter(|k| !used.contains(*k)).collect();
        let Some(first) = unused.first() else {
            return Ok(self.tensors.values().map(bytes).sum());
        };
        bail!(
            "{}: expected only tensors of {model}, got {} more: {first:?}{}",
            self.path.display(),
            unused.len(),
            if unused.len() > 1 { ", .." } else { "" },
        )
    }
}

fn bytes(tensor: &Tensor) -> usize {
    tensor.elem_count() * tensor.dtype().size_in_bytes()
}

/// Reads the tensors of one file that `wanted` accepts into `tensors`, as f32.
fn read_file(
    path: &Path,
    wanted: impl Fn(&str) -> bool,
    tensors: &mut HashMap<String, Tensor>,
) -> Result<()> {
    let name = path.display();
    // The file is read, not mapped: changing a mapped file is undefined behaviour.
    let buffer =
        input::read(path, u64::MAX).with_context(|| format!("{name}: expected a readable file"))?;
    let file = SafeTensors::deserialize(&buffer).with_context(|| {
        let got = match format::detect(&buffer) {
            Some(format) => format.to_string(),
            None => format!("{} bytes that are none", buffer.len()),
        };
        format!("{name}: expected a complete safetensors file, got {got}")
    })?;
    for (key, view) in file.iter() {
        if !wanted(key) {
            continue;
        }
        let dtype = view.dtype();
        ensure!(
            matches!(dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16),
            "{name}: tensor {key:?}: expected f64, f32, f16 or bf16, got {dtype:?}",
        );
        let tensor = view.load(&Device::Cpu)?.to_dtype(DType::F32)?;
        tensors.insert(key.to_owned(), tensor);
    }
    Ok(())
}

/// The shards that an index lists, each with the tensors that it should hold.
pub fn shards(index: &Path) -> Result<BTreeMap<String, BTreeSet<String>>> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let name = index.display();
    let expected = "an object \"weight_map\" from tensors to files";
    let parsed: Index = json::read(index, expected)?;
    let mut shards: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (key, shard) in parsed.weight_map {
        ensure!(
            Path::new(&shard).file_name() == Some(shard.as_ref()),
            "{name}: tensor {key:?}: expected a file name without a folder, got {shard:?}",
        );
        shards.entry(shard).or_default().insert(key);
    }
    ensure!(!shards.is_empty(), "{name}: expected tensors in \"weight_map\", got none");
    Ok(shards)
}

fn read_shard(
    index: &Path,
    shard: &Path,
    keys: &BTreeSet<String>,
    tensors: &mut HashMap<String, Tensor>,
) -> Result<()> {
    let (name, index) = (shard.display(), index.display());
    ensure!(shard.exists(), "{index}: expected the shard {name}, got no such file");
    read_file(shard, |key| keys.contains(key), tensors)?;
    match keys.iter().find(|key| !tensors.contains_key(*key)) {
        Some(key) => bail!("{name}: expected tensor {key:?}, as {index} says, got no such tensor"),
        None => Ok(()),
    }
}

/// Passes the tensors to candle, with errors that name the file.
struct Backend<'a>(&'a Checkpoint);

impl SimpleBackend for Backend<'_> {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: candle_nn::Init,
        dtype: DType,
        dev: &Device,
    ) -> CandleResult<Tensor> {
        let tensor = self.get_unchecked(name, dtype, dev)?;
        if tensor.shape() != &shape {
            candle_core::bail!(
                "{}: tensor {name:?}: expected shape {:?}, got {:?}",
                self.0.path.display(),
                shape.dims(),
                tensor.dims(),
            );
        }
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, dev: &Device) -> CandleResult<Tensor> {
        let Some(tensor) = self.0.tensors.get(name) else {
            candle_core::bail!(
                "{}: expected tensor {name:?}, got no such tensor",
                self.0.path.display(),
            );
        };
        let mut used = self.0.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.insert(name.to_owned());
        tensor.to_dtype(dtype)?.to_device(dev)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.tensors.contains_key(name)
    }
}
