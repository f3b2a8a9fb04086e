//! What the derive refuses, and what it says.
//!
//! After a change of messages: `TRYBUILD=overwrite cargo test --test ui`, then read the diff.

#[test]
fn derive_refuses() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
