//! Products of weights in blocks, their packed form and their scales.

use half::f16;

use super::random::Random;
use super::{Pool, check_products, same_bits, some};
use crate::calls::linear::linear;
use crate::calls::lookup::read_channel;
use crate::calls::pack::blocks::{pack_block_codes, pack_blocks};
use crate::error::Error;
use crate::isa::Isa;
use crate::loops::product::Product;
use crate::qparams::blocks::{BlockScale, Blocks, INPUTS};
use crate::reference::{self, InBlocks};

pub const FORMATS: [Blocks; 4] =
    [Blocks::Int4, Blocks::Int4ZeroPoint, Blocks::Int4Minimum, Blocks::Int8];

/// A weight of any codes and scales.
pub struct Weight {
    format: Blocks,
    k: usize,
    codes: Vec<u8>,
    scales: Vec<BlockScale>,
    factors: Vec<f32>,
    bias: Vec<f32>,
    per_row: bool,
}

impl Weight {
    pub fn new(format: Blocks, n: usize, k: usize, random: &mut Random) -> Self {
        let codes = |random: &mut Random| match (format.bits(), random.below(40)) {
            // The codes at the ends are where sums are greatest.
            (4, 0..20) => 15,
            (8, 0..20) => [0, 255][random.below(2)],
            (bits, _) => random.below(1 << bits) as u8,
        };
        let scale = |random: &mut Random| BlockScale {
            scale: f16::from_f32(random.float() * 0.1),
            offset: match format {
                Blocks::Int4 | Blocks::Int8 => f16::ZERO,
                Blocks::Int4ZeroPoint => f16::from_f32(random.below(16) as f32),
                Blocks::Int4Minimum => f16::from_f32(random.float()),
            },
        };
        Self {
            format,
            k,
            codes: (0..n * k).map(|_| codes(random)).collect(),
            scales: (0..n * k.div_ceil(INPUTS)).map(|_| scale(random)).collect(),
            factors: (0..n).map(|i| [1., 0.25, 1024.][i % 3]).collect(),
            bias: random.floats(n),
            per_row: n % 3 == 1,
        }
    }

    fn product(&self, lhs: &[f32], m: usize) -> Vec<f32> {
        reference::linear_blocks(lhs, m, self.per_row, self.rhs(), &self.bias)
    }

    fn rhs(&self) -> InBlocks<'_> {
        InBlocks {
            format: self.format,
            codes: &self.codes,
            scales: &self.scales,
            factors: &self.factors,
        }
    }

    pub fn packed(&self, isa: Isa, gates: usize) -> crate::packed::Packed {
        pack_block_codes(isa, self.k, gates, self.rhs(), &self.bias).scaled_per_row(self.per_row)
    }
}

fn activations(m: usize, k: usize, random: &mut Random) -> Vec<f32> {
    let value = |random: &mut Random| match random.below(30) {
        0..3 => 0.,
        // One that leaves no others of its block.
        3 => 1e4,
        4..12 => [3., -3.][random.below(2)],
        _ => random.float() * 3.,
    };
    (0..m * k).map(|_| value(random)).collect()
}

#[test]
fn products_equal_the_oracle_at_the_seams() {
    let mut random = Random(41);
    for m in some([0, 1, 2, 3, 4, 5, 6, 7, 13, 40], &[1, 6]) {
        for k in some([0, 1, 4, 31, 32, 33, 64, 70, 300], &[5]) {
            for n in some([0, 1, 7, 16, 33, 65, 130], &[4]) {
                let mut lhs = activations(m, k, &mut random);
                if m > 1 && k > 1 {
                    lhs[k + 1] = [f32::NAN, f32::INFINITY, -0., 1e-39, 3e38][(k + m) % 5];
                }
                for format in FORMATS {
                    let weight = Weight::new(format, n, k, &mut random);
                    let expected = weight.product(&lhs, m);
                    let pack = |isa| {
                        let packed = weight.packed(isa, 1);
                        let unpacked = (weight.codes.clone(), weight.scales.clone());
                        assert_eq!(packed.blocks(), unpacked, "{isa} {format:?} {k} x {n}: unpack");
                        packed
                    };
                    check_products(&lhs, m, &expected, pack, "");
                }
            }
        }
    }
}

#[test]
fn large_products_equal_the_oracle_on_any_number_of_threads() {
    let mut random = Random(43);
    for [m, k, n] in [[300, 229, 520], [1, 1_027, 900], [17, 640, 300]] {
        let [m, k, n] =
            if cfg!(miri) { [m, k, n].map(|size: usize| size.div_ceil(30)) } else { [m, k, n] };
        let lhs = activations(m, k, &mut random);
        for format in FORMATS {
            let weight = Weight::new(format, n, k, &mut random);
            let expected = weight.product(&lhs, m);
            for threads in some([1, 2, 7], &[1]) {
                let case = format!("{threads} threads");
                Pool::new(threads).install(|| {
                    check_products(&lhs, m, &expected, |isa| weight.packed(isa, 1), &case);
                });
            }
        }
    }
}

#[test]
fn channels_are_read_as_the_oracle_says() {
    let mut random = Random(44);
    let (n, k) = (70, 300);
    for format in FORMATS {
        let weight = Weight::new(format, n, k, &mut random);
        for isa in Isa::available() {
            let packed = weight.packed(isa, 1);
            for channel in [0, 1, 31, 69] {
                let mut got = Vec::new();
                read_channel(&packed, channel, |chunk| got.extend_from_slice(chunk));
                let codes = &weight.codes[channel * k..][..k];
                let scales = &weight.scales[channel * k.div_ceil(INPUTS)..];
                let factor = weight.factors[channel];
                let expected = reference::dequantize_blocks(format, codes, scales, factor);
                same_bits(&got, &expected, &format!("{isa} {format:?} {channel}"));
            }
        }
    }
}

/// The ratio of signal to noise, in dB.
fn sqnr(values: &[f32], got: &[f32]) -> f64 {
    let power = |x: f64| x * x;
    let signal: f64 = values.iter().map(|x| power((*x).into())).sum();
    let pairs = values.iter().zip(got);
    let noise: f64 = pairs.map(|(x, y)| power(f64::from(*x) - f64::from(*y))).sum();
    10. * (signal / noise).log10()
}

#[test]
fn floats_become_the_same_codes_everywhere_and_few_errors() {
    let mut random = Random(45);
    let (n, k) = (if cfg!(miri) { 3 } else { 130 }, 300);
    // Nearly normal, and of all sizes.
    let sizes = [1., 1e-8, 3e7, 1e-30];
    let value = |random: &mut Random| (0..6).map(|_| random.float()).sum::<f32>();
    let values: Vec<f32> =
        (0..n * k).map(|i| value(&mut random) * sizes[i / k % sizes.len()]).collect();
    let bias = vec![0.; n];
    for (format, group, at_least) in [
        (Blocks::Int4, 32, 20.),
        (Blocks::Int4, 128, 18.),
        (Blocks::Int4ZeroPoint, 32, 20.5),
        (Blocks::Int8, 32, 44.),
    ] {
        let mut known = None;
        for isa in Isa::available() {
            for threads in some([1, 3], &[1]) {
                let pack = || pack_blocks(isa, k, 1, &values, &bias, (format, group), None);
                let packed = Pool::new(threads).install(pack).unwrap();
                let mut got = Vec::new();
                (0..n).for_each(|i| read_channel(&packed, i, |chunk| got.extend_from_slice(chunk)));
                let known = known.get_or_insert_with(|| got.clone());
                same_bits(&got, known, &format!("{isa} {format:?}"));
            }
        }
        let got = known.unwrap_or_default();
        for (i, size) in sizes.iter().enumerate().take(n) {
            let rows = |of: &[f32]| -> Vec<f32> {
                let rows = of.chunks(k).skip(i).step_by(sizes.len());
                rows.flatten().map(|x| x / size).collect()
            };
            let sqnr = sqnr(&rows(&values), &rows(&got));
            assert!(sqnr > at_least, "{format:?} {group} {size:e}: {sqnr} dB");
        }
    }
}

#[test]
fn weights_of_zeros_stay_zeros_and_others_are_refused() {
    let isa = Isa::active().unwrap();
    for format in FORMATS {
        let packed = pack_blocks(isa, 40, 1, &[0.; 80], &[0., 1.], (format, 32), None).unwrap();
        read_channel(&packed, 1, |chunk| assert_eq!(chunk, [0.; 40]));
        let ys = linear(Product::new(&[1.; 40], 1, &packed, None));
        assert_eq!(ys, [0., 1.]);
        let mut values = [1.; 80];
        values[41] = f32::INFINITY;
        let error = pack_blocks(isa, 40, 1, &values, &[0., 1.], (format, 32), None).unwrap_err();
        let expected = Error::NonFiniteWeight { index: vec![1, 1], value: f32::INFINITY };
        assert_eq!(error, expected);
    }
}

/// 4.5 bits a weight, and 8 bytes a channel.
#[test]
#[cfg_attr(miri, ignore = "a size, of a weight that takes Miri minutes")]
fn symmetric_weights_of_4_bits_take_less_than_4_7_bits() {
    for isa in Isa::available() {
        let (values, bias) = ([1.; 384 * 256], [0.; 256]);
        let packed = pack_blocks(isa, 384, 1, &values, &bias, (Blocks::Int4, 32), None);
        let bits = packed.unwrap().bytes() * 8;
        assert!(bits as f32 / (384. * 256.) < 4.7, "{isa}: {bits}");
    }
}
