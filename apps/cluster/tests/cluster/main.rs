//! The program as users run it: processes on loopback, Parquet files in and out.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod data;
mod kills;
mod mistakes;
mod models;
mod one_machine;
mod process;
