//! Adds `#[quantizable(skip)]` to fields of types that hold no layer.

use std::collections::BTreeSet;
use std::path::Path;

use syn::{Item, Type};

use super::declarations::attribute;
use super::draft::Draft;
use super::origins::name_of;
use super::scopes::Origin;
use super::source::Source;
use super::syntax::{has_attribute, segments};
use super::table;
use super::types::{Declared, Key, Types, arguments, is_skipped, key, parts, referred};
use super::unit::Unit;
use super::world::World;

/// Marks fields of types without layers, which the library would otherwise report as possibly
/// having some; skips types that already derived `Quantizable` in the `original`.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft, original: &str) {
    let Ok((_, file)) = Source::parse(original) else { return };
    let before = Types::new(&file);
    for one in unit.types.declared.values().flatten() {
        let mut known = before.declared.get(&key(one)).into_iter().flatten();
        if !one.derives("Quantizable") || known.any(|known| known.derives("Quantizable")) {
            continue;
        }
        for (at, field) in one.fields.iter().enumerate() {
            let marked =
                has_attribute(&field.attrs, "quantizable") || has_matrix(unit.types, one, at);
            if marked || unit.is_left_out(unit.source.start(&field.ty)) {
                continue;
            }
            let mut look = Look { world: unit.world, seen: BTreeSet::new(), above: 0 };
            if !unit.multiplies(&one.module, &field.ty)
                && look.plain((unit.path, unit.types), one, &field.ty) == Some(true)
            {
                attribute(unit, draft, field, "skip");
            }
        }
    }
}

/// A search through all fields of a type.
struct Look<'l> {
    world: &'l World,
    /// The visited types, each with its file's number.
    seen: BTreeSet<(usize, Key)>,
    /// The number of types around the current type.
    above: usize,
}

impl Look<'_> {
    /// Whether a type holds a type of the crate that is not a tree; `None` unless all of it is
    /// known, down to the last field.
    fn plain(&mut self, file: (&Path, &Types), owner: &Declared, ty: &Type) -> Option<bool> {
        match ty {
            Type::Tuple(_) | Type::Array(_) | Type::Slice(_) | Type::Paren(_) | Type::Group(_) => {
                any(parts(ty).into_iter().map(|ty| self.plain(file, owner, ty)))
            }
            Type::Reference(_) => self.plain(file, owner, referred(ty)),
            Type::FnPtr(_) => Some(false),
            Type::Path(path) if path.qself.is_none() => {
                let arguments = arguments(ty).into_iter();
                let inner = any(arguments.map(|ty| self.plain(file, owner, ty)))?;
                let itself = match file.1.scopes.resolve(&owner.module, &segments(&path.path)) {
                    Origin::Local(key) => self.declared(file, file.1.declared.get(&key)?)?,
                    Origin::Crate(segments) => {
                        let world = self.world;
                        let (path, declared) = world.elsewhere(file.0, &owner.module, &segments)?;
                        let types = world.types(&path)?;
                        self.declared((&path, &types), &declared)?
                    }
                    Origin::Nn(path) | Origin::Ours(path) | Origin::Traced(path) => {
                        path.last().is_none_or(|last| !table::is_closure(last)).then_some(false)?
                    }
                    Origin::Other(path) => {
                        let last = path.last()?;
                        // Arguments of an inner type were visited where it is named.
                        let given = owner.params.contains(last) && path.len() == 1;
                        let root = path.first().filter(|_| path.len() > 1);
                        let known = table::PLAIN_TYPES.contains(&last.as_str())
                            || root
                                .is_some_and(|root| table::PLAIN_CRATES.contains(&root.as_str()));
                        (if given { self.above > 0 } else { known }).then_some(false)?
                    }
                };
                Some(inner | itself)
            }
            _ => None,
        }
    }

    fn declared(&mut self, file: (&Path, &Types), all: &[Declared]) -> Option<bool> {
        any(all.iter().map(|one| {
            let by_hand = file.1.implements(&one.module, &one.name, "Quantizable");
            // A walk enters a tree, unless an enclosing type is not a tree.
            if self.above == 0 && (by_hand || one.derives("Quantizable")) || one.derives("Copy") {
                return Some(false);
            }
            if by_hand || matches!(one.item, Item::Trait(_)) {
                return None;
            }
            if (0..one.fields.len()).any(|at| has_matrix(file.1, one, at)) {
                return None;
            }
            if !self.seen.insert((file.1.id, key(one))) {
                return Some(is_no_tree(one));
            }
            self.above += 1;
            let fields = one.fields.iter().filter(|field| !is_skipped(field));
            let inner = any(fields.map(|field| self.plain(file, one, &field.ty)));
            self.above -= 1;
            Some(inner? | is_no_tree(one))
        }))
    }
}

/// Whether a field has tensors that may multiply, which a report names unless something hides them.
fn has_matrix(types: &Types, one: &Declared, at: usize) -> bool {
    let field = &one.fields[at];
    !is_skipped(field) && types.matrices.contains(&(key(one), name_of(field, at)))
}

fn any(mut parts: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    parts.try_fold(false, |any, part| Some(any | part?))
}

/// Whether a walk cannot enter a type; a `Copy` type holds no layer.
fn is_no_tree(one: &Declared) -> bool {
    one.is_derivable() && !one.derives("Quantizable") && !one.derives("Copy")
}
