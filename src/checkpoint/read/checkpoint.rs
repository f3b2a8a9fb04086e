//! A checkpoint as its readers hold it.

use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Result as CandleResult, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};

use super::config::Quantization;
use super::files::{CONFIG, Files};
use super::header::{BlockPart, Encoding};
use super::opened::Opened;
use super::weights::Kind;
use crate::error::Result;
use crate::halves::HalfType;
use crate::kernels::Precision;
use crate::module::Quantizable;
use crate::quantize::Report;
use crate::weight::origin::{self, Source};
use crate::weight::{ATTENTION, FORMAT, Format};

/// Tensors in safetensors or GGUF files, float or quantized, read when a layer asks for them.
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
    pub(in crate::checkpoint) opened: Arc<Opened>,
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// The name of the tensor.
    pub name: String,
    /// The dtype in the file, as safetensors names it: `F32`, `I8`; `I4` for 4 bits; for GGUF's
    /// blocks that are read as floats the name of the block type.
    pub dtype: String,
    /// The shape of the tensor; of a quantized convolution the float weight's.
    pub shape: Vec<usize>,
    /// The number of bytes in the file.
    pub bytes: u64,
    /// Whether it holds the codes or halves of a quantized weight.
    pub quantized: bool,
}

impl Checkpoint {
    /// Opens a safetensors file, a GGUF file, an index of shards, or a folder in the manner of
    /// Hugging Face, and checks the headers.
    ///
    /// # Errors
    /// When a file is missing or malformed, a quantized weight lacks one of its tensors, a tensor
    /// has another dtype or shape than its name or another tensor implies, or the format or its
    /// version is unknown to this crate.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let files = Files::open(path.as_ref())?;
        let config = match &files.folder {
            Some(folder) => Quantization::open(&folder.join(CONFIG))?,
            None => Quantization::default(),
        };
        Self::from_files(files, config)
    }

    /// Reads a checkpoint from the bytes of a safetensors file, without a file system, as in a
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
        Self::from_files(Files::from_bytes(Path::new(name), bytes)?, Quantization::default())
    }

    fn from_files(files: Files, config: Quantization) -> Result<Self> {
        Ok(Self { opened: Arc::new(Opened::new(files, config)?) })
    }

    /// The tensors for a model's own code to load: layers of [`nn`](crate::nn) become quantized
    /// where the checkpoint is, other layers get floats of `dtype`.
    ///
    /// On another device than the CPU all layers get floats.
    pub fn var_builder(&self, dtype: DType, device: &Device) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(Backend(Arc::clone(&self.opened))), dtype, device.clone())
    }

    /// The values of a tensor, quantized or float, as f32 in row order of its
    /// [shape](TensorInfo::shape).
    ///
    /// # Errors
    /// When there is no such tensor, it is not a float or quantized weight, its scales are not
    /// finite and positive, or its file cannot be read.
    pub fn floats(&self, name: &str) -> Result<Vec<f32>> {
        self.opened.floats(name)
    }

    /// Whether layers are read from it quantized: it has quantized weights, or attention of fewer
    /// bits than float32.
    pub fn is_quantized(&self) -> bool {
        !(self.opened.weights.is_empty() && self.opened.attention.is_empty())
    }

    /// The keys of a GGUF file's metadata.
    #[doc(hidden)]
    pub fn metadata_keys(&self) -> impl Iterator<Item = &str> {
        let shards = self.opened.files.shards.iter();
        shards.flat_map(|shard| shard.header.keys.keys().map(String::as_str))
    }

    /// The value of a key of a GGUF file's metadata, as JSON, in which a number that is not finite is
    /// null.
    ///
    /// # Errors
    /// When it is too long, or the file cannot be read.
    #[doc(hidden)]
    pub fn metadata(&self, key: &str) -> Result<Option<serde_json::Value>> {
        let mut shards = self.opened.files.shards.iter();
        shards.find_map(|shard| shard.value(key).transpose()).transpose()
    }

    /// The weights of which some exceeded the range of their halves, and how many were clamped.
    #[doc(hidden)]
    pub fn clamped(&self) -> impl Iterator<Item = (&str, HalfType, usize)> {
        self.opened.weights.iter().filter_map(|(name, kind)| {
            let format = kind.format().filter(|format| format.saturated > 0)?;
            Some((&**name, format.half()?, format.saturated))
        })
    }

    /// The differences from what the files say, a line each: static scales of activations that are
    /// left out. A program prints them once.
    pub fn notes(&self) -> &[String] {
        &self.opened.config.notes
    }

    /// All tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = TensorInfo> {
        let Opened { files, weights, .. } = &*self.opened;
        files.tensors().map(|(name, _, entry)| TensorInfo {
            name: name.to_owned(),
            dtype: match entry.encoding {
                encoding if encoding.is_int4() => "I4".into(),
                Encoding::Blocks(blocks) if blocks.part == BlockPart::Values => blocks.dtype.name(),
                _ => entry.dtype.to_string(),
            },
            shape: self.opened.shape(name, entry),
            bytes: entry.bytes,
            quantized: weights.contains_key(name),
        })
    }
}

/// The report of a model as it was loaded: its quantized layers are left as already quantized, all
/// others as float, such as a layer whose weight is computed from tensors of a quantized
/// checkpoint.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::{checkpoint, nn};
///
/// let layer = nn::Linear::new(Tensor::zeros((4, 2), candle_core::DType::F32, &Device::Cpu)?, None);
/// let report = checkpoint::loaded(&layer)?;
/// assert_eq!(report.layers[0].outcome.to_string(), "float");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// When the model has two layers of one path.
pub fn loaded<M: Quantizable + ?Sized>(model: &M) -> Result<Report> {
    crate::quantize::report(model)
}

/// A checkpoint as the backend of a `VarBuilder`: see the table in [`crate::weight`].
struct Backend(Arc<Opened>);

impl Backend {
    /// The format of the weight whose description is called `name`.
    fn format(&self, name: &str) -> Option<Format> {
        Source::format(&*self.0, name.strip_suffix(FORMAT)?)
    }

    /// The precision of the attention whose word is called `name`.
    fn attention(&self, name: &str) -> Option<Precision> {
        self.0.attention.get(name.strip_suffix(ATTENTION)?.strip_suffix('.')?).copied()
    }

    fn read(&self, name: &str, dtype: DType) -> Result<Option<Tensor>> {
        if let Some(precision) = self.attention(name) {
            let word = precision.to_string().into_bytes();
            return Ok(Some(Tensor::new(word, &Device::Cpu)?));
        }
        if self.format(name).is_some() {
            return Ok(Some(Tensor::zeros(1, DType::U8, &Device::Cpu)?));
        }
        let Some((shard, entry)) = self.0.files.find(name) else { return Ok(None) };
        self.0.check_views(name)?;
        let Some(kind) = self.0.weights.get(name) else {
            return Ok(Some(shard.tensor(name, entry)?));
        };
        let halves = matches!(kind, Kind::Whole(format) if format.half().is_some());
        let read = || match dtype {
            _ if halves => shard.tensor(name, entry),
            DType::U8 => {
                let codes = shard.codes(entry, 0..entry.elements())?.into_iter();
                let bytes: Vec<_> = codes.map(i8::cast_unsigned).collect();
                Ok(Tensor::from_vec(bytes, &entry.shape[..], &Device::Cpu)?)
            }
            _ => {
                let values = kind.dequantize(&self.0.files, name, 0..entry.elements())?;
                Ok(Tensor::from_vec(values, &entry.shape[..], &Device::Cpu)?)
            }
        };
        read().map(Some).map_err(|e| e.in_file(&shard.path))
    }

    /// A tensor, or a float weight that the file has in another shape, with the order of its axes
    /// there; its origin is remembered.
    fn answer(
        &self,
        name: &str,
        dtype: DType,
        device: &Device,
        float: Option<(Vec<usize>, &[usize])>,
    ) -> CandleResult<Tensor> {
        let Some(tensor) = self.read(name, dtype)? else {
            let missing = candle_core::Error::CannotFindTensor { path: name.to_owned() };
            return Err(missing.with_path(self.0.files.path()));
        };
        // Of a quantized weight it is the file's, which is read when it is asked for.
        let is_float = !self.0.weights.contains_key(name);
        let sample = if is_float { origin::sample_of(&tensor) } else { Vec::new() };
        let tensor = match float {
            Some((shape, axes)) => tensor.permute(axes)?.reshape(shape)?,
            None => tensor,
        };
        let tensor = tensor.to_dtype(dtype)?.to_device(device)?;
        // The description of a weight tells its name, which the asker may not know.
        let base = name.strip_suffix(FORMAT).filter(|_| self.format(name).is_some());
        let source: Arc<dyn Source> = Arc::<Opened>::clone(&self.0);
        origin::record(&tensor, base.unwrap_or(name), Arc::downgrade(&source), sample);
        Ok(tensor)
    }
}

impl SimpleBackend for Backend {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: Init,
        dtype: DType,
        device: &Device,
    ) -> CandleResult<Tensor> {
        // Before anything is read.
        let float = self.0.float_weight(name).filter(|(float, _)| *float == shape.dims());
        if float.is_none() {
            self.0.check_shape(name, shape.dims())?;
        }
        self.answer(name, dtype, device, float)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> CandleResult<Tensor> {
        self.answer(name, dtype, device, None)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        let said = self.format(name).is_some() || self.attention(name).is_some();
        said || self.0.files.find(name).is_some()
    }
}
