//! Files, child processes and pipes, and what comes in them, as the library, the command and the applications use them.
//!
//! | module | what it promises |
//! |---|---|
//! | [`input`] | a regular file, read within a limit |
//! | [`output`] | a file or a folder that is replaced whole |
//! | [`child`] | a child process that ends: within a limit, and with its parent |
//! | [`print`](mod@print) | text for a terminal or a pipe, which may be closed |
//! | [`format`](mod@format) | which format a file has that is given as another |
//! | [`json`] | JSON as Python writes it, for a strict parser |
#![forbid(unsafe_code)]

pub mod child;
pub mod format;
pub mod input;
pub mod json;
pub mod output;
pub mod print;
