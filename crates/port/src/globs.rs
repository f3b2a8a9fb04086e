//! The names that `use module::*` brings from modules of the crate.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::scopes::{Origin, Scopes};
use super::source::Source;
use super::types::Types;
use super::world::{ModuleNames, World, known};
use crate::files;

impl World {
    /// The names of a file's module.
    pub fn names(&self, file: &Path) -> Rc<ModuleNames> {
        known(&self.names, file, None, |file| Rc::new(names(self, file, &mut BTreeSet::new())))
    }
}

/// Binds the names that a file's globs bring from other files of its crate.
pub fn expand(world: &World, path: &Path, types: &mut Types) {
    for (module, glob) in types.scopes.crate_globs() {
        let Some(file) = world.module(path, &module, &glob) else {
            continue;
        };
        for (name, outside) in world.names(&file).iter() {
            let origin = match outside {
                Some(path) => Origin::Other(path.clone()),
                None => Origin::Crate([glob.as_slice(), std::slice::from_ref(name)].concat()),
            };
            types.scopes.bring(&module, name, origin);
        }
    }
}

/// The names in a file's module, including names from globs.
fn names(world: &World, file: &Path, seen: &mut BTreeSet<PathBuf>) -> ModuleNames {
    let mut names = ModuleNames::new();
    if !seen.insert(file.to_path_buf()) {
        return names;
    }
    let text = files::read(file).unwrap_or_default();
    let Ok((_, parsed)) = Source::parse(&text) else {
        return names;
    };
    let scopes = Scopes::new(&parsed, false);
    for (module, glob) in scopes.crate_globs() {
        let there = world.module(file, &module, &glob);
        if let Some(there) = there.filter(|_| module.is_empty()) {
            names.extend(self::names(world, &there, seen));
        }
    }
    let Some(scope) = scopes.scope(&[]) else {
        return names;
    };
    for (name, origin) in &scope.bindings {
        let outside = match origin {
            // Each file imports candle-dynquant itself.
            Origin::Ours(_) => continue,
            Origin::Other(path) if path.len() > 1 => Some(path.clone()),
            _ => None,
        };
        names.insert(name.clone(), outside);
    }
    names.extend(scope.items.iter().map(|name| (name.clone(), None)));
    names
}
