//! The errors of texts that are refused.

use candle_dynquant::Error;

/// Checks that the error has a line and few words.
pub fn check(error: &Error) {
    let Error::InvalidConfig { line, .. } = error else {
        panic!("an error without a place: {error:?}");
    };
    assert!(*line >= 1, "{error}");
    let message = error.to_string();
    assert!(message.chars().count() < 1_500, "{message}");
}
