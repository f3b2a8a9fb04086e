//! The errors of texts that are refused.

use candle_dynquant::{Error, ErrorKind};

/// Checks that the error has a line and few words.
pub fn check(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    let message = error.to_string();
    assert!(message.starts_with("line "), "an error without a place: {error}");
    assert!(message.chars().count() < 1_500, "{message}");
}
