//! Shared by the tests.
#![allow(dead_code, missing_docs, reason = "each test file uses its part")]

pub mod fixture;
pub mod generator;
pub mod toy;

use candle_core::{DType, Device, Result, Tensor};
use candle_dynquant::nn;
use candle_dynquant_support::random;

/// Values in [-4, 4) that depend on nothing but the shape and the seed.
pub fn tensor(shape: &[usize], seed: u64) -> Result<Tensor> {
    let values = random::values(shape.iter().product(), seed);
    Tensor::from_vec(values, shape, &Device::Cpu)? * 4.
}

/// An LSTM with one layer, whose weights depend only on its sizes.
pub fn lstm(input: usize, hidden: usize) -> Result<nn::LSTM> {
    let vars = nn::VarMap::new();
    let vb = nn::VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let lstm = nn::LSTM::new(input, hidden, Default::default(), vb)?;
    // The map's order differs between processes.
    let vars = vars.data().lock().expect("variables");
    let mut names: Vec<_> = vars.keys().collect();
    names.sort();
    for (i, name) in names.into_iter().enumerate() {
        vars[name].set(&(tensor(vars[name].dims(), 9 + i as u64)? * 0.1)?)?;
    }
    Ok(lstm)
}
