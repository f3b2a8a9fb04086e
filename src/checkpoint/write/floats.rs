//! Float tensors of a model that differ from its checkpoint's: of layers and norms that were
//! equalized, or changed after they were loaded.

use std::borrow::Cow;
use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};
use safetensors::View;

use super::collect::{Collect, Float, Held, HeldBias, HeldNorm, join};
use super::placing::{contested, missing, place};
use super::rewrite::Output;
use super::writer::{Planned, Writer};
use crate::checkpoint::read::{Entry, Files, Opened, invalid, matrix};
use crate::error::Result;
use crate::module::Affine;
use crate::tensor::bits;
use crate::weight::origin::{Part, Source, equals};
use crate::weight::{EQUALIZED, RESIDUAL};

/// Tensors with their names, by the name of the source's tensor that they stand for.
#[derive(Default)]
pub struct Floats(BTreeMap<String, Vec<(String, Tensor)>>);

/// A float layer and the part of a tensor that its weight is.
struct Located<'a> {
    part: Part,
    held: &'a Held<Float>,
    /// Whether the source has other elements there.
    is_changed: bool,
}

/// The layers of each tensor of the source.
type Layers<'a> = BTreeMap<String, Vec<Located<'a>>>;

/// The tensors of the source that are a norm's parameters, the weight first.
struct PlacedNorm<'a> {
    prefix: &'a str,
    weight: String,
    others: Vec<String>,
}

/// The float layers by the tensors of the source, and the paths of layers that may be in
/// none.
fn locate<'a>(floats: &'a [Held<Float>], source: &Opened) -> Result<(Layers<'a>, Vec<String>)> {
    let (mut found, mut unsaved) = (Layers::new(), Vec::new());
    for held in floats {
        let place = place(held, &[held.weight.tensor.dims().to_vec()], source);
        match place.map_err(|e| e.at(&held.path)) {
            Ok(Some(place)) => {
                let (name, part) = place.part(source)?;
                let is_changed = !equals(&as_matrix(&held.weight.tensor)?, &name, part, source)?;
                if is_changed && !held.is_known() {
                    unsaved.push(held.path.clone());
                    continue;
                }
                found.entry(name).or_default().push(Located { part, held, is_changed });
            }
            Err(error) if held.weight.folded || held.origin.is_some() => return Err(error),
            Ok(None) if held.weight.folded => {
                return Err(missing(&held.names[0], "none").at(&held.path));
            }
            Ok(None) | Err(_) => unsaved.push(held.path.clone()),
        }
    }
    Ok((found, unsaved))
}

/// A weight as a matrix, whose columns are its last axis.
fn as_matrix(weight: &Tensor) -> Result<Tensor> {
    Ok(match weight.rank() {
        rank @ 3.. => weight.flatten_to(rank - 2)?,
        _ => weight.clone(),
    })
}

/// Whether the source has a vector of this name and shape, with other elements.
fn differs(vector: &Tensor, name: &str, source: &Opened) -> Result<bool> {
    let is_like = |entry: &Entry| entry.shape == vector.dims() && entry.is_float();
    let found = source.files.find(name).filter(|(_, entry)| is_like(entry));
    let (Some(_), &[count]) = (found, vector.dims()) else { return Ok(false) };
    Ok(!equals(&vector.unsqueeze(0)?, name, Part::rows(0, [1, count]), source)?)
}

/// A tensor of the source with other elements in some parts.
fn patched(name: &str, layers: &[Located<'_>], source: &Opened) -> Result<Tensor> {
    let (_, entry) = source.tensor(name)?;
    let whole = Part::rows(0, matrix(name, entry)?);
    let changed = layers.iter().filter(|layer| layer.is_changed);
    if let Some(layer) = changed.clone().find(|layer| layer.part == whole) {
        return Ok(layer.held.weight.tensor.reshape(&entry.shape[..])?);
    }
    let mut values = source.elements(name, 0..entry.elements())?;
    for layer in changed {
        let elements = layer.held.weight.tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        for (at, value) in layer.part.elements().zip(elements) {
            values[at] = value;
        }
    }
    Ok(Tensor::from_vec(values, &entry.shape[..], &Device::Cpu)?)
}

fn is_part(matrix: &Tensor, part: Part, whole: &Tensor) -> Result<bool> {
    let (whole, matrix) = (bits(whole)?, bits(matrix)?);
    let mut values = matrix.iter().zip(part.elements());
    Ok(values.all(|(value, at)| *value == whole[at]))
}

impl Held<Float> {
    /// Whether the weight was a tensor of the checkpoint, or was equalized: a weight that a loader
    /// computes is computed again, and only its path would tell what it is.
    fn is_known(&self) -> bool {
        self.by_name || self.origin.is_some() || self.weight.folded
    }
}

impl HeldNorm {
    /// The tensors of the source that are the parameters; `None` if it has no weight under their
    /// names.
    fn placed(&self, files: &Files) -> Option<PlacedNorm<'_>> {
        let mut prefixes = self.prefixes.iter();
        prefixes.find_map(|prefix| {
            let equalized = join(prefix, EQUALIZED);
            let names = |name, old| [join(&equalized, name), join(prefix, name), join(prefix, old)];
            let present = |names: &[String]| {
                let mut names = names.iter();
                names.find(|name| files.find(name).is_some()).cloned()
            };
            let weight = present(&names("weight", "gamma"))?;
            let bias = self.affine.bias.as_ref();
            let bias = bias.and_then(|_| present(&names("bias", "beta")));
            let factors = present(&[join(&equalized, RESIDUAL)]);
            Some(PlacedNorm { prefix, weight, others: bias.into_iter().chain(factors).collect() })
        })
    }

    /// Checks that the tensor which the weight replaces is one like it.
    fn check(&self, weight: &str, files: &Files) -> Result<()> {
        let shape = self.affine.weight.dims();
        match files.find(weight) {
            Some((_, entry)) if entry.shape != shape || !entry.is_float() => {
                Err(invalid(weight, format!("floats {shape:?}"), entry.kind()))
            }
            _ => Ok(()),
        }
    }

    /// The parameters by their names, in the order in which [`placed`](Self::placed) finds them.
    fn parameters(&self) -> impl Iterator<Item = (&'static str, &Tensor)> {
        let Affine { weight, bias, residual } = &self.affine;
        let others = [("bias", bias), (RESIDUAL, residual)].into_iter();
        let others = others.filter_map(|(name, tensor)| Some((name, tensor.as_ref()?)));
        std::iter::once(("weight", weight)).chain(others)
    }

    fn is_changed(&self, placed: &PlacedNorm<'_>, source: &Opened) -> Result<bool> {
        let names = [&placed.weight].into_iter().chain(&placed.others);
        let mut changed = self.folded;
        for (name, (_, tensor)) in names.zip(self.parameters()) {
            changed |= differs(tensor, name, source)?;
        }
        Ok(changed)
    }

    fn tensors(&self, prefix: &str) -> Vec<(String, Tensor)> {
        let prefix = match self.affine.residual {
            Some(_) => join(prefix, EQUALIZED),
            None => prefix.to_owned(),
        };
        self.parameters().map(|(name, tensor)| (join(&prefix, name), tensor.clone())).collect()
    }
}

impl Floats {
    /// Adds the tensors that differ between the model and the source.
    ///
    /// Returns the layers whose weight is in no tensor of the source, or may have been computed
    /// from one.
    pub fn new(collect: &Collect, source: &Opened) -> Result<(Self, Vec<String>)> {
        let mut all = Self::default();
        let (layers, mut unsaved) = locate(&collect.floats, source)?;
        for (name, layers) in layers {
            if layers.iter().any(|layer| layer.is_changed) {
                let tensor = patched(&name, &layers, source)?;
                for Located { part, held, .. } in &layers {
                    if !is_part(&held.weight.tensor, *part, &tensor)? {
                        return Err(contested(&name).at(&held.path));
                    }
                }
                all.insert(&name, vec![(name.clone(), tensor)])?;
            }
        }
        for HeldBias { path, name, bias } in &collect.biases {
            if differs(bias, name, source)? {
                all.insert(name, vec![(name.clone(), bias.clone())]).map_err(|e| e.at(path))?;
            }
        }
        unsaved.extend(all.add_norms(&collect.norms, source)?);
        Ok((all, unsaved))
    }

    /// Adds the norms that differ from the source's.
    ///
    /// Returns the norms that may have been computed.
    fn add_norms(&mut self, norms: &[HeldNorm], source: &Opened) -> Result<Vec<String>> {
        let files = &source.files;
        let (mut copied, mut unsaved) = (BTreeMap::new(), Vec::new());
        for norm in norms {
            let mut add = || {
                let Some(placed) = norm.placed(files) else {
                    return if norm.folded {
                        Err(missing(&join(&norm.prefixes[0], "weight"), "none"))
                    } else {
                        Ok(())
                    };
                };
                let is_changed = norm.is_changed(&placed, source)?;
                let is_known = norm.by_name || norm.folded;
                if is_changed && !is_known {
                    unsaved.push(norm.path.clone());
                }
                if !(is_changed && is_known) {
                    copied.insert(placed.weight, norm);
                    return Ok(());
                }
                norm.check(&placed.weight, files)?;
                self.insert(&placed.weight, norm.tensors(placed.prefix))?;
                let mut others = placed.others.iter();
                others.try_for_each(|other| self.insert(other, Vec::new()))
            };
            add().map_err(|e| e.at(&norm.path))?;
        }
        match copied.iter().find(|(name, _)| self.contains(name)) {
            Some((name, norm)) => Err(contested(name).at(&norm.path)),
            None => Ok(unsaved),
        }
    }

    /// Layers of one name need equal tensors.
    fn insert(&mut self, name: &str, tensors: Vec<(String, Tensor)>) -> Result<()> {
        fn each(tensors: &[(String, Tensor)]) -> impl Iterator<Item = (&String, Cow<'_, [u8]>)> {
            tensors.iter().map(|(name, tensor)| (name, tensor.data()))
        }
        let known = self.0.get(name);
        if known.is_some_and(|known| !each(known).eq(each(&tensors))) {
            return Err(contested(name));
        }
        self.0.insert(name.to_owned(), tensors);
        Ok(())
    }

    /// The names of the source's tensors that these stand for.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    pub fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The tensors that stand for a tensor of the source; `None` if it is copied.
    pub fn outputs(&self, name: &str) -> Option<Vec<Output<'_>>> {
        Some(self.0.get(name)?.iter().map(|(name, tensor)| float(name, tensor)).collect())
    }
}

pub fn float<'a>(name: &'a str, tensor: &'a Tensor) -> Output<'a> {
    let planned = Planned::new(name, View::dtype(tensor), tensor.dims());
    let write = move |to: &mut Writer<'_>| to.write(name, &tensor.data());
    Output::New(vec![planned], Box::new(write))
}
