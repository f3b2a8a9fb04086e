//! Quantize beside the model, rehearse, install: an error in the first two changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::spec::Decision;
use super::survey::Survey;
use crate::error::{Error, Result};
use crate::module::{AnyLayer, Quantizable, Visitor, VisitorMut, Walk, WalkMut};
use crate::qconfig::QConfig;

/// Quantized layers by path, ready to take their places.
pub(super) type Replacements = BTreeMap<String, Box<dyn AnyLayer>>;

/// Quantizes every layer that was decided for.
pub(super) fn quantize<M: Quantizable + ?Sized>(
    model: &M,
    survey: &Survey,
    decisions: &[Decision],
) -> Result<Replacements> {
    struct Quantize<'a> {
        qconfigs: BTreeMap<&'a str, &'a QConfig>,
        done: Replacements,
    }

    impl Visitor for Quantize<'_> {
        fn layer(&mut self, path: &str, layer: &dyn AnyLayer) -> Result<()> {
            if let Some(qconfig) = self.qconfigs.get(path) {
                let quantized = layer.quantize_boxed(qconfig)?;
                self.done.insert(path.to_owned(), quantized);
            }
            Ok(())
        }
    }

    let mut visitor = Quantize {
        qconfigs: survey
            .layers
            .iter()
            .zip(decisions)
            .filter_map(|(layer, decision)| match decision {
                Decision::Swap(qconfig) => Some((layer.path.as_str(), qconfig)),
                Decision::Leave(_) => None,
            })
            .collect(),
        done: Replacements::new(),
    };
    Walk::over(model, &mut visitor)?;
    Ok(visitor.done)
}

/// Checks that every replacement will find its place, without changing anything.
pub(super) fn rehearse<M: Quantizable + ?Sized>(
    model: &mut M,
    replacements: &Replacements,
) -> Result<()> {
    struct Rehearse<'a> {
        replacements: &'a Replacements,
        waiting: BTreeSet<&'a str>,
    }

    impl VisitorMut for Rehearse<'_> {
        fn layer(&mut self, path: &str, layer: &mut dyn AnyLayer) -> Result<bool> {
            if let Some(replacement) = self.replacements.get(path) {
                let fits = layer.accepts(&**replacement);
                if !(self.waiting.remove(path) && fits) {
                    return Err(Error::InconsistentWalk {
                        message: "visit_mut shows another layer here".into(),
                    });
                }
            }
            Ok(false)
        }
    }

    let mut visitor = Rehearse {
        replacements,
        waiting: replacements.keys().map(String::as_str).collect(),
    };
    WalkMut::over(model, &mut visitor)?;
    match visitor.waiting.first() {
        None => Ok(()),
        Some(path) => Err(Error::InconsistentWalk {
            message: format!("visit_mut does not reach {path}"),
        }),
    }
}

/// Puts every replacement in its place.
pub(super) fn install<M: Quantizable + ?Sized>(
    model: &mut M,
    replacements: Replacements,
) -> Result<()> {
    struct Install(Replacements);

    impl VisitorMut for Install {
        fn layer(&mut self, path: &str, layer: &mut dyn AnyLayer) -> Result<bool> {
            match self.0.remove(path) {
                Some(replacement) => layer.install(replacement).map(|()| true),
                None => Ok(false),
            }
        }
    }

    WalkMut::over(model, &mut Install(replacements))
}
