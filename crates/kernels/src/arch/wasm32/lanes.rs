//! Four f32 as a number of formulas, and the two ways to an `fma` of them.

use std::arch::wasm32::*;
use std::marker::PhantomData;
use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::loops::number::{Formula, FormulaOfThree, Number, filled_up};

/// `a * b + c` of four lanes, rounded once.
pub trait Fma: Copy {
    fn fma(a: v128, b: v128, c: v128) -> v128;
}

/// An `fma` by two vectors of f64, as `fma_by_f64` in `loops/number.rs`, where it is proved; unless
/// it is to be `EXACT`, a product and a sum, each rounded.
#[derive(Clone, Copy)]
pub struct Emulated<const EXACT: bool>;

impl<const EXACT: bool> Fma for Emulated<EXACT> {
    #[inline(always)]
    fn fma(a: v128, b: v128, c: v128) -> v128 {
        if !EXACT {
            return f32x4_add(f32x4_mul(a, b), c);
        }
        let high = |x| i32x4_shuffle::<2, 3, 0, 1>(x, x);
        let low_sums = rounded_to_odd(a, b, c);
        let high_sums = rounded_to_odd(high(a), high(b), high(c));
        let (low, high) = (f32x4_demote_f64x2_zero(low_sums), f32x4_demote_f64x2_zero(high_sums));
        i32x4_shuffle::<0, 1, 4, 5>(low, high)
    }
}

/// The f64 of two lanes' `a * b + c`, rounded to odd.
#[inline(always)]
fn rounded_to_odd(a: v128, b: v128, c: v128) -> v128 {
    let product = f64x2_mul(f64x2_promote_low_f32x4(a), f64x2_promote_low_f32x4(b));
    let c = f64x2_promote_low_f32x4(c);
    let sum = f64x2_add(product, c);
    let of_c = f64x2_sub(sum, product);
    let of_product = f64x2_sub(sum, of_c);
    let error = f64x2_add(f64x2_sub(product, of_product), f64x2_sub(c, of_c));
    let is_inexact = f64x2_gt(f64x2_abs(error), f64x2_splat(0.));
    let is_even = v128_andnot(i64x2_splat(1), sum);
    // 1 or -1.
    let away = v128_or(i64x2_shr(v128_xor(error, sum), 63), i64x2_splat(1));
    // -1 where the sum is to be changed.
    let change = i64x2_neg(v128_and(is_inexact, is_even));
    i64x2_add(sum, v128_and(change, away))
}

/// An `fma` by the instruction, where that is fused: see `isa::cpu::relaxed_simd`.
#[cfg(target_feature = "relaxed-simd")]
#[derive(Clone, Copy)]
pub struct Relaxed;

#[cfg(target_feature = "relaxed-simd")]
impl Fma for Relaxed {
    #[inline(always)]
    fn fma(a: v128, b: v128, c: v128) -> v128 {
        f32x4_relaxed_madd(a, b, c)
    }
}

/// Four lanes.
#[derive(Clone, Copy)]
pub struct Lanes<F>(v128, PhantomData<F>);

/// The number of lanes.
const LEN: usize = 4;

#[inline(always)]
fn lanes<F>(values: v128) -> Lanes<F> {
    Lanes(values, PhantomData)
}

impl<F> From<f32> for Lanes<F> {
    #[inline(always)]
    fn from(x: f32) -> Self {
        lanes(f32x4_splat(x))
    }
}

impl<F> Neg for Lanes<F> {
    type Output = Self;

    #[inline(always)]
    fn neg(self) -> Self {
        lanes(f32x4_neg(self.0))
    }
}

/// Operators that are an instruction each.
macro_rules! operators {
    ($($operator:ident $method:ident $instruction:ident),*) => {$(
        impl<F> $operator for Lanes<F> {
            type Output = Self;

            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                lanes($instruction(self.0, other.0))
            }
        }
    )*};
}

operators!(Add add f32x4_add, Sub sub f32x4_sub, Mul mul f32x4_mul, Div div f32x4_div);

impl<F: Fma> Number for Lanes<F> {
    #[inline(always)]
    fn mul_add(self, factor: impl Into<Self>, term: impl Into<Self>) -> Self {
        lanes(F::fma(self.0, factor.into().0, term.into().0))
    }

    // `pmax(a, b)` is b where a < b, else a; `pmin(a, b)` is b where b < a, else a.
    #[inline(always)]
    fn at_least(self, bound: f32) -> Self {
        lanes(f32x4_pmax(self.0, f32x4_splat(bound)))
    }

    #[inline(always)]
    fn at_most(self, bound: f32) -> Self {
        lanes(f32x4_pmin(self.0, f32x4_splat(bound)))
    }

    #[inline(always)]
    fn within(self, low: f32, high: f32) -> Self {
        let x = f32x4_pmax(f32x4_splat(low), self.0);
        lanes(f32x4_pmin(f32x4_splat(high), x))
    }

    #[inline(always)]
    fn below(self, bound: f32, then: Self, otherwise: Self) -> Self {
        let is_less = f32x4_lt(self.0, f32x4_splat(bound));
        lanes(v128_bitselect(then.0, otherwise.0, is_less))
    }

    #[inline(always)]
    fn abs(self) -> Self {
        lanes(f32x4_abs(self.0))
    }

    #[inline(always)]
    fn copysign(self, sign: Self) -> Self {
        lanes(v128_bitselect(sign.0, self.0, f32x4_splat(-0.)))
    }

    #[inline(always)]
    fn power_of_two(self) -> Self {
        lanes(i32x4_add(i32x4_shl(self.0, 23), i32x4_splat(127 << 23)))
    }

    #[inline(always)]
    fn fma_each<const N: usize>(a: [f32; N], b: [f32; N], mut c: [f32; N]) -> [f32; N] {
        const { assert!(N.is_multiple_of(LEN)) };
        let factors = a.as_chunks::<LEN>().0.iter().zip(b.as_chunks::<LEN>().0);
        for ((a, b), c) in factors.zip(c.as_chunks_mut::<LEN>().0) {
            store(F::fma(load(a), load(b), load(c)), c);
        }
        c
    }

    #[inline(always)]
    fn map<G: Formula, const N: usize>(formula: G, mut block: [f32; N]) -> [f32; N] {
        const { assert!(N.is_multiple_of(LEN)) };
        for xs in block.as_chunks_mut::<LEN>().0 {
            let x = load(xs);
            let mut y = formula.at(lanes::<F>(x)).0;
            if cfg!(target_feature = "relaxed-simd") {
                // As `f32::map` says.
                y = v128_bitselect(x, y, f32x4_ne(x, x));
            }
            store(y, xs);
        }
        block
    }

    #[inline(always)]
    fn zip<G: FormulaOfThree>(formula: G, xs: &mut [f32], ys: &[f32], zs: &[f32]) {
        let (full, rest) = xs.as_chunks_mut::<LEN>();
        let ((ys, last_y), (zs, last_z)) = (ys.as_chunks::<LEN>(), zs.as_chunks::<LEN>());
        for ((x, y), z) in full.iter_mut().zip(ys).zip(zs) {
            let [a, b, c] = [&*x, y, z].map(|values| lanes::<F>(load(values)));
            store(formula.at(a, b, c).0, x);
        }
        if !rest.is_empty() {
            // Filled up with zeros, so that no element is computed by itself.
            let [a, b, c] =
                [&*rest, last_y, last_z].map(|values| lanes::<F>(load(&filled_up(values, 0.))));
            let mut block = [0.; LEN];
            store(formula.at(a, b, c).0, &mut block);
            rest.copy_from_slice(&block[..rest.len()]);
        }
    }
}

#[inline(always)]
pub fn load(from: &[f32; LEN]) -> v128 {
    // SAFETY: the array is 16 bytes to read; no alignment is asked.
    unsafe { v128_load(from.as_ptr().cast()) }
}

#[inline(always)]
pub fn store(values: v128, to: &mut [f32; LEN]) {
    // SAFETY: the array is 16 bytes to write; no alignment is asked.
    unsafe { v128_store(to.as_mut_ptr().cast(), values) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<F: Fma>(a: [f32; LEN], b: [f32; LEN], c: [f32; LEN]) {
        let mut got = [0.; LEN];
        store(F::fma(load(&a), load(&b), load(&c)), &mut got);
        for (i, got) in got.into_iter().enumerate() {
            let expected = a[i].mul_add(b[i], c[i]);
            let same = got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan());
            assert!(
                same,
                "fma({:e}, {:e}, {:e}): got {got:e}, expected {expected:e}",
                a[i], b[i], c[i]
            );
        }
    }

    fn check_all<F: Fma>() {
        crate::loops::number::for_hard_cases(|cases| {
            let [a, b, c] = [0, 1, 2].map(|k| cases.map(|case| case[k]));
            check::<F>(a, b, c);
        });
    }

    #[test]
    fn fma_is_exact() {
        check_all::<Emulated<true>>();
        #[cfg(target_feature = "relaxed-simd")]
        if crate::isa::cpu::relaxed_simd() {
            check_all::<Relaxed>();
        }
    }
}
