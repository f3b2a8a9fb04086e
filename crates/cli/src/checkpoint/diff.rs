//! `dynquant diff`.

use std::collections::BTreeMap;

use anyhow::Result;
use candle_dynquant::Checkpoint;
use candle_dynquant_io::print;

use super::args::DiffArgs;
use super::table::table;
use super::weights::weights;

pub fn run(args: &DiffArgs) -> Result<()> {
    let [expected, got] = [&args.expected, &args.got].map(Checkpoint::open);
    let (expected, got) = (expected?, got?);
    let of_got = weights(got.tensors().collect()).into_iter();
    let of_got: BTreeMap<_, _> = of_got.map(|t| (t.name.clone(), t)).collect();
    let header = ["tensor", "A", "B", "SQNR dB", "max difference"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    let mut same = 0;
    let of_expected = weights(expected.tensors().collect());
    for tensor in &of_expected {
        let name = &tensor.name;
        let row = |cells: [String; 3]| {
            let first = [name.clone(), tensor.dtype.clone()];
            first.into_iter().chain(cells).collect()
        };
        let Some(other) = of_got.get(name) else {
            rows.push(row(["none".into(), String::new(), String::new()]));
            continue;
        };
        if other.shape != tensor.shape {
            let shapes = format!("{:?}, not {:?}", other.shape, tensor.shape);
            rows.push(row([other.dtype.clone(), String::new(), shapes]));
            continue;
        }
        let is_float = |dtype: &str| matches!(dtype, "F64" | "F32" | "F16" | "BF16");
        if !(tensor.quantized || is_float(&tensor.dtype)) {
            continue;
        }
        let (a, b) = (expected.floats(name)?, got.floats(name)?);
        let (sqnr, max) = sqnr(&a, &b);
        match max {
            0. => same += 1,
            _ => rows.push(row([other.dtype.clone(), format!("{sqnr:.2}"), format!("{max:.3e}")])),
        }
    }
    let names: Vec<&String> = of_expected.iter().map(|tensor| &tensor.name).collect();
    for (name, tensor) in &of_got {
        if !names.contains(&name) {
            rows.push(vec![name.clone(), "none".into(), tensor.dtype.clone()]);
        }
    }
    if rows.len() > 1 {
        print::line(table(&rows))?;
    }
    Ok(print::line(format_args!("{same} tensors are the same"))?)
}

/// `10 log10(sum a^2 / sum (a - b)^2)`, and the maximum difference.
fn sqnr(a: &[f32], b: &[f32]) -> (f64, f64) {
    let pairs = || a.iter().zip(b).map(|(a, b)| (f64::from(*a), f64::from(*b)));
    let signal: f64 = pairs().map(|(a, _)| a * a).sum();
    let noise: f64 = pairs().map(|(a, b)| difference(a, b).powi(2)).sum();
    let differences = pairs().map(|(a, b)| difference(a, b));
    // `f64::max` would drop a NaN.
    let stays = |max: f64, next| max.is_nan() || next <= max;
    let max = differences.fold(0f64, |max, next| if stays(max, next) { max } else { next });
    (10. * (signal / noise).log10(), max)
}

/// The absolute difference; 0 for equal infinities and for two NaNs.
fn difference(a: f64, b: f64) -> f64 {
    if a == b || a.is_nan() && b.is_nan() { 0. } else { (a - b).abs() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_are_no_numbers_are_compared_too() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        let max = |a: &[f32], b: &[f32]| sqnr(a, b).1;
        assert_eq!(max(&[1., nan, inf, -inf], &[1., nan, inf, -inf]), 0.);
        assert!(max(&[1., 2., 3.], &[1., nan, 5.]).is_nan());
        assert!(max(&[nan, 1.], &[0., 9.]).is_nan());
        assert_eq!(max(&[inf, 1.], &[-inf, 2.]), f64::INFINITY);
        assert_eq!(max(&[1., -2., 3.], &[1., 2., 3.5]), 4.);
        // A ratio of 25 to 1.
        assert_eq!(format!("{:.2}", sqnr(&[3., 4.], &[3., 3.]).0), "13.98");
    }
}
