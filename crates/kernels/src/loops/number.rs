//! The numbers that formulas are written over.
//!
//! Where `fma` is an instruction, a number is an f32 and the compiler makes vector code of a block
//! of them. Where it is not, it would make calls: an instruction set then has its [`Number`], a
//! register that it computes with.

use std::ops::{Add, Div, Mul, Neg, Sub};

/// An f32, or a register of them, each as an f32 would be.
pub trait Number:
    Copy
    + From<f32>
    + Neg<Output = Self>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
{
    /// `self * factor + term`, rounded once.
    fn mul_add(self, factor: impl Into<Self>, term: impl Into<Self>) -> Self;
    /// The bound where the number is less; NaN stays.
    fn at_least(self, bound: f32) -> Self;
    /// The bound where the number is greater; NaN stays.
    fn at_most(self, bound: f32) -> Self;
    /// The number, or the bound that it is beyond; the low one for NaN.
    fn within(self, low: f32, high: f32) -> Self;
    /// `then` where the number is less than the bound.
    fn below(self, bound: f32, then: Self, otherwise: Self) -> Self;
    fn abs(self) -> Self;
    fn copysign(self, sign: Self) -> Self;
    /// 2^n of a number that [`ROUND`](super::rows::ROUND) was added to, by the exponent's bits.
    fn power_of_two(self) -> Self;
    /// `a * b + c` of each element, rounded once.
    fn fma_each<const N: usize>(a: [f32; N], b: [f32; N], c: [f32; N]) -> [f32; N];
    /// The formula of each element; NaN stays, for every formula.
    fn map<F: Formula, const N: usize>(formula: F, block: [f32; N]) -> [f32; N];

    /// Replaces each element of `xs` by the formula of the three elements at its place.
    fn zip<F: FormulaOfThree>(formula: F, xs: &mut [f32], ys: &[f32], zs: &[f32]);

    /// The formula of each element less its origin; NaN stays, for every formula.
    #[inline(always)]
    fn map_from<F: Formula, const N: usize>(
        formula: F,
        mut block: [f32; N],
        origins: [f32; N],
    ) -> [f32; N] {
        for (x, origin) in block.iter_mut().zip(origins) {
            *x -= origin;
        }
        Self::map(formula, block)
    }
}

/// A formula as a type: a function pointer or closure would be compiled without the instruction
/// set's features.
pub trait Formula: Copy {
    fn at<N: Number>(self, x: N) -> N;
}

/// A formula of three numbers.
pub trait FormulaOfThree: Copy {
    fn at<N: Number>(self, x: N, y: N, z: N) -> N;
}

impl Number for f32 {
    #[inline(always)]
    fn mul_add(self, factor: impl Into<Self>, term: impl Into<Self>) -> Self {
        fma(self, factor.into(), term.into())
    }

    #[inline(always)]
    fn at_least(self, bound: f32) -> Self {
        if self < bound { bound } else { self }
    }

    #[inline(always)]
    fn at_most(self, bound: f32) -> Self {
        if self > bound { bound } else { self }
    }

    #[inline(always)]
    fn within(self, low: f32, high: f32) -> Self {
        let x = if self > low { self } else { low };
        if x < high { x } else { high }
    }

    #[inline(always)]
    fn below(self, bound: f32, then: Self, otherwise: Self) -> Self {
        if self < bound { then } else { otherwise }
    }

    #[inline(always)]
    fn abs(self) -> Self {
        f32::abs(self)
    }

    #[inline(always)]
    fn copysign(self, sign: Self) -> Self {
        f32::copysign(self, sign)
    }

    #[inline(always)]
    fn power_of_two(self) -> Self {
        f32::from_bits((self.to_bits() << 23).wrapping_add(127 << 23))
    }

    #[inline(always)]
    fn fma_each<const N: usize>(a: [f32; N], b: [f32; N], mut c: [f32; N]) -> [f32; N] {
        for ((a, b), c) in a.into_iter().zip(b).zip(&mut c) {
            *c = fma(a, b, *c);
        }
        c
    }

    /// Takes a block by value: in place the compiler vectorises over blocks, with gathers and
    /// scatters.
    #[inline(always)]
    fn map<F: Formula, const N: usize>(formula: F, mut block: [f32; N]) -> [f32; N] {
        for x in &mut block {
            *x = at(formula, *x);
        }
        block
    }

    /// Goes element by element: of blocks, the compiler vectorises over blocks, with gathers and
    /// scatters.
    #[inline(always)]
    fn zip<F: FormulaOfThree>(formula: F, xs: &mut [f32], ys: &[f32], zs: &[f32]) {
        for ((x, y), z) in xs.iter_mut().zip(ys).zip(zs) {
            *x = formula.at(*x, *y, *z);
        }
    }

    /// Uses one loop: attention is 2 to 4 % slower with a second.
    #[inline(always)]
    fn map_from<F: Formula, const N: usize>(
        formula: F,
        mut block: [f32; N],
        origins: [f32; N],
    ) -> [f32; N] {
        for (x, origin) in block.iter_mut().zip(origins) {
            *x = at(formula, *x - origin);
        }
        block
    }
}

#[inline(always)]
fn at(formula: impl Formula, x: f32) -> f32 {
    let y = formula.at(x);
    // With relaxed SIMD, LLVM 22 takes any comparison that chooses one of its operands for a
    // relaxed minimum or maximum, which may be a number where the operand is NaN.
    let is_nan = cfg!(target_feature = "relaxed-simd") && x.is_nan();
    if is_nan { x } else { y }
}

/// A block of fewer elements, filled up.
#[inline(always)]
pub fn filled_up<T: Copy, const LEN: usize>(xs: &[T], with: T) -> [T; LEN] {
    let mut block = [with; LEN];
    block[..xs.len()].copy_from_slice(xs);
    block
}

/// Folds all lanes into one, always the second half into the first.
#[inline(always)]
pub fn together<T: Copy, const LANES: usize>(mut lanes: [T; LANES], two: impl Fn(T, T) -> T) -> T {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = two(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// `a * b + c`, rounded once.
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    // WebAssembly has no such instruction, and the C library's function would be a call an element.
    #[cfg(target_arch = "wasm32")]
    return fma_by_f64(a, b, c);
    #[cfg(not(target_arch = "wasm32"))]
    return a.mul_add(b, c);
}

/// `a * b + c`, rounded once, without an instruction for it and without a branch.
///
/// The product is exact in f64: 48 bits of 53. So is the error of the sum, by Knuth's TwoSum, as
/// nothing overflows or underflows: f32 products lie between 2^-298 and 2^256. From both follows
/// the sum rounded to odd: where it is inexact and its last bit is 0, the neighbour on the side of
/// the error. Rounded to nearest f32, this gives what rounding the exact value would: 53 bits are
/// at least two more than f32 ever has, and a value rounded to odd lies neither on a tie nor beyond
/// one that it was not on or beyond before (Boldo and Melquiond, "Emulation of FMA and correctly
/// rounded sums", 2008). Subnormal results have fewer bits still. An infinity or NaN has no error
/// that is greater than 0, and stays.
#[inline(always)]
pub fn fma_by_f64(a: f32, b: f32, c: f32) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    let of_c = sum - product;
    let error = (product - (sum - of_c)) + (c - of_c);
    let bits = sum.to_bits();
    let away = ((error.to_bits() ^ bits).cast_signed() >> 63) | 1;
    let is_even = u64::from(error.abs() > 0.) & !bits & 1;
    let odd = bits.wrapping_add(is_even.wrapping_mul(away.cast_unsigned()));
    f64::from_bits(odd) as f32
}

/// Calls `check` with factors and terms whose fused sum is hard, four at a time: ties and their
/// neighbours, the ends of the range, and random ones.
#[cfg(test)]
pub fn for_hard_cases(check: impl Fn([[f32; 3]; 4])) {
    let near = |x: f32| [x.next_down(), x, x.next_up()];
    let sizes = [0, 1, 2, 75, 126, 127, 128, 139, 140, 150, 151, 191, 253, 254];
    let sizes = sizes.map(|exponent: u32| f32::from_bits(exponent << 23));
    let others = [f32::from_bits(1), 0.333_333_34, 1.5, 4_097., 16_777_215., f32::MAX];
    let mut all: Vec<f32> = sizes.into_iter().chain(others).flat_map(near).collect();
    all.extend(all.clone().iter().map(|x| -x));
    all.push(f32::NAN);
    for &a in &all {
        for &b in &all {
            // Terms that bring the sum next to a tie.
            let product = a * b;
            let ties = [1., 2f32.powi(-24), 2f32.powi(24)].map(|factor| near(-product * factor));
            let terms: Vec<f32> = all.iter().chain(ties.as_flattened()).copied().collect();
            for terms in terms.chunks(4) {
                check(std::array::from_fn(|i| [a, b, terms[i % terms.len()]]));
            }
        }
    }
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        f32::from_bits((state >> 32) as u32)
    };
    for _ in 0..200_000 {
        let (a, b, c) = (random(), random(), random());
        // A term of the size of the product.
        let beside = a * b * (1. + f32::EPSILON * (c.to_bits() % 64) as f32);
        check([[a, b, c], [a, b, beside], [a, b, -beside], [b, c, a]]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "accuracy of safe code, at millions of points")]
    fn fma_by_f64_is_fused() {
        for_hard_cases(|cases| {
            for [a, b, c] in cases {
                let (got, expected) = (fma_by_f64(a, b, c), f32::mul_add(a, b, c));
                let same =
                    got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan());
                assert!(same, "fma({a:e}, {b:e}, {c:e}): got {got:e}, expected {expected:e}");
            }
        });
    }
}
