//! The types of other files as they will be after the port, with layers in place of tensors.

use std::path::Path;
use std::rc::Rc;

use super::draft::Draft;
use super::source::Source;
use super::types::Types;
use super::unit::Unit;
use super::world::{World, known};
use super::{globs, imports, layers, names, origins, weights};
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
    globs::expand(world, path, &mut types);
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
