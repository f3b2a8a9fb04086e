//! Quantize beside the model, rehearse, install: an error in the first two changes nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::outcome::LeftReason;
use super::progress::Reporter;
use super::spec::decision::{Decision, Refusal};
use super::survey::Survey;
use crate::error::{Error, Fault, Result};
use crate::module::{
    Layer, LayerKind, LentWeight, Quantizable, Visitor, VisitorMut, Walk, WalkMut, WeightId,
    WeightInfo,
};
use crate::qconfig::QConfig;
use crate::trace;

/// Quantized layers by path, ready to take their places.
pub(crate) type Replacements = BTreeMap<String, Box<dyn Layer>>;

/// The quantized layers, not yet installed.
#[derive(Default)]
pub(crate) struct QuantizedLayers {
    pub replacements: Replacements,
    /// Layers that read the quantized weight of another, by path, and the path of the other.
    pub sharing: BTreeMap<String, String>,
    /// Layers that are left because of an error, by path.
    pub refused: BTreeMap<String, Error>,
}

impl QuantizedLayers {
    /// Turns the decisions for layers that were refused into the reasons why they are left.
    ///
    /// # Errors
    /// The first refusal, where nothing is quantized because of it.
    pub fn settle(&mut self, survey: &Survey, decisions: &mut [Decision]) -> Result<()> {
        let mut first = None;
        for (layer, decision) in survey.layers.iter().zip(&mut *decisions) {
            let Some(error) = self.refused.remove(&layer.path) else { continue };
            if let Some(reason) = LeftReason::of_limit(&error) {
                *decision = Decision::Leave(reason);
            }
            first.get_or_insert_with(|| error.at(&layer.path));
        }
        match first {
            Some(error) if !decisions.iter().any(Decision::is_quantized) => Err(error),
            _ => Ok(()),
        }
    }
}

/// Quantizes every layer that was decided for.
///
/// Layers that hold one matrix quantize it once, where they can read the same weight. Embeddings
/// come last: they can read what others multiply with, not the other way round. Layers that are
/// `prepared` already are taken as they are.
pub(crate) fn quantize<M: Quantizable + ?Sized>(
    model: &M,
    survey: &Survey,
    decisions: &[Decision],
    prepared: Replacements,
    reporter: Reporter<'_>,
) -> Result<QuantizedLayers> {
    let mut visitor = Quantize {
        qconfigs: survey
            .layers
            .iter()
            .zip(decisions)
            .filter_map(|(layer, decision)| match decision {
                Decision::Swap { qconfig, refusal } => {
                    Some((layer.path.as_str(), (qconfig, *refusal)))
                }
                Decision::Leave(_) => None,
            })
            .collect(),
        embeddings: false,
        prepared,
        lent: HashMap::new(),
        done: QuantizedLayers::default(),
        reporter,
    };
    Walk::over(model, &mut visitor)?;
    visitor.embeddings = true;
    Walk::over(model, &mut visitor)?;
    visitor.reporter.finish()?;
    Ok(visitor.done)
}

/// The visitor that quantizes the layers of one pass.
struct Quantize<'a, 'r> {
    /// The configuration of each layer by path, with the consequence of an error.
    qconfigs: BTreeMap<&'a str, (&'a QConfig, Refusal)>,
    /// Whether this walk is for the embeddings.
    embeddings: bool,
    prepared: Replacements,
    /// Weights lent by quantized layers, with their paths, by the float matrix they were made
    /// from.
    lent: HashMap<WeightId, (String, LentWeight)>,
    done: QuantizedLayers,
    reporter: Reporter<'r>,
}

impl Visitor for Quantize<'_, '_> {
    fn layer(&mut self, path: &str, layer: &dyn Layer) -> Result<()> {
        let Some(&(qconfig, refusal)) = self.qconfigs.get(path) else { return Ok(()) };
        let embedding = layer.kind() == LayerKind::Embedding;
        if embedding != self.embeddings || self.reporter.is_cancelled() {
            return Ok(());
        }
        let weights = layer.weight_infos();
        trace::quantize_layer!(path, layer, weights, qconfig);
        let lent = weights.iter().find_map(|w| self.lent.get(w.id.as_ref()?));
        let sharing = lent.and_then(|(lender, weight)| {
            Some((lender.clone(), layer.quantize_sharing_boxed(qconfig, weight)?))
        });
        let prepared = self.prepared.remove(path);
        let quantized = match sharing {
            Some((lender, quantized)) => {
                self.done.sharing.insert(path.to_owned(), lender);
                quantized
            }
            None => match prepared.map_or_else(|| layer.quantize_boxed(qconfig), Ok) {
                Err(error) if refusal.leaves(&error) => {
                    self.done.refused.insert(path.to_owned(), error);
                    self.reporter.advance(path, &weights);
                    return Ok(());
                }
                quantized => {
                    let quantized = quantized?;
                    self.lend(path, &weights, &*quantized);
                    quantized
                }
            },
        };
        self.done.replacements.insert(path.to_owned(), quantized);
        self.reporter.advance(path, &weights);
        Ok(())
    }
}

impl Refusal {
    /// Whether the layer of an error is left.
    fn leaves(self, error: &Error) -> bool {
        match self {
            Self::Fails => false,
            Self::LeavesAtLimit => LeftReason::of_limit(error).is_some(),
            Self::Leaves => true,
        }
    }
}

impl Quantize<'_, '_> {
    /// Lends the weights of a quantized layer to those that share the matrices they were made from.
    fn lend(&mut self, path: &str, weights: &[WeightInfo], quantized: &dyn Layer) {
        for weight in weights {
            if let (Some(id), Some(lent)) = (&weight.id, quantized.lend(&weight.name)) {
                let lender = || (path.to_owned(), lent);
                self.lent.entry(id.clone()).or_insert_with(lender);
            }
        }
    }
}

/// Checks that every replacement will find its place, without changing anything.
pub(crate) fn rehearse<M: Quantizable + ?Sized>(
    model: &mut M,
    replacements: &Replacements,
) -> Result<()> {
    struct Rehearse<'a> {
        replacements: &'a Replacements,
        waiting: BTreeSet<&'a str>,
    }

    impl VisitorMut for Rehearse<'_> {
        fn layer(&mut self, path: &str, layer: &mut dyn Layer) -> Result<bool> {
            if let Some(replacement) = self.replacements.get(path) {
                let fits = layer.accepts(&**replacement);
                if !(self.waiting.remove(path) && fits) {
                    return Err(Error::from(Fault::InconsistentWalk {
                        message: "visit_mut shows another layer here".into(),
                    }));
                }
            }
            Ok(false)
        }
    }

    let mut visitor =
        Rehearse { replacements, waiting: replacements.keys().map(String::as_str).collect() };
    WalkMut::over(model, &mut visitor)?;
    match visitor.waiting.first() {
        None => Ok(()),
        Some(path) => Err(Error::from(Fault::InconsistentWalk {
            message: format!("visit_mut does not reach {path}"),
        })),
    }
}

/// Puts every replacement in its place, or none where the walk ends early; returns the layers that
/// stood there.
pub(crate) fn install<M: Quantizable + ?Sized>(
    model: &mut M,
    replacements: Replacements,
) -> Result<Replacements> {
    /// Exchanges the layers, and keeps those that stood there.
    struct Install {
        waiting: Replacements,
        replaced: Replacements,
    }

    impl VisitorMut for Install {
        fn layer(&mut self, path: &str, layer: &mut dyn Layer) -> Result<bool> {
            let Some(replacement) = self.waiting.remove(path) else { return Ok(false) };
            self.replaced.insert(path.to_owned(), layer.install(replacement)?);
            Ok(true)
        }
    }

    let install = Install { waiting: replacements, replaced: Replacements::new() };
    let install = WalkMut::over_or_undo(model, install, |install| {
        Box::new(Install { waiting: install.replaced, replaced: Replacements::new() })
    })?;
    Ok(install.replaced)
}
