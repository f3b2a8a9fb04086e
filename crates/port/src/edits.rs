//! Edits of a text by byte ranges.

use std::ops::Range;

/// A change: `text` in place of `range`.
#[derive(Debug)]
struct Edit {
    range: Range<usize>,
    text: String,
}

/// Edits that are applied together.
#[derive(Debug, Default)]
pub struct Edits {
    edits: Vec<Edit>,
    /// The rewritten ranges; edits inside them are dropped.
    rewritten: Vec<Range<usize>>,
}

impl Edits {
    /// Inserts `text` before the byte `at`; insertions at one byte keep their order.
    pub fn insert(&mut self, at: usize, text: impl Into<String>) {
        self.replace(at..at, text);
    }

    /// Puts `text` in place of `range`.
    pub fn replace(&mut self, range: Range<usize>, text: impl Into<String>) {
        self.edits.push(Edit { range, text: text.into() });
    }

    /// Puts `text` in place of `range`, and drops all other edits in the range.
    pub fn rewrite(&mut self, range: Range<usize>, text: impl Into<String>) {
        self.rewritten.push(range.clone());
        self.replace(range, text);
    }

    /// Whether a byte is in a rewritten range.
    pub fn is_rewritten(&self, at: usize) -> bool {
        self.rewritten.iter().any(|range| range.contains(&at))
    }

    /// Whether there are no edits.
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    /// The edited text, or `None` if two edits overlap.
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
        self.edits.sort_by_key(|edit| (edit.range.start, !edit.range.is_empty()));
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
