//! A model with the factors of pairs folded into its parameters.

use std::collections::BTreeMap;

use candle_core::Tensor;

use super::factors::{column_maxima, factors};
use super::report::EqualizedPair;
use crate::error::{Error, Result};
use crate::module::{AnyNorm, Layer, Quantizable, VisitorMut, Walk, WalkMut};

/// A pair with its factors, `[hidden]`.
pub(super) struct Fold {
    pub pair: EqualizedPair,
    factors: Tensor,
}

impl Fold {
    /// Computes the fold from the ranges of what its layers read.
    pub fn new<M: Quantizable>(
        model: &M,
        pair: EqualizedPair,
        ranges: &[f32],
        alpha: f64,
    ) -> Result<Self> {
        let mut weights = Vec::new();
        Walk::layers(model, |path, layer| {
            if pair.layers.iter().any(|reader| reader == path) {
                weights.extend(layer.weights()?);
            }
            Ok(())
        })?;
        let columns = column_maxima(&weights).map_err(|e| e.at(&pair.source))?;
        let factors = factors(ranges, &columns, alpha).map_err(|e| e.at(&pair.source))?;
        Ok(Self { pair, factors })
    }
}

/// A copy of the model with all folds in it.
pub(super) fn fold<M: Quantizable + Clone>(model: &M, folds: &[Fold]) -> Result<M> {
    struct Apply<'a> {
        divided: BTreeMap<&'a str, &'a Tensor>,
        layers: BTreeMap<&'a str, &'a Tensor>,
        residuals: BTreeMap<&'a str, &'a Tensor>,
    }

    impl VisitorMut for Apply<'_> {
        fn layer(&mut self, path: &str, layer: &mut dyn Layer) -> Result<bool> {
            let of_columns = self.layers.get(path).map(|&factors| factors.clone());
            // Powers of two, whose reciprocals are exact.
            let of_rows = self.divided.get(path).map(|factors| factors.recip());
            let scales = [(0, of_rows.transpose()?), (1, of_columns)];
            let scales = scales.into_iter().filter_map(|(dim, it)| Some((dim, it?)));
            let mut changed = false;
            for (dim, factors) in scales {
                let scaled = layer.scale_boxed(dim, &factors)?;
                let scaled = scaled.ok_or_else(|| {
                    Error::qconfig("a float layer whose weight can be scaled", layer.kind())
                })?;
                layer.install(scaled)?;
                changed = true;
            }
            Ok(changed)
        }

        fn norm(&mut self, path: &str, norm: &mut dyn AnyNorm) -> Result<bool> {
            let mut affine = norm.affine();
            if let Some(factors) = self.divided.get(path) {
                let divided = |parameter: &Tensor| -> Result<Tensor> {
                    let factors = factors.to_dtype(parameter.dtype())?;
                    Ok(parameter.broadcast_div(&factors)?)
                };
                affine.weight = divided(&affine.weight)?;
                affine.bias = affine.bias.as_ref().map(divided).transpose()?;
            }
            if let Some(factors) = self.residuals.get(path) {
                affine.residual = Some(match affine.residual {
                    None => (*factors).clone(),
                    Some(before) => before.broadcast_mul(factors)?,
                });
            }
            let changed = self.divided.contains_key(path) || self.residuals.contains_key(path);
            if changed {
                norm.set_affine(affine);
            }
            Ok(changed)
        }
    }

    let all = |paths: fn(&EqualizedPair) -> &[String]| {
        let each = folds.iter();
        let each = each
            .flat_map(|fold| paths(&fold.pair).iter().map(|path| (path.as_str(), &fold.factors)));
        each.collect::<BTreeMap<_, _>>()
    };
    let mut apply = Apply {
        divided: all(|pair| std::slice::from_ref(&pair.source)),
        layers: all(|pair| &pair.layers),
        residuals: all(|pair| &pair.residuals),
    };
    let mut folded = model.clone();
    WalkMut::over(&mut folded, &mut apply)?;
    Ok(folded)
}
