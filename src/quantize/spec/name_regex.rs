//! Regexes over names, within limits: a spec may come from anywhere.

use regex::{Regex, RegexBuilder};

use crate::error::{Error, Result};

/// Bytes of a compiled pattern: `\w`, all letters of all scripts, takes fifty thousand.
const MAX_COMPILED: usize = 1 << 18;
/// Bytes that a search may keep besides, to be faster than without.
const MAX_CACHED: usize = 1 << 18;

/// A regex, compiled once, or why it cannot be.
#[derive(Clone, Debug)]
pub(super) struct NameRegex {
    pattern: String,
    compiled: Result<Regex, String>,
}

impl NameRegex {
    /// How many a spec may have, and bytes of their patterns together: each of these takes up to
    /// a tenth of a millisecond to compile.
    pub const MAX_COUNT: usize = 200;
    pub const MAX_BYTES: usize = 10_000;

    pub fn new(pattern: impl Into<String>) -> Self {
        let pattern = pattern.into();
        let compiled = match pattern.len() > Self::MAX_BYTES {
            true => Err(format!(
                "expected at most {} bytes, got {}",
                Self::MAX_BYTES,
                pattern.len()
            )),
            false => RegexBuilder::new(&pattern)
                .size_limit(MAX_COMPILED)
                .dfa_size_limit(MAX_CACHED)
                .build()
                .map_err(|e| e.to_string()),
        };
        Self { pattern, compiled }
    }

    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    pub fn compiled(&self) -> Result<&Regex> {
        self.compiled
            .as_ref()
            .map_err(|message| Error::InvalidRegex {
                pattern: self.pattern.clone(),
                message: message.clone(),
            })
    }
}

impl PartialEq for NameRegex {
    fn eq(&self, other: &Self) -> bool {
        self.pattern == other.pattern
    }
}
