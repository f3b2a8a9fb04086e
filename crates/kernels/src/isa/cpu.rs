//! The instructions that this CPU has and the system lets a process use.

#[cfg(target_arch = "x86_64")]
pub fn avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
pub fn avx_vnni() -> bool {
    avx2() && is_x86_feature_detected!("avxvnni")
}

#[cfg(target_arch = "x86_64")]
pub fn avx512() -> bool {
    avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

#[cfg(target_arch = "x86_64")]
pub fn avx512_vnni() -> bool {
    avx512() && is_x86_feature_detected!("avx512vnni")
}

/// AVX512-VNNI, and products of bfloat16.
#[cfg(target_arch = "x86_64")]
pub fn avx512_bf16() -> bool {
    avx512_vnni() && is_x86_feature_detected!("avx512bf16")
}

/// AMX with AVX512-VNNI, which computes all but the products of several rows, and AVX512-BF16,
/// which makes factors for them.
#[cfg(target_arch = "x86_64")]
pub fn amx_int8() -> bool {
    avx512_bf16() && super::amx::available()
}

/// [`amx_int8`], or its emulation in memory.
#[cfg(target_arch = "x86_64")]
pub fn amx_int8_or_emulated() -> bool {
    cfg!(all(feature = "emulate-amx", target_os = "linux")) || amx_int8()
}

/// NEON; the kernels read groups of codes as little-endian words.
#[cfg(target_arch = "aarch64")]
pub fn neon() -> bool {
    cfg!(target_endian = "little") && std::arch::is_aarch64_feature_detected!("neon")
}

#[cfg(target_arch = "aarch64")]
pub fn dotprod() -> bool {
    neon() && std::arch::is_aarch64_feature_detected!("dotprod")
}

/// Relaxed SIMD whose `madd` rounds once, as it does where the CPU has an `fma`.
#[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
pub fn relaxed_simd() -> bool {
    // 1 + 2^-11 + 2^-24, of which f32 drops the last term.
    use std::arch::wasm32::{f32x4_extract_lane, f32x4_relaxed_madd, f32x4_splat};
    let factor = std::hint::black_box(1. + 2f32.powi(-12));
    let (factors, term) = (f32x4_splat(factor), f32x4_splat(-(factor * factor)));
    let error = f32x4_relaxed_madd(factors, factors, term);
    f32x4_extract_lane::<0>(error) == 2f32.powi(-24)
}
