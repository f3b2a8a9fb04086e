//! Vectorised activation functions in f32: the same bits on every instruction set.
//!
//! Each is a formula without branches over one element, which the compiler turns into vector
//! code. NaN stays NaN, and an infinity gives the limit. Bounds, tested against f64 over the
//! whole range, in units in the last place: exp 1.5, sigmoid 2.5, tanh 2, elu 2; tanh saturates to
//! exactly 1 where the rounded tanh does. gelu, gelu_tanh, quick_gelu and silu are within `2^-23 |x|`,
//! and below zero, where they vanish, also within 2.5% of their value (gelu), 0.01% (gelu_tanh and
//! quick_gelu) and 4 units (silu), or 1e-36.

use std::hint::black_box;
use std::mem::MaybeUninit;

use super::number::{Formula, Number};
use super::rows::ROUND;

/// An activation function, under PyTorch's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activation {
    /// `max(x, 0)`.
    Relu,
    /// `x P(X <= x)` of a standard normal X, `x (1 + erf(x / sqrt 2)) / 2`.
    Gelu,
    /// GELU's approximation `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`.
    GeluTanh,
    /// GELU's approximation `x sigmoid(1.702 x)`, CLIP's `quick_gelu`.
    QuickGelu,
    /// `x sigmoid(x)`.
    Silu,
    /// The hyperbolic tangent.
    Tanh,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `x`, below zero `e^x - 1`.
    Elu,
}

/// Applies the function to each element of a row.
#[inline(always)]
pub fn apply<N: Number>(activation: Activation, xs: &mut [f32]) {
    let (row, len) = (xs.as_mut_ptr(), xs.len());
    // SAFETY: `len` elements of one row.
    unsafe { apply_between::<N>(activation, row, row, len) }
}

/// Writes the function of each element.
#[inline(always)]
pub fn apply_to<N: Number>(activation: Activation, xs: &[f32], out: &mut [MaybeUninit<f32>]) {
    assert_eq!(xs.len(), out.len(), "as many elements");
    // SAFETY: both rows have this number of elements.
    unsafe { apply_between::<N>(activation, xs.as_ptr(), out.as_mut_ptr().cast(), xs.len()) }
}

/// Elements that are computed together: a register's worth.
pub const BLOCK: usize = 16;

/// Takes a row block by block. The last block is filled up, so that no element is computed by
/// itself.
///
/// # Safety
/// As of [`apply_between`].
// As `tile` of `loops/tile.rs`.
#[cfg_attr(target_arch = "wasm32", inline(never))]
#[cfg_attr(not(target_arch = "wasm32"), inline(always))]
unsafe fn blocks<N: Number>(formula: impl Formula, from: *const f32, to: *mut f32, len: usize) {
    let (full, rest) = (len / BLOCK * BLOCK, len % BLOCK);
    // SAFETY: each block is within the row and read before it is written; an array of floats has
    // the alignment of its elements.
    unsafe {
        for at in (0..full).step_by(BLOCK) {
            // If it knew the place, the compiler would take several blocks at a time, with gathers
            // and scatters.
            let at = black_box(at);
            let block: [f32; BLOCK] = from.add(at).cast::<[f32; BLOCK]>().read();
            let values = N::map(formula, block);
            to.add(at).cast::<[f32; BLOCK]>().write(values);
        }
        if rest > 0 {
            let mut block = [0f32; BLOCK];
            block.as_mut_ptr().copy_from_nonoverlapping(from.add(full), rest);
            let values = N::map(formula, block);
            to.add(full).copy_from_nonoverlapping(values.as_ptr(), rest);
        }
    }
}

/// Types for functions, and the choice of one.
macro_rules! formulas {
    ($($name:ident => $function:ident),*) => {
        $(#[derive(Clone, Copy)]
        struct $name;

        impl Formula for $name {
            #[inline(always)]
            fn at<N: Number>(self, x: N) -> N {
                $function(x)
            }
        })*

        /// # Safety
        /// There are `len` elements to read and to write, the same ones or none of them.
        #[inline(always)]
        unsafe fn apply_between<N: Number>(
            activation: Activation,
            from: *const f32,
            to: *mut f32,
            len: usize,
        ) {
            // SAFETY: the contract is the same.
            unsafe {
                match activation {
                    $(Activation::$name => blocks::<N>($name, from, to, len),)*
                }
            }
        }
    };
}

formulas!(
    Relu => relu,
    Gelu => gelu,
    GeluTanh => gelu_tanh,
    QuickGelu => quick_gelu,
    Silu => silu,
    Tanh => tanh,
    Sigmoid => sigmoid,
    Elu => elu
);

/// e^x; below -87.3 and above 88.3 the value there.
#[inline(always)]
pub fn exp<N: Number>(x: N) -> N {
    exp_within(x.at_least(-87.3).at_most(88.3))
}

/// e^x of an `x` from -87.3 to 88.3; anything elsewhere, but NaN of NaN.
///
/// `x = n ln 2 + r` with an integer `n` and `|r| <= ln 2 / 2`; `e^r` by a polynomial whose
/// coefficients minimise the max relative error, 3e-9; `2^n` by the exponent's bits.
#[inline(always)]
pub fn exp_within<N: Number>(x: N) -> N {
    let (power, tail) = exp_parts(x);
    power.mul_add(tail, power)
}

/// `2^n` and `e^r - 1` of [`exp_within`].
#[inline(always)]
fn exp_parts<N: Number>(x: N) -> (N, N) {
    const LN_2_LOW: f32 = -1.904_654_3e-9;
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - N::from(ROUND);
    let r = n.mul_add(-std::f32::consts::LN_2, x);
    let r = n.mul_add(-LN_2_LOW, r);
    let square = r * r;
    let high = N::from(8.368_71e-3).mul_add(r, 4.166_839e-2);
    let high = N::from(1.381_461e-3).mul_add(square, high);
    let p = high.mul_add(square, N::from(1.666_652_1e-1).mul_add(r, 4.999_999_4e-1));
    let power = shifted.power_of_two();
    (power, square.mul_add(p, r))
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid<N: Number>(x: N) -> N {
    let one = N::from(1.);
    one / (one + exp(-x))
}

/// Near 0 an odd polynomial, elsewhere `1 - 2 / (e^(2|x|) + 1)` with the sign of `x`.
#[inline(always)]
pub fn tanh<N: Number>(x: N) -> N {
    let z = x * x;
    let p = N::from(-5.704_978_5e-3);
    let p = p.mul_add(z, 2.063_907_9e-2);
    let p = p.mul_add(z, -5.373_971e-2);
    let p = p.mul_add(z, 1.333_144_2e-1);
    let p = p.mul_add(z, -3.333_328e-1);
    let near = (x * z).mul_add(p, x);
    let (one, two) = (N::from(1.), N::from(2.));
    let far = one - two / (exp(two * x.abs()) + one);
    x.abs().below(0.625, near, far).copysign(x)
}

/// `max(x, 0)`.
#[inline(always)]
pub fn relu<N: Number>(x: N) -> N {
    x.at_least(0.)
}

/// `x`, below zero `e^x - 1`, without what is lost by subtracting 1 from `e^x`.
#[inline(always)]
pub fn elu<N: Number>(x: N) -> N {
    let (power, tail) = exp_parts(x.at_least(-87.3).at_most(0.));
    relu(x) + power.mul_add(tail, power - N::from(1.))
}

/// `max(x, 0) - t Q(t)` with `t = |x|`, where `Q(t) = P(X > t)` of a standard normal X.
///
/// `ln Q(t) = s(t) - t^2 / 2` with a slowly falling `s`, here a polynomial: weighted so that the
/// max absolute error of Q is smallest, and its relative error below 2.5% up to 13.
#[inline(always)]
pub fn gelu<N: Number>(x: N) -> N {
    // Beyond, Q is less than every normal number; an infinite t would make it NaN.
    let t = x.abs().at_most(13.);
    // The exponent, its even and odd powers separately: two short chains of dependent steps, where
    // one long one would wait for itself.
    let z = t * t;
    let even = N::from(-2.386_29e-9).mul_add(z, -2.326_085_2e-6);
    let odd = N::from(1.182_694_7e-7).mul_add(z, 2.248_732_7e-5);
    let even = even.mul_add(z, -9.443_481e-5);
    let odd = odd.mul_add(z, -1.862_842_9e-4);
    let even = even.mul_add(z, 5.012_593e-3);
    let odd = odd.mul_add(z, -3.646_076e-2);
    let even = even.mul_add(z, 1.817_214e-1 - 0.5);
    let odd = odd.mul_add(z, -7.978_871e-1);
    let even = even.mul_add(z, -std::f32::consts::LN_2);
    let q = exp_within(odd.mul_add(t, even).at_least(-87.3));
    (-t).mul_add(q, relu(x))
}

/// `x sigmoid(2 u)` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`, as
/// `(1 + tanh u) / 2 = sigmoid(2 u)`.
#[inline(always)]
pub fn gelu_tanh<N: Number>(x: N) -> N {
    /// `2 sqrt(2 / pi)`.
    const SLOPE: f32 = 1.595_769;
    // Beyond, the result is less than every normal number; an infinite x would make it NaN.
    let x = x.at_least(-10.1);
    let cubic = (x * x).mul_add(SLOPE * 0.044_715, SLOPE);
    x / (N::from(1.) + exp(-x * cubic))
}

/// `x / (1 + e^(-1.702 x))`.
#[inline(always)]
pub fn quick_gelu<N: Number>(x: N) -> N {
    // As in `gelu_tanh`: the least power is e^-88.3.
    let x = x.at_least(-88.3 / 1.702);
    x / (N::from(1.) + exp(x * N::from(-1.702)))
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub fn silu<N: Number>(x: N) -> N {
    // As in `gelu_tanh`.
    let x = x.at_least(-88.3);
    x / (N::from(1.) + exp(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The max error in units in the last place over many floats in `[-limit, limit]`.
    fn worst(f: fn(f32) -> f32, exact: fn(f64) -> f64, limit: f32) -> (f64, f32) {
        let top = limit.to_bits();
        let points = (0..top).step_by(4_099).chain([0, top]);
        let points = points.flat_map(|bits| [f32::from_bits(bits), -f32::from_bits(bits)]);
        points.fold((0., 0.), |worst, x| {
            let (got, exact) = (f64::from(f(x)), exact(f64::from(x)));
            let ulp = f64::from((exact as f32).abs().next_up() - (exact as f32).abs());
            let error = (got - exact).abs() / ulp;
            if error > worst.0 { (error, x) } else { worst }
        })
    }

    #[test]
    #[cfg_attr(miri, ignore = "accuracy of safe code, at millions of points")]
    fn errors_are_within_the_stated_bounds() {
        let sigmoid64 = |x: f64| 1. / (1. + (-x).exp());
        let elu64 = |x: f64| if x > 0. { x } else { x.exp_m1() };
        for (name, bound, worst) in [
            ("exp", 1.5, worst(exp, f64::exp, 87.)),
            ("sigmoid", 2.5, worst(sigmoid, sigmoid64, 80.)),
            ("tanh", 2., worst(tanh, f64::tanh, 20.)),
            ("elu", 2., worst(elu, elu64, 120.)),
        ] {
            assert!(worst.0 <= bound, "{name}: {} ulp at {}", worst.0, worst.1);
        }
    }

    /// P(X > t) of a standard normal X, `t >= 0`: the series of its complement where that is
    /// exact enough, elsewhere the continued fraction of the Mills ratio.
    fn upper_tail(t: f64) -> f64 {
        let density = (-0.5 * t * t).exp() / std::f64::consts::TAU.sqrt();
        if t > 2.5 {
            return density / (1..400).rev().fold(t, |tail, k| t + f64::from(k) / tail);
        }
        let terms = (1..100).scan(t, |term, k| {
            let this = *term;
            *term *= t * t / f64::from(2 * k + 1);
            Some(this)
        });
        0.5 - density * terms.sum::<f64>()
    }

    fn gelu64(x: f64) -> f64 {
        x.max(0.) - x.abs() * upper_tail(x.abs())
    }

    fn gelu_tanh64(x: f64) -> f64 {
        let u = (2. / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
        x / (1. + (-2. * u).exp())
    }

    fn quick_gelu64(x: f64) -> f64 {
        x / (1. + (-1.702 * x).exp())
    }

    fn silu64(x: f64) -> f64 {
        x / (1. + (-x).exp())
    }

    #[test]
    #[cfg_attr(miri, ignore = "accuracy of safe code, at millions of points")]
    fn functions_that_vanish_are_within_the_stated_bounds() {
        type Case = (&'static str, fn(f32) -> f32, fn(f64) -> f64, f64);
        let cases: [Case; 4] = [
            ("gelu", gelu, gelu64, 0.025),
            ("gelu_tanh", gelu_tanh, gelu_tanh64, 1e-4),
            ("quick_gelu", quick_gelu, quick_gelu64, 1e-4),
            ("silu", silu, silu64, 4. * f64::from(f32::EPSILON)),
        ];
        for (name, f, exact, relative) in cases {
            let points = (0..100f32.to_bits()).step_by(1_031).map(f32::from_bits);
            for x in points.flat_map(|x| [x, -x]) {
                let (got, exact) = (f64::from(f(x)), exact(f64::from(x)));
                let error = (got - exact).abs();
                assert!(
                    error <= f64::from(x.abs()) * f64::from(f32::EPSILON) + 1e-45,
                    "{name}({x}): {got}, expected {exact}"
                );
                if x < 0. {
                    let bound = (relative * exact.abs()).max(1e-36);
                    assert!(error <= bound, "{name}({x}): {got}, expected {exact}");
                }
            }
            assert_eq!(f(0.), 0., "{name}");
            assert!(f(f32::NAN).is_nan(), "{name}");
            for x in [20., 1e3, f32::MAX, f32::INFINITY] {
                assert_eq!(f(x), silu64(x.into()) as f32, "{name}({x})");
            }
            for x in [-1e3, f32::MIN, f32::NEG_INFINITY] {
                assert!(f(x).abs() < 1e-36, "{name}({x}): {}", f(x));
            }
        }
    }

    #[test]
    fn ends_zeros_and_nan() {
        assert_eq!((exp(0.), sigmoid(0.), tanh(0.)), (1., 0.5, 0.));
        assert!(tanh(-0.).is_sign_negative());
        for x in [9.02, 20., 1e3, f32::MAX, f32::INFINITY] {
            assert_eq!((tanh(x), tanh(-x)), (1., -1.), "{x}");
            assert!(tanh(9.01) < 1.);
        }
        for x in [100., f32::MAX, f32::INFINITY] {
            assert_eq!(sigmoid(x), 1.);
            assert!(sigmoid(-x) < 1e-37);
        }
        assert!(exp(f32::NAN).is_nan() && sigmoid(f32::NAN).is_nan() && tanh(f32::NAN).is_nan());
        assert!(relu(f32::NAN).is_nan());
        assert_eq!((relu(-1.), relu(0.), relu(2.)), (0., 0., 2.));
    }
}
