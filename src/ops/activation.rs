//! Activation functions, element by element.

use candle_core::{D, Module, Result, Tensor};

use super::ours::{fused, is_ours};
use crate::error::Error;
use crate::kernels::{self, FusedActivation};
use crate::tensor::mismatch;
use crate::trace;

/// Applies an activation function to each element; the shape stays.
///
/// The bounds of the functions, in units in the last place (ulp) of f32 or relative to `x`, are
/// documented at [`gelu`] and its like; NaN stays NaN, and an infinity gives the function's limit.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::{FusedActivation, ops};
///
/// let xs = Tensor::new(&[-1f32, 0., 2.], &Device::Cpu)?;
/// assert_eq!(ops::activate(&xs, FusedActivation::Relu)?.to_vec1::<f32>()?, [0., 0., 2.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// When the dtype is not a float.
pub fn activate(xs: &Tensor, activation: FusedActivation) -> Result<Tensor> {
    trace::forward!("activation");
    let candle = || composite(xs, activation);
    fused(name(activation), [xs], candle, |isa, [xs]| kernels::activate(isa, activation.into(), xs))
}

fn name(activation: FusedActivation) -> &'static str {
    match activation {
        FusedActivation::Relu => "relu",
        FusedActivation::Gelu => "gelu",
        FusedActivation::GeluTanh => "gelu_tanh",
        FusedActivation::QuickGelu => "quick_gelu",
        FusedActivation::Silu => "silu",
        FusedActivation::Tanh => "tanh",
        FusedActivation::Sigmoid => "sigmoid",
        FusedActivation::Elu => "elu",
    }
}

/// The function by candle's own operations.
fn composite(xs: &Tensor, activation: FusedActivation) -> Result<Tensor> {
    match activation {
        FusedActivation::Relu => xs.relu(),
        FusedActivation::Gelu => xs.gelu_erf(),
        FusedActivation::GeluTanh => xs.gelu(),
        FusedActivation::QuickGelu => xs * candle_nn::ops::sigmoid(&(xs * 1.702)?)?,
        FusedActivation::Silu => xs.silu(),
        FusedActivation::Tanh => xs.tanh(),
        FusedActivation::Sigmoid => candle_nn::ops::sigmoid(xs),
        FusedActivation::Elu => xs.elu(1.),
    }
}

/// Functions of one tensor, with the formula and the bound of each.
macro_rules! functions {
    ($($function:ident, $variant:ident, $formula:literal, $bound:literal;)*) => {$(
        #[doc = $formula]
        ///
        #[doc = $bound]
        ///
        /// ```
        /// use candle_core::{Device, Tensor};
        /// use candle_dynquant::ops;
        ///
        /// let xs = Tensor::zeros((2, 3), candle_core::DType::F32, &Device::Cpu)?;
        #[doc = concat!("assert_eq!(ops::", stringify!($function), "(&xs)?.dims(), [2, 3]);")]
        /// # Ok::<(), candle_core::Error>(())
        /// ```
        ///
        /// # Errors
        /// As [`activate`].
        pub fn $function(xs: &Tensor) -> Result<Tensor> {
            activate(xs, FusedActivation::$variant)
        }
    )*};
}

functions! {
    relu, Relu,
        "`max(x, 0)` of each element: PyTorch's `relu`, candle's `relu`.",
        "Exact.";
    gelu, Gelu,
        "`x (1 + erf(x / sqrt 2)) / 2` of each element: PyTorch's `gelu`, candle's `gelu_erf`.",
        "Within `2^-23 |x|`; below zero also within 2.5% of the result, or 1e-36.";
    gelu_tanh, GeluTanh,
        "`x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2` of each element: PyTorch's \
         `gelu(approximate=\"tanh\")`, candle's `gelu`.",
        "Within `2^-23 |x|`; below zero also within 0.01% of the result, or 1e-36.";
    silu, Silu,
        "`x / (1 + e^-x)` of each element: PyTorch's and candle's `silu`.",
        "Within `2^-23 |x|`, and within 4 ulp, or 1e-36.";
    tanh, Tanh,
        "The hyperbolic tangent of each element.",
        "Within 2 ulp.";
    sigmoid, Sigmoid,
        "`1 / (1 + e^-x)` of each element.",
        "Within 2.5 ulp, or 1e-37.";
}

/// `x`, below zero `alpha (e^x - 1)`, of each element: PyTorch's and candle's `elu`.
///
/// Within 2 ulp with an `alpha` of 1, as nearly all models have; others are computed by candle.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::ops;
///
/// let xs = Tensor::new(&[-100f32, 0., 2.], &Device::Cpu)?;
/// assert_eq!(ops::elu(&xs, 1.)?.to_vec1::<f32>()?, [-1., 0., 2.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// As [`activate`].
pub fn elu(xs: &Tensor, alpha: f64) -> Result<Tensor> {
    if alpha == 1. {
        activate(xs, FusedActivation::Elu)
    } else {
        is_ours("elu", &[xs])?;
        xs.elu(alpha)
    }
}

/// `x (1 + erf(x / sqrt 2)) / 2` of each element: [`gelu`] under the name of candle's method.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::ops;
///
/// let xs = Tensor::new(&[-1f32, 0., 1.], &Device::Cpu)?;
/// assert_eq!(ops::gelu_erf(&xs)?.to_vec1::<f32>()?, ops::gelu(&xs)?.to_vec1::<f32>()?);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// As [`activate`].
pub fn gelu_erf(xs: &Tensor) -> Result<Tensor> {
    gelu(xs)
}

/// `activation(gates) * xs` of each element in one pass: SwiGLU by
/// [`Silu`](FusedActivation::Silu), GeGLU by [`Gelu`](FusedActivation::Gelu) or
/// [`GeluTanh`](FusedActivation::GeluTanh).
///
/// # Shapes
/// `xs` has the shape and the dtype of `gates`, as the result has.
///
/// The bound of [`activate`], with a rounding of the product.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::{FusedActivation, ops};
///
/// let gates = Tensor::new(&[-1f32, 0., 2.], &Device::Cpu)?;
/// let xs = Tensor::new(&[3f32, 3., 3.], &Device::Cpu)?;
/// let ys = ops::activate_mul(&gates, &xs, FusedActivation::Relu)?;
/// assert_eq!(ys.to_vec1::<f32>()?, [0., 0., 6.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// When shapes or dtypes differ, or the dtype is not a float.
pub fn activate_mul(gates: &Tensor, xs: &Tensor, activation: FusedActivation) -> Result<Tensor> {
    trace::forward!("activation");
    let op = "activate_mul";
    is_ours(op, &[gates, xs])?;
    if gates.dims() != xs.dims() {
        return Err(mismatch(op, format!("{:?}", gates.dims()), xs).into());
    }
    if gates.dtype() != xs.dtype() {
        return Err(Error::argument(
            "dtype in activate_mul",
            format!("{:?}", gates.dtype()),
            format!("{:?}", xs.dtype()),
        )
        .into());
    }
    let candle = || composite(gates, activation)? * xs;
    fused(op, [gates, xs], candle, |isa, [gates, xs]| {
        kernels::activate_mul(isa, activation.into(), gates, xs)
    })
}

/// `silu(x) * y` of the first and the second half of the last dimension: candle's `swiglu`.
///
/// # Shapes
/// `xs` is `[.., 2 n]`, the result `[.., n]`.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::ops;
///
/// let xs = Tensor::new(&[0f32, 1., 5., 0.], &Device::Cpu)?;
/// assert_eq!(ops::swiglu(&xs)?.to_vec1::<f32>()?, [0., 0.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// When the last dimension is odd or missing, or the dtype is not a float.
pub fn swiglu(xs: &Tensor) -> Result<Tensor> {
    let columns = match xs.dims() {
        [.., columns] if columns % 2 == 0 => *columns,
        _ => return Err(mismatch("swiglu", "[.., 2 n]", xs).into()),
    };
    let half = columns / 2;
    let gates = xs.narrow(D::Minus1, 0, half)?;
    activate_mul(&gates, &xs.narrow(D::Minus1, half, half)?, FusedActivation::Silu)
}

impl Module for FusedActivation {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        activate(xs, *self)
    }
}

impl TryFrom<candle_nn::Activation> for FusedActivation {
    type Error = Error;

    fn try_from(activation: candle_nn::Activation) -> crate::error::Result<Self> {
        use candle_nn::Activation as Candle;
        Ok(match activation {
            Candle::Relu => Self::Relu,
            Candle::Gelu => Self::Gelu,
            Candle::NewGelu | Candle::GeluPytorchTanh => Self::GeluTanh,
            Candle::Silu | Candle::Swish => Self::Silu,
            Candle::Sigmoid => Self::Sigmoid,
            Candle::Elu(1.) => Self::Elu,
            other => {
                let expected = "relu, gelu, gelu_tanh, silu, sigmoid or elu of alpha 1";
                let got = format!("{other:?}");
                return Err(Error::argument("activation", expected, got));
            }
        })
    }
}
