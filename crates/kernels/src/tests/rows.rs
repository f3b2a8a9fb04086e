//! Extents, codes and sums of rows, wherever they are in memory.

use super::random::Random;
use super::{PER_ROW, some};
use crate::arch::op::ops;
use crate::isa::Isa;
use crate::loops::product::Row;
use crate::loops::rows::{self, Extent};
use crate::loops::split;
use crate::packed::split_width;
use crate::qparams::QParams;
use crate::qparams::activation::{Arithmetic, DynamicConfig};
use crate::reference;

ops! {
    fn extent_of(row: &'a [f32]) -> Extent {
        rows::extent(row)
    }

    fn codes_of(row: &'a [f32], qparams: QParams, arithmetic: Arithmetic, codes: &'a mut [u8]) {
        rows::quantize::<N>(row, qparams, arithmetic, codes);
    }

    fn sum_of(codes: &'a [u8]) -> i32 {
        rows::sum(codes)
    }

    fn split_of(codes: &'a mut [[u8; 4]], groups: usize, k: usize, row: &'a mut Row) {
        split::split(codes, groups, k, row);
    }
}

#[test]
fn ranges_are_those_of_the_elements_wherever_they_are() {
    let mut random = Random(11);
    for isa in Isa::available() {
        let range = |row: &[f32]| isa.run(extent_of(row));
        assert_eq!(range(&[]), Extent::EMPTY);
        for len in some([1, 2, 7, 8, 9, 23, 31, 32, 33, 63, 64, 65, 100], &[4, 9]) {
            let mut row = random.floats(len);
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
            let large = Extent { min: f32::MAX, max: f32::MAX, finite: true };
            assert_eq!(range(&vec![f32::MAX; len]), large);
        }
    }
}

#[test]
fn unaligned_starts_give_the_same_codes() {
    let mut random = Random(7);
    let data = random.floats(300);
    for isa in Isa::available() {
        for start in some(0..33, &[0, 5]) {
            for len in some([0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65, 200], &[2, 9]) {
                let row = &data[start..start + len];
                let range = isa.run(extent_of(row));
                let min = row.iter().copied().fold(f32::INFINITY, f32::min);
                let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                assert_eq!((range.min, range.max), (min, max), "{isa} {start} {len}");
                let mut codes = vec![0; len];
                for arithmetic in [Arithmetic::PyTorch, Arithmetic::OnnxRuntime] {
                    let config = DynamicConfig { arithmetic, ..PER_ROW };
                    let qparams = config.qparams(range.min, range.max);
                    isa.run(codes_of(row, qparams, arithmetic, &mut codes));
                    let expected = reference::quantize_row(row, qparams, arithmetic);
                    assert_eq!(codes, expected.codes, "{isa} {start} {len} {arithmetic:?}");
                    let sum: i32 = codes.iter().map(|code| i32::from(*code)).sum();
                    assert_eq!(isa.run(sum_of(&codes)), sum);
                }
            }
        }
    }
}

/// Whatever the codes are, their parts add up to them, and no pair of a part exceeds 128.
#[test]
fn split_codes_add_up_and_fit() {
    let mut random = Random(17);
    for isa in Isa::available() {
        for (k, zero_point) in some([1, 4, 7, 31, 32, 33, 65, 130], &[7])
            .flat_map(|k| [0, 3, 64, 128, 200, 255].map(|zero_point| (k, zero_point)))
        {
            let any = (0..k).map(|_| random.next() as u8).collect();
            for codes in [any, vec![0; k], vec![255; k], [0, 0, 255, 255].repeat(k)] {
                let (codes, groups) = (&codes[..k], k.div_ceil(4));
                let mut room = vec![[77; 4]; split_width(groups)];
                room.as_flattened_mut()[..k].copy_from_slice(codes);
                let mut row = Row { zero_point, ..Row::PLAIN };
                isa.run(split_of(&mut room, groups, k, &mut row));
                let middle = zero_point - row.zero_point;
                let mut left: Vec<_> = codes.iter().map(|x| i32::from(*x) - middle).collect();
                assert_eq!(row.sum, left.iter().sum::<i32>(), "{isa} {k} {middle}");
                left.resize(4 * groups, 0);
                let (parts, extras) = room.split_at(groups);
                let extras = extras.as_chunks().0.iter().take(row.extras as usize);
                let extras =
                    extras.map(|[group, part]| (u32::from_le_bytes(*group) as usize, part));
                for (group, part) in parts.iter().enumerate().chain(extras) {
                    let part = part.map(|x| i32::from(x.cast_signed()));
                    for [a, b] in part.as_chunks().0 {
                        let sums = (a.max(&0) + b.max(&0), a.min(&0) + b.min(&0));
                        assert!(sums.0 <= 128 && sums.1 >= -128, "{isa} {k} {middle}: {sums:?}");
                    }
                    for (left, part) in left[4 * group..].iter_mut().zip(part) {
                        *left -= part;
                    }
                }
                assert!(left.iter().all(|x| *x == 0), "{isa} {k} {middle}: {left:?}");
            }
        }
    }
}
