//! Models as projects write them that were not written for `dynquant port`: their own layers, in
//! files that import each other.
#![allow(unexpected_cfgs)]

pub mod layers;
pub mod models;
pub mod norms;
pub mod recurrent;
