//! The reader of tuning configurations.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| candle_dynquant_fuzz_targets::tuning::run(data));
