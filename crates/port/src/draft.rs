//! The changes that the passes request, and the places that they leave.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::Serialize;

use super::scopes::Module;
use super::table::Home;

/// A place that is left to the user.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Todo {
    /// The line in the original file.
    pub line: usize,
    pub what: String,
    pub advice: String,
    /// The trait whose objects may hide layers; all of its places are reported at once.
    #[serde(rename = "trait", skip_serializing_if = "Option::is_none")]
    pub of_trait: Option<String>,
}

/// The changes that the passes request.
#[derive(Default)]
pub struct Draft {
    pub edits: Edits,
    pub todos: Vec<Todo>,
    pub needs: BTreeMap<Module, BTreeSet<Vec<String>>>,
    /// The names under which needs are imported, if they differ.
    pub aliases: BTreeMap<Vec<String>, String>,
}

impl Draft {
    /// Leaves a place to the user.
    pub fn list(&mut self, todo: Todo) {
        self.todos.push(todo);
    }

    /// Requests the import of a module of candle-dynquant under a name.
    pub fn need(&mut self, module: &[String], name: &str, home: Home) {
        let path = home.name();
        self.need_path(module, &[path]);
        if name != path {
            self.aliases.insert(vec![path.to_owned()], name.to_owned());
        }
    }

    /// Requests the import of a name of `nn`.
    pub fn need_name(&mut self, module: &[String], name: &str) {
        self.need_path(module, &["nn", name]);
    }

    pub fn need_path(&mut self, module: &[String], path: &[&str]) {
        let path = path.iter().map(|segment| (*segment).to_owned()).collect();
        self.needs.entry(module.to_vec()).or_default().insert(path);
    }
}

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

    /// Puts each text in place of its range.
    pub fn replace_all(&mut self, all: impl IntoIterator<Item = (Range<usize>, String)>) {
        self.edits.extend(all.into_iter().map(|(range, text)| Edit { range, text }));
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
