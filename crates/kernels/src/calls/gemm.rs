//! The f32 product of layers that are not quantized, through the `gemm` crate.

use gemm::Parallelism;

use crate::sizes;
use crate::threads;

/// `lhs` (`[m, k]`) times `rhs` (`[n, k]`) plus `bias` (`[n]`), into `out` (`[m, n]`).
///
/// # Panics
/// If a slice does not have that length.
pub fn linear_f32(lhs: &[f32], m: usize, rhs: &[f32], bias: &[f32], out: &mut [f32]) {
    let n = bias.len();
    sizes::check("out, [m, n]", out, &[m, n]);
    if out.is_empty() {
        return;
    }
    let k = rhs.len() / n;
    sizes::check("lhs, [m, k]", lhs, &[m, k]);
    sizes::check("rhs, [n, k]", rhs, &[n, k]);
    for row in out.chunks_exact_mut(n) {
        row.copy_from_slice(bias);
    }
    if k == 0 {
        return;
    }
    let serial = out.len().saturating_mul(k) < SERIAL_MACS || !threads::has_threads();
    let parallelism = if serial {
        Parallelism::None
    } else {
        Parallelism::Rayon(0)
    };
    let (n_stride, k_stride) = (n as isize, k as isize);
    // SAFETY: by the checks each pointer leads to all elements that its sizes and strides
    // reach; `out` is borrowed mutably, so nothing overlaps it.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n_stride,
            true,
            lhs.as_ptr(),
            1,
            k_stride,
            rhs.as_ptr(),
            k_stride,
            1,
            1.,
            1.,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// Multiply-adds below which a product stays on the caller's thread.
const SERIAL_MACS: usize = 4_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_plain_loops() {
        for (m, k, n) in [
            (0, 3, 2),
            (1, 0, 2),
            (1, 1, 1),
            (3, 5, 7),
            (4, 64, 33),
            (2, 3, 0),
        ] {
            let value = |i: usize| (i * 7 % 11) as f32 - 5.;
            let lhs: Vec<f32> = (0..m * k).map(value).collect();
            let rhs: Vec<f32> = (0..n * k).map(|i| value(i + 3)).collect();
            let bias: Vec<f32> = (0..n).map(value).collect();
            let mut out = vec![f32::NAN; m * n];
            linear_f32(&lhs, m, &rhs, &bias, &mut out);
            for i in 0..m {
                for j in 0..n {
                    // Small integers: every order of summation is exact.
                    let dot = (0..k).map(|l| lhs[i * k + l] * rhs[j * k + l]).sum::<f32>();
                    assert_eq!(out[i * n + j], dot + bias[j], "{m} {k} {n}");
                }
            }
        }
    }
}
