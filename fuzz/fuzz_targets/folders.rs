//! The examples' readers of folders.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| candle_dynquant_fuzz_targets::folders::run(data));
