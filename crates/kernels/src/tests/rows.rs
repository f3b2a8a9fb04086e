//! Extents, codes and sums of rows, wherever they are in memory.

use super::random::Random;
use super::{PER_ROW, some};
use crate::arch::op::Op;
use crate::isa::Isa;
use crate::loops::number::Number;
use crate::loops::rows::{self, Extent};
use crate::qparams::QParams;
use crate::qparams::activation::{Arithmetic, DynamicConfig};
use crate::reference;

/// The loops over one row, for each instruction set.
struct ExtentOf<'a>(&'a [f32]);

impl Op for ExtentOf<'_> {
    type Out = Extent;

    #[inline(always)]
    fn run<N: Number>(self) -> Extent {
        rows::extent(self.0)
    }
}

struct CodesOf<'a>(&'a [f32], QParams, Arithmetic, &'a mut [u8]);

impl Op for CodesOf<'_> {
    type Out = ();

    #[inline(always)]
    fn run<N: Number>(self) {
        rows::quantize::<N>(self.0, self.1, self.2, self.3);
    }
}

struct SumOf<'a>(&'a [u8]);

impl Op for SumOf<'_> {
    type Out = i32;

    #[inline(always)]
    fn run<N: Number>(self) -> i32 {
        rows::sum(self.0)
    }
}

#[test]
fn ranges_are_those_of_the_elements_wherever_they_are() {
    let mut random = Random(11);
    for isa in Isa::available() {
        let range = |row: &[f32]| isa.run(ExtentOf(row));
        assert_eq!(range(&[]), Extent::EMPTY);
        for len in some([1, 2, 7, 8, 9, 23, 31, 32, 33, 63, 64, 65, 100], &[4, 9]) {
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
        for start in some(0..33, &[0, 5]) {
            for len in some(
                [0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65, 200],
                &[2, 9],
            ) {
                let row = &data[start..start + len];
                let range = isa.run(ExtentOf(row));
                let min = row.iter().copied().fold(f32::INFINITY, f32::min);
                let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                assert_eq!((range.min, range.max), (min, max), "{isa} {start} {len}");
                let mut codes = vec![0; len];
                for arithmetic in [Arithmetic::PyTorch, Arithmetic::OnnxRuntime] {
                    let config = DynamicConfig {
                        arithmetic,
                        ..PER_ROW
                    };
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
