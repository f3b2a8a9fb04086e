//! Adds `#[derive(Quantizable)]` to every type on the way to a layer, and what the derive requires.

use std::collections::{BTreeMap, BTreeSet};

use syn::{Item, Type};

use super::clones;
use super::declarations::{attribute, derive, supertrait};
use super::draft::{Draft, Todo};
use super::scopes::Origin;
use super::syntax::{has_attribute, segments};
use super::table;
use super::types::{Declared, Key, arguments, is_named, is_skipped, key, last_name, named, parts};
use super::unit::Unit;
use super::world::trait_names;

/// The derives that the types of a file need.
struct DerivePlan<'p, 'u> {
    unit: &'p Unit<'u>,
    draft: &'p mut Draft,
    quantizable: BTreeSet<Key>,
    clone: BTreeMap<Key, usize>,
    /// The traits that get the supertrait `Quantizable`.
    traits: BTreeSet<Key>,
}

/// Adds derives, and lists fields that the library would not look into.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft) {
    let mut plan = DerivePlan {
        unit,
        draft,
        quantizable: BTreeSet::new(),
        clone: BTreeMap::new(),
        traits: BTreeSet::new(),
    };
    let all: Vec<_> = unit.types.declared.values().flatten().collect();
    for declared in &all {
        plan.macros(declared);
        for field in declared.fields.iter().filter(|field| !is_skipped(field)) {
            plan.field_type(declared, &field.ty, field);
        }
    }
    if all.iter().any(|one| uses_sequential(unit, one)) {
        plan.modules();
    }
    let is_wanted = |one: &&&Declared| plan.quantizable.contains(&key(one));
    let clones = clones::find(unit);
    for one in all.iter().filter(is_wanted) {
        if !one.is_derivable() || unit.types.has(one, "Quantizable") {
            if matches!(one.item, Item::Union(_)) {
                let at = unit.source.start(&one.item);
                let name = &one.name;
                let what = format!("the union `{name}` holds layers, and cannot be derived for");
                let advice = "make it an enum or a struct";
                plan.draft.list(unit.todo(at, what, advice));
            }
            continue;
        }
        let mut names = vec!["Quantizable"];
        let wanted = plan.clone.contains_key(&key(one)) && !bars_clone(one);
        if (wanted || clones.contains(&key(one))) && !unit.types.has(one, "Clone") {
            names.insert(0, "Clone");
        }
        derive(unit, plan.draft, one, &names);
        plan.draft.need_path(&one.module, &["Quantizable"]);
        flatten(unit, plan.draft, one);
    }
    for one in all.iter().filter(|one| one.is_derivable() && !is_wanted(one)) {
        let new = clones.contains(&key(one)) && !plan.clone.contains_key(&key(one));
        if new && !unit.types.has(one, "Clone") {
            derive(unit, plan.draft, one, &["Clone"]);
        }
    }
    for key in &plan.traits {
        supertrait(unit, plan.draft, key);
    }
    for (key, at) in plan.clone.clone() {
        for one in unit.types.declared.get(&key).into_iter().flatten() {
            plan.clone(one, at);
        }
    }
}

impl DerivePlan<'_, '_> {
    /// Plans the derives that a field needs of its type and of the types in it.
    fn field_type(&mut self, owner: &Declared, ty: &Type, field: &syn::Field) {
        let unit = self.unit;
        let module = &owner.module;
        let at = unit.source.start(&field.ty);
        if let Type::TraitObject(object) = ty {
            self.opaque_object(module, object, at);
            if unit.holds(module, ty) {
                self.quantizable.insert(key(owner));
            }
            return;
        }
        if let Some(name) = last_name(ty) {
            let inner = arguments(ty);
            let in_box = name == "Box" && !inner.is_empty();
            if in_box || !unit.holds(module, ty) {
                for ty in inner.into_iter().filter(|ty| in_box || has_object(ty)) {
                    self.field_type(owner, ty, field);
                }
                return;
            }
            self.elsewhere(module, ty, at);
        } else if !unit.holds(module, ty) {
            return;
        }
        if let Type::Reference(_) = ty {
            let what = "a reference hides the layers behind it";
            let advice = "hold them by value or in an `Arc`";
            return self.draft.list(unit.todo(at, what, advice));
        }
        self.containers(module, ty, at);
        self.quantizable.insert(key(owner));
        // Everything beside a layer in a container must be a tree.
        let mut stack = vec![ty];
        while let Some(ty) = stack.pop() {
            if let Some(Origin::Local(key)) = unit.origin(module, ty) {
                self.quantizable.insert(key);
            }
            stack.extend(parts(ty));
            if let Type::TraitObject(object) = ty {
                self.opaque_object(module, object, at);
            }
        }
    }

    /// Lists containers that hide layers, at any depth, and plans `Clone` for shared values.
    fn containers(&mut self, module: &[String], ty: &Type, at: usize) {
        let unit = self.unit;
        if !unit.holds(module, ty) {
            return;
        }
        let inner = arguments(ty);
        let is_in = |names: &[&str], name: &str| names.contains(&name);
        let name = last_name(ty).filter(|_| !inner.is_empty());
        let mut hides = |what: String, advice: &str| {
            let advice = format!("{advice}, or mark the field `#[quantizable(skip)]`");
            self.draft.list(unit.todo(at, what, advice));
        };
        match name.as_deref() {
            Some(name) if is_in(table::HIDING, name) => {
                let what = format!("`{name}` hides the layers in it");
                return hides(what, "keep the layers outside of it");
            }
            Some(name) if is_in(table::SHARING, name) => {
                let mut locks = inner.iter().filter_map(|ty| lock(ty));
                if let Some(lock) = locks.next() {
                    let what = format!("`{lock}` in an `{name}` hides the layers in it");
                    return hides(what, &format!("take the layers out of the `{name}`"));
                }
                for ty in &inner {
                    self.want_clone(module, ty, at);
                }
            }
            _ => {}
        }
        for ty in parts(ty) {
            self.containers(module, ty, at);
        }
    }

    /// Lists a trait object that may hide layers.
    fn opaque_object(&mut self, module: &[String], object: &syn::TypeTraitObject, at: usize) {
        let unit = self.unit;
        for name in trait_names(object) {
            let key = (module.to_vec(), name.clone());
            let is_local = unit.types.declared.contains_key(&key);
            let types = unit.types.implementing(&name);
            let hides = is_local && types.clone().any(|(at, ty)| unit.holds(at, ty));
            let known = is_local && unit.holds(module, &Type::TraitObject(object.clone()));
            if hides && !known && self.above(module, &name) {
                continue;
            }
            let is_plain = table::PLAIN_TRAITS.contains(&name.as_str());
            let mark = "mark the field `#[quantizable(skip)]` if there are none";
            let (verb, advice) = if hides && !known {
                let advice =
                    format!("make `Quantizable` a supertrait: `trait {name}: Quantizable`");
                ("hides the layers in it", advice)
            } else if name == "Module" {
                let other = "take an enum or a trait with the supertrait `Quantizable`";
                ("hides the layers in it", format!("{other}, or {mark}"))
            } else if !is_local && !is_plain && !harmless(unit, module, &name) {
                let above = format!("make `Quantizable` a supertrait of `{name}`");
                let advice =
                    format!("{above} where it is declared, hold the type itself, or {mark}");
                ("may hide layers", advice)
            } else {
                continue;
            };
            let todo = unit.todo(at, format!("`dyn {name}` {verb}"), advice);
            let of_trait = Some(name.clone());
            self.draft.list(Todo { of_trait, ..todo });
        }
    }

    /// Plans `Quantizable` as a supertrait, if all implementing types are known and can derive it.
    fn above(&mut self, module: &[String], name: &str) -> bool {
        let unit = self.unit;
        let key = (module.to_vec(), name.to_owned());
        if self.traits.contains(&key) {
            return true;
        }
        let types = unit.types.implementing(name).map(|(at, ty)| match unit.origin(at, ty) {
            Some(Origin::Local(key)) => {
                let mut declared = unit.types.declared.get(&key)?.iter();
                let plain = declared.all(|one| one.is_derivable() && one.params.is_empty());
                plain.then_some(key)
            }
            _ => None,
        });
        let Some(types) = types.collect::<Option<Vec<_>>>() else { return false };
        if unit.world.is_implemented_elsewhere(unit.path, name) {
            return false;
        }
        self.quantizable.extend(types);
        self.traits.insert(key)
    }

    /// Lists attribute macros that may change the fields of a type with layers.
    fn macros(&mut self, one: &Declared) {
        let unit = self.unit;
        let mut fields = one.fields.iter();
        let holds = fields.any(|field| unit.holds(&one.module, &field.ty) || has_object(&field.ty));
        for attr in one.attrs().iter().filter(|_| holds) {
            let path = segments(attr.path()).join("::");
            let at = unit.source.start(attr);
            let tool = path.starts_with("rustfmt::") || path.starts_with("clippy::");
            if tool || table::PLAIN_ATTRIBUTES.contains(&path.as_str()) || unit.source.is_kept(at) {
                continue;
            }
            self.draft.list(unit.todo(
                at,
                format!("the macro `#[{path}]` may give `{}` other fields", one.name),
                "port what it makes of it (`cargo expand`), or put `// dynquant: keep` here",
            ));
        }
    }

    /// Lists a type with layers that another file declares, if that file is not ported too.
    fn elsewhere(&mut self, module: &[String], ty: &Type, at: usize) {
        let unit = self.unit;
        let Some(Origin::Crate(segments)) = unit.origin(module, ty) else { return };
        let Some((file, declared)) = unit.world.elsewhere(unit.path, module, &segments) else {
            return;
        };
        let derived = declared.iter().all(|one| one.derives("Quantizable"));
        if derived || unit.world.is_given(&file) {
            return;
        }
        let name = segments.last().cloned().unwrap_or_default();
        let what = format!("`{name}` has layers, and its file is not among those ported");
        let advice = format!("port {} too", file.display());
        self.draft.list(unit.todo(at, what, advice));
    }

    /// Plans `Clone` for the content of an `Arc`, at any depth, since only then is the `Arc`
    /// walked.
    fn want_clone(&mut self, module: &[String], ty: &Type, at: usize) {
        let unit = self.unit;
        if let Some(Origin::Local(key)) = unit.origin(module, ty) {
            if self.clone.insert(key.clone(), at).is_some() {
                return;
            }
            for one in unit.types.declared.get(&key).into_iter().flatten() {
                for field in &one.fields {
                    self.want_clone(&one.module, &field.ty, at);
                }
            }
            return;
        }
        if !is_pointer(ty) && !matches!(ty, Type::Slice(_)) {
            for ty in parts(ty) {
                self.want_clone(module, ty, at);
            }
        }
    }

    /// Adds `Clone` to a type inside an `Arc` that gets no other derive.
    fn clone(&mut self, one: &Declared, at: usize) {
        let unit = self.unit;
        if unit.types.has(one, "Clone") || !one.is_derivable() {
            return;
        }
        let cannot = bars_clone(one);
        if cannot {
            let name = &one.name;
            let what =
                format!("an `Arc` is walked where its content is `Clone`, and `{name}` is not");
            let advice = "implement `Clone`, or take the layers out of the `Arc`";
            self.draft.list(unit.todo(at, what, advice));
        }
        let derived = unit.types.has(one, "Quantizable") || !self.quantizable.contains(&key(one));
        if derived && !cannot {
            derive(unit, self.draft, one, &["Clone"]);
        }
    }

    /// Plans `Quantizable` for the types that implement `Module`: `Sequential::add` takes trees only.
    fn modules(&mut self) {
        let unit = self.unit;
        let types = ["Module", "ModuleT"].map(|name| unit.types.implementing(name));
        for (module, ty) in types.into_iter().flatten() {
            if let Some(Origin::Local(key)) = unit.origin(module, ty) {
                self.quantizable.insert(key);
            }
        }
    }
}

/// The first container in a type that prevents `Clone`.
fn lock(ty: &Type) -> Option<String> {
    if is_pointer(ty) || is_named(ty, "Weak") || matches!(ty, Type::Slice(_)) {
        return None;
    }
    let is_lock =
        |name: &String| table::LOCKS.contains(&name.as_str()) && !arguments(ty).is_empty();
    let inner = || parts(ty).into_iter().find_map(lock);
    last_name(ty).filter(is_lock).or_else(inner)
}

/// Whether a type is `Arc`, `Rc` or `PhantomData`, which are `Clone` whatever they hold.
fn is_pointer(ty: &Type) -> bool {
    table::SHARING.iter().chain(&["PhantomData"]).any(|name| is_named(ty, name))
}

fn has_object(ty: &Type) -> bool {
    matches!(ty, Type::TraitObject(_)) || arguments(ty).into_iter().any(has_object)
}

/// Whether another file of the crate, or of a crate ported with it, declares the trait, and no
/// implementing type has layers.
fn harmless(unit: &Unit<'_>, module: &[String], name: &str) -> bool {
    match unit.types.scopes.resolve(module, &[name.to_owned()]) {
        Origin::Crate(segments) => !unit.world.may_hide(unit.path, module, &segments),
        Origin::Other(path) => match path.as_slice() {
            [krate, .., name] => !unit.world.may_hide_beside(krate, name),
            _ => false,
        },
        _ => false,
    }
}

/// Whether a type has a field that is not `Clone`.
fn bars_clone(one: &Declared) -> bool {
    let mut fields = one.fields.iter().map(|field| &field.ty);
    let object = |ty: &Type| is_named(ty, "Box") && has_object(ty);
    fields.any(|ty| lock(ty).is_some() || object(ty))
}

/// Adds `#[quantizable(flatten)]` to a wrapper of one layer,
/// `struct Linear { inner: candle_nn::Linear, span }`, which adds no name to the path.
fn flatten(unit: &Unit<'_>, draft: &mut Draft, one: &Declared) {
    let Item::Struct(item) = &one.item else { return };
    let is_held = |field: &&syn::Field| unit.holds(&one.module, &field.ty);
    let mut layers = item.fields.iter().filter(is_held);
    let (Some(field), None) = (layers.next(), layers.next()) else { return };
    let origin = unit.origin(&one.module, &field.ty);
    let is_layer = origin.is_some_and(|origin| origin.layer().is_some());
    let marked = has_attribute(&field.attrs, "quantizable");
    if named([field], "inner").is_some() && is_layer && !marked {
        attribute(unit, draft, field, "flatten");
    }
}

fn uses_sequential(unit: &Unit<'_>, one: &Declared) -> bool {
    fn any(unit: &Unit<'_>, module: &[String], ty: &Type) -> bool {
        let origin = unit.origin(module, ty);
        let is_it = origin.is_some_and(|origin| origin.layer() == Some("Sequential"));
        is_it || arguments(ty).into_iter().any(|ty| any(unit, module, ty))
    }
    one.fields.iter().any(|field| any(unit, &one.module, &field.ty))
}
