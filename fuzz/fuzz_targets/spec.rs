//! The reader of specs.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| candle_dynquant_fuzz_targets::spec::run(data));
