//! `dynquant diff`.

use std::collections::BTreeMap;

use anyhow::Result;
use candle_dynquant::Checkpoint;

use super::table::table;
use super::{DiffArgs, weights};

pub fn run(args: &DiffArgs) -> Result<()> {
    let (expected, got) = (
        Checkpoint::open(&args.expected)?,
        Checkpoint::open(&args.got)?,
    );
    let of_got: BTreeMap<_, _> = weights(got.tensors().collect())
        .into_iter()
        .map(|t| (t.name.clone(), t))
        .collect();
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
            _ => rows.push(row([
                other.dtype.clone(),
                format!("{sqnr:.2}"),
                format!("{max:.3e}"),
            ])),
        }
    }
    let names: Vec<&String> = of_expected.iter().map(|tensor| &tensor.name).collect();
    for (name, tensor) in &of_got {
        if !names.contains(&name) {
            rows.push(vec![name.clone(), "none".into(), tensor.dtype.clone()]);
        }
    }
    if rows.len() > 1 {
        print!("{}", table(&rows));
    }
    println!("{same} tensors are the same");
    Ok(())
}

/// `10 log10(sum a^2 / sum (a - b)^2)`, and the maximum difference.
fn sqnr(a: &[f32], b: &[f32]) -> (f64, f64) {
    let pairs = || a.iter().zip(b).map(|(a, b)| (f64::from(*a), f64::from(*b)));
    let signal: f64 = pairs().map(|(a, _)| a * a).sum();
    let noise: f64 = pairs().map(|(a, b)| (a - b) * (a - b)).sum();
    let max = pairs().map(|(a, b)| (a - b).abs()).fold(0., f64::max);
    (10. * (signal / noise).log10(), max)
}
