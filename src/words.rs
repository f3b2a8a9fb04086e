//! Words for values, such as `qint8` and `LSTM`; the error for an unknown word suggests the
//! nearest.

use crate::error::{Error, Fault, Result};

/// The minimum similarity of a suggestion, of 1.
const ALIKE: f64 = 0.75;

/// Characters of a word that are compared: it may be as long as a file, and the time is quadratic.
const COMPARED: usize = 200;

fn lowercase(word: &str) -> String {
    let chars = word.chars().take(COMPARED);
    chars.flat_map(char::to_lowercase).collect()
}

/// The one of `words` that was probably meant by `word`.
pub(crate) fn suggestion<S: AsRef<str>>(
    word: &str,
    words: impl IntoIterator<Item = S>,
) -> Option<S> {
    let word = lowercase(word);
    let likeness = |other: &str| strsim::jaro_winkler(&word, &lowercase(other));
    words
        .into_iter()
        .map(|other| (likeness(other.as_ref()), other))
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .map(|(_, nearest)| nearest)
}

/// The beginning of a text that may be as long as a file.
pub(crate) fn brief(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((end, _)) => format!("{}..", &text[..end]),
        None => text.to_owned(),
    }
}

/// An [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig).
pub(crate) fn unknown_name(what: &'static str, got: &str, words: &[&str]) -> Error {
    Error::from(Fault::UnknownName {
        what,
        expected: words.join(", "),
        got: got.to_owned(),
        nearest: suggestion(got, words.iter().copied()).map(str::to_owned),
    })
}

/// A table of words and their values.
pub(crate) type Words<T, const N: usize> = [(&'static str, T); N];

/// The words of a table.
pub(crate) const fn names<T, const N: usize>(table: &Words<T, N>) -> [&'static str; N] {
    let mut names = [""; N];
    let mut row = 0;
    while row < N {
        names[row] = table[row].0;
        row += 1;
    }
    names
}

/// The value of `word`.
pub(crate) fn lookup<T, const N: usize>(
    what: &'static str,
    word: &str,
    words: Words<T, N>,
) -> Result<T> {
    let known = words.each_ref().map(|(word, _)| *word);
    let found = words.into_iter().find(|(known, _)| *known == word);
    found.map(|(_, value)| value).ok_or_else(|| unknown_name(what, word, &known))
}

/// `Display`, `FromStr` and serde of an enum whose variants are words; a `prefix` may be left out.
macro_rules! words {
    ($type:ident, $what:literal, prefix $prefix:literal, {$($variant:ident => $word:literal),+ $(,)?}) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(match self { $(Self::$variant => $word),+ })
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::error::Error;

            fn from_str(word: &str) -> $crate::error::Result<Self> {
                let word = word.strip_prefix($prefix).unwrap_or(word);
                $crate::words::lookup($what, word, [$(($word, Self::$variant)),+])
            }
        }

        $crate::words::serde_as_word!($type);
    };
}

/// serde of a type as the word that `Display` writes and `FromStr` reads.
macro_rules! serde_as_word {
    ($type:ident) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let word = String::deserialize(from)?;
                word.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

/// An enum as another one that has variants of the same names.
macro_rules! converted {
    ($from:ty => $to:ty { $($variant:ident $(($value:ident))?),+ }) => {
        impl From<$from> for $to {
            fn from(from: $from) -> Self {
                type Own = $from;
                match from {
                    $(Own::$variant $(($value))? => Self::$variant $(($value))?),+
                }
            }
        }
    };
}

pub(crate) use {converted, serde_as_word, words};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_suggested_if_it_is_near() {
        let words = ["int8", "default", "per_channel", "float16"];
        let cases = [
            ("in8", Some("int8")),
            ("INT8", Some("int8")),
            ("per-channel", Some("per_channel")),
            ("flaot16", Some("float16")),
            ("qwerty", None),
            ("", None),
            ("nothere", None),
        ];
        for (word, expected) in cases {
            assert_eq!(suggestion(word, words), expected, "{word:?}");
        }
        assert_eq!(suggestion::<&str>("int8", []), None);
    }
}
