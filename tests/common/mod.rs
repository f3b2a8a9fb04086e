//! Shared by the tests.
#![allow(dead_code, missing_docs)]

pub mod fixture;
pub mod generator;
