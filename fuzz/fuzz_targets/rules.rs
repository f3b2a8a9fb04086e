//! Rules against trees.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| candle_dynquant_fuzz_targets::rules::run(data));
