//! The layers that a search decides on, and what it decides.

use std::collections::BTreeSet;

use crate::kernels::Precision;
use crate::module::{LayerKind, WeightDType};
use crate::qconfig::{IntType, QConfig};
use crate::quantize::survey::FoundLayer;
use crate::weight::Format;
use crate::words::words;

/// The precision of a layer, in the order in which layers fall back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LayerPrecision {
    /// 4-bit integers in groups, where the spec says so.
    Int4,
    /// 8-bit codes, as the spec says, or by [`QConfig::int8`](crate::QConfig::int8) where it says 4
    /// bits.
    Int8,
    /// 8-bit codes by [`QConfig::int8`](crate::QConfig::int8), where the spec
    /// says otherwise.
    Int8PerRow,
    /// bfloat16: of attention, and of weights where the spec says so.
    BFloat16,
    /// float16 weights.
    Float16,
    /// The float weights as they were.
    Float,
}

words!(LayerPrecision, "precision", prefix "", {
    Int4 => "int4", Int8 => "int8", Int8PerRow => "int8_per_row", BFloat16 => "bfloat16",
    Float16 => "float16", Float => "float",
});

impl LayerPrecision {
    /// The configuration that a layer has in this precision, where the spec's is `given`.
    pub(super) fn of_layer(self, kind: &LayerKind, given: &QConfig) -> Option<QConfig> {
        let format = Format::from(given);
        let is_attention = *kind == LayerKind::Attention;
        let is_int4 = format.groups().is_some_and(|g| g.dtype == IntType::Int4);
        let is_bfloat16 = *given == QConfig::bfloat16();
        let per_row = QConfig::int8();
        match self {
            Self::Int4 => is_int4.then(|| given.clone()),
            Self::Int8 if is_int4 => Some(per_row),
            Self::Int8 => format.half().is_none().then(|| given.clone()),
            Self::Int8PerRow => {
                let other = format.dynamic().is_some() && *given != per_row;
                (other && !is_attention && *kind != LayerKind::Embedding).then_some(per_row)
            }
            Self::BFloat16 => (is_attention || is_bfloat16).then(QConfig::bfloat16),
            Self::Float16 => (!is_attention && !is_bfloat16).then(QConfig::float16),
            Self::Float => None,
        }
    }

    /// The precision of a layer that was not tuned.
    pub(super) fn now(layer: &FoundLayer) -> Self {
        let all = |dtype| layer.weights.iter().all(|weight| weight.dtype == dtype);
        match layer.precision {
            _ if !layer.is_quantized() => Self::Float,
            Some(Precision::BFloat16) => Self::BFloat16,
            Some(_) => Self::Int8,
            None if all(WeightDType::BF16) => Self::BFloat16,
            None if all(WeightDType::F16) => Self::Float16,
            None if all(WeightDType::Int4) => Self::Int4,
            None => Self::Int8,
        }
    }

    pub(super) fn is_int8(self) -> bool {
        matches!(self, Self::Int8 | Self::Int8PerRow)
    }
}

/// A layer, or several that share a quantized weight and therefore change together.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    /// Paths of the layers; the first counts the weight.
    pub paths: Vec<String>,
    pub kind: LayerKind,
    /// Elements of its weights.
    pub parameters: usize,
    /// Elements of a row of its output, about.
    pub channels: usize,
    /// Bytes of an element of the float weight.
    pub float_bytes: usize,
    /// The possible precisions, the last of which is `Float`.
    pub precisions: BTreeSet<LayerPrecision>,
}

impl Unit {
    /// The first possible precision of the unit from `wanted` on.
    fn at(&self, wanted: LayerPrecision) -> LayerPrecision {
        let mut from = self.precisions.range(wanted..);
        from.next().copied().unwrap_or(LayerPrecision::Float)
    }

    /// Bytes of its weights without scales and padding, which depend on the instruction set; for
    /// attention, which has none, the bytes of a factor.
    fn bytes(&self, precision: LayerPrecision) -> usize {
        let elements = self.parameters.max(1);
        match precision {
            LayerPrecision::Int4 => elements.div_ceil(2),
            LayerPrecision::Int8 | LayerPrecision::Int8PerRow => elements,
            LayerPrecision::BFloat16 | LayerPrecision::Float16 => 2 * elements,
            LayerPrecision::Float => self.float_bytes * elements,
        }
    }
}

/// A precision for each unit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Assignment(pub Vec<LayerPrecision>);

/// All units of a model, in the order of the walk.
#[derive(Clone, Debug)]
pub(super) struct Units(pub Vec<Unit>);

impl Units {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The same precision for all units, as far as they support it.
    pub fn uniform(&self, precision: LayerPrecision) -> Assignment {
        Assignment(self.0.iter().map(|unit| unit.at(precision)).collect())
    }

    /// `base` with another precision for some of the units.
    pub fn with(
        &self,
        base: &Assignment,
        units: &[usize],
        precision: LayerPrecision,
    ) -> Assignment {
        let mut changed = base.clone();
        for &unit in units {
            changed.0[unit] = self.0[unit].at(precision);
        }
        changed
    }

    /// Bytes of all weights: a measure of time as well, as products wait for weights.
    pub fn bytes(&self, assignment: &Assignment) -> usize {
        let units = self.0.iter().zip(&assignment.0);
        units.map(|(unit, precision)| unit.bytes(*precision)).sum()
    }

    /// The precisions that a search begins with: 4 bits, or else 8, or else the first of each.
    pub fn starts(&self) -> Vec<LayerPrecision> {
        let all = self.precisions();
        match all.first() {
            Some(first) if first.is_int8() => all.iter().copied().filter(|p| p.is_int8()).collect(),
            first => first.copied().into_iter().collect(),
        }
    }

    /// The precisions that layers fall back to, in turn.
    pub fn fallbacks(&self) -> Vec<LayerPrecision> {
        let starts = self.starts();
        let all = self.precisions().into_iter();
        all.filter(|p| !starts.contains(p)).collect()
    }

    fn precisions(&self) -> BTreeSet<LayerPrecision> {
        self.0.iter().flat_map(|unit| unit.precisions.iter().copied()).collect()
    }

    /// Kinds, those with most parameters first, and the units of each.
    pub fn kinds(&self) -> Vec<(LayerKind, Vec<usize>)> {
        let mut kinds: Vec<(LayerKind, Vec<usize>)> = Vec::new();
        for (index, unit) in self.0.iter().enumerate() {
            match kinds.iter_mut().find(|(kind, _)| *kind == unit.kind) {
                Some((_, units)) => units.push(index),
                None => kinds.push((unit.kind.clone(), vec![index])),
            }
        }
        let parameters =
            |units: &[usize]| units.iter().map(|&i| self.0[i].parameters).sum::<usize>();
        kinds.sort_by_key(|(_, units)| std::cmp::Reverse(parameters(units)));
        kinds
    }
}
