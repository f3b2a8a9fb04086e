//! Shared by the tests.
#![allow(dead_code, missing_docs, reason = "each test file uses its part")]

pub mod fixture;
pub mod generator;
pub mod load;
pub mod toy;
pub mod watchdog;
