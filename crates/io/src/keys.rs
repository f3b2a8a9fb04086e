//! Tables of the keys that other programs write, so that a reader ignores none silently.
//!
//! A table has a row for every key of a format, a file's metadata or its tensors. A key without a
//! row is returned to the reader, which refuses the key where it can change an answer, and names it
//! otherwise.

use std::fmt;

/// The treatment of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// The reader uses the value.
    Used,
    /// The value changes no answer, for this reason.
    Harmless(&'static str),
    /// The key is refused unless its value, as JSON, is in this list of values that turn the
    /// feature off.
    Only(&'static [&'static str]),
}

/// The rows of a format: patterns of keys, in which `*` stands for any text, and the treatment. The
/// first row that fits a key decides.
///
/// ```
/// use candle_dynquant_io::keys::{Table, Treatment::{Harmless, Only, Used}};
///
/// const CONFIG: Table = Table(&[
///     (&["hidden_size", "layers.*.bias"], Used),
///     (&["transformers_version"], Harmless("the version that wrote the file")),
///     (&["clip_qkv"], Only(&["null"])),
/// ]);
/// let entry = |key: &'static str, value: &str| (key, value.to_owned());
/// assert_eq!(CONFIG.check([entry("hidden_size", "8"), entry("colour", "1")])?, ["colour"]);
///
/// let refused = CONFIG.check([entry("clip_qkv", "8.0")]).unwrap_err();
/// assert_eq!(refused.to_string(), r#"key "clip_qkv": expected null, got 8.0"#);
/// # Ok::<(), candle_dynquant_io::keys::Refused>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Table(pub &'static [(&'static [&'static str], Treatment)]);

/// The first key whose value is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The key.
    pub key: String,
    /// The accepted values, as JSON.
    pub expected: String,
    /// The value in the file, as JSON, cut after 100 characters.
    pub got: String,
}

impl Table {
    /// The treatment of a key; `None` for a key without a row.
    pub fn treatment(&self, key: &str) -> Option<Treatment> {
        let mut rows = self.0.iter();
        let row = rows.find(|(patterns, _)| patterns.iter().any(|pattern| fits(pattern, key)));
        row.map(|(_, treatment)| *treatment)
    }

    /// Checks keys against their values as JSON, and returns the keys without a row.
    ///
    /// # Errors
    /// When a key has a value that its row refuses.
    pub fn check<'a>(
        &self,
        entries: impl IntoIterator<Item = (&'a str, String)>,
    ) -> Result<Vec<&'a str>, Refused> {
        let mut unknown = Vec::new();
        for (key, value) in entries {
            match self.treatment(key) {
                Some(Treatment::Used | Treatment::Harmless(_)) => {}
                Some(Treatment::Only(values)) if values.contains(&value.as_str()) => {}
                Some(Treatment::Only(values)) => {
                    let got = match value.char_indices().nth(100) {
                        Some((end, _)) => format!("{}..", &value[..end]),
                        None => value,
                    };
                    return Err(Refused {
                        key: key.to_owned(),
                        expected: values.join(" or "),
                        got,
                    });
                }
                None => unknown.push(key),
            }
        }
        Ok(unknown)
    }
}

/// Whether a key has the form of a pattern.
fn fits(pattern: &str, key: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == key;
    };
    let Some(key) = key.strip_prefix(start) else {
        return false;
    };
    let mut ends = key.char_indices().map(|(index, _)| index).chain([key.len()]);
    ends.any(|end| fits(rest, &key[end..]))
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, expected, got } = self;
        write!(f, "key {key:?}: expected {expected}, got {got}")
    }
}

impl std::error::Error for Refused {}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, key, expected) in [
            ("blk.*.attn_q.weight", "blk.0.attn_q.weight", true),
            ("blk.*.attn_q.weight", "blk.0.attn_q.bias", false),
            ("tokenizer.*", "tokenizer.", true),
            ("*", "", true),
            ("a*b*c", "a1b2c", true),
            ("a*b*c", "a1c2b", false),
            ("a", "ab", false),
            ("é*", "éü", true),
        ] {
            assert_eq!(fits(pattern, key), expected, "{pattern} {key}");
        }
    }
}
