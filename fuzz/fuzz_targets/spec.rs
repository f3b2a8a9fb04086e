//! The reader of specs.
#![no_main]

#[path = "../targets/refusal.rs"]
mod refusal;
#[path = "../targets/spec.rs"]
mod spec;

libfuzzer_sys::fuzz_target!(|data: &[u8]| spec::run(data));
