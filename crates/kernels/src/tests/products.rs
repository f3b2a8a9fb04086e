//! Products of all formats, and the packed form of weights.

use half::{bf16, f16};

use super::random::Random;
use super::{
    Codes, Int8Weights, PER_ROW, PER_TENSOR, Pool, activations, check_products, expected, of,
    same_bits, some,
};
use crate::calls::float::{FloatProduct, linear_f32};
use crate::calls::linear::linear;
use crate::calls::pack::pack_halves;
use crate::isa::Isa;
use crate::loops::activation::{self, Activation};
use crate::qparams::activation::{Arithmetic, DynamicConfig};
use crate::reference;

fn check(m: usize, k: usize, n: usize, codes: Codes, poison: Option<f32>) {
    let mut random = Random((m * 1_000_003 + k * 1_009 + n) as u64);
    let [affine, symmetric] = [(); 2].map(|()| Int8Weights::new(codes, n, k, &mut random));
    let symmetric = symmetric.symmetric();
    let mut lhs = activations(codes, m, k, &mut random);
    if let (Some(value), true) = (poison, m * k > 0) {
        let at = random.below(lhs.len());
        lhs[at] = value;
    }
    let onnx = DynamicConfig { arithmetic: Arithmetic::OnnxRuntime, ..PER_TENSOR };
    let reduced = DynamicConfig { reduce_range: true, ..PER_ROW };
    for (config, weights) in [
        (PER_TENSOR, &symmetric),
        (PER_ROW, &symmetric),
        (onnx, &affine),
        (PER_ROW, &affine),
        (reduced, &symmetric),
        (reduced, &affine),
    ] {
        weights.check(&lhs, m, 1, config, &format!("{codes:?} {config:?} {poison:?}"));
    }
}

/// No instruction set takes a subnormal number as 0.
#[test]
fn products_of_small_scales_equal_the_oracle() {
    let mut random = Random(13);
    let (m, n, k) = if cfg!(miri) { (3, 20, 5) } else { (7, 70, 33) };
    for (size, scale) in [(1., f32::MIN_POSITIVE), (1e-30, 1e-8), (1e-20, 1e-20), (1e-38, 1.)] {
        let mut weights = Int8Weights::new(Codes::Uniform, n, k, &mut random).symmetric();
        weights.scales = (0..n).map(|i| scale * (1 + i % 3) as f32).collect();
        weights.bias.fill(0.);
        let lhs: Vec<f32> = random.floats(m * k).iter().map(|x| x * size).collect();
        let expected = expected(&lhs, m, weights.int8(), &weights.bias, PER_ROW);
        assert!(expected.iter().any(|x| *x != 0.), "{size:e} by {scale:e}");
        weights.check(&lhs, m, 1, PER_ROW, &format!("{size:e} by {scale:e}"));
    }
}

#[test]
fn float16_products_equal_the_oracle_at_the_seams() {
    let mut random = Random(11);
    for m in some([0, 1, 2, 5, 6, 7, 13, 40], &[5]) {
        for k in some([0, 1, 2, 3, 17, 64, 300], &[4]) {
            for n in some([0, 1, 7, 16, 33, 64, 65, 130], &[4]) {
                let mut lhs: Vec<f32> = random.floats(m * k).iter().map(|x| x * 3.).collect();
                let rhs: Vec<_> = random.floats(n * k).into_iter().map(f16::from_f32).collect();
                let bias = random.floats(n);
                if m > 1 && k > 1 {
                    lhs[k + 1] = [f32::NAN, f32::INFINITY, -0.][k % 3];
                }
                let expected = reference::linear_f16(&lhs, m, &rhs, &bias);
                let pack = |isa| pack_halves(isa, k, 1, &rhs, &bias);
                check_products(&lhs, m, &expected, pack, "");
            }
        }
    }
}

/// Products of bfloat16: the same bits, whatever the rows of a call.
#[test]
fn bfloat16_products_equal_the_oracle_at_the_seams() {
    let mut random = Random(12);
    for m in some([0, 1, 2, 3, 5, 15, 16, 17, 31, 33, 40, 49], &[4]) {
        for k in some([0, 1, 2, 3, 17, 31, 32, 33, 64, 65, 300], &[4]) {
            for n in some([0, 1, 7, 16, 33, 64, 65, 130], &[4]) {
                // Sums that cancel: their order matters.
                let mut value = || random.float() * 2f32.powi(random.below(40) as i32 - 20);
                let mut lhs: Vec<f32> = (0..m * k).map(|_| value()).collect();
                let rhs: Vec<_> = (0..n * k).map(|_| bf16::from_f32(value())).collect();
                let bias = random.floats(n);
                if m > 1 && k > 1 {
                    lhs[k + 1] = [f32::NAN, f32::INFINITY, -0., 3.4e38, 1e-39][(k + m) % 5];
                }
                let expected = reference::linear_bf16(&lhs, m, &rhs, &bias);
                let pack = |isa| pack_halves(isa, k, 1, &rhs, &bias);
                check_products(&lhs, m, &expected, pack, "");
            }
        }
    }
}

/// On several threads, each of which may have few rows, and after products that left other bytes in
/// the room of activations.
#[test]
fn large_bfloat16_products_equal_the_oracle_on_any_number_of_threads() {
    let mut random = Random(13);
    // Sizes of weights that tiles read side by side.
    let sizes = [[300, 229, 520], [70, 515, 300], [2, 1_027, 700], [1, 900, 900]];
    let sizes = sizes.map(|size| if cfg!(miri) { [5, 3, 20] } else { size });
    for [m, k, n] in some(sizes, &[0]) {
        let lhs = random.floats(m * k);
        let rhs: Vec<_> = random.floats(n * k).into_iter().map(bf16::from_f32).collect();
        let bias = vec![1.; n];
        let expected = reference::linear_bf16(&lhs, m, &rhs, &bias);
        let garbage = vec![f32::NAN; m * (k + 9)];
        for threads in some([1, 2, 7], &[1]) {
            Pool::new(threads).install(|| {
                let pack = |isa| {
                    let wide = pack_halves(isa, k + 9, 1, &vec![bf16::ONE; k + 9], &[0.]);
                    let nan = linear(of(&garbage, m, &wide));
                    assert!(nan.iter().all(|y| y.is_nan()));
                    pack_halves(isa, k, 1, &rhs, &bias)
                };
                check_products(&lhs, m, &expected, pack, &format!("{threads} threads"));
            });
        }
    }
}

#[test]
fn every_isa_equals_the_oracle_at_the_seams() {
    let rows = [0, 1, 2, 3, 5, 6, 7, 12, 13];
    let inputs = [0, 1, 2, 3, 4, 5, 7, 8, 31, 32, 33, 63, 64, 65, 100];
    let channels =
        [0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 49, 63, 64, 65, 79, 80, 81, 128, 130];
    for m in some(rows, &[6]) {
        for k in some(inputs, &[6]) {
            check(m, k, channels[(m * 7 + k) % channels.len()], Codes::Uniform, None);
        }
    }
    for n in some(channels, &[7]) {
        for k in [1, 4, 33] {
            check(7, k, n, Codes::Uniform, None);
        }
    }
}

#[test]
fn every_isa_is_exact_over_the_full_range_of_codes() {
    // Two products of 255 with 64 are just within an i16, with 65 beyond it.
    let extremes = [-128, -65, -64, 64, 65, 127].map(Codes::Extreme);
    for codes in some(extremes.into_iter().chain([Codes::OneHot, Codes::Zero]), &[0]) {
        for (m, k, n) in some([(6, 1024, 65), (1, 64, 16), (7, 515, 33)], &[1]) {
            check(m, k, n, codes, None);
        }
    }
}

/// Pairs of one sign and of two, within an i16 and beyond it; few and many groups, the last of
/// which may be short.
#[test]
fn groups_of_all_classes_are_exact() {
    const PAIRS: [[i8; 2]; 9] = [
        [127, 127],
        [-128, -128],
        [127, -128],
        [-128, 127],
        [64, 64],
        [64, 65],
        [-64, -64],
        [1, -128],
        [65, -64],
    ];
    let codes = PAIRS.into_iter().map(Codes::Pairs).chain([Codes::Heaped]);
    for codes in some(codes, &[0, 9]) {
        for (m, k, n) in some([(1, 4, 16), (3, 3, 1), (7, 37, 33), (6, 770, 24)], &[2]) {
            check(m, k, n, codes, None);
        }
    }
}

#[test]
fn a_row_that_is_not_finite_is_nan_and_alone() {
    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for (m, k, n) in some([(1, 1, 1), (5, 33, 17), (13, 100, 70)], &[1]) {
            check(m, k, n, Codes::Uniform, Some(poison));
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "as others, but for sizes that take hours")]
fn large_products_equal_the_oracle_on_all_threads() {
    for (m, k, n) in [
        (1, 768, 768),
        (64, 256, 192),
        (200, 128, 130),
        // More rows, and then longer ones, than are widened at once.
        (70, 1_100, 40),
        (5, 9_000, 20),
    ] {
        check(m, k, n, Codes::Uniform, None);
    }
}

/// Where they are written past the caches, by registers that fill cache lines and by others.
#[test]
#[cfg_attr(miri, ignore = "as others, but for sizes that take hours")]
fn results_beyond_the_caches_equal_the_oracle() {
    let mut random = Random(23);
    let (m, k) = (1_100, 8);
    for (gates, n) in [(1, 960), (1, 961), (3, 957)] {
        let weights = Int8Weights::new(Codes::Uniform, n, k, &mut random).symmetric();
        let lhs = activations(Codes::Uniform, m, k, &mut random);
        weights.check(&lhs, m, gates, PER_ROW, &format!("{gates} gates"));
    }
}

#[test]
fn weights_packed_by_gates_are_the_same_weights() {
    let mut random = Random(19);
    for gates in [3, 4] {
        let sizes = [(0, 4), (1, 5), (7, 3), (16, 16), (33, 20), (65, 7), (200, 12)];
        for (units, k) in some(sizes, &[2, 4]) {
            let n = gates * units;
            let weights = Int8Weights::new(Codes::Uniform, n, k, &mut random);
            let lhs = activations(Codes::Uniform, 2, k, &mut random);
            let case = format!("{gates} gates of {units}");
            weights.check(&lhs, 2, gates, PER_ROW, &case);
            for isa in Isa::available() {
                let packed = weights.packed(isa, gates, PER_ROW);
                for channel in 0..n {
                    let stands_for = (packed.scale(channel), packed.zero_point(channel));
                    let expected = (weights.scales[channel], weights.zero_points[channel]);
                    assert_eq!(stands_for, expected, "{isa} {case}");
                }
            }
        }
    }
}

/// An exact product of floats without an activation.
fn floats<'a>(lhs: &'a [f32], m: usize, rhs: &'a [f32], bias: &'a [f32]) -> FloatProduct<'a> {
    FloatProduct { lhs, m, rhs, bias, activation: None, is_exact: true }
}

#[test]
fn float_products_equal_the_oracle_in_any_number_of_rows() {
    // Both sides of each limit: few rows, blocks of rows, of channels, of inputs.
    let shapes = [
        (1, 1, 1),
        (4, 7, 9),
        (5, 8, 64),
        (6, 513, 65),
        (97, 64, 8),
        (3, 1_100, 130),
        (100, 520, 3),
        (7, 0, 5),
        (0, 3, 5),
    ];
    for (m, k, n) in shapes {
        let mut random = Random((m * 1_000_003 + k * 1_009 + n) as u64);
        let [lhs, rhs, mut bias] = [m * k, n * k, n].map(|count| random.floats(count));
        bias[0] = -0.;
        let expected = reference::linear_f32(&lhs, m, &rhs, &bias);
        let mut gelu = expected.clone();
        activation::apply::<f32>(Activation::Gelu, &mut gelu);
        for isa in Isa::available() {
            let multiply = |lhs: &[f32], is_exact| {
                let m = lhs.len().checked_div(k).unwrap_or(m);
                let exact = floats(lhs, m, &rhs, &bias);
                linear_f32(isa, FloatProduct { is_exact, ..exact })
            };
            let case = format!("{isa} m={m} k={k} n={n}");
            same_bits(&multiply(&lhs, true), &expected, &case);
            for is_exact in [true, false] {
                let all = multiply(&lhs, is_exact);
                let mut pairs = all.iter().zip(&expected);
                assert!(pairs.all(|(a, b)| (a - b).abs() < 1e-3), "{case}");
                for rows in [1, 5].into_iter().filter(|_| k > 0) {
                    let parts = lhs.chunks(rows * k);
                    let parts: Vec<_> = parts.flat_map(|lhs| multiply(lhs, is_exact)).collect();
                    same_bits(&parts, &all, &format!("{case}, {rows} at a time"));
                }
            }
            let activation = Some(Activation::Gelu);
            let product = floats(&lhs, m, &rhs, &bias);
            let activated = linear_f32(isa, FloatProduct { activation, ..product });
            same_bits(&activated, &gelu, &format!("{case}, gelu"));
        }
    }
}

#[test]
fn float_products_keep_what_is_not_finite() {
    for (value, m) in [(f32::NAN, 1), (f32::INFINITY, 1), (f32::NAN, 9), (f32::INFINITY, 9)] {
        // In the rest of a block, beside fillers.
        let mut lhs = vec![1.; m * 11];
        lhs[9] = value;
        let rhs = [[1.; 11], [-1.; 11]].concat();
        for isa in Isa::available() {
            let out = linear_f32(isa, floats(&lhs, m, &rhs, &[0.; 2]));
            let without_sign = |x: f32| x.to_bits() << 1;
            let row = out[..2].iter();
            assert!(row.clone().all(|x| without_sign(*x) == without_sign(value)));
            assert!(out[2..].iter().all(|x| x.abs() == 11.), "{isa}: {out:?}");
        }
    }
}
