//! The server as its clients use it: the real program on a free port, over HTTP.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

// The memory is read from /proc.
#[cfg(target_os = "linux")]
mod attack;
mod bits;
mod drafts;
mod formats;
mod generate;
mod grammar;
mod limits;
mod mistakes;
mod models;
mod pictures;
mod pipes;
mod prefixes;
mod process;
mod reasoning;
mod shutdown;
mod slow;
mod tei;
mod tools;
