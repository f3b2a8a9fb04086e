//! A quantized model beside the checkpoint that it was loaded from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde_json::Value;

use super::collect::{Collect, Held, HeldAttention, HeldBias};
use super::entry::{Module, entry};
use super::floats::{self, Floats};
use super::placing::{Placed, Replacement, SavedView, contested, missing};
use super::rewrite::{Contents, Output, rewrite};
use super::weight::WrittenWeight;
use crate::checkpoint::read::{Checkpoint, Entry, Opened, Precisions, View, belongs, owners};
use crate::error::{Error, Result};
use crate::module::{LayerKind, Quantizable, Walk};
use crate::weight::Format;
use crate::weight::origin::Part;

/// Writes a quantized model as the checkpoint `source`, from which it was loaded, with its
/// quantized weights in the place of the float ones.
///
/// Every tensor that no quantized layer replaces is copied as it is, except for float layers and
/// norms that differ in the model: [equalized](crate::equalize()), or changed after they were
/// loaded. A file is written for a file, a folder for a folder: then with all its other files but
/// hidden ones and the model's weights in other forms, and with `quantization_config` in its
/// `config.json`. `out` is replaced whole, or not at all: what a link leads to, with the
/// permissions that it had.
///
/// A layer's weight is found by the tensor that it was made of, or a part of it; else by the name
/// under which the layer was loaded, or its path in the model; a
/// [computed](crate::nn::Linear::computed) weight is added under its name. Layers that share a
/// weight need one tensor between them. A weight that cannot take a tensor's place, because another
/// layer reads it or slices are not quantized alike, is written beside it; [`Saved`] lists such
/// weights.
///
/// An equalized norm that also multiplies its residual is written as `equalized.weight`,
/// `equalized.bias` and `equalized.residual_weight`, which
/// [`nn::layer_norm`](crate::nn::layer_norm()) reads. Another loader would compute something else
/// without the factors: it does not find the norm's `weight`.
///
/// ```
/// use candle_core::{DType, Device, Module, Tensor};
/// use candle_dynquant::{checkpoint, nn, quantize_dynamic, Checkpoint, QConfigSpec};
///
/// # let dir = tempfile::tempdir()?;
/// # let (float, int8) = (dir.path().join("float.safetensors"), dir.path().join("int8.safetensors"));
/// # let weight = Tensor::randn(0f32, 1., (64, 32), &Device::Cpu)?;
/// # let tensors = std::collections::HashMap::from([("head.weight", weight)]);
/// # candle_core::safetensors::save(&tensors, &float)?;
/// let source = Checkpoint::open(&float)?;
/// let load = |checkpoint: &Checkpoint| {
///     let vb = checkpoint.var_builder(DType::F32, &Device::Cpu);
///     nn::linear_no_bias(32, 64, vb.pp("head"))
/// };
/// let mut model = load(&source)?;
/// quantize_dynamic(&mut model, &QConfigSpec::int8())?;
/// checkpoint::save(&model, &source, &int8)?;
///
/// let again = load(&Checkpoint::open(&int8)?)?;
/// let xs = Tensor::randn(0f32, 1., (2, 32), &Device::Cpu)?;
/// assert_eq!(again.forward(&xs)?.to_vec2::<f32>()?, model.forward(&xs)?.to_vec2::<f32>()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// When a quantized layer has no tensor in the source, or one of another shape; when a layer cannot
/// be saved, as attention of fewer bits that was not [loaded](crate::nn::Attention::load); when
/// `out` cannot be written, is the source, is a device, fifo or socket, or a folder with other
/// files. Then nothing is changed.
pub fn save<M>(model: &M, source: &Checkpoint, out: impl AsRef<Path>) -> Result<Saved>
where
    M: Quantizable + ?Sized,
{
    let mut collect = Collect::default();
    Walk::over(model, &mut collect)?;
    let source = &*source.opened;
    let attention = attention(&collect.attention, source)?;
    let (floats, unsaved) = Floats::new(&collect, source)?;
    // A float layer needs its tensor.
    let needed = collect.floats.iter().map(|held| held.with(()));
    let kept: Vec<_> = collect.kept.into_iter().chain(needed).collect();
    let placed = Placed::new(collect.held, &kept, source)?;
    if let Some(name) = floats.names().find(|name| placed.weights.contains_key(*name)) {
        return Err(contested(name));
    }
    let ignore = [&collect.float_linears[..], &placed.unnamed].concat();
    let save = Save { source, placed: &placed, floats: &floats };
    let tensors = source.files.tensors().map(|(name, _, entry)| (name, save.outputs(name, entry)));
    let mut tensors: BTreeMap<_, _> = tensors.collect();
    if let Some((name, held)) = placed.added.first_key_value() {
        // Some file has to take them.
        let first = tensors.values_mut().next();
        let first = first.ok_or_else(|| missing(name, "no tensor").at(&held.path))?;
        first.extend(save.added(&collect.biases));
    }
    let contents = Contents {
        source,
        tensors,
        formats: save.formats(),
        views: save.views(),
        attention,
        config: config(&placed.weights, &collect.embeddings, ignore, source),
    };
    rewrite(&contents, out.as_ref(), |_| {})?;
    let views = placed.views.values().flatten().map(|saved| Beside {
        layer: saved.path.clone(),
        tensor: saved.view.of.clone(),
        bytes: saved.output().bytes(),
    });
    let added = placed.added.iter().map(|(name, held)| Beside {
        layer: held.path.clone(),
        tensor: name.clone(),
        bytes: added(name, held).bytes(),
    });
    Ok(Saved { beside: views.chain(added).collect(), unsaved })
}

/// The weights that [`save`] wrote beside tensors of the source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// Weights that could not take the place of a tensor, by which the file is larger.
    pub beside: Vec<Beside>,
    /// The paths of float layers and norms whose weight is not a tensor of the source, and was not
    /// loaded as one: it is not written, as a loader that computes it does so again.
    pub unsaved: Vec<String>,
}

/// A quantized weight that was written beside the tensors of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Beside {
    /// The path of the layer.
    pub layer: String,
    /// The tensor that stays, because another layer reads it or the weight is a part of it only;
    /// the name of the new tensor of a [computed](crate::nn::Linear::computed) weight.
    pub tensor: String,
    /// The bytes that were written besides.
    pub bytes: u64,
}

/// A line for each weight that makes the file larger or is not written; nothing if there is none.
impl fmt::Display for Saved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Beside { layer, tensor, bytes } in &self.beside {
            writeln!(
                f,
                "{layer}: {bytes} bytes beside {tensor:?}: another layer reads it, its parts are not \
                 quantized alike, or it is new and computed from others, which stay"
            )?;
        }
        for layer in &self.unsaved {
            writeln!(
                f,
                "{layer}: its float weight is not written, as it was not loaded from the source"
            )?;
        }
        Ok(())
    }
}

impl SavedView {
    fn output(&self) -> Output<'_> {
        let (shape, pieces) = (self.weight.shape(), std::slice::from_ref(&self.weight));
        WrittenWeight::pieces(&self.name, &shape, self.weight.format(), pieces)
    }
}

fn added<'a>(name: &'a str, held: &'a Held) -> Output<'a> {
    let pieces = std::slice::from_ref(&held.weight);
    let [stored, _] = held.weight.shapes();
    WrittenWeight::pieces(name, &stored, held.weight.format(), pieces)
}

/// The weights by the tensors that they replace.
struct Save<'a> {
    source: &'a Opened,
    placed: &'a Placed<'a>,
    floats: &'a Floats,
}

impl<'a> Save<'a> {
    fn outputs(&self, name: &'a str, entry: &Entry) -> Vec<Output<'a>> {
        let mut outputs = self.replaced(name, entry).unwrap_or_else(|| vec![Output::Copied]);
        outputs.extend(self.placed.views.get(name).into_iter().flatten().map(SavedView::output));
        outputs
    }

    /// The computed weights, with the biases that the source does not have.
    fn added<'b: 'a>(&self, biases: &'b [HeldBias]) -> Vec<Output<'a>> {
        let all = self.placed.added.iter().flat_map(|(name, held)| {
            let bias = biases.iter().find(|bias| bias.path == held.path);
            let bias = bias.filter(|bias| self.source.files.find(&bias.name).is_none());
            let bias = bias.map(|bias| floats::float(&bias.name, &bias.bias));
            std::iter::once(added(name, held)).chain(bias)
        });
        all.collect()
    }

    /// The tensors that stand for a tensor of the source; `None` to copy it, none to leave it out.
    fn replaced(&self, name: &'a str, entry: &Entry) -> Option<Vec<Output<'a>>> {
        if let Some(replacement) = self.placed.weights.get(name) {
            let (format, pieces) = (replacement.format, &replacement.pieces);
            let shape = match &pieces[..] {
                [piece] if piece.shapes()[0].len() > 2 => &piece.shapes()[0],
                _ => &entry.shape,
            };
            return Some(vec![WrittenWeight::pieces(name, shape, format, pieces)]);
        }
        if let Some(floats) = self.floats.outputs(name) {
            return Some(floats);
        }
        // A tensor of a weight that was quantized before, and now differs or is float.
        let goes = belongs(&self.source.weights, name)
            && owners(name).any(|(weight, _)| self.is_replaced(weight));
        (goes || self.is_outdated_view(name)).then(Vec::new)
    }

    /// Whether a tensor of the source is a part of a tensor that gets other parts or is replaced.
    fn is_outdated_view(&self, name: &str) -> bool {
        let mut views = owners(name).map(|(weight, _)| weight).chain([name]);
        views.any(|view| {
            let tensor = self.source.viewed.get(view);
            tensor.is_some_and(|tensor| {
                self.placed.views.contains_key(tensor) || self.is_replaced(tensor)
            })
        })
    }

    fn is_replaced(&self, name: &str) -> bool {
        self.placed.weights.contains_key(name) || self.floats.contains(name)
    }

    fn formats(&self) -> BTreeMap<String, Format> {
        let mut formats: BTreeMap<_, _> = (self.source.weights.iter())
            .filter(|(name, _)| !self.floats.contains(name))
            .filter_map(|(name, kind)| Some((name.clone(), kind.format()?)))
            .collect();
        let replaced = self.placed.weights.iter();
        formats.extend(replaced.map(|(name, weight)| (name.clone(), weight.format)));
        let views = self.placed.views.values().flatten();
        formats.extend(views.map(|view| (view.name.clone(), view.weight.format())));
        let added = self.placed.added.iter();
        formats.extend(added.map(|(name, held)| (name.clone(), held.weight.format())));
        formats
    }

    fn views(&self) -> BTreeMap<String, View> {
        let mut all = BTreeMap::new();
        for (tensor, views) in &self.source.views {
            let view = |part: &Part| View { of: tensor.clone(), part: *part };
            all.extend(views.iter().map(|(part, name)| (name.clone(), view(part))));
        }
        let saved = self.placed.views.values().flatten();
        all.extend(saved.map(|view| (view.name.clone(), view.view.clone())));
        all
    }
}

/// The attention of fewer bits than float32 that there is then, by name.
fn attention(held: &[HeldAttention], source: &Opened) -> Result<Precisions> {
    let mut all = source.attention.clone();
    let mut named = Precisions::new();
    for HeldAttention { path, name, precision } in held {
        let error = match name {
            Some(name) if *named.entry(name.clone()).or_insert(*precision) != *precision => {
                Error::unsavable(
                    format!("one precision of attention for the name {name:?}"),
                    "two layers with different ones",
                )
            }
            None if precision.is_reduced() => Error::unsavable(
                "attention that remembers a name, by `nn::Attention::load`",
                format!("one in {precision} without a name"),
            ),
            _ => continue,
        };
        return Err(error.at(path));
    }
    all.extend(named);
    all.retain(|_, precision| precision.is_reduced());
    Ok(all)
}

fn config(
    weights: &BTreeMap<String, Replacement>,
    embeddings: &[String],
    mut ignore: Vec<String>,
    source: &Opened,
) -> Option<Value> {
    let mut modules = Vec::new();
    for (name, Replacement { kind, format, .. }) in weights {
        let Some(module) = name.strip_suffix(".weight") else { continue };
        let is_linear = !embeddings.iter().any(|name| name == module);
        if is_linear && *kind != LayerKind::Linear {
            continue;
        }
        if format.half().is_some() {
            ignore.push(module.to_owned());
        }
        modules.push(Module { name: module.to_owned(), is_linear, format: *format });
    }
    // Matrices of layers that the model does not show may be Linears'.
    for (name, _, entry) in source.files.tensors() {
        if let Some(module) = name.strip_suffix(".weight")
            && entry.shape.len() == 2
            && !weights.contains_key(name)
            && !embeddings.iter().any(|name| name == module)
        {
            ignore.push(module.to_owned());
        }
    }
    ignore.sort();
    ignore.dedup();
    entry(&modules, &ignore, source)
}
