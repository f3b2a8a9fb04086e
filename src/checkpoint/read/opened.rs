//! The tensors of a checkpoint with what is known of them.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use candle_core::{Device, Tensor};

use super::config::Quantization;
use super::files::Files;
use super::header::{Entry, invalid};
use super::layouts;
use super::shard::Shard;
use super::weights::{self, Precisions, Views, Weights, matrix};
use crate::error::{Error, Result};
use crate::nn::of_taps;
use crate::weight::Format;
use crate::weight::origin::{self, Part, Parts, Source};

/// The tensors of a checkpoint, and which of them are quantized weights.
#[derive(Debug)]
pub struct Opened {
    pub files: Files,
    pub weights: Weights,
    pub views: Views,
    pub attention: Precisions,
    /// The tensors of which these are parts.
    pub viewed: HashMap<String, String>,
    pub config: Quantization,
}

impl Opened {
    pub fn new(mut files: Files, mut config: Quantization) -> Result<Self> {
        layouts::translate(&mut files, &mut config)?;
        let (weights, views, attention) = weights::find(&files, &config)?;
        if config.has_weights() && weights.is_empty() {
            let expected = "quantized weights, as the groups of its quantization_config say";
            return Err(Error::malformed("config.json", expected, "none").in_file(files.path()));
        }
        let viewed = views
            .iter()
            .flat_map(|(of, views)| views.values().map(move |name| (name.clone(), of.clone())));
        Ok(Self { viewed: viewed.collect(), config, files, weights, views, attention })
    }

    pub fn tensor(&self, name: &str) -> Result<(&Shard, &Entry)> {
        self.files.find(name).ok_or_else(|| {
            let missing = invalid(name, "a tensor of the checkpoint", "none of that name");
            missing.in_file(self.files.path())
        })
    }

    /// The shape of the float weight of a quantized convolution, and the order of the axes in the
    /// file that makes it.
    pub fn float_weight(&self, name: &str) -> Option<(Vec<usize>, &'static [usize])> {
        // Before the files are searched: few tensors are quantized, or none.
        self.weights.get(name)?;
        of_taps(&self.files.find(name)?.1.shape)
    }

    /// The shape of a tensor, of a quantized convolution the float weight's.
    pub fn shape(&self, name: &str, entry: &Entry) -> Vec<usize> {
        self.float_weight(name).map(|(shape, _)| shape).unwrap_or_else(|| entry.shape.clone())
    }

    /// The elements of a tensor as f32 in row order, of a convolution those of its float weight.
    pub fn floats(&self, name: &str) -> Result<Vec<f32>> {
        let (_, entry) = self.tensor(name)?;
        let values = self.elements(name, 0..entry.elements())?;
        let Some((_, axes)) = self.float_weight(name) else { return Ok(values) };
        let taps = Tensor::from_vec(values, &entry.shape[..], &Device::Cpu)?;
        Ok(taps.permute(axes)?.flatten_all()?.to_vec1()?)
    }

    /// Checks that a tensor, if there is one, has that shape.
    pub fn check_shape(&self, name: &str, shape: &[usize]) -> Result<()> {
        match self.files.find(name) {
            Some((shard, entry)) if entry.shape != shape => {
                let (expected, got) = (format!("{shape:?}"), format!("{:?}", entry.shape));
                Err(invalid(name, expected, got).in_file(&shard.path))
            }
            _ => Ok(()),
        }
    }

    /// Checks the scales of parts of a tensor: the layer of a part reads them where no error can
    /// be told.
    pub fn check_views(&self, name: &str) -> Result<()> {
        for view in self.views.get(name).into_iter().flat_map(BTreeMap::values) {
            if let Some(format) = self.format(view)
                && format.codes().is_some()
            {
                let (shard, _) = self.tensor(view)?;
                weights::check_positive_scales(&self.files, view)
                    .map_err(|e| e.in_file(&shard.path))?;
            }
        }
        Ok(())
    }
}

impl Source for Opened {
    fn elements(&self, name: &str, range: Range<usize>) -> Result<Vec<f32>> {
        let (shard, entry) = self.tensor(name)?;
        if range.end > entry.elements() {
            let expected = format!("{} elements", range.end);
            return Err(invalid(name, expected, format!("{:?}", entry.shape)).in_file(&shard.path));
        }
        let values = match self.weights.get(name) {
            Some(kind) => kind.dequantize(&self.files, name, range),
            None => shard.floats(name, entry, range),
        };
        values.map_err(|e| e.in_file(&shard.path))
    }

    fn view(&self, name: &str, part: &Part) -> Option<String> {
        self.views.get(name)?.get(part).cloned()
    }

    fn whole(&self, name: &str, shape: &[usize]) -> Result<Parts> {
        self.check_shape(name, shape)?;
        self.check_views(name)?;
        let parts = self.quantized(name, &Part::whole(shape))?;
        parts.ok_or_else(|| invalid(name, "a quantized weight", "another tensor"))
    }

    fn format(&self, name: &str) -> Option<Format> {
        self.weights.get(name)?.format()
    }

    fn sample(&self, name: &str) -> Result<Vec<u8>> {
        const ELEMENTS: usize = 64;
        let (shard, entry) = self.tensor(name)?;
        if !self.weights.contains_key(name) {
            let some = origin::sampled(&entry.shape).map(|range| self.elements(name, range));
            let values = some.collect::<Result<Vec<_>>>()?.into_iter().flatten();
            return Ok(values.flat_map(f32::to_ne_bytes).collect());
        }
        let mut bytes = Vec::new();
        let length = entry.bytes.min(4 * ELEMENTS as u64);
        shard.read(entry.start + (entry.bytes - length) / 2, length, |chunk| {
            bytes.extend_from_slice(chunk);
            Ok(())
        })?;
        Ok(bytes)
    }

    fn quantized(&self, name: &str, part: &Part) -> Result<Option<Parts>> {
        let Some(format) = self.format(name) else { return Ok(None) };
        let (shard, entry) = self.tensor(name)?;
        let read = || {
            let [_, k] = matrix(name, entry)?;
            let rows = part.whole_rows(k);
            rows.map(|rows| weights::parts(&self.files, name, format, rows)).transpose()
        };
        read().map_err(|e: Error| e.in_file(&shard.path))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;

    #[test]
    #[cfg_attr(target_family = "wasm", ignore = "no files")]
    fn a_tensor_has_the_sample_of_its_file() -> Result<()> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.safetensors");
        let shapes: [&[usize]; 6] = [&[3, 5], &[1, 100], &[70, 1], &[40, 50], &[2, 3, 9], &[2, 0]];
        for (shape, dtype) in
            shapes.into_iter().zip([DType::F32, DType::F16, DType::BF16].repeat(2))
        {
            let tensor = Tensor::randn(0f32, 1., shape, &Device::Cpu)?.to_dtype(dtype)?;
            candle_core::safetensors::save(&HashMap::from([("a", tensor.clone())]), &path)?;
            let sample = Opened::new(Files::open(&path)?, Quantization::default())?.sample("a")?;
            assert_eq!(sample, origin::sample_of(&tensor), "{shape:?}");
            assert_eq!(sample.is_empty(), tensor.elem_count() == 0, "{shape:?}");
        }
        Ok(())
    }
}
