//! A quantized model beside the checkpoint that it was loaded from.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use safetensors::Dtype;
use serde_json::Value;

use super::Checkpoint;
use super::collect::{Collect, Held};
use super::config::{self, Module};
use super::floats::Floats;
use super::header::invalid;
use super::rewrite::{Rewrite, rewrite};
use super::shard::is_float;
use super::weights::{Kind, belongs};
use super::writer::{Planned, Writer};
use crate::error::{Error, Result};
use crate::module::{LayerKind, Quantizable, Walk};
use crate::stored::{Format, Quantized, SCALE, UNSIGNED_ZERO_POINT, ZERO_POINT, Zeros};

/// Writes a quantized model as the checkpoint `source`, from which it was loaded, with its
/// quantized weights in the place of the float ones.
///
/// Every tensor that no quantized layer replaces is copied as it is, but for those of norms and layers
/// that were [equalized](crate::equalize()), which are the model's. A file is written for a file,
/// a folder for a folder: then with all its other files but hidden ones and weights in other formats, and
/// with `quantization_config` in its `config.json`. `out` is replaced whole, or not at all: what a link leads
/// to, with the permissions that it had.
///
/// A layer's weight is found by the name under which the layer was loaded, else by its path in the
/// model. Layers that share a weight need one tensor between them.
///
/// An equalized norm that also multiplies its residual is written as `equalized.weight`,
/// `equalized.bias` and `equalized.residual_weight`, which
/// [`nn::layer_norm`](crate::nn::layer_norm()) reads. Another loader would compute something else without the
/// factors: it does not find the norm's `weight`.
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
/// When a quantized layer has no tensor in the source, or one of another shape; when a layer
/// cannot be saved; when `out` cannot be written, is the source, is a device, fifo or socket, or a folder with
/// other files. Then nothing is changed.
pub fn save<M>(model: &M, source: &Checkpoint, out: impl AsRef<Path>) -> Result<()>
where
    M: Quantizable + ?Sized,
{
    let mut collect = Collect::default();
    Walk::over(model, &mut collect)?;
    let mut save = Save::new(collect, source)?;
    rewrite(&source.opened, out.as_ref(), &mut save)
}

/// The weights by the tensors that they replace.
struct Save<'a> {
    source: &'a Checkpoint,
    weights: BTreeMap<String, (LayerKind, Quantized, Format)>,
    floats: Floats,
    config: Option<Value>,
}

impl<'a> Save<'a> {
    fn new(collect: Collect, source: &'a Checkpoint) -> Result<Self> {
        let mut weights = BTreeMap::new();
        let mut placed = HashMap::new();
        let mut ignore = collect.float_linears;
        for held in &collect.held {
            let shape = held.weight.shape();
            if let Some(name) = place(held, &shape, source).map_err(|e| e.at(&held.path))? {
                placed.insert(held.weight.memory(), name);
            }
        }
        // One that is packed with another bias is in other memory.
        let equal = |held: &Held| {
            let mut others = collect.held.iter();
            others.find_map(|other| {
                let name = placed.get(&other.weight.memory())?;
                equals(&held.weight, &other.weight).then(|| name.clone())
            })
        };
        let names: Vec<Option<String>> = (collect.held.iter())
            .map(|held| {
                placed
                    .get(&held.weight.memory())
                    .cloned()
                    .or_else(|| equal(held))
            })
            .collect();
        for (held, name) in collect.held.into_iter().zip(names) {
            let Some(name) = name else {
                let got = "none; a head that is tied to an embedding is saved with it, if both are \
                           quantized";
                return Err(missing(&held.names[0], got).at(&held.path));
            };
            if !held.names.contains(&name) && held.kind == LayerKind::Linear {
                ignore.push(held.path.clone());
            }
            insert(&mut weights, &name, held)?;
        }
        let mut floats = Floats::default();
        for held in &collect.floats {
            let mut add = || match place(held, held.weight.dims(), source)? {
                Some(name) if weights.contains_key(&name) => Err(contested(&name)),
                Some(name) => floats.add(&name, &held.weight),
                None => Err(missing(&held.names[0], "none")),
            };
            add().map_err(|e| e.at(&held.path))?;
        }
        floats.add_norms(&collect.norms, &source.opened.files)?;
        let config = config(&weights, &collect.embeddings, ignore, source);
        Ok(Self {
            source,
            weights,
            floats,
            config,
        })
    }
}

/// The tensor of the source that a weight replaces.
fn place<W>(held: &Held<W>, shape: &[usize], source: &Checkpoint) -> Result<Option<String>> {
    let files = &source.opened.files;
    for name in &held.names {
        let Some((_, entry)) = files.find(name) else {
            continue;
        };
        if entry.shape != shape {
            return Err(invalid(
                name,
                format!("{shape:?}"),
                format!("{:?}", entry.shape),
            ));
        }
        if !is_float(entry.dtype) && !source.opened.weights.contains_key(name) {
            return Err(invalid(name, "a float dtype", entry.dtype.to_string()));
        }
        return Ok(Some(name.clone()));
    }
    Ok(None)
}

/// Whether the codes or halves of two weights are the same.
fn equals(a: &Quantized, b: &Quantized) -> bool {
    let parts = |w: &Quantized| (w.codes(), w.halves(), w.scales());
    a.memory() == b.memory()
        || (a.shape() == b.shape()
            && a.format().codes == b.format().codes
            && parts(a) == parts(b)
            && a.zero_points() == b.zero_points())
}

/// Of layers that share a weight, one that multiplies knows what is done to activations.
fn insert(
    weights: &mut BTreeMap<String, (LayerKind, Quantized, Format)>,
    name: &str,
    held: Held,
) -> Result<()> {
    let format = held.weight.format();
    let Some((kind, known, known_format)) = weights.get_mut(name) else {
        weights.insert(name.to_owned(), (held.kind, held.weight, format));
        return Ok(());
    };
    let same = equals(known, &held.weight);
    let activations = (known_format.activation, format.activation);
    let agree = match activations {
        (Some(known), Some(own)) => known == own,
        _ => true,
    };
    if !(same && agree && known_format.codes == format.codes) {
        return Err(contested(name).at(&held.path));
    }
    if known_format.activation.is_none() {
        (*kind, *known_format) = (held.kind, format);
    }
    Ok(())
}

fn config(
    weights: &BTreeMap<String, (LayerKind, Quantized, Format)>,
    embeddings: &[String],
    mut ignore: Vec<String>,
    source: &Checkpoint,
) -> Option<Value> {
    let (mut linears, mut tables) = (Vec::new(), Vec::new());
    for (name, (kind, _, format)) in weights {
        let Some(module) = name.strip_suffix(".weight") else {
            continue;
        };
        let to = match kind {
            _ if embeddings.iter().any(|own| own == module) => &mut tables,
            LayerKind::Linear => &mut linears,
            _ => continue,
        };
        if format.codes.is_none() {
            ignore.push(module.to_owned());
        }
        to.push(Module {
            name: module.to_owned(),
            format: *format,
        });
    }
    // Matrices of layers that the model does not show may be Linears'.
    for (name, _, entry) in source.opened.files.tensors() {
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
    config::entry(&linears, &tables, &ignore, &source.opened)
}

/// The tensors of a weight of that format.
pub(super) fn planned(
    name: &str,
    shape: [usize; 2],
    format: Format,
    zeros: &Zeros,
) -> Vec<Planned> {
    let tensor = |suffix: &str, dtype, shape: &[usize]| Planned {
        name: format!("{name}{suffix}"),
        dtype,
        shape: shape.to_vec(),
    };
    let Some(codes) = format.codes else {
        return vec![tensor("", format.halves().into(), &shape)];
    };
    let of_scales: &[usize] = match codes.qscheme.is_per_channel() {
        true => &[shape[0], 1],
        false => &[shape[0].min(1)],
    };
    let mut all = vec![
        tensor("", Dtype::I8, &shape),
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
        if let Some((_, weight, format)) = self.weights.get(name) {
            return Some(planned(
                name,
                weight.shape(),
                *format,
                &weight.zero_points(),
            ));
        }
        if let Some(planned) = self.floats.planned(name) {
            return Some(planned);
        }
        // Of a weight that was quantized before, and is now quantized otherwise or float.
        let old = &self.source.opened.weights;
        let mut own = self.weights.keys().chain(self.floats.names());
        let goes = belongs(old, name) && own.any(|own| is_companion(name, own));
        goes.then(Vec::new)
    }

    fn write(&mut self, name: &str, to: &mut Writer<'_>) -> Result<()> {
        let Some((_, weight, _)) = self.weights.get(name) else {
            return self.floats.write(name, to);
        };
        if let Some(halves) = weight.halves() {
            return to.write(name, &halves.to_bytes());
        }
        let codes = weight.codes().into_iter();
        let bytes: Vec<u8> = codes.map(i8::cast_unsigned).collect();
        to.write(name, &bytes)?;
        write_qparams(name, &weight.scales(), &weight.zero_points(), to)
    }

    fn formats(&self) -> BTreeMap<String, Format> {
        let mut formats: BTreeMap<_, _> = (self.source.opened.weights.iter())
            .filter(|(name, _)| self.floats.planned(name).is_none())
            .filter_map(|(name, kind)| match kind {
                Kind::Whole(format) => Some((name.clone(), *format)),
                Kind::Groups(_) => None,
            })
            .collect();
        let own = self.weights.iter();
        formats.extend(own.map(|(name, (_, _, format))| (name.clone(), *format)));
        formats
    }

    fn config(&self) -> Option<Value> {
        self.config.clone()
    }

    fn progress(&mut self, _: u64) {}
}

pub(super) fn missing(name: &str, got: &str) -> Error {
    Error::Unsavable {
        expected: format!("a tensor {name:?} in the checkpoint"),
        got: got.into(),
    }
}

/// Of layers that need different tensors under one name.
pub(super) fn contested(name: &str) -> Error {
    Error::Unsavable {
        expected: format!("one weight for the tensor {name:?}"),
        got: "two layers with different ones".into(),
    }
}

fn is_companion(name: &str, weight: &str) -> bool {
    let suffix = name.strip_prefix(weight);
    suffix.is_some_and(|suffix| [SCALE, ZERO_POINT, UNSIGNED_ZERO_POINT].contains(&suffix))
}
