//! The changes that the passes request, and the places that they leave.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::edits::Edits;
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
