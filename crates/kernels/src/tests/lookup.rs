//! Rows of codes and halves that are looked up.

use half::{bf16, f16};

use super::random::Random;
use super::{Codes, Int8Weights, PER_ROW, same_bits, some};
use crate::calls::lookup::{dequantize_row, for_each_row, read_channel, widen_row};
use crate::calls::pack::pack_halves;
use crate::isa::Isa;
use crate::reference::{self, Affine};

#[test]
fn rows_of_codes_equal_the_oracle_and_halves_are_exact() {
    let mut random = Random(13);
    let codes: Vec<u8> = (0..900).map(|_| random.next() as u8).collect();
    let halves: Vec<f16> = (0..900).map(|_| f16::from_bits(random.next() as u16)).collect();
    for isa in Isa::available() {
        let lens = [0, 1, 7, 8, 15, 16, 17, 31, 33, 255, 256, 257, 511, 800];
        for (i, len) in some(lens.into_iter().enumerate(), &[0, 2, 8]) {
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
    let sizes = [(0, 4), (1, 0), (1, 1), (7, 3), (16, 5), (33, 256), (65, 257), (130, 300)];
    for (n, k) in some(sizes, &[3]) {
        let weights = Int8Weights::new(Codes::Uniform, n, k, &mut random);
        let floats = weights.codes.iter().map(|code| f32::from(*code));
        let halves: Vec<_> = floats.clone().map(f16::from_f32).collect();
        let bfloats: Vec<_> = floats.map(bf16::from_f32).collect();
        for isa in Isa::available() {
            let int8 = weights.packed(isa, 1, PER_ROW);
            let float16 = pack_halves(isa, k, 1, &halves, &weights.bias);
            let bfloat16 = pack_halves(isa, k, 1, &bfloats, &weights.bias);
            for channel in 0..n {
                let (scale, zero) = (weights.scales[channel], weights.zero_points[channel]);
                let all = [(&int8, scale, zero), (&float16, 1., 0), (&bfloat16, 1., 0)];
                for (packed, scale, zero) in all {
                    let codes = weights.codes[channel * k..][..k].iter();
                    let value = |code: &i8| (i32::from(*code) - zero) as f32 * scale;
                    let expected: Vec<_> = codes.map(value).collect();
                    let mut got = Vec::new();
                    read_channel(packed, channel, |chunk| got.extend_from_slice(chunk));
                    let case = format!("{isa} {:?} {n}x{k}, {channel}", packed.element());
                    same_bits(&got, &expected, &case);
                }
            }
        }
    }
}

#[test]
fn each_row_is_written_once() {
    for (rows, k) in some([(0, 3), (3, 0), (1, 1), (5, 7), (300, 401), (70_000, 1)], &[3]) {
        let mut out = vec![usize::MAX; rows * k];
        for_each_row(&mut out, k, |row, out| out.fill(row));
        let expected: Vec<usize> = (0..rows).flat_map(|row| vec![row; k]).collect();
        assert_eq!(out, expected, "{rows} {k}");
    }
}
