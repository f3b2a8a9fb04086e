//! AVX-512 with VNNI: 16 lanes, four products a lane and instruction.

use std::arch::x86_64::*;

use super::avx2;

use crate::kernels::attention::{self, Attention, Block};
use crate::kernels::float_tile;
use crate::kernels::tile::{self, Closures, Epilogue, MAX_ROWS, Output, Part, Product};
use crate::kernels::{Activation, Gates, Instance, Norm, Range, Step};
use crate::kernels::{activation, gates, norm, rows};

pub(in crate::kernels) const AVX512_VNNI: Instance = super::instance!(
    range, quantize, update, activate, softmax, normalize, attend, multiply
);

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
fn range(row: &[f32]) -> Range {
    rows::range(row)
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
fn quantize(row: &[f32], scale: f32, zero_point: i32, codes: &mut [u8]) {
    rows::quantize(row, scale, zero_point, codes);
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
fn update(gates: Gates, row: Step<'_>) {
    gates::update(gates, row);
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
fn activate(activation: Activation, xs: &mut [f32]) {
    activation::apply(activation, xs);
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
fn softmax(row: &mut [f32]) {
    norm::softmax_row(row);
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
fn normalize(row: &mut [f32], residual: Option<&[f32]>, norm: Norm<'_>) {
    norm::normalize(row, residual, norm);
}

/// # Safety
/// The CPU has these features, and no other thread computes a block that overlaps.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
unsafe fn attend(attention: &Attention<'_>, block: Block, out: &Output<'_>) {
    let register = float_tile::Closures {
        // SAFETY: the array is 64 bytes to read; no alignment is asked.
        load: |from: &[f32; 16]| unsafe { _mm512_loadu_ps(from.as_ptr()) },
        splat: |value| _mm512_set1_ps(value),
        fma: |a, b, acc| _mm512_fmadd_ps(a, b, acc),
        // SAFETY: the array is 64 bytes to write.
        store: |values, to: &mut [f32; 16]| unsafe { _mm512_storeu_ps(to.as_mut_ptr(), values) },
        transpose: |square| avx2::transpose(square),
    };
    // SAFETY: the caller's promise.
    unsafe { attention::attend::<16, 4>(attention, block, out, register) }
}

/// A tile of 6 x 64: 24 sums, 4 weights and a broadcast of the 32 registers.
///
/// # Safety
/// The CPU has these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma")]
unsafe fn multiply(product: &Product<'_>, part: Part) {
    let vector = Closures {
        zero: || _mm512_setzero_si512(),
        // SAFETY: the array is 64 bytes to read; no alignment is asked.
        load: |weights: &[i8; 64]| unsafe { _mm512_loadu_si512(weights.as_ptr().cast()) },
        splat: |codes: [u8; 4]| _mm512_set1_epi32(i32::from_le_bytes(codes)),
        dot: |acc, a, b| _mm512_dpbusd_epi32(acc, a, b),
        add: |left, right| _mm512_add_epi32(left, right),
        finish: |acc, with: Epilogue<'_, 16>| {
            // SAFETY: each array is 64 bytes to read.
            let (sums, scales, bias) = unsafe {
                (
                    _mm512_loadu_si512(with.sums.as_ptr().cast()),
                    _mm512_loadu_ps(with.scales.as_ptr()),
                    _mm512_loadu_ps(with.bias.as_ptr()),
                )
            };
            let zero_point = _mm512_set1_epi32(with.row.zero_point);
            let acc = _mm512_sub_epi32(acc, _mm512_mullo_epi32(zero_point, sums));
            let scale = _mm512_mul_ps(_mm512_set1_ps(with.row.scale), scales);
            let values = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc), scale, bias);
            let mut out = [0f32; 16];
            // SAFETY: the array is 64 bytes to write.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), values) };
            out
        },
    };
    // SAFETY: the caller's promise.
    unsafe { tile::multiply::<16, 64, MAX_ROWS>(product, part, vector) }
}
