//! The contents of other files: the types as they will be after the port, with layers in place of
//! tensors, the names that globs bring, and the functions that multiply by an argument.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use syn::Type;

use super::draft::Draft;
use super::facts::Facts;
use super::scopes::{Module, Origin, Scopes};
use super::source::Source;
use super::types::{Types, key, parts, referred};
use super::unit::Unit;
use super::world::{ModuleNames, Outline, World, known};
use super::{imports, layers, names, origins, weights};
use crate::files;

impl World {
    /// The types of a file.
    pub fn types(&self, path: &Path) -> Option<Rc<Types>> {
        known(&self.read, path, None, |path| {
            let text = files::read(path).ok()?;
            let text = if self.given.contains(path) { with_layers(path, text, self) } else { text };
            let (source, file) = Source::parse(&text).ok()?;
            Some(Rc::new(types_of(path, self, &source, &file)))
        })
    }
}

/// The types of a file, whose names may come from other files.
fn scoped(path: &Path, world: &World, file: &syn::File) -> Types {
    let mut types = Types::within(file, world.has_own_tracing(path));
    expand(world, path, &mut types);
    types
}

/// The types of a file, including those that multiply by tensors in their fields.
pub fn types_of(path: &Path, world: &World, source: &Source<'_>, file: &syn::File) -> Types {
    let mut types = scoped(path, world, file);
    let unit = Unit::new(path, world, source, file, &types);
    let (multiplied, matrices) = (weights::multiplied(&unit), origins::matrices(&unit));
    (types.multiplied, types.matrices) = (multiplied, matrices);
    types
}

/// The text with layers in place of the tensors that multiply like a layer's weight: the types that
/// other files see.
fn with_layers(path: &Path, text: String, world: &World) -> String {
    let changed = || {
        let (source, file) = Source::parse(&text).ok()?;
        let types = scoped(path, world, &file);
        let unit = Unit::new(path, world, &source, &file, &types);
        let mut draft = Draft::default();
        let names = names::find(&unit);
        layers::rewrite(&unit, &mut draft, &names.modules);
        imports::rewrite(&unit, &mut draft, &names.modules, None);
        draft.edits.apply(&text)
    };
    changed().unwrap_or(text)
}

impl World {
    /// The names of a file's module.
    pub fn names(&self, file: &Path) -> Rc<ModuleNames> {
        known(&self.names, file, None, |file| Rc::new(names(self, file, &mut BTreeSet::new())))
    }
}

/// Binds the names that a file's globs bring from other files of its crate.
fn expand(world: &World, path: &Path, types: &mut Types) {
    for (module, glob) in types.scopes.crate_globs() {
        let Some(file) = world.module(path, &module, &glob) else { continue };
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
    let Ok((_, parsed)) = Source::parse(&text) else { return names };
    let scopes = Scopes::new(&parsed, false);
    for (module, glob) in scopes.crate_globs() {
        let there = world.module(file, &module, &glob);
        if let Some(there) = there.filter(|_| module.is_empty()) {
            names.extend(self::names(world, &there, seen));
        }
    }
    let Some(scope) = scopes.modules.get(&Module::new()) else { return names };
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

impl World {
    /// A file read in isolation.
    fn outline(&self, path: &Path) -> Option<Rc<Outline>> {
        known(&self.outlines, path, Some(None), |path| {
            let text = files::read(path).ok()?;
            let (source, file) = Source::parse(&text).ok()?;
            let types = Types::new(&file);
            let unit = Unit::new(path, self, &source, &file, &types);
            let helpers = weights::helpers(&unit);
            let getters = weights::getters(&unit);
            let matrices = origins::matrices(&unit);
            Some(Rc::new(Outline { types, helpers, getters, matrices }))
        })
    }

    /// Whether a type of another file has a field with a matrix, or a method that returns a weight,
    /// of this name.
    pub fn has_weight(&self, facts: &Facts<'_>, ty: &Type, name: &str) -> bool {
        let (ty, unit, module) = (referred(ty), facts.unit, &facts.function.module);
        if let Some(Origin::Crate(path)) = unit.origin(module, ty)
            && let Some((file, declared)) = self.elsewhere(unit.path, module, &path)
            && let Some(outline) = self.outline(&file)
        {
            return declared.iter().any(|one| {
                let field = (key(one), name.to_owned());
                let getter = (one.name.clone(), name.to_owned());
                outline.matrices.contains(&field) || outline.getters.contains(&getter)
            });
        }
        parts(ty).into_iter().any(|ty| self.has_weight(facts, ty, name))
    }

    /// The arguments by which a function of another file multiplies.
    pub fn multiplies_by(&self, facts: &Facts<'_>, function: &[String]) -> Vec<usize> {
        let path = match facts.resolve(function) {
            // A function of the file itself is handled there.
            Origin::Crate(path) if path.len() > 2 || path[0] != "self" => path,
            _ => return Vec::new(),
        };
        let mut place = self.find(facts.unit.path, &facts.function.module, &path);
        // The longest chain of `pub use` that is followed.
        for _ in 0..8 {
            let Some((file, name)) = place else { break };
            let Some(outline) = self.outline(&file) else { break };
            let helpers = outline.helpers.iter();
            let named = helpers.filter(|one| one.owner.is_none() && one.name == name);
            let found: Vec<_> = named.map(|one| one.argument).collect();
            place = match outline.types.scopes.resolve(&[], &[name]) {
                Origin::Crate(path) if found.is_empty() => self.find(&file, &[], &path),
                _ => return found,
            };
        }
        Vec::new()
    }
}
