//! Checkpoints with quantized weights, which other tools understand: quantize once, load anywhere.
//!
//! [`save`] writes a quantized model, [`Checkpoint`] opens it, float or quantized, and gives an
//! ordinary `VarBuilder`: the model's own code loads both.
//!
//! # Format
//! Tensors, and the entry `quantization_config` of a folder's `config.json`, follow
//! [compressed-tensors](https://github.com/vllm-project/compressed-tensors), format
//! `int-quantized`, which transformers and vLLM read:
//!
//! | tensor | dtype | shape | |
//! |---|---|---|---|
//! | `weight` | I8 | `[out_features, in_features]` | codes; for quint8 less 128 |
//! | `weight_scale` | F32 | `[out_features, 1]`, or `[1]` | per channel, or per tensor |
//! | `weight_zero_point` | I8 | as the scale | if affine; less 128 for quint8 |
//! | `weight_zero_point` | F32 | as the scale | the float zero points of an embedding, less 128 |
//! | `weight_zero_point_unsigned` | F32 | as the scale | the same, exact, for this crate |
//! | `weight` | F16, BF16 | `[out_features, in_features]` | float16 weights, bfloat16 weights |
//!
//! Experts, `[experts, out_features, in_features]`, have scales `[experts, out_features, 1]`. A
//! weight that is a part of a tensor which stays is beside it, as `NAME.quantized` or
//! `NAME.quantized_..` with the same suffixes; the metadata says which part it is, and has version
//! 2 then.
//!
//! Recurrent layers have the same suffixes behind their own names: `weight_ih_l0_scale`. All other
//! tensors are as they were. The metadata of a safetensors file has the rest, as JSON with a
//! version under `candle_dynquant`: the dtype of the codes, the qscheme, and how activations are
//! quantized. Int8 weights of files without it get u8 activations per row, or what `config.json`
//! says.
//!
//! # Other layouts
//! These are read, and become the above when a model is saved:
//!
//! | library | tensors | products |
//! |---|---|---|
//! | bitsandbytes, int8 | `weight`, `SCB` | int8 if `llm_int8_threshold` is 0, else float |
//! | optimum-quanto, qint8 | `weight._data`, `weight._scale` | float |
//! | torchao, `Int8Tensor` | `_weight_qdata`, `_weight_scale` | int8 where activations are, else float |
//!
//! Products are float where the library keeps activations float, all or some: layers get the
//! dequantized weight. So they do where a scale belongs to a group of inputs. Weights of fewer
//! bits, codes in another order than rows and static activations are errors.
//! `scripts/convert_pytorch.py` converts a `state_dict` of PyTorch, quantized by it or float.
//!
//! # Models that are not ported
//! Layers of candle's own get the dequantized weight as a float tensor.

mod backend;
mod collect;
mod config;
mod convert;
mod files;
mod floats;
mod header;
mod layouts;
mod placing;
mod plan;
mod record;
mod rewrite;
mod save;
mod shard;
mod targets;
mod weights;
mod writer;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device};
use candle_nn::VarBuilder;

use crate::error::Result;
use crate::stored::origin::Source;
use backend::Backend;
use config::Quantization;
use files::Files;
use header::Entry;
use shard::Shard;
use weights::{Views, Weights};

pub use convert::{dequantize, quantize};
pub use plan::{Plan, PlannedLayer};
pub use save::{Beside, Saved, save};

/// Tensors in safetensors files, float or quantized, read when a layer asks for them.
///
/// ```no_run
/// use candle_core::{DType, Device};
/// use candle_dynquant::{nn, Checkpoint};
///
/// let checkpoint = Checkpoint::open("path/to/folder")?;
/// let vb = checkpoint.var_builder(DType::F32, &Device::Cpu);
/// let layer = nn::linear(384, 384, vb.pp("encoder.layer.0.attention.self.query"))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Checkpoint {
    opened: Arc<Opened>,
}

#[derive(Debug)]
struct Opened {
    files: Files,
    weights: Weights,
    views: Views,
    /// The tensors of which these are parts.
    viewed: HashMap<String, String>,
    /// Whether `config.json` says of a part of the model how many words it knows.
    has_vocabulary: bool,
    /// Whether `config.json` names a model with a head of words, which is tied if the files have
    /// none.
    has_tied_head: bool,
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Its dtype in the file, as safetensors names it: `F32`, `I8`.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its bytes in the file.
    pub bytes: u64,
    /// Whether it holds the codes or halves of a quantized weight.
    pub quantized: bool,
}

impl Checkpoint {
    /// Opens a safetensors file, an index of shards, or a folder in the manner of Hugging Face,
    /// and checks the headers.
    ///
    /// # Errors
    /// When a file is missing or malformed, a quantized weight lacks one of its tensors, a tensor
    /// has another dtype or shape than its name or another tensor implies, or the format or its
    /// version is not one that this crate reads.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let files = Files::open(path.as_ref())?;
        let config = match &files.folder {
            Some(folder) => read_config(&folder.join(files::CONFIG))?,
            None => Quantization::default(),
        };
        Self::of(files, config)
    }

    /// The checkpoint that the bytes of a safetensors file are, where there are no files, as in a
    /// browser; errors call it `name`.
    ///
    /// ```
    /// use candle_dynquant::Checkpoint;
    ///
    /// let header = br#"{"bias":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    /// let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    /// bytes.extend(header);
    /// bytes.extend(2f32.to_le_bytes());
    /// let checkpoint = Checkpoint::from_bytes("model.safetensors", bytes)?;
    /// assert_eq!(checkpoint.floats("bias")?, [2.]);
    /// # Ok::<(), candle_dynquant::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Self> {
        let files = Files::from_bytes(Path::new(name), bytes)?;
        Self::of(files, Quantization::default())
    }

    fn of(mut files: Files, mut config: Quantization) -> Result<Self> {
        layouts::translate(&mut files, &mut config)?;
        let (weights, views) = weights::find(&files, &config)?;
        let viewed = views.iter().flat_map(|(of, views)| {
            let names = views.values();
            names.map(move |name| (name.clone(), of.clone()))
        });
        let opened = Arc::new(Opened {
            viewed: viewed.collect(),
            has_vocabulary: config.has_vocabulary,
            has_tied_head: config.has_tied_head,
            files,
            weights,
            views,
        });
        Ok(Self { opened })
    }

    /// The tensors for a model's own code to load: layers of [`nn`](crate::nn) become quantized
    /// where the checkpoint is, other layers get floats of `dtype`.
    ///
    /// On another device than the CPU all layers get floats.
    pub fn var_builder(&self, dtype: DType, device: &Device) -> VarBuilder<'static> {
        let backend = Backend(Arc::clone(&self.opened));
        VarBuilder::from_backend(Box::new(backend), dtype, device.clone())
    }

    /// The values of a tensor, quantized or float, as f32 in row order.
    ///
    /// # Errors
    /// When there is no such tensor, it is no float or quantized weight, its scales are not finite
    /// and positive, or its file cannot be read.
    pub fn floats(&self, name: &str) -> Result<Vec<f32>> {
        let (_, entry) = self.opened.tensor(name)?;
        let all = 0..entry.shape.iter().product();
        self.opened.elements(name, all)
    }

    /// All tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = TensorInfo> {
        let Opened { files, weights, .. } = &*self.opened;
        files.tensors().map(|(name, _, entry)| TensorInfo {
            name: name.to_owned(),
            dtype: entry.dtype.to_string(),
            shape: entry.shape.clone(),
            bytes: entry.bytes,
            quantized: weights.contains_key(name),
        })
    }
}

impl Opened {
    /// Whether a tensor is the quantized form of a part of another.
    fn is_view(&self, name: &str) -> bool {
        self.viewed.contains_key(name)
    }

    /// A tensor and the file that has it.
    fn tensor(&self, name: &str) -> Result<(&Shard, &Entry)> {
        self.files.find(name).ok_or_else(|| {
            let missing = header::invalid(name, "a tensor of the checkpoint", "none of that name");
            missing.in_file(self.files.path())
        })
    }
}

fn read_config(path: &Path) -> Result<Quantization> {
    if !path.exists() {
        return Ok(Quantization::default());
    }
    let json = files::read_small(path, config::MAX_CONFIG);
    let config = json.and_then(Quantization::read);
    config.map_err(|e| e.in_file(path))
}
