//! The reader of tuning configurations.
#![no_main]

#[path = "../targets/refusal.rs"]
mod refusal;
#[path = "../targets/tuning.rs"]
mod tuning;

libfuzzer_sys::fuzz_target!(|data: &[u8]| tuning::run(data));
