//! Files read in isolation, for their functions that multiply by an argument.

use std::path::Path;
use std::rc::Rc;

use syn::Type;

use super::facts::Facts;
use super::origins;
use super::scopes::Origin;
use super::source::Source;
use super::types::{Types, key, parts};
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
            let getters = weights::getters(&unit);
            let matrices = origins::matrices(&unit);
            Some(Rc::new(Outline { types, helpers, getters, matrices }))
        })
    }

    /// Whether a type of another file has a field with a matrix, or a method that returns a weight,
    /// of this name.
    pub fn has_weight(&self, facts: &Facts<'_>, ty: &Type, name: &str) -> bool {
        if let Type::Reference(inner) = ty {
            return self.has_weight(facts, &inner.elem, name);
        }
        let (unit, module) = (facts.unit, &facts.function.module);
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
