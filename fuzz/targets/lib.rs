//! Fuzz targets: functions of bytes that panic where something is wrong.
#![allow(missing_docs, reason = "each module has one function")]

pub mod checkpoint;
pub mod folders;
mod refusal;
pub mod rules;
pub mod spec;
pub mod tuning;
