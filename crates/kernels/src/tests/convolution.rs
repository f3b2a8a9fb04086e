//! Convolutions against the oracle, which multiplies tap by tap.

use super::random::Random;
use super::{Codes, PER_ROW, PER_TENSOR, Pool, activations, same_bits, some, weights};
use crate::calls::convolution::{Convolution, convolve};
use crate::isa::Isa;
use crate::loops::activation::{self, Activation};
use crate::packed::{Element, Packed};
use crate::qparams::activation::DynamicConfig;
use crate::reference::{self, AffineRow, Int8};

/// Input, output channels, kernel, stride, padding, dilation.
type Case = ([usize; 4], usize, [[usize; 2]; 4]);

const ONE: [usize; 2] = [1, 1];

/// Signals and images at the seams of tiles, panels, groups and blocks of positions.
const CASES: [Case; 13] = [
    ([1, 4, 1, 20], 5, [[1, 3], ONE, [0, 40], ONE]),
    ([1, 4, 1, 9], 5, [[1, 3], ONE, [0, 1], ONE]),
    ([2, 7, 1, 200], 70, [[1, 4], [1, 2], [0, 3], [1, 2]]),
    ([1, 64, 1, 64], 64, [[1, 1], ONE, [0, 0], ONE]),
    ([3, 33, 1, 5], 17, [[1, 5], ONE, [0, 4], ONE]),
    ([1, 3, 10, 11], 8, [[3, 3], ONE, ONE, ONE]),
    ([2, 16, 7, 6], 130, [[3, 2], [2, 1], [1, 0], [2, 3]]),
    ([1, 8, 6, 70], 16, [[2, 2], [2, 2], [0, 0], ONE]),
    ([2, 5, 3, 3], 9, [[3, 3], ONE, [2, 2], ONE]),
    ([1, 1, 1, 1], 1, [[1, 1], ONE, [0, 0], ONE]),
    ([1, 2, 1, 2], 3, [[1, 3], [1, 5], [0, 9], ONE]),
    ([0, 4, 1, 8], 4, [[1, 3], ONE, [0, 1], ONE]),
    ([2, 96, 9, 9], 40, [[3, 3], ONE, ONE, ONE]),
];

fn extent(values: &[f32]) -> [f32; 2] {
    values
        .iter()
        .fold([f32::INFINITY, f32::NEG_INFINITY], |[min, max], x| {
            [min.min(*x), max.max(*x)]
        })
}

/// The positions of the input, `[batch, height, width]`, each a row of its channels.
fn positions(xs: &[f32], shape: [usize; 4], config: DynamicConfig) -> Vec<AffineRow> {
    let [batch, channels, height, width] = shape;
    let area = height * width;
    let rows: Vec<Vec<f32>> = (0..batch * area)
        .map(|place| {
            let first = place / area * channels * area + place % area;
            (0..channels).map(|c| xs[first + c * area]).collect()
        })
        .collect();
    let finite = |row: &&Vec<f32>| row.iter().all(|x| x.is_finite());
    let all: Vec<f32> = rows.iter().filter(finite).flatten().copied().collect();
    let row = |row: &Vec<f32>| {
        let [min, max] = extent(if config.per_row { row } else { &all });
        reference::quantize_row(row, config.qparams(min, max), config.arithmetic)
    };
    rows.iter().map(row).collect()
}

/// The position that each tap of each window reads.
fn windows((shape, _, [kernel, stride, padding, dilation]): Case) -> Vec<Vec<Option<usize>>> {
    let [batch, _, height, width] = shape;
    let size = |i: usize| {
        let reach = dilation[i] * (kernel[i] - 1) + 1;
        (shape[2 + i] + 2 * padding[i] - reach) / stride[i] + 1
    };
    let mut windows = Vec::new();
    for (image, y, x) in (0..batch)
        .flat_map(|image| (0..size(0)).flat_map(move |y| (0..size(1)).map(move |x| (image, y, x))))
    {
        let taps = (0..kernel[0]).flat_map(|ky| (0..kernel[1]).map(move |kx| (ky, kx)));
        let position = |(ky, kx): (usize, usize)| {
            let y = (y * stride[0] + ky * dilation[0]).checked_sub(padding[0])?;
            let x = (x * stride[1] + kx * dilation[1]).checked_sub(padding[1])?;
            (y < height && x < width).then_some((image * height + y) * width + x)
        };
        windows.push(taps.map(position).collect());
    }
    windows
}

/// `[windows, n]` as `[batch, n, windows of an image]`.
fn channels_first(rows: &[f32], batch: usize, n: usize) -> Vec<f32> {
    let area = rows.len() / (batch * n).max(1);
    let value = |i: usize| {
        let (image, channel, place) = (i / (n * area), i / area % n, i % area);
        rows[(image * area + place) * n + channel]
    };
    (0..rows.len()).map(value).collect()
}

fn check(case: Case, codes: Codes, poison: Option<f32>) {
    let (shape, n, [kernel, stride, padding, dilation]) = case;
    let [batch, k, height, width] = shape;
    let taps = kernel[0] * kernel[1];
    let mut random = Random((n * 1_000_003 + width * 1_009 + taps) as u64);
    let rhs = weights(codes, taps * n, k, &mut random);
    let scales: Vec<f32> = (0..taps * n).map(|_| random.float().abs() + 1e-3).collect();
    let mut bias: Vec<f32> = (0..n).map(|_| random.float()).collect();
    bias[0] = -0.;
    let mut xs = activations(codes, batch * height * width, k, &mut random);
    if let (Some(value), false) = (poison, xs.is_empty()) {
        let at = random.below(xs.len());
        xs[at] = value;
    }
    let symmetric = vec![0; taps * n];
    let affine: Vec<i32> = symmetric
        .iter()
        .map(|_| i32::from(random.next() as i8))
        .collect();
    let windows = windows(case);
    for (config, zero_points) in [
        (PER_ROW, &symmetric),
        (PER_ROW, &affine),
        (PER_TENSOR, &symmetric),
    ] {
        let rhs = Int8::new(&rhs, &scales, zero_points);
        let positions = positions(&xs, shape, config);
        let expected = reference::windows(&positions, &windows, rhs, &bias);
        let mut expected = channels_first(&expected, batch, n);
        let activation = (taps % 2 == 1).then_some(Activation::Gelu);
        if let Some(activation) = activation {
            activation::apply::<f32>(activation, &mut expected);
        }
        let mut of_taps = bias.clone();
        of_taps.resize(taps * n, 0.);
        for isa in Isa::available() {
            let packed = Packed::int8(isa, k, taps, rhs, &of_taps).with(config);
            let convolution = Convolution {
                shape,
                weight: &packed,
                kernel,
                stride,
                padding,
                dilation,
                activation,
            };
            let case = format!("{isa} {case:?} {codes:?} {config:?} {poison:?}");
            same_bits(&convolve(&convolution, &xs), &expected, &case);
        }
    }
}

#[test]
fn convolutions_equal_the_oracle_at_the_seams() {
    for case in some(CASES, &[5]) {
        check(case, Codes::Uniform, None);
        check(case, Codes::Uniform, Some(f32::NAN));
        check(case, Codes::Extreme(-128), Some(f32::NEG_INFINITY));
        check(case, Codes::Zero, None);
        check(case, Codes::Heaped, None);
    }
}

#[test]
fn convolutions_do_not_depend_on_threads() {
    let shape = [2, 48, 20, 21];
    for threads in some([1, 2, 3, 8], &[1]) {
        Pool::new(threads).install(|| {
            check((shape, 72, [[3, 3], ONE, ONE, ONE]), Codes::Uniform, None);
        });
    }
}

/// A window alone, as it is in the middle of a longer signal.
#[test]
fn a_result_depends_on_its_window_only() {
    let (k, n, taps) = (20, 24, 5);
    let mut random = Random(3);
    let codes = weights(Codes::Uniform, taps * n, k, &mut random);
    let scales: Vec<f32> = (0..taps * n).map(|_| random.float().abs()).collect();
    let zero_points = vec![0; taps * n];
    let bias = vec![0.; taps * n];
    let xs = activations(Codes::Uniform, 60, k, &mut random);
    for isa in Isa::available() {
        let rhs = Int8::new(&codes, &scales, &zero_points);
        let weight = &Packed::int8(isa, k, taps, rhs, &bias);
        let of = |first: usize, count: usize| {
            let signal = xs.chunks_exact(60).flat_map(|x| &x[first..first + count]);
            let convolution = Convolution {
                shape: [1, k, 1, count],
                weight,
                kernel: [1, taps],
                stride: ONE,
                padding: [0, 0],
                dilation: [1, 2],
                activation: None,
            };
            convolve(&convolution, &signal.copied().collect::<Vec<_>>())
        };
        let (all, some) = (of(0, 60), of(17, 30));
        let part = all.chunks_exact(52).flat_map(|channel| &channel[17..39]);
        same_bits(&some, &part.copied().collect::<Vec<_>>(), &isa.to_string());
    }
}

#[test]
fn sizes_that_no_memory_holds_have_no_output() {
    let weight = &Packed::zeros(Isa::available()[0], Element::Int8(PER_ROW), 4, 3, &[0.; 6]);
    let convolution = Convolution {
        shape: [1, 4, 1, 8],
        weight,
        kernel: [1, 3],
        stride: ONE,
        padding: [0, 0],
        dilation: ONE,
        activation: None,
    };
    assert_eq!(convolution.out_size(), Some([1, 6]));
    for wrong in [
        Convolution {
            dilation: [1, 4],
            ..convolution
        },
        Convolution {
            dilation: [1, usize::MAX],
            ..convolution
        },
        Convolution {
            padding: [usize::MAX, 0],
            ..convolution
        },
        Convolution {
            padding: [0, usize::MAX / 4],
            ..convolution
        },
        Convolution {
            stride: [1, 0],
            ..convolution
        },
        Convolution {
            kernel: [0, 3],
            ..convolution
        },
    ] {
        assert_eq!(wrong.out_size(), None);
    }
}
