//! Weights in blocks for given inputs, against GPTQ by its own formulas.

use super::random::Random;
use super::{Pool, same_bits, some};
use crate::calls::inputs::{InputFactor, InputProducts};
use crate::calls::lookup::read_channel;
use crate::calls::pack::blocks::pack_blocks;
use crate::isa::Isa;
use crate::packed::Packed;
use crate::qparams::blocks::Blocks;

/// Inputs of which each is near the one before.
fn inputs(rows: usize, k: usize, random: &mut Random) -> Vec<f32> {
    let mut xs = Vec::with_capacity(rows * k);
    for _ in 0..rows {
        let mut x = 0.;
        for _ in 0..k {
            x = 0.9 * x + random.float();
            xs.push(x);
        }
    }
    xs
}

/// The factor of these inputs, a part after the other.
fn factor(isa: Isa, k: usize, parts: &[&[f32]], damping: f64) -> InputFactor {
    let mut products = InputProducts::new(k);
    parts.iter().for_each(|inputs| products.add(isa, inputs));
    products.factor(isa, damping).unwrap()
}

fn values(packed: &Packed, n: usize) -> Vec<f32> {
    let mut values = Vec::new();
    (0..n).for_each(|i| read_channel(packed, i, |chunk| values.extend_from_slice(chunk)));
    values
}

/// The damped sums of products, inverted.
fn inverse(xs: &[f32], k: usize, damping: f64) -> Vec<Vec<f64>> {
    let mut matrix = vec![vec![0.; 2 * k]; k];
    for row in xs.chunks_exact(k) {
        for i in 0..k {
            for j in 0..k {
                matrix[i][j] += f64::from(row[i]) * f64::from(row[j]);
            }
        }
    }
    let mean = (0..k).map(|i| matrix[i][i]).sum::<f64>() / k as f64;
    for (i, row) in matrix.iter_mut().enumerate() {
        row[i] += damping * mean;
        row[k + i] = 1.;
    }
    for i in 0..k {
        let by = matrix[i][i];
        matrix[i].iter_mut().for_each(|x| *x /= by);
        let pivot = matrix[i].clone();
        for (_, row) in matrix.iter_mut().enumerate().filter(|(other, _)| *other != i) {
            let by = row[i];
            row.iter_mut().zip(&pivot).for_each(|(x, y)| *x -= by * y);
        }
    }
    matrix.into_iter().map(|row| row[k..].to_vec()).collect()
}

/// GPTQ by the inverse, from the last input to the first, with scales that are known: the values.
fn by_inverse(weights: &[f32], known: &[f32], mut inverse: Vec<Vec<f64>>) -> Vec<f32> {
    let mut targets: Vec<f64> = weights.iter().map(|x| f64::from(*x)).collect();
    let mut got = vec![0.; weights.len()];
    for i in (0..weights.len()).rev() {
        // The steps of a block of 4 bits are those between values that are in it.
        let block = &known[i / 32 * 32..][..32.min(known.len() - i / 32 * 32)];
        let mut sorted = block.to_vec();
        sorted.sort_by(f32::total_cmp);
        let steps = sorted.windows(2).map(|pair| pair[1] - pair[0]);
        let step = steps.filter(|step| *step > 1e-6).fold(f32::INFINITY, f32::min);
        let (low, high) = (f64::from(sorted[0]), f64::from(sorted[sorted.len() - 1]));
        let step = f64::from(step);
        let value = ((targets[i] / step).round() * step).clamp(low, high);
        got[i] = value as f32;
        let error = (targets[i] - value) / inverse[i][i];
        let column: Vec<f64> = (0..=i).map(|j| inverse[j][i]).collect();
        for j in 0..i {
            targets[j] -= error * column[j];
        }
        let by = inverse[i][i];
        for j in 0..i {
            for l in 0..i {
                inverse[j][l] -= column[j] * column[l] / by;
            }
        }
    }
    got
}

#[test]
#[cfg_attr(miri, ignore = "arithmetic, of sizes that take Miri too long")]
fn errors_are_fed_back_as_by_the_inverse() {
    let mut random = Random(11);
    let (n, k, rows) = (3, 80, 200);
    let xs = inputs(rows, k, &mut random);
    let weights = random.floats(n * k);
    let isa = Isa::active().unwrap();
    let factor = factor(isa, k, &[&xs], 0.01);
    let format = (Blocks::Int4, 32);
    let packed = pack_blocks(isa, k, 1, &weights, &vec![0.; n], format, Some(&factor)).unwrap();
    let got = values(&packed, n);
    let inverse = inverse(&xs, k, 0.01);
    let mut equal = 0;
    for (weights, got) in weights.chunks(k).zip(got.chunks(k)) {
        let expected = by_inverse(weights, got, inverse.clone());
        let pairs = got.iter().zip(&expected);
        equal += pairs.filter(|(got, expected)| (*got - *expected).abs() < 1e-4).count();
    }
    // A value between two codes may go to either, and to others after it.
    assert!(equal * 100 >= n * k * 97, "{equal} of {}", n * k);
}

#[test]
#[cfg_attr(target_family = "wasm", ignore = "no threads")]
fn the_same_codes_everywhere_and_smaller_errors_of_products() {
    let mut random = Random(12);
    let sizes: &[_] = if cfg!(miri) {
        &[(2, 40, 9)]
    } else {
        &[(1, 1, 3), (70, 40, 5), (3, 131, 300), (130, 300, 150)]
    };
    for &(n, k, rows) in sizes {
        let xs = inputs(rows, k, &mut random);
        let weights = random.floats(n * k);
        let bias = vec![0.; n];
        for format in [
            (Blocks::Int4, 32),
            (Blocks::Int4, 64),
            (Blocks::Int4ZeroPoint, 1 << 20),
            (Blocks::Int8, 32),
        ] {
            let mut known = None;
            for isa in Isa::available() {
                for threads in some([1, 3], &[1]) {
                    let got = Pool::new(threads).install(|| {
                        let factor = factor(isa, k, &[&xs[..k], &xs[k..]], 0.01);
                        pack_blocks(isa, k, 1, &weights, &bias, format, Some(&factor)).unwrap()
                    });
                    let got = values(&got, n);
                    let known = known.get_or_insert_with(|| got.clone());
                    same_bits(&got, known, &format!("{isa} {format:?} {threads} threads"));
                }
            }
            let isa = Isa::active().unwrap();
            let alone = pack_blocks(isa, k, 1, &weights, &bias, format, None).unwrap();
            let error = |got: &[f32]| -> f64 {
                let pairs = got.chunks(k).zip(weights.chunks(k));
                let errors = pairs.flat_map(|(got, weights)| {
                    xs.chunks(k).map(move |xs| {
                        let terms = got.iter().zip(weights).zip(xs);
                        terms.map(|((x, y), z)| f64::from((x - y) * z)).sum::<f64>().powi(2)
                    })
                });
                errors.sum()
            };
            let (by_inputs, alone) = (error(&known.unwrap()), error(&values(&alone, n)));
            if k >= 40 {
                assert!(by_inputs < 0.7 * alone, "{n} {k} {format:?}: {by_inputs} of {alone}");
            }
        }
    }
}

#[test]
fn inputs_that_tell_nothing_change_nothing() {
    let mut random = Random(13);
    let (n, k) = if cfg!(miri) { (2, 33) } else { (5, 70) };
    let isa = Isa::active().unwrap();
    let weights = random.floats(n * k);
    let (bias, format) = (vec![0.; n], (Blocks::Int4, 32));
    let alone = pack_blocks(isa, k, 1, &weights, &bias, format, None).unwrap();
    let each_once: Vec<f32> = (0..k * k).map(|i| f32::from(u8::from(i / k == i % k))).collect();
    for inputs in [&[][..], &vec![0.; 2 * k], &each_once] {
        let factor = factor(isa, k, &[inputs], 0.01);
        let packed = pack_blocks(isa, k, 1, &weights, &bias, format, Some(&factor)).unwrap();
        same_bits(&values(&packed, n), &values(&alone, n), "inputs that tell nothing");
    }
}

#[test]
fn values_stay_finite_without_damping_to_speak_of() {
    let mut random = Random(14);
    let (n, k) = if cfg!(miri) { (2, 33) } else { (20, 96) };
    let isa = Isa::active().unwrap();
    let weights = random.floats(n * k);
    let factor = factor(isa, k, &[&inputs(2, k, &mut random)], 1e-13);
    for format in [Blocks::Int4, Blocks::Int4ZeroPoint, Blocks::Int8] {
        let bias = vec![0.; n];
        let packed = pack_blocks(isa, k, 1, &weights, &bias, (format, 32), Some(&factor));
        let values = values(&packed.unwrap(), n);
        assert!(values.iter().all(|value| value.is_finite()), "{format:?}");
    }
}

#[test]
fn sums_without_a_factor_have_none() {
    let isa = Isa::active().unwrap();
    let mut products = InputProducts::new(3);
    products.add(isa, &[1., 1., 1.]);
    assert!(products.clone().factor(isa, 0.).is_none());
    assert!(products.factor(isa, 1e-6).is_some());
}
