//! x86-64 instances: each is the loop nest of `tile`, compiled with an instruction set's
//! features and given its registers.

mod amx;
mod avx2;
mod avx512_vnni;
mod avx_vnni;

pub(super) use amx::{available as amx_available, instance as amx_instance};
pub(super) use avx_vnni::AVX_VNNI;
pub(super) use avx2::AVX2;
pub(super) use avx512_vnni::AVX512_VNNI;

/// An [`Instance`](super::Instance) from functions with target features.
macro_rules! instance {
    (
        range: $range:path,
        quantize: $quantize:path,
        sum: $sum:path,
        update: $update:path,
        activate: $activate:path,
        dequantize: $dequantize:path,
        widen: $widen:path,
        softmax: $softmax:path,
        normalize: $normalize:path,
        attend: $attend:path,
        multiply: $multiply:path,
        multiply_f16: $multiply_f16:path,
    ) => {
        $crate::kernels::Instance {
            // SAFETY: an instance is reached only through an `Isa`, which exists only where
            // the CPU has these features.
            range: |row| unsafe { $range(row) },
            quantize: |row, params, rounding, codes| {
                // SAFETY: as above.
                unsafe { $quantize(row, params, rounding, codes) }
            },
            // SAFETY: as above.
            sum: |codes| unsafe { $sum(codes) },
            // SAFETY: as above.
            update: |gates, units| unsafe { $update(gates, units) },
            // SAFETY: as above.
            activate: |activation, xs| unsafe { $activate(activation, xs) },
            // SAFETY: as above.
            dequantize: |codes, affine, out| unsafe { $dequantize(codes, affine, out) },
            // SAFETY: as above.
            widen: |halves, out| unsafe { $widen(halves, out) },
            // SAFETY: as above.
            softmax: |row| unsafe { $softmax(row) },
            // SAFETY: as above.
            normalize: |row, residual, norm| unsafe { $normalize(row, residual, norm) },
            attend: $attend,
            multiply: $multiply,
            multiply_f16: $multiply_f16,
        }
    };
}
use instance;
