//! Files read in isolation, for their functions that multiply by an argument.

use std::path::Path;
use std::rc::Rc;

use super::facts::Facts;
use super::scopes::Origin;
use super::source::Source;
use super::types::Types;
use super::unit::Unit;
use super::weights;
use super::world::{Outline, World, known};
use crate::files;

impl World {
    /// A file read in isolation.
    fn outline(&self, path: &Path) -> Option<Rc<Outline>> {
        known(&self.outlines, path, Some(None), |path| {
            let text = files::read(path).ok()?;
            let (source, file) = Source::parse(&text).ok()?;
            let types = Types::new(&file);
            let unit = Unit::new(path, self, &source, &file, &types);
            let helpers = weights::helpers(&unit);
            Some(Rc::new(Outline { types, helpers }))
        })
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
            let Some(outline) = self.outline(&file) else {
                break;
            };
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
