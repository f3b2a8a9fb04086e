//! Float tensors of a model that are others than its checkpoint's: those of equalized layers and norms.

use std::collections::BTreeMap;

use candle_core::Tensor;
use safetensors::View;

use super::collect::{HeldNorm, join};
use super::files::Files;
use super::header::invalid;
use super::save::{contested, missing};
use super::shard::is_float;
use super::writer::{Planned, Writer};
use crate::error::Result;
use crate::module::Affine;
use crate::stored::{EQUALIZED, RESIDUAL};

/// Tensors with their names, by the name of the source's tensor that they stand for.
#[derive(Default)]
pub(super) struct Floats(BTreeMap<String, Vec<(String, Tensor)>>);

/// The tensors of the source that are a norm's parameters, the weight first.
struct Placed<'a> {
    prefix: &'a str,
    weight: String,
    others: Vec<String>,
}

impl HeldNorm {
    /// `None` if the source has no weight under its names.
    fn placed(&self, files: &Files) -> Option<Placed<'_>> {
        let mut prefixes = self.prefixes.iter();
        prefixes.find_map(|prefix| {
            let own = join(prefix, EQUALIZED);
            let of = |name, old| [join(&own, name), join(prefix, name), join(prefix, old)];
            let present = |names: &[String]| {
                let mut names = names.iter();
                names.find(|name| files.find(name).is_some()).cloned()
            };
            let weight = present(&of("weight", "gamma"))?;
            let bias = self.affine.bias.as_ref();
            let bias = bias.and_then(|_| present(&of("bias", "beta")));
            let factors = present(&[join(&own, RESIDUAL)]);
            Some(Placed {
                prefix,
                weight,
                others: bias.into_iter().chain(factors).collect(),
            })
        })
    }

    /// Checks that the tensor which the weight replaces is one like it.
    fn check(&self, weight: &str, files: &Files) -> Result<()> {
        let shape = self.affine.weight.dims();
        match files.find(weight) {
            Some((_, entry)) if entry.shape != shape || !is_float(entry.dtype) => {
                let got = format!("{} {:?}", entry.dtype, entry.shape);
                Err(invalid(weight, format!("floats {shape:?}"), got))
            }
            _ => Ok(()),
        }
    }

    /// Its parameters as they are written.
    fn tensors(&self, prefix: &str) -> Vec<(String, Tensor)> {
        let Affine {
            weight,
            bias,
            residual,
        } = &self.affine;
        let prefix = match residual {
            Some(_) => join(prefix, EQUALIZED),
            None => prefix.to_owned(),
        };
        let named = [
            ("weight", Some(weight)),
            ("bias", bias.as_ref()),
            (RESIDUAL, residual.as_ref()),
        ];
        let named = named.into_iter();
        let named = named.filter_map(|(name, tensor)| Some((join(&prefix, name), tensor?.clone())));
        named.collect()
    }
}

impl Floats {
    /// Adds a tensor in the place of that of the same name.
    pub fn add(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        self.insert(name, vec![(name.to_owned(), tensor.clone())])
    }

    /// Adds the norms that are others than those of the source.
    pub fn add_norms(&mut self, norms: &[HeldNorm], files: &Files) -> Result<()> {
        let mut copied = BTreeMap::new();
        for norm in norms {
            let mut add = || {
                let Some(placed) = norm.placed(files) else {
                    return if norm.folded {
                        Err(missing(&join(&norm.prefixes[0], "weight"), "none"))
                    } else {
                        Ok(())
                    };
                };
                if !norm.folded {
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
        let contested_by = |(name, norm): (String, &HeldNorm)| {
            if self.0.contains_key(&name) {
                Err(contested(&name).at(&norm.path))
            } else {
                Ok(())
            }
        };
        copied.into_iter().try_for_each(contested_by)
    }

    /// Layers of one name need equal tensors.
    fn insert(&mut self, name: &str, tensors: Vec<(String, Tensor)>) -> Result<()> {
        let same = |known: &[(String, Tensor)]| {
            let pairs = known.iter().zip(&tensors);
            known.len() == tensors.len()
                && pairs.clone().all(|(a, b)| a.0 == b.0)
                && pairs.clone().all(|(a, b)| a.1.data() == b.1.data())
        };
        if self.0.get(name).is_some_and(|known| !same(known)) {
            return Err(contested(name));
        }
        self.0.insert(name.to_owned(), tensors);
        Ok(())
    }

    /// The names of the source's tensors that these stand for.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    /// The tensors that stand for one of the source; `None` if it is copied.
    pub fn planned(&self, name: &str) -> Option<Vec<Planned>> {
        let planned = self.0.get(name)?.iter().map(|(name, tensor)| Planned {
            name: name.clone(),
            dtype: View::dtype(tensor),
            shape: tensor.dims().to_vec(),
        });
        Some(planned.collect())
    }

    /// Writes those tensors.
    pub fn write(&self, name: &str, to: &mut Writer<'_>) -> Result<()> {
        let mut tensors = self.0.get(name).into_iter().flatten();
        tensors.try_for_each(|(name, tensor)| to.write(name, &tensor.data()))
    }
}
