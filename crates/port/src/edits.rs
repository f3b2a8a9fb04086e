//! Changes of a text by byte ranges.

use std::ops::Range;

/// A change: `text` in place of `range`.
#[derive(Debug)]
struct Edit {
    range: Range<usize>,
    text: String,
}

/// Changes that are applied together.
#[derive(Debug, Default)]
pub struct Edits {
    edits: Vec<Edit>,
    /// Ranges that are written anew, so that changes inside them are void.
    rewritten: Vec<Range<usize>>,
}

impl Edits {
    /// Puts `text` before the byte `at`; of several at one byte, the first comes first.
    pub fn insert(&mut self, at: usize, text: impl Into<String>) {
        self.replace(at..at, text);
    }

    /// Puts `text` in place of `range`.
    pub fn replace(&mut self, range: Range<usize>, text: impl Into<String>) {
        self.edits.push(Edit {
            range,
            text: text.into(),
        });
    }

    /// As [`Edits::replace`], and whatever else would change the range does not.
    pub fn rewrite(&mut self, range: Range<usize>, text: impl Into<String>) {
        self.rewritten.push(range.clone());
        self.replace(range, text);
    }

    /// Whether a byte is in a range that is written anew.
    pub fn is_rewritten(&self, at: usize) -> bool {
        self.rewritten.iter().any(|range| range.contains(&at))
    }

    /// Whether there is nothing to change.
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    /// The changed text, or `None` where two changes overlap.
    pub fn apply(mut self, text: &str) -> Option<String> {
        let inside = |edit: &Edit| {
            let Range { start, end } = edit.range;
            self.rewritten.iter().any(|range| {
                *range != edit.range && start >= range.start && end <= range.end
                    // An insertion at either end is outside.
                    && (start < end || (start > range.start && start < range.end))
            })
        };
        self.edits.retain(|edit| !inside(edit));
        self.edits
            .sort_by_key(|edit| (edit.range.start, !edit.range.is_empty()));
        let mut result = String::with_capacity(text.len() + 1024);
        let mut at = 0;
        for edit in self.edits {
            result.push_str(text.get(at..edit.range.start)?);
            result.push_str(&edit.text);
            at = edit.range.end;
        }
        result.push_str(text.get(at..)?);
        Some(result)
    }
}
