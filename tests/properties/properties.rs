//! Properties of random layers, inputs, views and trees, against the oracle and against float.
//!
//! `cargo test` runs the same cases each time; `DYNQUANT_LONG=1` runs a hundred times as many, with
//! a new seed each time. A failure prints its smallest case, which becomes an explicit test.

mod layers;
mod recurrent;
mod trees;

use candle_dynquant_properties::{qconfigs, values};
use proptest::test_runner::{Config, RngSeed};

/// The number of cases of each property.
fn cases(short: u32) -> Config {
    let (cases, rng_seed) = match std::env::var_os("DYNQUANT_LONG") {
        Some(_) => (100 * short, RngSeed::Random),
        None => (short, RngSeed::Fixed(2026)),
    };
    Config { cases, rng_seed, failure_persistence: None, ..Config::default() }
}
