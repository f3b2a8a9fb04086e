//! AVX-VNNI: 8 lanes, four products a lane and instruction.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::avx2;
use crate::kernels::arch::op::Activate;
use crate::kernels::loops::activation::Activation;
use crate::kernels::loops::product::{Part, Product};
use crate::kernels::loops::tile::{self, Closures, Lanes, MAX_ROWS, Terms};

pub use super::avx2::{attend, multiply_f16, run, widen};

/// A tile of 6 x 16: 12 sums, 2 weights and a broadcast of the 16 registers.
///
/// # Safety
/// The CPU has these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "avx2,fma,avxvnni")]
pub unsafe fn multiply(product: &Product<'_, [u8; 4]>, part: Part) {
    let vector = Closures::<true, _, _, _, _, _, _, _, _> {
        start: |terms: Terms<'_, 8>| avx2::start(terms),
        // SAFETY: the array is 32 bytes to read; no alignment is asked.
        load: |weights: &[u8; 32]| unsafe { _mm256_loadu_si256(weights.as_ptr().cast()) },
        splat: |codes: [u8; 4]| _mm256_set1_epi32(i32::from_le_bytes(codes)),
        dot: |acc, a, b| _mm256_dpbusd_avx_epi32(acc, a, b),
        add: |left, right| _mm256_add_epi32(left, right),
        finish: |acc, terms: Terms<'_, 8>, out: &mut Lanes<8>| avx2::finish(acc, terms, out),
        activate: |activation: Activation, xs: &mut [f32]| run(Activate { activation, xs }),
        group: PhantomData,
    };
    // SAFETY: the part is of this thread alone.
    unsafe { tile::multiply::<8, 32, MAX_ROWS, _>(product, part, vector) }
}
