//! Types for which `Clone` can be derived, which `equalize` and `tune` require of a model.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;

use syn::{Item, Type};

use super::scopes::Origin;
use super::syntax::segments;
use super::table;
use super::types::{Declared, Key, Types, is_named, key, parts};
use super::unit::Unit;
use super::world::{World, known};

/// The types of a file that are `Clone` after the port.
pub type Clones = BTreeSet<Key>;

/// Finds the types of a file that are `Clone` after the port.
pub fn find(unit: &Unit<'_>) -> Clones {
    clones(unit.world, unit.path, unit.types)
}

/// The types that are `Clone`, and, in a file that is ported, the types on the way to a layer, with
/// all that they hold.
fn clones(world: &World, path: &Path, types: &Types) -> Clones {
    let all: Vec<_> = types.declared.values().flatten().collect();
    let (known, others): (Vec<_>, _) = all.into_iter().partition(|one| types.has(one, "Clone"));
    let mut clones: Clones = known.into_iter().map(key).collect();
    let (mut needs, mut users) = (BTreeMap::new(), BTreeMap::<Key, Vec<Key>>::new());
    let (mut open, mut wanted) = (Vec::new(), Vec::new());
    for one in others.into_iter().filter(|_| world.is_given(path)) {
        let holds = |field: &syn::Field| world.holds(path, types, &one.module, &field.ty);
        wanted.extend(one.fields.iter().any(holds).then(|| key(one)));
        let look = |field: &syn::Field| held(world, (path, types), one, &field.ty);
        let held: Option<Vec<_>> = one.fields.iter().map(look).collect();
        let is_alias = matches!(one.item, Item::Type(_));
        // A type that the author has ported stays, and so does a type with a `Drop`.
        let bars = ["Quantizable", "Drop"].iter().any(|name| types.has(one, name));
        match held.filter(|_| !bars && (is_alias || one.is_derivable())) {
            None => open.push(key(one)),
            Some(held) => {
                let held = held.concat();
                for used in held.iter().filter(|used| !clones.contains(used)) {
                    users.entry(used.clone()).or_default().push(key(one));
                }
                needs.insert(key(one), held);
            }
        }
    }
    // A type that is not `Clone` removes the types that hold it.
    while let Some(next) = open.pop() {
        needs.remove(&next);
        open.extend(users.remove(&next).into_iter().flatten());
    }
    while let Some(next) = wanted.pop() {
        if let Some(held) = needs.remove(&next) {
            clones.insert(next);
            wanted.extend(held);
        }
    }
    clones
}

/// The types of the file that must be `Clone` for a type to be `Clone`; `None` if that is not
/// enough.
fn held(world: &World, file: (&Path, &Types), owner: &Declared, ty: &Type) -> Option<Vec<Key>> {
    let mut pointers = table::SHARING.iter().chain(&["PhantomData", "Weak"]);
    if pointers.any(|name| is_named(ty, name)) {
        return Some(Vec::new());
    }
    let inner = parts(ty).into_iter().map(|ty| held(world, file, owner, ty));
    let mut found = inner.collect::<Option<Vec<_>>>()?.concat();
    let is_clone = match ty {
        Type::FnPtr(_) => return Some(Vec::new()),
        Type::Reference(reference) => reference.mutability.is_none(),
        Type::Tuple(_) | Type::Array(_) | Type::Paren(_) | Type::Group(_) => true,
        Type::Path(path) if path.qself.is_none() => {
            let names = segments(&path.path);
            match file.1.scopes.resolve(&owner.module, &names) {
                Origin::Local(key) => {
                    found.push(key);
                    true
                }
                Origin::Crate(names) => {
                    match world.elsewhere(file.0, &owner.module, &names) {
                        Some((file, declared)) => {
                            let clones = world.clones(&file);
                            declared.iter().all(|one| clones.contains(&key(one)))
                        }
                        // A type of `nn` may be re-exported.
                        None => {
                            let is_layer = world.holds(file.0, file.1, &owner.module, ty);
                            is_layer
                                && names
                                    .last()
                                    .is_some_and(|last| table::NN_CLONES.contains(&&**last))
                        }
                    }
                }
                Origin::Nn(path) | Origin::Ours(path) | Origin::Traced(path) => {
                    path.last().is_some_and(|last| table::NN_CLONES.contains(&&**last))
                }
                Origin::Other(path) => path.last().is_some_and(|last| {
                    let is_given = path.len() == 1 && owner.params.contains(last);
                    is_given || table::CLONES.contains(&last.as_str())
                }),
            }
        }
        _ => false,
    };
    is_clone.then_some(found)
}

impl World {
    fn clones(&self, path: &Path) -> Rc<Clones> {
        known(&self.clones, path, Some(Rc::default()), |path| {
            let types = self.types(path);
            types.map(|types| Rc::new(clones(self, path, &types))).unwrap_or_default()
        })
    }
}
