//! A quantized model beside the checkpoint that it was loaded from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use safetensors::Dtype;
use serde_json::Value;

use super::collect::Collect;
use super::config::{self, Module};
use super::floats::Floats;
use super::placing::{Placed, Replacement, SavedView};
use super::record::View;
use super::rewrite::{Rewrite, rewrite};
use super::weights::{Kind, belongs};
use super::writer::{Planned, Writer};
use super::{Checkpoint, Opened, header};
use crate::error::{Error, Result};
use crate::module::{LayerKind, Quantizable, Walk};
use crate::stored::origin::Part;
use crate::stored::{Format, Quantized, SCALE, UNSIGNED_ZERO_POINT, ZERO_POINT, Zeros};

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
/// under which the layer was loaded, or its path in the model. Layers that share a weight need one
/// tensor between them. A weight that cannot take a tensor's place, because another layer reads it
/// or slices are not quantized alike, is written beside it; [`Saved`] lists those.
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
/// be saved; when `out` cannot be written, is the source, is a device, fifo or socket, or a folder
/// with other files. Then nothing is changed.
pub fn save<M>(model: &M, source: &Checkpoint, out: impl AsRef<Path>) -> Result<Saved>
where
    M: Quantizable + ?Sized,
{
    let mut collect = Collect::default();
    Walk::over(model, &mut collect)?;
    let mut save = Save::new(collect, &source.opened)?;
    rewrite(&source.opened, out.as_ref(), &mut save)?;
    let views = save.placed.views.iter();
    let beside = views.flat_map(|(of, views)| views.iter().map(move |view| Beside::of(of, view)));
    Ok(Saved {
        beside: beside.collect(),
        unsaved: save.unsaved,
    })
}

/// The weights that [`save`] wrote beside tensors of the source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// Weights that could not take the place of a tensor, by which the file is larger.
    pub beside: Vec<Beside>,
    /// The paths of float layers and norms whose weight is no tensor of the source, and was not
    /// loaded as one: it is not written, as a loader that computes it does so again.
    pub unsaved: Vec<String>,
}

/// A quantized weight that was written beside the tensor that it was made of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Beside {
    /// The path of the layer.
    pub layer: String,
    /// The tensor that stays, because another layer reads it or the weight is a part of it only.
    pub tensor: String,
    /// The bytes that were written besides.
    pub bytes: u64,
}

impl Beside {
    fn of(tensor: &str, view: &SavedView) -> Self {
        let shape = view.weight.shape();
        let all = planned(&view.name, &shape, view.format, &view.weight.zero_points());
        let bytes = all
            .iter()
            .filter_map(|one| header::bytes(one.dtype, &one.shape));
        Self {
            layer: view.path.clone(),
            tensor: tensor.to_owned(),
            bytes: bytes.sum(),
        }
    }
}

/// A line for each weight that makes the file larger or is not written; nothing if there is none.
impl fmt::Display for Saved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Beside {
            layer,
            tensor,
            bytes,
        } in &self.beside
        {
            writeln!(
                f,
                "{layer}: {bytes} bytes beside {tensor:?}, which stays: another layer reads it, or \
                 its parts are not quantized alike"
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

/// The weights by the tensors that they replace.
struct Save<'a> {
    source: &'a Opened,
    placed: Placed,
    floats: Floats,
    config: Option<Value>,
    unsaved: Vec<String>,
}

impl<'a> Save<'a> {
    fn new(collect: Collect, source: &'a Opened) -> Result<Self> {
        let (floats, unsaved) = Floats::new(&collect, source)?;
        // A float layer needs its tensor.
        let needed = collect.floats.iter().map(|held| held.with(()));
        let kept: Vec<_> = collect.kept.into_iter().chain(needed).collect();
        let placed = Placed::new(collect.held, &kept, source)?;
        if let Some(name) = floats
            .names()
            .find(|name| placed.weights.contains_key(*name))
        {
            return Err(contested(name));
        }
        let ignore = [&collect.float_linears[..], &placed.unnamed].concat();
        let config = config(&placed.weights, &collect.embeddings, ignore, source);
        Ok(Self {
            source,
            placed,
            floats,
            config,
            unsaved,
        })
    }

    /// The weights that are written beside a tensor.
    fn views(&self, name: &str) -> &[SavedView] {
        self.placed.views.get(name).map_or(&[], |views| views)
    }

    /// The tensor of which one of the source is a part, if that gets other parts or is replaced.
    fn is_outdated_view(&self, name: &str) -> bool {
        let mut views = owners(name).chain([name]);
        views.any(|view| {
            let of = self.source.viewed.get(view);
            of.is_some_and(|of| self.placed.views.contains_key(of) || self.is_replaced(of))
        })
    }

    fn is_replaced(&self, name: &str) -> bool {
        self.placed.weights.contains_key(name) || self.floats.contains(name)
    }
}

fn config(
    weights: &BTreeMap<String, Replacement>,
    embeddings: &[String],
    mut ignore: Vec<String>,
    source: &Opened,
) -> Option<Value> {
    let (mut linears, mut tables) = (Vec::new(), Vec::new());
    for (name, Replacement { kind, format, .. }) in weights {
        let Some(module) = name.strip_suffix(".weight") else {
            continue;
        };
        let to = match kind {
            _ if embeddings.iter().any(|own| own == module) => &mut tables,
            LayerKind::Linear => &mut linears,
            _ => continue,
        };
        if format.codes().is_none() {
            ignore.push(module.to_owned());
        }
        to.push(Module {
            name: module.to_owned(),
            format: *format,
        });
    }
    // Matrices of layers that the model does not show may be Linears'.
    for (name, _, entry) in source.files.tensors() {
        if let Some(module) = name.strip_suffix(".weight")
            && entry.shape.len() == 2
            && !weights.contains_key(name)
            && !embeddings.iter().any(|own| own == module)
        {
            ignore.push(module.to_owned());
        }
    }
    ignore.sort();
    ignore.dedup();
    config::entry(&linears, &tables, &ignore, source)
}

/// The tensors of a weight of that format.
pub(super) fn planned(name: &str, shape: &[usize], format: Format, zeros: &Zeros) -> Vec<Planned> {
    let tensor = |suffix: &str, dtype, shape: &[usize]| Planned {
        name: format!("{name}{suffix}"),
        dtype,
        shape: shape.to_vec(),
    };
    let codes = match format {
        Format::Int8 { codes, .. } => codes,
        Format::Half { half, .. } => return vec![tensor("", half.dtype().into(), shape)],
    };
    let (rows, _) = shape.split_at(shape.len().saturating_sub(1));
    let of_scales = if codes.qscheme.is_per_channel() {
        &[rows, &[1]].concat()[..]
    } else {
        &[rows.iter().product::<usize>().min(1)]
    };
    let mut all = vec![
        tensor("", Dtype::I8, shape),
        tensor(SCALE, Dtype::F32, of_scales),
    ];
    match zeros {
        Zeros::None => {}
        Zeros::Int(_) => all.push(tensor(ZERO_POINT, Dtype::I8, of_scales)),
        Zeros::Float(_) => {
            all.push(tensor(ZERO_POINT, Dtype::F32, of_scales));
            all.push(tensor(UNSIGNED_ZERO_POINT, Dtype::F32, of_scales));
        }
    }
    all
}

/// Writes scales and zero points.
pub(super) fn write_qparams(
    name: &str,
    scales: &[f32],
    zeros: &Zeros,
    to: &mut Writer<'_>,
) -> Result<()> {
    let bytes = |values: &[f32]| {
        values
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    to.write(&format!("{name}{SCALE}"), &bytes(scales))?;
    match zeros {
        Zeros::None => Ok(()),
        Zeros::Int(zeros) => {
            let zeros: Vec<u8> = zeros.iter().map(|z| (*z as i8).cast_unsigned()).collect();
            to.write(&format!("{name}{ZERO_POINT}"), &zeros)
        }
        Zeros::Float(zeros) => {
            // Among the codes of the file, which are 128 less, for others.
            let signed: Vec<f32> = zeros.iter().map(|z| z - 128.).collect();
            to.write(&format!("{name}{ZERO_POINT}"), &bytes(&signed))?;
            to.write(&format!("{name}{UNSIGNED_ZERO_POINT}"), &bytes(zeros))
        }
    }
}

impl Rewrite for Save<'_> {
    fn replaced(&self, name: &str) -> Option<Vec<Planned>> {
        if let Some(own) = self.placed.weights.get(name) {
            let (_, entry) = self.source.files.find(name)?;
            return Some(planned(name, &entry.shape, own.format, &own.zero_points()));
        }
        if let Some(planned) = self.floats.planned(name) {
            return Some(planned);
        }
        // A tensor of a weight that was quantized before, and now differs or is float.
        let goes = belongs(&self.source.weights, name)
            && owners(name).any(|weight| self.is_replaced(weight));
        (goes || self.is_outdated_view(name)).then(Vec::new)
    }

    fn write(&mut self, name: &str, to: &mut Writer<'_>) -> Result<()> {
        match self.placed.weights.get(name) {
            Some(own) => write_weight(name, &own.pieces, &own.zero_points(), to),
            None => self.floats.write(name, to),
        }
    }

    fn beside(&self, name: &str) -> Vec<Planned> {
        let views = self.views(name).iter();
        let planned = views.map(|view| {
            let zeros = view.weight.zero_points();
            planned(&view.name, &view.weight.shape(), view.format, &zeros)
        });
        planned.flatten().collect()
    }

    fn write_beside(&mut self, name: &str, to: &mut Writer<'_>) -> Result<()> {
        self.views(name).iter().try_for_each(|view| {
            let piece = std::slice::from_ref(&view.weight);
            write_weight(&view.name, piece, &view.weight.zero_points(), to)
        })
    }

    fn formats(&self) -> BTreeMap<String, Format> {
        let mut formats: BTreeMap<_, _> = (self.source.weights.iter())
            .filter(|(name, _)| !self.floats.contains(name))
            .filter_map(|(name, kind)| match kind {
                Kind::Whole(format) => Some((name.clone(), *format)),
                Kind::Groups(_) => None,
            })
            .collect();
        let own = self.placed.weights.iter();
        formats.extend(own.map(|(name, own)| (name.clone(), own.format)));
        let views = self.placed.views.values().flatten();
        formats.extend(views.map(|view| (view.name.clone(), view.format)));
        formats
    }

    fn parts(&self) -> BTreeMap<String, View> {
        let old = self.source.views.iter();
        let old =
            old.flat_map(|(of, views)| views.iter().map(move |(part, name)| (of, name, *part)));
        let own = self.placed.views.iter();
        let own =
            own.flat_map(|(of, views)| views.iter().map(move |view| (of, &view.name, view.part)));
        let view = |(of, name, part): (&String, &String, Part)| {
            let of = of.clone();
            (name.clone(), View { of, part })
        };
        old.chain(own).map(view).collect()
    }

    fn config(&self) -> Option<Value> {
        self.config.clone()
    }

    fn progress(&mut self, _: u64) {}
}

/// Writes a weight of these rows, one after the other.
fn write_weight(
    name: &str,
    pieces: &[Quantized],
    zeros: &Zeros,
    to: &mut Writer<'_>,
) -> Result<()> {
    let mut scales = Vec::new();
    for piece in pieces {
        if let Some(halves) = piece.halves() {
            to.write(name, &halves.to_bytes())?;
            continue;
        }
        let codes = piece.codes().into_iter();
        let bytes: Vec<u8> = codes.map(i8::cast_unsigned).collect();
        to.write(name, &bytes)?;
        scales.extend(piece.scales());
    }
    if pieces.iter().any(|piece| piece.format().codes().is_some()) {
        write_qparams(name, &scales, zeros, to)
    } else {
        Ok(())
    }
}

pub(super) fn missing(name: &str, got: &str) -> Error {
    Error::Unsavable {
        expected: format!("a tensor {name:?} in the checkpoint"),
        got: got.into(),
    }
}

/// The error of layers that need different tensors under one name.
pub(super) fn contested(name: &str) -> Error {
    Error::Unsavable {
        expected: format!("one weight for the tensor {name:?}"),
        got: "two layers with different ones".into(),
    }
}

/// The weights whose scale or zero point a tensor is by its name.
fn owners(name: &str) -> impl Iterator<Item = &str> {
    let suffixes = [SCALE, ZERO_POINT, UNSIGNED_ZERO_POINT].into_iter();
    suffixes.filter_map(|suffix| name.strip_suffix(suffix))
}
