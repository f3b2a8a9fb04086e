//! The reader of checkpoints.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| candle_dynquant_fuzz_targets::checkpoint::run(data));
