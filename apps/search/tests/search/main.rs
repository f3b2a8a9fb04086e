//! The program as its users use it: the real process on folders of files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod files;
mod hub;
mod interruptions;
mod links;
mod mistakes;
mod models;
mod output;
mod passages;
mod process;
mod ranking;
mod updates;
