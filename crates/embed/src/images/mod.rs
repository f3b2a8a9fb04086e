//! Vectors of pictures.

mod picture;
mod processor;
mod resize;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};
use candle_dynquant::Checkpoint;
use rayon::iter::{IndexedParallelIterator, IntoParallelRefIterator, ParallelIterator};

pub use self::picture::Picture;
use self::picture::Pixels;
use self::processor::Processor;
use crate::batches::{MOST_TOKENS, Options};
use crate::files::{CONFIG, text};
use crate::folder::{by_preset, folder_name};
use crate::keys::Keys;
use crate::loaded::Loaded;
use crate::models::{Vision, VisionConfig};
use crate::modules::model_folder;
use crate::preset::Preset;

/// A model that makes vectors of pictures, from a folder of transformers or sentence-transformers.
///
/// The vector is the output of `get_image_features`: of CLIP the projection of the pooled token, of
/// SigLIP the pooling by attention; of DINOv2 the first token after the last norm. It is not
/// normalized: see [`normalized`](crate::normalized).
///
/// The bits of a vector do not depend on the other pictures of a call, nor on the batches.
///
/// ```
/// use dynquant_embed::{ImageEmbedder, Picture};
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/reference/images/clip");
/// let embedder = ImageEmbedder::open(folder)?;
/// let pixels = [128; 20 * 10 * 3];
/// let gray = Picture::Rgb { pixels: &pixels, width: 20, height: 10 };
/// let vectors = embedder.embed(&[gray])?;
/// assert_eq!(vectors[0].len(), embedder.dimensions());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ImageEmbedder {
    model: Vision,
    processor: Processor,
    /// The height and width of the model's input.
    size: [usize; 2],
    options: Options,
    is_one_by_one: bool,
    notes: Vec<String>,
    dtype: String,
    name: String,
    takes_texts: bool,
}

impl ImageEmbedder {
    /// Opens a folder with `config.json`, `preprocessor_config.json` and weights in safetensors.
    /// Float weights become int8.
    ///
    /// # Errors
    /// When a file is missing, malformed, inconsistent with the others, or requires an unsupported
    /// feature.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(dir, Options::new())
    }

    /// Opens a folder with options for the preset, batches and progress.
    ///
    /// # Errors
    /// Also when an option does not fit the model.
    pub fn open_with(dir: impl AsRef<Path>, options: Options) -> Result<Self> {
        options.check_pictures()?;
        let name = folder_name(dir.as_ref());
        let dir = model_folder(dir.as_ref())?;
        let place = dir.display().to_string();
        let path = dir.join(CONFIG);
        let mut keys = Keys::parse(&path.display().to_string(), &text(&path)?)?;
        let checkpoint = Checkpoint::open(&dir)?;
        let of_files = checkpoint.notes().to_vec();
        let loaded = Loaded::new(checkpoint).without(&VisionConfig::OTHERS);
        let is_quantized = loaded.is_quantized();
        keys.limit(loaded.bytes());
        let config = VisionConfig::read(&keys)?;
        let processor = Processor::read(&dir, config.processor)?;
        let size = processor.outputs()?;
        let model = config.load(size, &loaded.var_builder());
        let model = model.with_context(|| place.clone())?;
        loaded.check(&place)?;
        let (mut model, dtype) =
            by_preset(model, is_quantized, options.preset, Preset::default(), &place)?;
        if is_quantized && let Some(spec) = Preset::default().spec()? {
            model.quantize_rest(&spec)?;
        }
        let mut embedder = Self {
            is_one_by_one: false,
            model,
            processor,
            size,
            options,
            notes: config.notes.into_iter().chain(of_files).collect(),
            dtype,
            name,
            takes_texts: config.takes_texts,
        };
        embedder.is_one_by_one = !embedder.pictures_are_independent()?;
        Ok(embedder)
    }

    /// The name of the folder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the folder also has a model of texts in the same space, for
    /// [`Embedder`](crate::Embedder).
    pub fn takes_texts(&self) -> bool {
        self.takes_texts
    }

    /// The number of values in a vector.
    pub fn dimensions(&self) -> usize {
        self.model.outputs()
    }

    /// The format of the weights: the name of a preset, or `quantized` for a quantized folder.
    pub fn dtype(&self) -> &str {
        &self.dtype
    }

    /// A sentence for each key of the files that nothing reads.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The vectors of pictures, `dimensions` numbers each.
    ///
    /// # Errors
    /// When a picture cannot be read, is larger than the limits of [`Picture`], or the model fails.
    pub fn embed(&self, pictures: &[Picture<'_>]) -> Result<Vec<Vec<f32>>> {
        let fits = (MOST_TOKENS / self.model.tokens()).max(1);
        let mut vectors = Vec::with_capacity(pictures.len());
        for batch in pictures.chunks(self.options.batch_size.min(fits)) {
            let first = vectors.len();
            let input = |(index, picture): (usize, &Picture<'_>)| {
                let input = self.input(picture);
                input.with_context(|| format!("picture {}", first + index))
            };
            let inputs: Vec<_> = batch.par_iter().enumerate().map(input).collect();
            // The error is the first picture's.
            let inputs = inputs.into_iter().collect::<Result<Vec<_>>>()?;
            vectors.extend(self.answer(&inputs)?);
            if let Some(progress) = &self.options.progress {
                progress(vectors.len(), pictures.len());
            }
        }
        Ok(vectors)
    }

    /// Whether a folder has such a model, by the `model_type`.
    pub fn is_folder(dir: impl AsRef<Path>) -> bool {
        let model_type = || {
            let path = model_folder(dir.as_ref())?.join(CONFIG);
            Keys::parse(CONFIG, &text(&path)?)?.word("model_type")
        };
        let model_type = model_type().ok().flatten();
        model_type.is_some_and(|it| VisionConfig::is_known(&it))
    }

    /// The tokens of a picture in the model, as many for all.
    pub fn tokens(&self) -> usize {
        self.model.tokens()
    }

    /// The number of values of a picture's input.
    pub fn input_size(&self) -> usize {
        3 * self.size[0] * self.size[1]
    }

    /// The vectors of inputs, in order, each with the same bits as if it were alone: for programs
    /// with their own queues and limits.
    ///
    /// # Errors
    /// When an input has another length than those of [`input`](Self::input), or the model fails.
    pub fn answer(&self, inputs: &[impl AsRef<[f32]>]) -> Result<Vec<Vec<f32>>> {
        let inputs: Vec<&[f32]> = inputs.iter().map(AsRef::as_ref).collect();
        let size = self.input_size();
        let other = inputs.iter().find(|input| input.len() != size);
        let got = other.map_or(size, |input| input.len());
        ensure!(got == size, "an input: expected {size} values, got {got}");
        let at_once = if self.is_one_by_one { 1 } else { inputs.len() };
        let batches = inputs.chunks(at_once.max(1)).map(|it| self.together(it));
        Ok(batches.collect::<Result<Vec<_>>>()?.concat())
    }

    /// The model's input for a picture, `[3, height, width]`, as the image processor makes it.
    ///
    /// # Errors
    /// The errors of [`embed`](Self::embed).
    pub fn input(&self, picture: &Picture<'_>) -> Result<Vec<f32>> {
        let input = self.processor.process(picture.pixels()?)?;
        let expected = self.input_size();
        ensure!(
            input.len() == expected && input.iter().all(|x| x.is_finite()),
            "expected {expected} finite values of the image processor, got {}",
            input.len(),
        );
        Ok(input)
    }

    fn together(&self, inputs: &[&[f32]]) -> Result<Vec<Vec<f32>>> {
        let [height, width] = self.size;
        let shape = (inputs.len(), 3, height, width);
        let pixels = Tensor::from_vec(inputs.concat(), shape, &Device::Cpu)?;
        Ok(self.model.forward(&pixels)?.to_vec2()?)
    }

    /// Compares two pictures that are computed together with the same pictures alone, bit for bit.
    fn pictures_are_independent(&self) -> Result<bool> {
        let picture = |step: usize| {
            let [height, width] = self.size;
            let value = |i| (i * step % 251) as u8;
            let values = (0..height * width * 3).map(value).collect();
            self.processor.process(Pixels { values, height, width })
        };
        let pictures = [picture(7)?, picture(7919)?];
        let pictures = pictures.each_ref().map(Vec::as_slice);
        let mut alone = self.together(&pictures[..1])?;
        alone.extend(self.together(&pictures[1..])?);
        ensure!(
            alone.iter().flatten().all(|x| x.is_finite()),
            "the model: expected finite vectors, got others"
        );
        let bits = |all: &[Vec<f32>]| all.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
        Ok(bits(&alone) == bits(&self.together(&pictures)?))
    }
}
