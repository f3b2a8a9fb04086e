//! Regexes over names, within limits: specs and checkpoints may come from anywhere.

use regex::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};

use crate::error::{Error, Fault, Result};
use crate::sizes::at_most;
use crate::words::brief;

/// Bytes of a compiled pattern: `\w`, all letters of all scripts, takes fifty thousand.
const MAX_COMPILED: usize = 1 << 18;
/// Bytes that a search may keep besides, to be faster than without.
const MAX_CACHED: usize = 1 << 18;
/// The limit for all regexes of a file, which are searched for together.
const MAX_SET_CACHED: usize = 1 << 22;

/// Regexes of one file or spec, and bytes of their patterns together: each of these takes up to a
/// tenth of a millisecond to compile.
const MAX_COUNT: usize = 200;
const MAX_BYTES: usize = 10_000;

/// A regex, compiled once, or why it cannot be.
#[derive(Clone, Debug)]
pub(crate) struct NameRegex {
    pattern: String,
    compiled: Result<Regex, String>,
}

impl NameRegex {
    /// A regex that matches anywhere in a name.
    pub fn new(pattern: &str) -> Self {
        Self::written(pattern, pattern)
    }

    /// A regex that matches from the beginning of a name, as Python's `re.match`.
    pub fn start(pattern: &str) -> Self {
        Self::written(pattern, &anchored(pattern))
    }

    /// A regex that matches whole names only.
    pub fn whole(pattern: &str) -> Self {
        Self::written(pattern, &format!("^(?:{pattern})$"))
    }

    fn written(pattern: &str, regex: &str) -> Self {
        Self { pattern: pattern.to_owned(), compiled: compile(regex) }
    }

    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    pub fn compiled(&self) -> Result<&Regex> {
        let compiled = self.compiled.as_ref();
        compiled.map_err(|message| invalid(&self.pattern, message))
    }
}

fn invalid(pattern: &str, message: &str) -> Error {
    Error::from(Fault::InvalidRegex {
        pattern: brief(pattern, 200),
        message: brief(reason(message), MESSAGE),
    })
}

/// Characters of an error's message.
const MESSAGE: usize = 500;

/// The message, or the last line of a message that is too long: the lines before it repeat the
/// pattern.
fn reason(message: &str) -> &str {
    if message.chars().count() <= MESSAGE {
        message
    } else {
        message.lines().last().unwrap_or_default()
    }
}

fn compile(pattern: &str) -> Result<Regex, String> {
    if pattern.len() > MAX_BYTES {
        let got = pattern.len();
        return Err(format!("expected at most {MAX_BYTES} bytes, got {got}"));
    }
    let mut builder = RegexBuilder::new(pattern);
    builder.size_limit(MAX_COMPILED).dfa_size_limit(MAX_CACHED);
    builder.build().map_err(|e| e.to_string())
}

impl PartialEq for NameRegex {
    fn eq(&self, other: &Self) -> bool {
        self.pattern == other.pattern
    }
}

/// Regexes that match from the beginning of a name, and are searched for together.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameRegexes(RegexSet);

impl NameRegexes {
    /// # Errors
    /// When one of them cannot be compiled, or they are too many.
    pub fn start(patterns: &[String]) -> Result<Self> {
        let mut totals = RegexTotals::default();
        for pattern in patterns {
            let regex = NameRegex::start(pattern);
            totals.add(&regex);
            totals.check()?;
            regex.compiled()?;
        }
        let anchored = patterns.iter().map(|pattern| anchored(pattern));
        let mut builder = RegexSetBuilder::new(anchored);
        builder.size_limit(MAX_COUNT * MAX_COMPILED);
        builder.dfa_size_limit(MAX_SET_CACHED);
        let set = builder.build();
        let set = set.map_err(|e| invalid(&patterns.join("|"), &e.to_string()));
        set.map(Self)
    }

    /// The number of the first regex that matches.
    pub fn first(&self, name: &str) -> Option<usize> {
        self.0.matches(name).iter().next()
    }

    /// The numbers of the regexes that match.
    pub fn all(&self, name: &str) -> Vec<usize> {
        self.0.matches(name).iter().collect()
    }
}

fn anchored(pattern: &str) -> String {
    format!("^(?:{pattern})")
}

/// The regexes of one file or spec.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct RegexTotals {
    count: usize,
    bytes: usize,
}

impl RegexTotals {
    pub fn add(&mut self, regex: &NameRegex) {
        self.count += 1;
        self.bytes += regex.pattern.len();
    }

    /// Rejects too many of them: each takes time and memory.
    pub fn check(self) -> Result<()> {
        at_most("number of regexes", MAX_COUNT, self.count)?;
        at_most("bytes of regexes", MAX_BYTES, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 4] = ["layer.1.key", "a.layer.1.key", "layer.1.key.b", "layer.1"];

    fn matches(regex: &NameRegex) -> [bool; 4] {
        let compiled = regex.compiled().expect("a regex");
        NAMES.map(|name| compiled.is_match(name))
    }

    #[test]
    fn a_message_that_is_too_long_is_its_last_line() {
        let line = "x".repeat(MESSAGE - 1);
        assert_eq!(reason(&format!("\n{line}")), format!("\n{line}"));
        assert_eq!(reason(&format!("\n{line}\n")), line);
    }

    #[test]
    fn a_regex_matches_anywhere_from_the_start_or_as_a_whole() {
        // In a separate group: an alternative is anchored too.
        let pattern = r"x|layer\.\d+\.key";
        let cases = [
            (NameRegex::new(pattern), [true, true, true, false]),
            (NameRegex::start(pattern), [true, false, true, false]),
            (NameRegex::whole(pattern), [true, false, false, false]),
        ];
        for (regex, expected) in &cases {
            assert_eq!(matches(regex), *expected, "{regex:?}");
            assert_eq!(regex.pattern(), pattern);
        }
        assert_eq!(cases[0].0, NameRegex::new(pattern));
        assert_ne!(cases[0].0, NameRegex::new("x"));
    }

    #[test]
    fn a_regex_beyond_a_limit_is_refused_with_its_beginning() {
        let long = "a".repeat(MAX_BYTES + 1);
        let large = r"\w{20}|".repeat(50);
        let malformed = format!("({}", "b".repeat(600));
        for (pattern, words) in [
            (&long, "at most 10000 bytes, got 10001"),
            (&large, "size limit"),
            (&malformed, "unclosed group"),
        ] {
            let error = NameRegex::new(pattern).compiled().expect_err("beyond a limit");
            let Fault::InvalidRegex { pattern: named, message } = error.fault() else {
                panic!("{error:?}");
            };
            assert_eq!(*named, format!("{}..", &pattern[..200]));
            assert!(message.contains(words), "{message:?} lacks {words:?}");
            assert!(message.chars().count() <= MESSAGE, "{message}");
        }
        // One byte less is compiled, although not within that limit.
        let large = r"\w".repeat(MAX_BYTES / 2);
        let error = NameRegex::new(&large).compiled().expect_err("large");
        assert!(error.to_string().contains("size limit"), "{error}");
        // Words of all scripts are within it.
        assert!(NameRegex::new(r"\w+\.\w").compiled().is_ok());
    }

    #[test]
    fn a_short_message_is_whole() {
        let error = NameRegex::new("(b").compiled().expect_err("malformed");
        let message = error.to_string();
        assert!(message.contains("(b\n") && message.contains("unclosed group"), "{message}");
    }

    #[test]
    fn regexes_of_a_file_have_limits_together() {
        let totals = |count: usize, bytes: usize| {
            let mut totals = RegexTotals::default();
            for _ in 0..count {
                totals.add(&NameRegex::new(&"a".repeat(bytes)));
            }
            totals.check().map_err(|error| error.to_string())
        };
        for (count, bytes) in [(0, 0), (200, 50), (1, 10_000), (2, 5_000)] {
            assert_eq!(totals(count, bytes), Ok(()), "{count} of {bytes}");
        }
        let count = totals(201, 1).expect_err("too many");
        assert!(count.contains("number of regexes") && count.contains("201"), "{count}");
        let bytes = totals(2, 5_001).expect_err("too long");
        assert!(bytes.contains("bytes of regexes") && bytes.contains("10002"), "{bytes}");
    }
}
