//! The tensors that `assets/reference/generator.py` defines, generated again.

use serde_json::Value;

use super::{CPU, Tensor};

fn mix(seed: u64, i: u64) -> u64 {
    let z = seed.wrapping_add((i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn bell(seed: u64, i: u64) -> i64 {
    let z = mix(seed, i);
    let chunks = [0, 16, 32, 48].map(|shift| (z >> shift & 0xffff) as i64);
    chunks.iter().sum::<i64>() - 131_070
}

/// The elements of a tensor of `shape` that `recipe` describes, in row order.
pub fn tensor(shape: &[usize], recipe: &Value) -> Vec<f32> {
    let int = |key: &str| recipe[key].as_i64().unwrap_or_else(|| panic!("{key} in {recipe}"));
    let (seed, exponent, constant) = (int("seed") as u64, int("exponent"), int("constant"));
    let kind = recipe["kind"].as_str().expect("a kind");
    let width = shape.last().copied().unwrap_or(1).max(1);
    let count: usize = shape.iter().product();
    let element = |i: usize| {
        let row = i / width;
        let (z, v) = (mix(seed, i as u64), bell(seed, i as u64));
        let u = match kind {
            "normal" | "rows" => v,
            "outlier" if i.is_multiple_of(97) => 32 * v,
            "outlier" => v,
            "relu" => v.max(0),
            "positive" => v.abs() + 1,
            "negative" => -v.abs() - 1,
            "shifted" => v + 65_536,
            "zeros" => 0,
            "constant" => constant,
            "zero_rows" if row % 3 == 1 => 0,
            "zero_rows" => v,
            "affine_ties" => match i {
                0 => -86,
                1 => 2 * constant - 86,
                _ => v.abs() % (2 * constant + 1) - 86,
            },
            "symmetric_ties" if i.is_multiple_of(width) => 255,
            "symmetric_ties" => v.abs() % 511 - 255,
            "uniform" => (z >> 40) as i64 - (1 << 23),
            "lognormal" => (256 + (z & 255) as i64) << (z >> 48).count_ones().min(15),
            "student_t" => {
                let zeros = (z >> 16 | 1 << 30).trailing_zeros();
                let u = ((z & 511) as i64) << (zeros / 2);
                if z >> 63 == 1 { -u } else { u }
            }
            "bimodal" if z & 1 == 1 => v + 393_216,
            "bimodal" => v - 393_216,
            _ => panic!("unknown kind {kind}"),
        };
        let exponent = match kind {
            "rows" => exponent + 7 * (row as i64 % 5),
            _ => exponent,
        };
        // Exact: the powers of two down to the smallest subnormal are normal in f64.
        (u as f64 * 2f64.powi(exponent as i32)) as f32
    };
    (0..count).map(element).collect()
}

/// The tensor of `shape` that `recipe` describes.
pub fn made(shape: &[usize], recipe: &Value) -> Tensor {
    Tensor::from_vec(tensor(shape, recipe), shape, CPU).expect("a tensor")
}

/// The tensor that `recipe` describes, if there is a recipe.
pub fn made_if_any(shape: &[usize], recipe: &Value) -> Option<Tensor> {
    (!recipe.is_null()).then(|| made(shape, recipe))
}
