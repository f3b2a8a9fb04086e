//! The derive's compile errors.
//!
//! After a change of messages run `TRYBUILD=overwrite cargo test --test ui`, then read the diff.

use std::process::Command;

/// The release whose messages are in `cases/rustc`; other releases may differ.
const RUSTC: &str = "rustc 1.95.";

#[test]
fn derive_refuses() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("cases/*.rs");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output().expect("rustc runs");
    if version.stdout.starts_with(RUSTC.as_bytes()) {
        cases.compile_fail("cases/rustc/*.rs")
    } else {
        println!("cases/rustc is for {RUSTC}*: the trait errors were not compared")
    }
}
