//! Convolutions against the oracle, which multiplies tap by tap.

use std::ops::Range;

use super::random::Random;
use super::{Codes, Int8Weights, PER_ROW, PER_TENSOR, Pool, activations, same_bits, some};
use crate::calls::convolution::{Convolution, FloatWeight, convolve, convolve_f32};
use crate::isa::Isa;
use crate::loops::activation::{self, Activation};
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
    ([1, 390, 5, 9], 40, [[3, 3], ONE, ONE, ONE]),
];

fn extent(values: &[f32]) -> [f32; 2] {
    values
        .iter()
        .fold([f32::INFINITY, f32::NEG_INFINITY], |[min, max], x| [min.min(*x), max.max(*x)])
}

/// The positions of some channels of the input, `[batch, height, width]`, each a row.
fn positions(
    xs: &[f32],
    [batch, all, height, width]: [usize; 4],
    channels: Range<usize>,
    config: DynamicConfig,
) -> Vec<AffineRow> {
    let area = height * width;
    let rows = |channels: Range<usize>| {
        (0..batch * area).map(move |place| -> Vec<f32> {
            let first = place / area * all * area + place % area;
            channels.clone().map(|c| xs[first + c * area]).collect()
        })
    };
    let finite = |row: &Vec<f32>| row.iter().all(|x| x.is_finite());
    // By groups of channels, as each is a row.
    let groups = (0..all).step_by(channels.len().max(1));
    let rows_of_groups = groups.flat_map(|first| rows(first..first + channels.len()));
    let all: Vec<f32> = rows_of_groups.filter(finite).flatten().collect();
    let row = |row: Vec<f32>| {
        let [min, max] = extent(if config.per_row { &row } else { &all });
        reference::quantize_row(&row, config.qparams(min, max), config.arithmetic)
    };
    rows(channels).map(row).collect()
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
    for (groups, config, affine, common) in [
        (1, PER_ROW, false, false),
        (1, PER_ROW, true, false),
        (1, PER_TENSOR, false, false),
        (1, PER_TENSOR, true, true),
        (2, PER_ROW, true, false),
        (2, PER_TENSOR, false, true),
    ] {
        check_config(case, groups, (config, affine, common), (codes, poison));
    }
}

/// Checks a case, once or as several groups of channels; the taps of a channel may share their
/// scales.
fn check_config(
    case: Case,
    groups: usize,
    (config, affine, common): (DynamicConfig, bool, bool),
    (codes, poison): (Codes, Option<f32>),
) {
    let (shape, n, [kernel, stride, padding, dilation]) = case;
    let [batch, k, height, width] = shape;
    let (taps, all) = (kernel[0] * kernel[1], [batch, groups * k, height, width]);
    let channels = groups * taps * n;
    let mut random = Random((n * 1_000_003 + width * 1_009 + taps) as u64);
    let mut weights = Int8Weights::new(codes, channels, k, &mut random);
    if !affine {
        weights = weights.symmetric();
    }
    if common {
        for i in 0..channels {
            let of_first_tap = i / (taps * n) * taps * n + i % n;
            weights.scales[i] = weights.scales[of_first_tap];
            weights.zero_points[i] = weights.zero_points[of_first_tap];
        }
    }
    let mut bias = random.floats(groups * n);
    bias[0] = -0.;
    let mut xs = activations(codes, batch * height * width, groups * k, &mut random);
    if let (Some(value), false) = (poison, xs.is_empty()) {
        let at = random.below(xs.len());
        xs[at] = value;
    }
    let windows = windows(case);
    let exact = common && !config.per_row;
    let of_group = |group: usize| {
        let of_taps = group * taps * n..(group + 1) * taps * n;
        let rhs = Int8 {
            codes: &weights.codes[of_taps.start * k..of_taps.end * k],
            scales: &weights.scales[of_taps.clone()],
            zero_points: &weights.zero_points[of_taps],
        };
        let positions = positions(&xs, all, group * k..(group + 1) * k, config);
        let bias = &bias[group * n..][..n];
        reference::windows(&positions, &windows, rhs, bias, exact)
    };
    let of_groups: Vec<_> = (0..groups).map(of_group).collect();
    let rows = (0..windows.len()).flat_map(|window| {
        let of_group = |results: &Vec<f32>| results[window * n..][..n].to_vec();
        of_groups.iter().flat_map(of_group).collect::<Vec<_>>()
    });
    let mut expected = channels_first(&rows.collect::<Vec<_>>(), batch, groups * n);
    let activation = (taps % 2 == 1).then_some(Activation::Gelu);
    // With a residual, too, where there are several groups.
    let residual: Vec<f32> = expected.iter().map(|_| random.float()).collect();
    let residual = (groups > 1).then_some(&residual[..]);
    for (value, term) in expected.iter_mut().zip(residual.unwrap_or_default()) {
        *value += term;
    }
    if let Some(activation) = activation {
        activation::apply::<f32>(activation, &mut expected);
    }
    let with_taps = |bias: &[f32]| [bias, &vec![0.; (taps - 1) * n]].concat();
    weights.bias = bias.chunks_exact(n).flat_map(with_taps).collect();
    for isa in Isa::available() {
        let packed = weights.packed(isa, groups * taps, config);
        let convolution =
            Convolution { shape: all, groups, kernel, stride, padding, dilation, activation };
        let case = format!("{isa} {case:?} {codes:?} {config:?} {poison:?} {groups} {affine}");
        let got = convolve(&convolution, &packed, &xs, residual);
        same_bits(&got, &expected, &case);
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
    let mut weights = Int8Weights::new(Codes::Uniform, taps * n, k, &mut random).symmetric();
    weights.bias.fill(0.);
    let xs = activations(Codes::Uniform, 60, k, &mut random);
    for isa in Isa::available() {
        let weight = &weights.packed(isa, taps, PER_ROW);
        let of = |first: usize, count: usize| {
            let signal = xs.chunks_exact(60).flat_map(|x| &x[first..first + count]);
            let convolution = Convolution {
                shape: [1, k, 1, count],
                groups: 1,
                kernel: [1, taps],
                stride: ONE,
                padding: [0, 0],
                dilation: [1, 2],
                activation: None,
            };
            let signal: Vec<f32> = signal.copied().collect();
            convolve(&convolution, weight, &signal, None)
        };
        let (all, some) = (of(0, 60), of(17, 30));
        let part = all.chunks_exact(52).flat_map(|channel| &channel[17..39]);
        same_bits(&some, &part.copied().collect::<Vec<_>>(), &isa.to_string());
    }
}

#[test]
fn sizes_that_no_memory_holds_have_no_output() {
    let convolution = Convolution {
        shape: [1, 4, 1, 8],
        groups: 1,
        kernel: [1, 3],
        stride: ONE,
        padding: [0, 0],
        dilation: ONE,
        activation: None,
    };
    assert_eq!(convolution.out_size(), Some([1, 6]));
    for wrong in [
        Convolution { dilation: [1, 4], ..convolution },
        Convolution { dilation: [1, usize::MAX], ..convolution },
        Convolution { padding: [usize::MAX, 0], ..convolution },
        Convolution { padding: [0, usize::MAX / 4], ..convolution },
        Convolution { stride: [1, 0], ..convolution },
        Convolution { kernel: [0, 3], ..convolution },
    ] {
        assert_eq!(wrong.out_size(), None);
    }
}

/// The sums of floats, in f64.
fn float_sums(
    [batch, k, height, width]: [usize; 4],
    windows: &[Vec<Option<usize>>],
    [xs, weights, bias]: [&[f32]; 3],
    channels: Range<usize>,
) -> Vec<f64> {
    let area = height * width;
    let taps = windows.first().map_or(0, Vec::len);
    let of_image = windows.len() / batch.max(1);
    let result = |image: usize, channel: usize, window: usize| {
        let read = windows[image * of_image + window].iter().enumerate();
        let terms = read.filter_map(|(tap, place)| Some((tap, (*place)? % area)));
        let of_tap = |(tap, place): (usize, usize)| {
            let product = |i: usize| {
                let x = xs[(image * k + i) * area + place];
                f64::from(x) * f64::from(weights[(channel * k + i) * taps + tap])
            };
            (0..k).map(product).sum::<f64>()
        };
        f64::from(bias[channel]) + terms.map(of_tap).sum::<f64>()
    };
    let channels = |image| channels.clone().map(move |channel| (image, channel));
    (0..batch)
        .flat_map(channels)
        .flat_map(|(image, channel)| {
            (0..of_image).map(move |window| result(image, channel, window))
        })
        .collect()
}

#[test]
fn floats_equal_sums_in_f64() {
    let stems = [
        ([2, 1, 9, 40], 1, [[3, 3], ONE, ONE, ONE]),
        ([1, 3, 30, 33], 3, [[7, 5], [2, 3], [3, 2], [1, 2]]),
        ([1, 40, 1, 9_000], 2, [[1, 4], [1, 3], [0, 5], [1, 2]]),
        ([1, 2, 1, 50], 9, [[1, 1], [1, 2], [0, 0], ONE]),
        ([1, 6, 40, 41], 150, [[3, 3], [2, 1], [0, 2], ONE]),
    ];
    for (case, groups) in CASES.into_iter().chain(stems).flat_map(|case| [(case, 1), (case, 3)]) {
        let (shape, n, [kernel, stride, padding, dilation]) = case;
        let [batch, k, height, width] = shape;
        let (windows, taps) = (windows(case), kernel[0] * kernel[1]);
        let mut random = Random(7);
        let mut draw = |len: usize| -> Vec<f32> { random.floats(len) };
        let (terms, size) = (k * taps, k * height * width);
        let (weights, bias) = (draw(groups * n * terms), draw(groups * n));
        let xs = draw(batch * groups * size);
        let of_group = |group: usize| {
            let xs = xs.chunks_exact(size).skip(group).step_by(groups);
            let xs: Vec<f32> = xs.flatten().copied().collect();
            let weights = &weights[group * n * terms..][..n * terms];
            float_sums(shape, &windows, [&xs, weights, &bias[group * n..]], 0..n)
        };
        let of_groups: Vec<_> = (0..groups).map(of_group).collect();
        let of_sample = of_groups[0].len() / batch.max(1);
        let samples = (0..batch).flat_map(|sample| {
            let of_group = |results: &Vec<f64>| results[sample * of_sample..][..of_sample].to_vec();
            of_groups.iter().flat_map(of_group).collect::<Vec<_>>()
        });
        let expected: Vec<f64> = samples.collect();
        let convolution = Convolution {
            shape: [batch, groups * k, height, width],
            groups,
            kernel,
            stride,
            padding,
            dilation,
            activation: None,
        };
        let turned = |group: &[f32]| -> Vec<f32> {
            (0..n * terms).map(|i| group[i % n * terms + i / n]).collect()
        };
        let turned: Vec<f32> = weights.chunks_exact(n * terms).flat_map(turned).collect();
        for (isa, transposed) in
            Isa::available().into_iter().flat_map(|isa| [(isa, false), (isa, true)])
        {
            let weight = FloatWeight {
                values: if transposed { &turned } else { &weights },
                transposed,
                bias: &bias,
                channels: groups * n,
            };
            let got = convolve_f32(isa, &convolution, weight, &xs, None);
            assert_eq!(got.len(), expected.len(), "{case:?}");
            let residual: Vec<f32> = got.iter().rev().copied().collect();
            let sums: Vec<f32> = got.iter().zip(&residual).map(|(y, term)| y + term).collect();
            let added = convolve_f32(isa, &convolution, weight, &xs, Some(&residual));
            same_bits(&added, &sums, &format!("{isa} {case:?} and a residual"));
            let far = |(got, expected): &(&f32, &f64)| {
                (f64::from(**got) - **expected).abs() > 1e-6 * (terms + 10) as f64
            };
            let far = got.iter().zip(&expected).find(far);
            assert_eq!(far, None, "{isa} {case:?} {groups} {transposed}");
        }
    }
}
