//! Weights as layers hand them out to be saved.

use std::sync::Arc;

use candle_core::Tensor;

use super::format::Format;
use super::groups::Grouped;
use crate::halves::Halves;
use crate::observer::ZeroPoints;
use crate::qparams::QScheme;
use crate::weight::qtable::QTable;
use crate::weight::qweight::QWeight;

/// A weight of a layer, to be saved; see [`Layer::stored`](crate::Layer::stored).
#[derive(Clone, Debug)]
pub struct StoredWeight {
    name: String,
    value: StoredValue,
    bias: Option<Tensor>,
    computed: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum StoredValue {
    Float {
        weight: Tensor,
        /// Whether it was [equalized](crate::equalize()).
        folded: bool,
    },
    Quantized(Quantized),
}

/// A quantized weight, shared with its layer.
#[derive(Clone, Debug)]
pub(crate) enum Quantized {
    Weight {
        weight: Arc<QWeight>,
        /// Whether the layer multiplies, too.
        multiplied: bool,
        /// The shapes of a convolution's tensor in a file and of its float tensor; `None` of matrices.
        shapes: Option<[Vec<usize>; 2]>,
    },
    Table(Arc<QTable>),
}

/// Zero points as they are stored.
#[derive(Debug, PartialEq)]
pub(crate) enum Zeros {
    /// All are 0.
    None,
    /// Each less the offset of the dtype.
    Int(Vec<i32>),
    /// Zero points among the codes from 0 to 255.
    Float(Vec<f32>),
}

impl StoredWeight {
    /// A weight under its name within the layer, as in a checkpoint: `weight`, `weight_ih_l0`.
    pub(crate) fn new(name: impl Into<String>, value: StoredValue) -> Self {
        Self { name: name.into(), value, bias: None, computed: false }
    }

    pub(crate) fn with_bias(self, bias: Option<Tensor>) -> Self {
        Self { bias, ..self }
    }

    /// This weight, which a checkpoint need not have: it is saved under the name that it was loaded
    /// by.
    pub(crate) fn computed(self, computed: bool) -> Self {
        Self { computed, ..self }
    }

    pub(crate) fn is_computed(&self) -> bool {
        self.computed
    }

    /// The name of the weight within the layer, as in a checkpoint: `weight`, `weight_ih_l0`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn into_parts(self) -> (StoredValue, Option<Tensor>) {
        (self.value, self.bias)
    }

    /// The quantized weight; `None` of a float weight.
    pub(crate) fn quantized(&self) -> Option<&Quantized> {
        match &self.value {
            StoredValue::Float { .. } => None,
            StoredValue::Quantized(quantized) => Some(quantized),
        }
    }
}

impl Quantized {
    /// The address of the weight: equal for layers that share it.
    pub fn memory(&self) -> usize {
        match self {
            Self::Weight { weight, .. } => Arc::as_ptr(weight).addr(),
            Self::Table(table) => Arc::as_ptr(table).addr(),
        }
    }

    /// `[out_features, in_features]`.
    pub fn shape(&self) -> [usize; 2] {
        match self {
            Self::Weight { weight, .. } => weight.shape(),
            Self::Table(table) => table.shape(),
        }
    }

    /// The weight of a matrix.
    pub fn matrix(weight: Arc<QWeight>, multiplied: bool) -> Self {
        Self::Weight { weight, multiplied, shapes: None }
    }

    /// The shape of its tensor in a file, and the shape of the float tensor.
    pub fn shapes(&self) -> [Vec<usize>; 2] {
        match self {
            Self::Weight { shapes: Some(shapes), .. } => shapes.clone(),
            _ => [0; 2].map(|_| self.shape().to_vec()),
        }
    }

    pub fn format(&self) -> Format {
        match self {
            Self::Weight { weight, multiplied, .. } => Format {
                activations: weight.format().activations.filter(|_| *multiplied),
                ..weight.format()
            },
            Self::Table(table) => table.format(),
        }
    }

    /// Whether scales of groups are not float16.
    pub fn has_factors(&self) -> bool {
        match self {
            Self::Weight { weight, .. } => weight.has_factors(),
            Self::Table(_) => false,
        }
    }

    /// The codes of a weight in groups.
    pub fn grouped(&self) -> Option<Grouped> {
        match self {
            Self::Weight { weight, .. } => weight.grouped(),
            Self::Table(_) => None,
        }
    }

    /// The codes in row order, each less the offset of the dtype; empty for halves and groups.
    pub fn codes(&self) -> Vec<i8> {
        match self {
            Self::Weight { weight, .. } => weight.packed().codes(),
            Self::Table(table) => table.stored_codes().collect(),
        }
    }

    /// The elements in row order; `None` of int8.
    pub fn halves(&self) -> Option<Halves> {
        match self {
            Self::Weight { weight, .. } => weight.stored_halves(),
            Self::Table(table) => table.stored_halves().cloned(),
        }
    }

    /// The scale of the tensor, or the scales of its rows, as the qscheme says.
    pub fn scales(&self) -> Vec<f32> {
        let scales = match self {
            Self::Weight { weight, .. } => weight.scales(),
            Self::Table(table) => table.scales().to_vec(),
        };
        self.for_each_row(scales)
    }

    pub fn zero_points(&self) -> Zeros {
        let codes = self.format().codes();
        let offset = codes.map_or(0, |codes| codes.dtype.offset());
        let (zero_points, qscheme) = match self {
            Self::Weight { weight, .. } => (weight.zero_points(), weight.qscheme()),
            Self::Table(table) => match table.zero_points() {
                Some(ZeroPoints::Float(zero_points)) => {
                    return Zeros::Float(self.for_each_row(zero_points.clone()));
                }
                Some(ZeroPoints::Int(zero_points)) => (zero_points.clone(), table.qscheme()),
                None => (Vec::new(), None),
            },
        };
        let mut zero_points = self.for_each_row(zero_points);
        zero_points.iter_mut().for_each(|zero| *zero -= offset);
        if qscheme.is_none_or(QScheme::is_symmetric) && zero_points.iter().all(|zero| *zero == 0) {
            Zeros::None
        } else {
            Zeros::Int(zero_points)
        }
    }

    /// An observer may choose one value for all rows.
    fn for_each_row<T: Clone>(&self, values: Vec<T>) -> Vec<T> {
        let qscheme = self.format().codes().map(|codes| codes.qscheme);
        match (&*values, qscheme) {
            ([value], Some(qscheme)) if qscheme.is_per_channel() => {
                vec![value.clone(); self.shape()[0]]
            }
            _ => values,
        }
    }
}
