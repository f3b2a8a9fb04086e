//! Observers: they look at a weight and choose its scale and zero point.
//!
//! Names, arguments, defaults and formulas are those of torch 2.9.1's observers.

use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::qparams::{QDType, QScheme};

/// Which observer, and what it is told; PyTorch's `Observer.with_args(..)`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ObserverConfig {
    /// Which observer.
    pub kind: ObserverKind,
    /// The codes.
    pub dtype: QDType,
    /// Granularity and symmetry.
    pub qscheme: QScheme,
    /// Use only half the codes.
    pub reduce_range: bool,
    /// Least and greatest code, where not all of the dtype's are used.
    pub quant_range: Option<[i32; 2]>,
    /// Least scale.
    pub eps: f32,
}

/// The observers there are.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ObserverKind {
    /// `MinMaxObserver`: least and greatest element ever seen, per tensor.
    MinMax,
    /// `PerChannelMinMaxObserver`: those of each output channel.
    PerChannelMinMax,
    /// `MovingAverageMinMaxObserver`: averages of least and greatest element, per tensor.
    MovingAverageMinMax {
        /// Share of the newest in the average; 0.01 by default.
        averaging_constant: f32,
    },
    /// `MovingAveragePerChannelMinMaxObserver`: those of each output channel.
    MovingAveragePerChannelMinMax {
        /// Share of the newest in the average; 0.01 by default.
        averaging_constant: f32,
    },
    /// `HistogramObserver`: the range with the least expected square error, per tensor.
    Histogram {
        /// Bins of the histogram; 2,048 by default.
        bins: usize,
    },
    /// ONNX Runtime's own formulas, per tensor or per channel.
    OnnxRuntime,
    /// A user's own.
    Custom(CustomObserver),
}

/// A user's own observer: a name, and how to make one.
#[derive(Clone)]
pub struct CustomObserver {
    name: Arc<str>,
    build: Build,
}

type Build = Arc<dyn Fn(&ObserverConfig) -> Result<Box<dyn Observer>> + Send + Sync>;

/// Looks at tensors and chooses their scale and zero point.
pub trait Observer: fmt::Debug {}

impl CustomObserver {
    /// An observer that `build` makes afresh for every weight.
    pub fn new(
        name: impl Into<Arc<str>>,
        build: impl Fn(&ObserverConfig) -> Result<Box<dyn Observer>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            build: Arc::new(build),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for CustomObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CustomObserver").field(&self.name).finish()
    }
}

/// The same maker under the same name.
impl PartialEq for CustomObserver {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.build, &other.build)
    }
}

impl ObserverConfig {
    /// An observer with PyTorch's defaults for the rest: all codes, an `eps` of 2^-23.
    pub const fn new(kind: ObserverKind, dtype: QDType, qscheme: QScheme) -> Self {
        Self {
            kind,
            dtype,
            qscheme,
            reduce_range: false,
            quant_range: None,
            eps: f32::EPSILON,
        }
    }
}
