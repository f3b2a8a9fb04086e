//! Products of all formats, and the packed form of weights.

use half::{bf16, f16};

use super::random::Random;
use super::{
    Codes, PER_ROW, PER_TENSOR, Pool, activations, expected, of, same_bits, some, weights,
};
use crate::calls::float::{FloatProduct, linear_f32};
use crate::calls::linear::{linear, linear_each};
use crate::isa::Isa;
use crate::loops::activation::{self, Activation};
use crate::loops::product::Product;
use crate::packed::Packed;
use crate::qparams::activation::{Arithmetic, DynamicConfig};
use crate::reference::{self, Int8};

fn check(m: usize, k: usize, n: usize, codes: Codes, poison: Option<f32>) {
    let mut random = Random((m * 1_000_003 + k * 1_009 + n) as u64);
    let rhs = weights(codes, n, k, &mut random);
    let scales: Vec<f32> = (0..n).map(|_| random.float().abs() + 1e-3).collect();
    let bias: Vec<f32> = (0..n).map(|_| random.float()).collect();
    let mut lhs = activations(codes, m, k, &mut random);
    if let (Some(value), true) = (poison, m * k > 0) {
        let at = random.next() as usize % lhs.len();
        lhs[at] = value;
    }
    let symmetric = vec![0; n];
    let affine_points: Vec<i32> = (0..n).map(|_| i32::from(random.next() as i8)).collect();
    let onnx = DynamicConfig { arithmetic: Arithmetic::OnnxRuntime, ..PER_TENSOR };
    let reduced = DynamicConfig { reduce_range: true, ..PER_ROW };
    let cases = [
        (PER_TENSOR, &symmetric),
        (PER_ROW, &symmetric),
        (onnx, &affine_points),
        (PER_ROW, &affine_points),
        (reduced, &symmetric),
        (reduced, &affine_points),
    ];
    for (config, zero_points) in cases {
        let rhs = Int8::new(&rhs, &scales, zero_points);
        let expected = expected(&lhs, m, rhs, &bias, config);
        for isa in Isa::available() {
            let packed = Packed::int8(isa, k, 1, rhs, &bias).with(config);
            assert_eq!(packed.codes(), rhs.codes, "{isa} {k}x{n}: unpack");
            let operands = of(&lhs, m, &packed);
            let case = format!("{isa} m={m} k={k} n={n} {codes:?} {config:?} {poison:?}");
            same_bits(&linear(operands), &expected, &case);
            let activation = [Activation::Relu, Activation::Gelu][m % 2];
            let activated = Product::new(&lhs, m, &packed, Some(activation));
            let mut expected_activated = expected.clone();
            activation::apply::<f32>(activation, &mut expected_activated);
            let case_activated = format!("{case} {activation:?}");
            same_bits(&linear(activated), &expected_activated, &case_activated);
            for again in linear_each([operands, operands]) {
                same_bits(&again, &expected, &format!("in a pair: {case}"));
            }
        }
    }
}

/// No instruction set takes a subnormal number as 0.
#[test]
fn products_of_small_scales_equal_the_oracle() {
    let mut random = Random(13);
    let config = PER_ROW;
    let (m, n, k) = if cfg!(miri) { (3, 20, 5) } else { (7, 70, 33) };
    for (size, scale) in [(1., f32::MIN_POSITIVE), (1e-30, 1e-8), (1e-20, 1e-20), (1e-38, 1.)] {
        let codes = weights(Codes::Uniform, n, k, &mut random);
        let scales: Vec<f32> = (0..n).map(|i| scale * (1 + i % 3) as f32).collect();
        let lhs: Vec<f32> = (0..m * k).map(|_| random.float() * size).collect();
        let (bias, zero_points) = (vec![0.; n], vec![0; n]);
        let rhs = Int8::new(&codes, &scales, &zero_points);
        let expected = expected(&lhs, m, rhs, &bias, config);
        assert!(expected.iter().any(|x| *x != 0.), "{size:e} by {scale:e}");
        for isa in Isa::available() {
            let packed = Packed::int8(isa, k, 1, rhs, &bias);
            let got = linear(of(&lhs, m, &packed));
            same_bits(&got, &expected, &format!("{isa}: {size:e} by {scale:e}"));
        }
    }
}

#[test]
fn float16_products_equal_the_oracle_at_the_seams() {
    let mut random = Random(11);
    for m in some([0, 1, 2, 5, 6, 7, 13, 40], &[5]) {
        for k in some([0, 1, 2, 3, 17, 64, 300], &[4]) {
            for n in some([0, 1, 7, 16, 33, 64, 65, 130], &[4]) {
                let mut lhs: Vec<f32> = (0..m * k).map(|_| random.float() * 3.).collect();
                let value = |random: &mut Random| f16::from_f32(random.float());
                let rhs: Vec<f16> = (0..n * k).map(|_| value(&mut random)).collect();
                let bias: Vec<f32> = (0..n).map(|_| random.float()).collect();
                if m > 1 && k > 1 {
                    lhs[k + 1] = [f32::NAN, f32::INFINITY, -0.][k % 3];
                }
                let expected = reference::linear_f16(&lhs, m, &rhs, &bias);
                for isa in Isa::available() {
                    let packed = Packed::float16(isa, k, 1, &rhs, &bias);
                    assert_eq!(packed.halves(), rhs, "{isa} {k}x{n}: unpack");
                    let case = format!("{isa} m={m} k={k} n={n}");
                    same_bits(&linear(of(&lhs, m, &packed)), &expected, &case);
                }
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
                let value = |random: &mut Random| {
                    random.float() * 2f32.powi((random.next() % 40) as i32 - 20)
                };
                let mut lhs: Vec<f32> = (0..m * k).map(|_| value(&mut random)).collect();
                let rhs = (0..n * k).map(|_| bf16::from_f32(value(&mut random)));
                let rhs: Vec<bf16> = rhs.collect();
                let bias: Vec<f32> = (0..n).map(|_| random.float()).collect();
                if m > 1 && k > 1 {
                    lhs[k + 1] = [f32::NAN, f32::INFINITY, -0., 3.4e38, 1e-39][(k + m) % 5];
                }
                let expected = reference::linear_bf16(&lhs, m, &rhs, &bias);
                for isa in Isa::available() {
                    let packed = Packed::bfloat16(isa, k, 1, &rhs, &bias);
                    let case = format!("{isa} m={m} k={k} n={n}");
                    same_bits(&linear(of(&lhs, m, &packed)), &expected, &case);
                    let activated = Product::new(&lhs, m, &packed, Some(Activation::Gelu));
                    let mut expected = expected.clone();
                    activation::apply::<f32>(Activation::Gelu, &mut expected);
                    for got in linear_each([activated, activated]) {
                        same_bits(&got, &expected, &format!("{case}, activated"));
                    }
                }
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
        let lhs: Vec<f32> = (0..m * k).map(|_| random.float()).collect();
        let rhs = (0..n * k).map(|_| bf16::from_f32(random.float()));
        let rhs: Vec<bf16> = rhs.collect();
        let bias = vec![1.; n];
        let expected = reference::linear_bf16(&lhs, m, &rhs, &bias);
        let garbage = vec![f32::NAN; m * (k + 9)];
        for threads in some([1, 2, 7], &[1]) {
            Pool::new(threads).install(|| {
                for isa in Isa::available() {
                    let wide = Packed::bfloat16(isa, k + 9, 1, &vec![bf16::ONE; k + 9], &[0.]);
                    let nan = linear(of(&garbage, m, &wide));
                    assert!(nan.iter().all(|y| y.is_nan()));
                    let packed = Packed::bfloat16(isa, k, 1, &rhs, &bias);
                    let got = linear(of(&lhs, m, &packed));
                    same_bits(&got, &expected, &format!("{isa} {m} {k} {n} on {threads}"));
                }
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
        let codes = weights(Codes::Uniform, n, k, &mut random);
        let scales: Vec<f32> = (0..n).map(|_| random.float().abs() + 1e-3).collect();
        let bias: Vec<f32> = (0..n).map(|_| random.float()).collect();
        let zero_points = vec![0; n];
        let rhs = Int8::new(&codes, &scales, &zero_points);
        let lhs = activations(Codes::Uniform, m, k, &mut random);
        let config = PER_ROW;
        let expected = expected(&lhs, m, rhs, &bias, config);
        for isa in Isa::available() {
            let packed = Packed::int8(isa, k, gates, rhs, &bias);
            let case = format!("{isa} m={m} k={k} n={n}, {gates} gates");
            same_bits(&linear(of(&lhs, m, &packed)), &expected, &case);
        }
    }
}

#[test]
fn weights_packed_by_gates_are_the_same_weights() {
    let mut random = Random(19);
    for gates in [3, 4] {
        let sizes = [(0, 4), (1, 5), (7, 3), (16, 16), (33, 20), (65, 7), (200, 12)];
        for (units, k) in some(sizes, &[2, 4]) {
            let n = gates * units;
            let codes = weights(Codes::Uniform, n, k, &mut random);
            let scales: Vec<f32> = (0..n).map(|_| random.float().abs() + 1e-3).collect();
            let zero_points: Vec<i32> = (0..n).map(|_| i32::from(random.next() as i8)).collect();
            let bias: Vec<f32> = (0..n).map(|_| random.float()).collect();
            let rhs = Int8::new(&codes, &scales, &zero_points);
            let lhs = activations(Codes::Uniform, 2, k, &mut random);
            let expected = expected(&lhs, 2, rhs, &bias, PER_ROW);
            for isa in Isa::available() {
                let case = format!("{isa} {gates} gates of {units}");
                let packed = Packed::int8(isa, k, gates, rhs, &bias);
                assert_eq!(packed.codes(), codes, "{case}");
                for channel in 0..n {
                    let stands_for = (packed.scale(channel), packed.zero_point(channel));
                    assert_eq!(stands_for, (scales[channel], zero_points[channel]), "{case}");
                }
                same_bits(&linear(of(&lhs, 2, &packed)), &expected, &case);
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
        let mut values =
            |count: usize| -> Vec<f32> { (0..count).map(|_| random.float()).collect() };
        let (lhs, rhs, mut bias) = (values(m * k), values(n * k), values(n));
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
