//! The library's own sources and tests of what threads agree on.
#![allow(dead_code, unused_imports)]

#[path = "../../../src/kernels/threads/mod.rs"]
mod threads;

// The sources ask candle for one number.
extern crate self as candle_core;

pub mod utils {
    pub fn get_num_threads() -> usize {
        4
    }
}
