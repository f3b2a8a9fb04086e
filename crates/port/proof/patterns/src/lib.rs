//! Models written without `dynquant port` in mind: with the project's layers, in files that import
//! each other.
#![allow(unexpected_cfgs)]

pub mod layers;
pub mod models;
pub mod norms;
pub mod recurrent;
