//! Files, child processes and pipes, as the library, the command and the applications use them.
//!
//! | module | what it promises |
//! |---|---|
//! | [`input`] | a regular file, read within a limit |
//! | [`output`] | a file or a folder that is replaced whole |
//! | `child` | a child process that ends: within a limit, and with its parent (feature `child`) |
//! | [`print`](mod@print) | text for a terminal or a pipe, which may be closed |
#![forbid(unsafe_code)]

#[cfg(all(feature = "child", not(target_family = "wasm")))]
pub mod child;
pub mod input;
pub mod output;
pub mod print;
