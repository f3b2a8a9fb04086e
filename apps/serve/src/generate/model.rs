//! The decoder as a function of the parts of a step.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor};
use candle_dynquant::ops::Precision;
use candle_dynquant::{Layer, LayerKind, QConfigSpec, Visitor, Walk, quantize_dynamic};
use candle_dynquant_decoder::sampling::Sampling;
use candle_dynquant_decoder::{
    Cache, Config, Decoder, DraftModel, Folder, Part, Texts, are_numbers,
};

/// The positions of a page, the unit in which caches are allocated and shared.
pub const PAGE: usize = 128;

/// A decoder with everything needed to generate texts.
pub struct Opened {
    pub name: String,
    /// The format of the weights: the name of a preset, or `quantized` for quantized files.
    pub dtype: String,
    /// The precision of attention, and of keys and values.
    pub attention: String,
    /// The most tokens of a text, by the model's positions and by its attention.
    pub most_tokens: usize,
    pub config: Config,
    pub ends: Vec<u32>,
    /// The sampling that the model's author recommends.
    pub sampling: Option<Sampling>,
    pub texts: Texts,
    pub model: Model,
}

impl Opened {
    /// Reads a folder or a GGUF file. Float weights are quantized by a preset of the library, int8
    /// by default and not at all with `none`; attention by `attention`. The model at `draft` guesses
    /// tokens.
    pub fn open(
        path: &Path,
        draft: Option<&Path>,
        preset: Option<&str>,
        attention: Option<Precision>,
    ) -> Result<Self> {
        let (folder, decoder, dtype, attention) = load(path, preset, attention)?;
        let draft = draft.map(|path| {
            let preset = preset.filter(|_| !folder.checkpoint.is_quantized());
            let (smaller, decoder, ..) = load(path, preset, attention.first().copied())?;
            DraftModel::new(decoder, &smaller, &folder)
        });
        let draft = draft.transpose().context("--draft-model")?;
        let names: Vec<_> = attention.iter().map(Precision::to_string).collect();
        let has_pages = !attention.contains(&Precision::Int8);
        let most_tokens = folder.config.max_position_embeddings;
        Ok(Self {
            name: name_of(path),
            dtype,
            attention: names.join(" and "),
            most_tokens: most_tokens.min(decoder.most_tokens()),
            model: Model::new(decoder, draft, folder.config.vocab_size, has_pages)?,
            texts: folder.texts,
            ends: folder.ends,
            sampling: folder.sampling,
            config: folder.config,
        })
    }
}

/// Reads a model; returns it with the format of its weights, and the precisions of its attention.
fn load(
    path: &Path,
    preset: Option<&str>,
    attention: Option<Precision>,
) -> Result<(Folder, Decoder, String, BTreeSet<Precision>)> {
    let folder = Folder::open(path, None)?;
    folder.notes.iter().for_each(|note| tracing::warn!("{note}"));
    let mut decoder = folder.load()?;
    let dtype = match (folder.checkpoint.is_quantized(), preset) {
        (true, None) => "quantized",
        (true, Some(preset)) => anyhow::bail!(
            "{}: expected float weights for the preset {preset}, got quantized ones; leave the \
                 preset out",
            path.display(),
        ),
        (false, Some("none")) => "none",
        (false, preset) => {
            let preset = preset.unwrap_or("int8");
            let spec = QConfigSpec::preset(preset).context("--preset")?;
            quantize_dynamic(&mut decoder, &spec)?;
            preset
        }
    };
    let dtype = dtype.to_owned();
    let attention = attend_in(&mut decoder, attention)?;
    Ok((folder, decoder, dtype, attention))
}

/// The bytes of keys and values for [`PAGE`] positions, of a model whose scores are numbers.
fn page_bytes(decoder: &Decoder) -> Result<usize> {
    let mut cache = decoder.cache_for(PAGE);
    let first = Tensor::zeros((1, 1), DType::U32, &Device::Cpu)?;
    let scores = decoder.next(&first, &mut cache)?;
    let scores = scores.flatten_all()?.to_vec1::<f32>()?;
    ensure!(
        are_numbers(&scores),
        "the model: expected numbers as scores, got NaN or infinite ones: the weights or their sizes are wrong"
    );
    Ok(cache.bytes())
}

/// Sets the precision of attention in all layers, if `wanted` is given; returns the precisions.
fn attend_in(decoder: &mut Decoder, wanted: Option<Precision>) -> Result<BTreeSet<Precision>> {
    if let Some(precision) = wanted.filter(|precision| *precision != Precision::Float32) {
        let spec = QConfigSpec::new().kind(LayerKind::Attention, precision);
        quantize_dynamic(decoder, &spec).context("--attention")?;
    }
    let mut found = Precisions(BTreeSet::new());
    Walk::over(decoder, &mut found)?;
    if let Some(wanted) = wanted {
        let names: Vec<_> = found.0.iter().map(Precision::to_string).collect();
        ensure!(
            names == [wanted.to_string()],
            "--attention {wanted}: expected attention in float32 or {wanted} in the files, got {}",
            names.join(" and "),
        );
    }
    Ok(found.0)
}

/// A visitor that collects the precisions of attention layers.
struct Precisions(BTreeSet<Precision>);

impl Visitor for Precisions {
    fn layer(&mut self, _: &str, layer: &dyn Layer) -> candle_dynquant::Result<()> {
        self.0.extend(layer.precision());
        Ok(())
    }
}

/// The last component of the path, for a file without its extension.
fn name_of(path: &Path) -> String {
    let absolute = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = if path.is_file() { absolute.file_stem() } else { absolute.file_name() };
    let name = name.unwrap_or(absolute.as_os_str());
    name.to_string_lossy().into_owned()
}

/// A decoder that computes the parts of a step, each with the bits that it has alone.
pub struct Model {
    decoder: Decoder,
    /// The model that guesses tokens.
    pub draft: Option<DraftModel>,
    /// The number of scores after a token.
    pub vocabulary: usize,
    /// Whether texts are computed one by one: with one scale for all activations of a call.
    pub one_by_one: bool,
    /// Whether caches can share pages. Keys and values in 8 bits are kept in one piece.
    pub has_pages: bool,
    /// The bytes of keys and values for [`PAGE`] positions, with those of the model that guesses.
    pub page_bytes: usize,
}

impl Model {
    /// A model; tests whether sequences may be computed together, and the size of a cache page.
    fn new(
        decoder: Decoder,
        draft: Option<DraftModel>,
        vocabulary: usize,
        has_pages: bool,
    ) -> Result<Self> {
        let one_by_one = !decoder.has_independent_rows()?;
        ensure!(
            !one_by_one || draft.is_none(),
            "--draft-model: expected a model in which a token has the same bits beside others, to check \
             guesses; got one scale for all activations of a call"
        );
        let of_draft = draft.as_ref().map(|draft| page_bytes(draft.decoder()));
        let page_bytes = page_bytes(&decoder)? + of_draft.transpose()?.unwrap_or(0);
        Ok(Self { decoder, draft, vocabulary, one_by_one, has_pages, page_bytes })
    }

    pub fn cache_for(&self, tokens: usize) -> Cache {
        self.decoder.cache_for(tokens)
    }

    /// Reads the parts; returns the requested scores, `vocabulary` for each.
    pub fn step(&self, parts: &mut [Part<'_>]) -> Result<Vec<f32>> {
        let size = if self.one_by_one { 1 } else { parts.len().max(1) };
        let each = parts.chunks_mut(size).map(|parts| {
            let scores = self.decoder.step(parts)?;
            Ok(scores.flatten_all()?.to_vec1::<f32>()?)
        });
        Ok(each.collect::<Result<Vec<_>>>()?.concat())
    }
}
