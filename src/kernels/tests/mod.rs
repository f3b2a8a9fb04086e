//! Every instruction set against the oracle, at the seams of sizes and of codes.

mod operands;

use half::f16;

use super::arch::op::Op;
use super::calls::linear::{Operands, linear, linear_each};
use super::calls::lookup::{dequantize_row, for_each_row, read_channel, widen_row};
use super::calls::recurrent::{Recurrence, Step, recur, update_state};
use super::isa::Isa;
use super::loops::activation::{self, Activation};
use super::loops::gates::Gates;
use super::loops::rows::{self, Extent};
use super::packed::Packed;
use super::reference::{self, Affine, Int8};
use crate::qparams::QParams;
use crate::qparams::activation::{ActivationConfig, Arithmetic, DynamicConfig, Granularity};

/// A small generator of test data: splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In [-1, 1).
    fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.
    }
}

/// How the codes of a case are drawn.
#[derive(Clone, Copy, Debug)]
enum Codes {
    Uniform,
    /// All 255 by all -128: the greatest sums.
    Extreme,
    OneHot,
    Zero,
}

/// How activations are quantized: which rows share a scale, and by whose formulas.
fn dynamic(granularity: Granularity, arithmetic: Arithmetic) -> DynamicConfig {
    DynamicConfig {
        granularity,
        arithmetic,
        reduce_range: false,
    }
}

const PER_ROW: ActivationConfig = ActivationConfig::dynamic(Granularity::PerRow, false);

fn weights(codes: Codes, n: usize, k: usize, random: &mut Random) -> Vec<i8> {
    let code = |i: usize, random: &mut Random| match codes {
        Codes::Uniform => random.next() as i8,
        Codes::Extreme => -128,
        Codes::OneHot => i8::from(i % k.max(1) == i / k.max(1) % k.max(1)),
        Codes::Zero => 0,
    };
    (0..n * k).map(|i| code(i, random)).collect()
}

fn activations(codes: Codes, m: usize, k: usize, random: &mut Random) -> Vec<f32> {
    let value = |random: &mut Random| match codes {
        Codes::Uniform | Codes::OneHot => random.float() * 3.,
        Codes::Extreme => 2.55,
        Codes::Zero => 0.,
    };
    (0..m * k).map(|_| value(random)).collect()
}

/// The oracle's answer, ranges included.
fn expected(lhs: &[f32], m: usize, rhs: Int8<'_>, bias: &[f32], config: DynamicConfig) -> Vec<f32> {
    let k = lhs.len().checked_div(m).unwrap_or(0);
    let row = |i: usize| &lhs[i * k..(i + 1) * k];
    let finite = |i: &usize| row(*i).iter().all(|x| x.is_finite());
    let extent = |i: usize| {
        row(i).iter().fold(Extent::EMPTY, |r, &x| {
            r.union(Extent {
                min: x,
                max: x,
                finite: true,
            })
        })
    };
    let all = (0..m)
        .filter(finite)
        .map(extent)
        .fold(Extent::EMPTY, Extent::union);
    let quantized: Vec<_> = (0..m)
        .map(|i| {
            let extent = match config.granularity {
                Granularity::PerTensor => all,
                Granularity::PerRow => extent(i),
            };
            let qparams = config.qparams(extent.min, extent.max);
            reference::quantize_row(row(i), qparams, config.arithmetic)
        })
        .collect();
    reference::linear(&quantized, rhs, bias)
}

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
    let (torch, onnx) = (Arithmetic::PyTorch, Arithmetic::OnnxRuntime);
    let cases = [
        (dynamic(Granularity::PerTensor, torch), &symmetric),
        (dynamic(Granularity::PerRow, torch), &symmetric),
        (dynamic(Granularity::PerTensor, onnx), &affine_points),
        (dynamic(Granularity::PerRow, torch), &affine_points),
    ];
    for (config, zero_points) in cases {
        let rhs = Int8 {
            codes: &rhs,
            scales: &scales,
            zero_points,
        };
        let expected = expected(&lhs, m, rhs, &bias, config);
        let activations = ActivationConfig::Dynamic(config);
        for isa in Isa::available() {
            let packed = Packed::int8(isa, k, 1, rhs, &bias);
            assert_eq!(packed.codes(), rhs.codes, "{isa} {k}x{n}: unpack");
            let operands = Operands {
                lhs: &lhs,
                m,
                rhs: &packed,
                activation: None,
            };
            let case = format!("{isa} m={m} k={k} n={n} {codes:?} {config:?} {poison:?}");
            same_bits(&linear(operands, activations), &expected, &case);
            let activation = [Activation::Relu, Activation::Gelu][m % 2];
            let activated = Operands {
                activation: Some(activation),
                ..operands
            };
            let mut expected_activated = expected.clone();
            activation::apply(activation, &mut expected_activated);
            let case_activated = format!("{case} {activation:?}");
            same_bits(
                &linear(activated, activations),
                &expected_activated,
                &case_activated,
            );
            for again in linear_each([operands, operands], activations) {
                same_bits(&again, &expected, &format!("in a pair: {case}"));
            }
        }
    }
}

/// The same bits, or both NaN.
fn same_bits(got: &[f32], expected: &[f32], case: &str) {
    assert_eq!(got.len(), expected.len(), "{case}");
    for (i, (a, b)) in got.iter().zip(expected).enumerate() {
        let same = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        assert!(same, "{case}: element {i}: got {a:e}, expected {b:e}");
    }
}

#[test]
fn float16_products_equal_the_oracle_at_the_seams() {
    let mut random = Random(11);
    for m in [0, 1, 2, 5, 6, 7, 13, 40] {
        for k in [0, 1, 2, 3, 17, 64, 300] {
            for n in [0, 1, 7, 16, 33, 64, 65, 130] {
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
                    let operands = Operands {
                        lhs: &lhs,
                        m,
                        rhs: &packed,
                        activation: None,
                    };
                    let case = format!("{isa} m={m} k={k} n={n}");
                    same_bits(&linear(operands, ActivationConfig::Float), &expected, &case);
                }
            }
        }
    }
}

#[test]
fn every_isa_equals_the_oracle_at_the_seams() {
    let rows = [0, 1, 2, 3, 5, 6, 7, 12, 13];
    let inputs = [0, 1, 2, 3, 4, 5, 7, 8, 31, 32, 33, 63, 64, 65, 100];
    let channels = [
        0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 49, 63, 64, 65, 79, 80, 81, 128, 130,
    ];
    for m in rows {
        for k in inputs {
            check(
                m,
                k,
                channels[(m * 7 + k) % channels.len()],
                Codes::Uniform,
                None,
            );
        }
    }
    for n in channels {
        for k in [1, 4, 33] {
            check(7, k, n, Codes::Uniform, None);
        }
    }
}

#[test]
fn every_isa_is_exact_over_the_full_range_of_codes() {
    for codes in [Codes::Extreme, Codes::OneHot, Codes::Zero] {
        for (m, k, n) in [(1, 64, 16), (6, 1024, 65), (7, 515, 33)] {
            check(m, k, n, codes, None);
        }
    }
}

#[test]
fn a_row_that_is_not_finite_is_nan_and_alone() {
    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for (m, k, n) in [(1, 1, 1), (5, 33, 17), (13, 100, 70)] {
            check(m, k, n, Codes::Uniform, Some(poison));
        }
    }
}

#[test]
fn large_products_equal_the_oracle_on_all_threads() {
    for (m, k, n) in [(1, 768, 768), (64, 256, 192), (200, 128, 130)] {
        check(m, k, n, Codes::Uniform, None);
    }
}

/// The loops over one row, for each instruction set.
struct ExtentOf<'a>(&'a [f32]);

impl Op for ExtentOf<'_> {
    type Out = Extent;

    #[inline(always)]
    fn run(self) -> Extent {
        rows::extent(self.0)
    }
}

struct CodesOf<'a>(&'a [f32], QParams, Arithmetic, &'a mut [u8]);

impl Op for CodesOf<'_> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        rows::quantize(self.0, self.1, self.2, self.3);
    }
}

struct SumOf<'a>(&'a [u8]);

impl Op for SumOf<'_> {
    type Out = i32;

    #[inline(always)]
    fn run(self) -> i32 {
        rows::sum(self.0)
    }
}

#[test]
fn ranges_are_those_of_the_elements_wherever_they_are() {
    let mut random = Random(11);
    for isa in Isa::available() {
        let range = |row: &[f32]| isa.run(ExtentOf(row));
        assert_eq!(range(&[]), Extent::EMPTY);
        for len in [1, 2, 31, 32, 33, 63, 64, 65, 100] {
            let mut row: Vec<f32> = (0..len).map(|_| random.float()).collect();
            for at in 0..len {
                let kept = row[at];
                for (x, finite) in [
                    (3., true),
                    (-3., true),
                    (f32::MAX, true),
                    (f32::NAN, false),
                    (f32::INFINITY, false),
                    (f32::NEG_INFINITY, false),
                ] {
                    row[at] = x;
                    let got = range(&row);
                    assert_eq!(got.finite, finite, "{len} {at} {x}");
                    if finite {
                        let min = row.iter().copied().fold(f32::INFINITY, f32::min);
                        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                        assert_eq!((got.min, got.max), (min, max), "{len} {at} {x}");
                    }
                }
                row[at] = kept;
            }
            // Sums of these are not finite, they are.
            let large = Extent {
                min: f32::MAX,
                max: f32::MAX,
                finite: true,
            };
            assert_eq!(range(&vec![f32::MAX; len]), large);
        }
    }
}

#[test]
fn unaligned_starts_give_the_same_codes() {
    let mut random = Random(7);
    let data: Vec<f32> = (0..300).map(|_| random.float()).collect();
    for isa in Isa::available() {
        for start in 0..33 {
            for len in [0, 1, 15, 16, 17, 31, 32, 33, 64, 65, 200] {
                let row = &data[start..start + len];
                let range = isa.run(ExtentOf(row));
                let min = row.iter().copied().fold(f32::INFINITY, f32::min);
                let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                assert_eq!((range.min, range.max), (min, max), "{isa} {start} {len}");
                let mut codes = vec![0; len];
                for arithmetic in [Arithmetic::PyTorch, Arithmetic::OnnxRuntime] {
                    let config = dynamic(Granularity::PerRow, arithmetic);
                    let qparams = config.qparams(range.min, range.max);
                    isa.run(CodesOf(row, qparams, arithmetic, &mut codes));
                    let expected = reference::quantize_row(row, qparams, arithmetic);
                    assert_eq!(codes, expected.codes, "{isa} {start} {len} {arithmetic:?}");
                    let sum: i32 = codes.iter().map(|code| i32::from(*code)).sum();
                    assert_eq!(isa.run(SumOf(&codes)), sum);
                }
            }
        }
    }
}

#[test]
fn rows_of_codes_equal_the_oracle_and_halves_are_exact() {
    let mut random = Random(13);
    let codes: Vec<u8> = (0..900).map(|_| random.next() as u8).collect();
    let halves: Vec<f16> = (0..900)
        .map(|_| f16::from_bits(random.next() as u16))
        .collect();
    for isa in Isa::available() {
        for (i, len) in [0, 1, 7, 8, 15, 16, 17, 31, 33, 255, 256, 257, 511, 800]
            .into_iter()
            .enumerate()
        {
            let affine = Affine {
                shift: [0, 128, -5, 255][i % 4],
                scale: random.float(),
                offset: [0., random.float()][i % 2],
            };
            let (codes, halves) = (&codes[i..i + len], &halves[i..i + len]);
            let case = format!("{isa} {len} {affine:?}");
            let mut got = Vec::new();
            dequantize_row(isa, codes, affine, |chunk| got.extend_from_slice(chunk));
            same_bits(&got, &reference::dequantize_row(codes, affine), &case);
            got.clear();
            widen_row(isa, halves, |chunk| got.extend_from_slice(chunk));
            let expected: Vec<f32> = halves.iter().map(|half| half.to_f32()).collect();
            same_bits(&got, &expected, &case);
        }
    }
}

#[test]
fn a_channel_read_from_packed_weights_is_what_its_codes_stand_for() {
    let mut random = Random(17);
    for (n, k) in [
        (0, 4),
        (1, 0),
        (1, 1),
        (7, 3),
        (16, 5),
        (33, 256),
        (65, 257),
        (130, 300),
    ] {
        let codes = weights(Codes::Uniform, n, k, &mut random);
        let scales: Vec<f32> = (0..n).map(|_| random.float().abs() + 1e-3).collect();
        let zero_points: Vec<i32> = (0..n).map(|_| i32::from(random.next() as i8)).collect();
        let halves: Vec<f16> = codes
            .iter()
            .map(|code| f16::from_f32((*code).into()))
            .collect();
        let rhs = Int8 {
            codes: &codes,
            scales: &scales,
            zero_points: &zero_points,
        };
        for isa in Isa::available() {
            let int8 = Packed::int8(isa, k, 1, rhs, &vec![0.5; n]);
            let float16 = Packed::float16(isa, k, 1, &halves, &vec![0.5; n]);
            for channel in 0..n {
                let case = format!("{isa} {n}x{k}, {channel}");
                let row = codes[channel * k..][..k].iter();
                let values = |of: &dyn Fn(i32) -> f32| -> Vec<f32> {
                    row.clone().map(|code| of((*code).into())).collect()
                };
                let mut got = Vec::new();
                read_channel(&int8, channel, |chunk| got.extend_from_slice(chunk));
                let value = |code| (code - zero_points[channel]) as f32 * scales[channel];
                same_bits(&got, &values(&value), &case);
                got.clear();
                read_channel(&float16, channel, |chunk| got.extend_from_slice(chunk));
                same_bits(&got, &values(&|code| code as f32), &case);
            }
        }
    }
}

#[test]
fn each_row_is_written_once() {
    for (rows, k) in [(0, 3), (3, 0), (1, 1), (5, 7), (300, 401), (70_000, 1)] {
        let mut out = vec![usize::MAX; rows * k];
        for_each_row(&mut out, k, |row, out| out.fill(row));
        let expected: Vec<usize> = (0..rows).flat_map(|row| vec![row; k]).collect();
        assert_eq!(out, expected, "{rows} {k}");
    }
}

#[test]
fn weights_packed_by_gates_are_the_same_weights() {
    let mut random = Random(19);
    for gates in [3, 4] {
        for (units, k) in [
            (0, 4),
            (1, 5),
            (7, 3),
            (16, 16),
            (33, 20),
            (65, 7),
            (200, 12),
        ] {
            let n = gates * units;
            let codes = weights(Codes::Uniform, n, k, &mut random);
            let scales: Vec<f32> = (0..n).map(|_| random.float().abs() + 1e-3).collect();
            let zero_points: Vec<i32> = (0..n).map(|_| i32::from(random.next() as i8)).collect();
            let bias: Vec<f32> = (0..n).map(|_| random.float()).collect();
            let rhs = Int8 {
                codes: &codes,
                scales: &scales,
                zero_points: &zero_points,
            };
            let lhs = activations(Codes::Uniform, 2, k, &mut random);
            let expected = expected(
                &lhs,
                2,
                rhs,
                &bias,
                dynamic(Granularity::PerRow, Arithmetic::PyTorch),
            );
            for isa in Isa::available() {
                let case = format!("{isa} {gates} gates of {units}");
                let packed = Packed::int8(isa, k, gates, rhs, &bias);
                assert_eq!(packed.codes(), codes, "{case}");
                for channel in 0..n {
                    let stands_for = (packed.scale(channel), packed.zero_point(channel));
                    assert_eq!(
                        stands_for,
                        (scales[channel], zero_points[channel]),
                        "{case}"
                    );
                }
                let operands = Operands {
                    lhs: &lhs,
                    m: 2,
                    rhs: &packed,
                    activation: None,
                };
                same_bits(&linear(operands, PER_ROW), &expected, &case);
            }
        }
    }
}

/// Steps with the given numbers of rows, forwards or backwards.
fn steps_of(active: &[usize], reverse: bool) -> Vec<std::ops::Range<usize>> {
    let mut end = 0;
    let steps = active.iter().map(|active| {
        end += active;
        end - active..end
    });
    let mut steps: Vec<_> = steps.collect();
    if reverse {
        steps.reverse();
    }
    steps
}

/// The states that a recurrence replaces, and its outputs.
#[derive(Clone)]
struct States {
    h: Vec<f32>,
    c: Vec<f32>,
    hs: Vec<f32>,
    cs: Vec<f32>,
}

impl States {
    fn new(gates: Gates, state: &[f32], len: usize) -> Self {
        let if_c = |len: usize| if gates == Gates::Lstm { len } else { 0 };
        Self {
            h: state.to_vec(),
            c: state[..if_c(state.len())].to_vec(),
            hs: vec![0.; len],
            cs: vec![0.; if_c(len)],
        }
    }

    fn recurrence<'a>(
        &'a mut self,
        gates: Gates,
        steps: &'a [std::ops::Range<usize>],
        [ih, hh]: [&'a Packed; 2],
    ) -> Recurrence<'a> {
        Recurrence {
            gates,
            steps,
            ih,
            hh,
            h: &mut self.h,
            c: &mut self.c,
            hs: &mut self.hs,
            cs: &mut self.cs,
        }
    }

    /// The same steps by a product of the whole input, and a product and an update of the state
    /// for each step.
    fn one_by_one(
        &mut self,
        (isa, gates): (Isa, Gates),
        steps: &[std::ops::Range<usize>],
        ih: &[f32],
        mut product: impl FnMut(&[f32], usize) -> Vec<f32>,
    ) {
        let rows = steps.iter().map(|rows| rows.end).max().unwrap_or(0);
        let n = ih.len().checked_div(rows).unwrap_or(0);
        let k = n / gates.count();
        for rows in steps {
            let active = rows.len();
            let h = &mut self.h[..active * k];
            let c = match gates {
                Gates::Lstm => &mut self.c[..active * k],
                _ => &mut [],
            };
            let hh = product(h, active);
            let step = Step {
                ih: &ih[rows.start * n..rows.end * n],
                hh: &hh,
                h: &mut *h,
                c: &mut *c,
            };
            update_state(isa, gates, k, step);
            self.hs[rows.start * k..rows.end * k].copy_from_slice(h);
            if !self.cs.is_empty() {
                self.cs[rows.start * k..rows.end * k].copy_from_slice(c);
            }
        }
    }

    fn same(&self, expected: &Self, case: &str) {
        for (got, expected) in [
            (&self.h, &expected.h),
            (&self.c, &expected.c),
            (&self.hs, &expected.hs),
            (&self.cs, &expected.cs),
        ] {
            same_bits(got, expected, case);
        }
    }
}

/// The operands of a product without an activation function.
fn of<'a>(lhs: &'a [f32], m: usize, rhs: &'a Packed) -> Operands<'a> {
    Operands {
        lhs,
        m,
        rhs,
        activation: None,
    }
}

/// Weights of gates, `[n, k]`.
struct Weights {
    k: usize,
    codes: Vec<i8>,
    scales: Vec<f32>,
    zero_points: Vec<i32>,
    halves: Vec<f16>,
    bias: Vec<f32>,
}

impl Weights {
    fn new(n: usize, k: usize, random: &mut Random) -> Self {
        let codes = weights(Codes::Uniform, n, k, random);
        let halves = codes
            .iter()
            .map(|code| f16::from_f32(f32::from(*code) * 0.01));
        Self {
            k,
            halves: halves.collect(),
            codes,
            scales: vec![0.01; n],
            zero_points: (0..n).map(|i| (i % 3) as i32 - 1).collect(),
            bias: (0..n).map(|_| random.float()).collect(),
        }
    }

    fn int8(&self, isa: Isa, gates: Gates) -> Packed {
        let rhs = Int8 {
            codes: &self.codes,
            scales: &self.scales,
            zero_points: &self.zero_points,
        };
        Packed::int8(isa, self.k, gates.count(), rhs, &self.bias)
    }

    fn float16(&self, isa: Isa, gates: Gates) -> Packed {
        Packed::float16(isa, self.k, gates.count(), &self.halves, &self.bias)
    }
}

#[test]
fn steps_together_equal_steps_one_by_one() {
    let mut random = Random(23);
    let actives: [&[usize]; 7] = [
        &[],
        &[1; 5],
        &[2, 2, 1],
        &[1, 3, 4],
        &[9, 9, 5, 1],
        &[40, 40],
        &[3, 3, 0],
    ];
    let sizes = [(3, 1), (9, 5), (1, 16), (20, 100), (0, 130), (7, 300)];
    let cases = sizes.into_iter();
    let cases = cases.flat_map(|(inputs, k)| actives.map(|active| (inputs, k, active)));
    let cases: Vec<_> = cases.collect();
    // More products of the input than are computed at once, where there are four gates.
    let long: [(_, _, &[usize]); 2] = [(7, 130, &[70; 8]), (3, 130, &[1; 520])];
    for gates in [Gates::Lstm, Gates::Gru, Gates::Tanh, Gates::Relu] {
        let long = if gates == Gates::Lstm { &long[..] } else { &[] };
        for (inputs, k, active) in cases.iter().chain(long).copied() {
            let (n, m) = (gates.count() * k, active.iter().sum::<usize>());
            let batch = active.iter().copied().max().unwrap_or(0);
            let [ih, hh] = [inputs, k].map(|k| Weights::new(n, k, &mut random));
            let xs: Vec<f32> = (0..m * inputs).map(|_| random.float()).collect();
            // One more sequence, of no steps.
            let state: Vec<f32> = (0..(batch + 1) * k).map(|_| random.float()).collect();
            let before = States::new(gates, &state, m * k);
            let steps = [false, true].map(|reverse| steps_of(active, reverse));
            for isa in Isa::available() {
                let check = |packed: [&Packed; 2],
                             ih: Vec<f32>,
                             product: &dyn Fn(&[f32], usize) -> Vec<f32>,
                             recur: &dyn Fn(Vec<Recurrence<'_>>),
                             case: &str| {
                    let mut got = [before.clone(), before.clone()];
                    let directions = got.iter_mut().zip(&steps);
                    let directions =
                        directions.map(|(got, steps)| got.recurrence(gates, steps, packed));
                    recur(directions.collect());
                    for (got, steps) in got.iter().zip(&steps) {
                        let mut expected = before.clone();
                        expected.one_by_one((isa, gates), steps, &ih, product);
                        let case = format!("{isa} {gates:?} {inputs} {k} {steps:?} {case}");
                        got.same(&expected, &case);
                    }
                };
                let int8 = [&ih, &hh].map(|weights| weights.int8(isa, gates));
                for granularity in [Granularity::PerRow, Granularity::PerTensor] {
                    let activations = ActivationConfig::dynamic(granularity, false);
                    check(
                        int8.each_ref(),
                        linear(of(&xs, m, &int8[0]), activations),
                        &|h, m| linear(of(h, m, &int8[1]), activations),
                        &|all| recur(&xs, all, activations),
                        &format!("{granularity:?}"),
                    );
                }
                let float16 = [&ih, &hh].map(|weights| weights.float16(isa, gates));
                check(
                    float16.each_ref(),
                    linear(of(&xs, m, &float16[0]), ActivationConfig::Float),
                    &|h, m| linear(of(h, m, &float16[1]), ActivationConfig::Float),
                    &|all| recur(&xs, all, ActivationConfig::Float),
                    "float16",
                );
            }
        }
    }
}
