//! The library's own sources and tests of what threads agree on.
#![allow(dead_code)]

#[path = "../../../src/kernels/course.rs"]
mod course;
#[path = "../../../src/kernels/job.rs"]
mod job;
#[path = "../../../src/kernels/parallel.rs"]
mod parallel;
#[path = "../../../src/kernels/pool.rs"]
mod pool;
#[path = "../../../src/kernels/rayon_pool.rs"]
mod rayon_pool;
#[cfg(test)]
#[path = "../../../tests/common/watchdog.rs"]
mod watchdog;

// The sources ask candle for one number.
extern crate self as candle_core;

pub mod utils {
    pub fn get_num_threads() -> usize {
        4
    }
}
