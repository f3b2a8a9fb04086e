//! Shared by the tests.
#![allow(dead_code, missing_docs, reason = "each test file uses its part")]

pub mod fixture;
pub mod generator;
pub mod load;
pub mod random;
pub mod toy;
pub mod watchdog;

use candle_core::{Device, Result, Tensor};

/// Values in [-4, 4) that depend on nothing but the shape and the seed.
pub fn tensor(shape: &[usize], seed: u64) -> Result<Tensor> {
    let values = random::values(shape.iter().product(), seed);
    Tensor::from_vec(values, shape, &Device::Cpu)? * 4.
}
