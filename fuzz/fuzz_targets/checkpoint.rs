//! The reader of checkpoints.
#![no_main]

#[path = "../targets/checkpoint.rs"]
mod checkpoint;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checkpoint::run(data));
