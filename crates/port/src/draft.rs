//! The changes that passes ask for, and the places that they leave.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::edits::Edits;
use super::scopes::Module;
use super::table::Home;

/// A place that is left to a person.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Todo {
    /// Of the file as it was read.
    pub line: usize,
    pub what: String,
    pub advice: String,
    /// The trait whose objects may hide layers, which is said once for all of them.
    #[serde(rename = "trait", skip_serializing_if = "Option::is_none")]
    pub of_trait: Option<String>,
}

/// The changes that the passes ask for.
#[derive(Default)]
pub struct Draft {
    pub edits: Edits,
    pub todos: Vec<Todo>,
    pub needs: BTreeMap<Module, BTreeSet<Vec<String>>>,
    /// Names under which a need is imported, where they differ.
    pub aliases: BTreeMap<Vec<String>, String>,
}

impl Draft {
    /// Leaves a place to a person.
    pub fn list(&mut self, todo: Todo) {
        self.todos.push(todo);
    }

    /// Wants a module of candle-dynquant imported under a name.
    pub fn need(&mut self, module: &[String], name: &str, home: Home) {
        let path = home.name();
        self.need_path(module, &[path]);
        if name != path {
            self.aliases.insert(vec![path.to_owned()], name.to_owned());
        }
    }

    /// Wants a name of `nn` imported.
    pub fn need_name(&mut self, module: &[String], name: &str) {
        self.need_path(module, &["nn", name]);
    }

    pub fn need_path(&mut self, module: &[String], path: &[&str]) {
        let path = path.iter().map(|segment| (*segment).to_owned()).collect();
        self.needs.entry(module.to_vec()).or_default().insert(path);
    }
}
