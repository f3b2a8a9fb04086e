//! Half-precision floats to f32 and back, on several threads if that is faster.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::arch::op::ops;
use crate::isa::Isa;
use crate::loops::convert;
use crate::threads::Threads;

/// Elements below which they are converted on the caller's thread.
const SERIAL_ELEMENTS: usize = 65_536;

/// bf16 as f32, which is exact.
pub fn widen_bf16(isa: Isa, values: &[bf16]) -> Vec<f32> {
    converted(values, |values, out| isa.run(widened(values, out)))
}

/// f16 as f32, which is exact.
pub fn widen_f16(isa: Isa, values: &[f16]) -> Vec<f32> {
    converted(values, |values, out| isa.widen(values, out))
}

/// f32 as bf16, rounded half to even, as `half` does it.
pub fn narrow_bf16(isa: Isa, values: &[f32]) -> Vec<bf16> {
    converted(values, |values, out| isa.run(narrowed(values, out)))
}

/// f32 as f16, rounded half to even.
pub fn narrow_f16(values: &[f32]) -> Vec<f16> {
    converted(values, |values, out| out.convert_from_f32_slice(values))
}

/// Converts each value, part by part.
fn converted<T: Sync, U: Send + Clone + Default>(
    values: &[T],
    write: impl Fn(&[T], &mut [U]) + Sync,
) -> Vec<U> {
    let mut out = vec![U::default(); values.len()];
    let threads = Threads::of_caller();
    let tasks = threads.tasks(values.len(), SERIAL_ELEMENTS);
    let part = values.len().div_ceil(tasks).max(1);
    let parts = values.chunks(part).zip(out.chunks_mut(part));
    threads.for_each_item(parts, |(values, out)| write(values, out));
    out
}

ops! {
    pub(super) fn widened(values: &'a [bf16], out: &'a mut [f32]) {
        convert::widen_bf16(values, out);
    }

    fn narrowed(values: &'a [f32], out: &'a mut [bf16]) {
        convert::narrow_bf16(values, out);
    }
}
