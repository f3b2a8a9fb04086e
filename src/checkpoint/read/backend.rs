//! A checkpoint as the backend of a `VarBuilder`: see the table in [`crate::weight`].

use std::sync::Arc;

use candle_core::{DType, Device, Result as CandleResult, Shape, Tensor};
use candle_nn::Init;
use candle_nn::var_builder::SimpleBackend;

use super::opened::Opened;
use super::weights::Kind;
use crate::error::Result;
use crate::kernels::Precision;
use crate::weight::origin::{self, Source};
use crate::weight::{ATTENTION, FORMAT, Format};

pub struct Backend(pub Arc<Opened>);

impl Backend {
    /// The format of the weight whose description is called `name`.
    fn format(&self, name: &str) -> Option<Format> {
        Source::format(&*self.0, name.strip_suffix(FORMAT)?)
    }

    /// The precision of the attention whose word is called `name`.
    fn attention(&self, name: &str) -> Option<Precision> {
        let module = name.strip_suffix(ATTENTION)?.strip_suffix('.')?;
        self.0.attention.get(module).copied()
    }

    fn read(&self, name: &str, dtype: DType) -> Result<Option<Tensor>> {
        if let Some(precision) = self.attention(name) {
            let word = precision.to_string().into_bytes();
            let length = word.len();
            return Ok(Some(Tensor::from_vec(word, length, &Device::Cpu)?));
        }
        if self.format(name).is_some() {
            return Ok(Some(Tensor::zeros(1, DType::U8, &Device::Cpu)?));
        }
        let Some((shard, entry)) = self.0.files.find(name) else {
            return Ok(None);
        };
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
        let axes = self.axes(name, shape.dims());
        if axes.is_none() {
            self.0.check_shape(name, shape.dims())?;
        }
        self.answer(name, dtype, device, axes.map(|axes| (axes, shape.dims())))
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> CandleResult<Tensor> {
        self.answer(name, dtype, device, None)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        let said = self.format(name).is_some() || self.attention(name).is_some();
        said || self.0.files.find(name).is_some()
    }
}

impl Backend {
    /// The axes in the file of a convolution's weight that is asked for by its float shape.
    fn axes(&self, name: &str, dims: &[usize]) -> Option<&'static [usize]> {
        let (shape, axes) = self.0.float_weight(name)?;
        (shape == dims).then_some(axes)
    }

    /// A tensor, or one with its axes in another order and of another shape, which is remembered.
    fn answer(
        &self,
        name: &str,
        dtype: DType,
        device: &Device,
        axes: Option<(&[usize], &[usize])>,
    ) -> CandleResult<Tensor> {
        match self.read(name, dtype)? {
            Some(tensor) => {
                // Of a quantized weight it is the file's, which is read when it is asked for.
                let is_float = !self.0.weights.contains_key(name);
                let sample = is_float.then(|| origin::sample_of(&tensor));
                let tensor = match axes {
                    Some((axes, dims)) => tensor.permute(axes)?.reshape(dims)?,
                    None => tensor,
                };
                let tensor = tensor.to_dtype(dtype)?.to_device(device)?;
                // The description of a weight tells its name, which the asker may not know.
                let base = name.strip_suffix(FORMAT);
                let name = base.filter(|_| self.format(name).is_some()).unwrap_or(name);
                let source: Arc<dyn Source> = Arc::<Opened>::clone(&self.0);
                let source = Arc::downgrade(&source);
                origin::record(&tensor, name, source, sample.unwrap_or_default());
                Ok(tensor)
            }
            None => Err(candle_core::Error::CannotFindTensor { path: name.to_owned() }
                .with_path(self.0.files.path())),
        }
    }
}
