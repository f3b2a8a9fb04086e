//! `#[derive(Quantizable)]` on every type on the way to a layer, and what such a way needs.

use std::collections::{BTreeMap, BTreeSet};

use syn::{Item, Type};

use super::declarations::{attribute, derive, supertrait};
use super::draft::{Draft, Todo};
use super::scopes::Origin;
use super::syntax::segments;
use super::table;
use super::types::{Declared, Key, arguments, is_skipped, key, last_name};
use super::unit::Unit;
use super::world::trait_names;

/// The derives that the types of a file need.
#[derive(Default)]
struct Plan {
    quantizable: BTreeSet<Key>,
    clone: BTreeMap<Key, usize>,
    /// Traits that get `Quantizable` above them.
    traits: BTreeSet<Key>,
}

/// Adds derives, and lists fields that the library would not look into.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft) {
    let mut plan = Plan::default();
    let all: Vec<_> = unit.types.declared.values().flatten().collect();
    for declared in &all {
        macros(unit, draft, declared);
        for field in &declared.fields {
            if is_skipped(field) {
                continue;
            }
            field_type(unit, draft, &mut plan, declared, &field.ty, field);
        }
    }
    if unit
        .types
        .declared
        .values()
        .flatten()
        .any(|one| uses_sequential(unit, one))
    {
        modules(unit, &mut plan);
    }
    for one in all
        .iter()
        .filter(|one| plan.quantizable.contains(&key(one)))
    {
        let implemented = unit.types.implements(&one.module, &one.name, "Quantizable");
        if !one.is_derivable() || one.derives("Quantizable") || implemented {
            if matches!(one.item, Item::Union(_)) {
                draft.todos.push(unit.todo(
                    unit.source.range(&one.item).start,
                    format!(
                        "the union `{}` holds layers, and cannot be derived for",
                        one.name
                    ),
                    "make it an enum or a struct".into(),
                ));
            }
            continue;
        }
        let mut names = vec!["Quantizable"];
        if plan.clone.contains_key(&key(one)) && !is_clone(unit, one) && !bars_clone(one) {
            names.insert(0, "Clone");
        }
        derive(unit, draft, one, &names);
        draft.need_path(&one.module, &["Quantizable"]);
        flatten(unit, draft, one);
    }
    for key in &plan.traits {
        supertrait(unit, draft, key);
    }
    for (key, at) in &plan.clone {
        let declared = unit.types.declared.get(key).into_iter().flatten();
        for one in declared {
            clone(unit, draft, &plan, one, *at);
        }
    }
}

fn holds(unit: &Unit<'_>, module: &[String], ty: &Type) -> bool {
    unit.world.holds(unit.path, unit.types, module, ty)
}

/// The derives that a field needs of its type and of the types in it.
fn field_type(
    unit: &Unit<'_>,
    draft: &mut Draft,
    plan: &mut Plan,
    owner: &Declared,
    ty: &Type,
    field: &syn::Field,
) {
    let module = &owner.module;
    let at = unit.source.range(&field.ty).start;
    if let Type::TraitObject(object) = ty {
        opaque_object(unit, draft, plan, module, object, at);
        if holds(unit, module, ty) {
            plan.quantizable.insert(key(owner));
        }
        return;
    }
    if let Some(name) = last_name(ty) {
        let inner = arguments(ty);
        if name == "Box" && !inner.is_empty() {
            return inner
                .iter()
                .for_each(|ty| field_type(unit, draft, plan, owner, ty, field));
        }
        if !holds(unit, module, ty) {
            return inner
                .iter()
                .filter(|ty| has_object(ty))
                .for_each(|ty| field_type(unit, draft, plan, owner, ty, field));
        }
        elsewhere(unit, draft, module, ty, at);
    } else if !holds(unit, module, ty) {
        return;
    }
    if let Type::Reference(_) = ty {
        draft.todos.push(unit.todo(
            at,
            "a reference hides the layers behind it".into(),
            "hold them by value or in an `Arc`".into(),
        ));
        return;
    }
    containers(unit, draft, plan, module, ty, at);
    plan.quantizable.insert(key(owner));
    // Beside a layer in one container everything has to be a tree.
    let mut stack = vec![ty];
    while let Some(ty) = stack.pop() {
        if let Some(Origin::Local(module, name)) = unit.origin(module, ty) {
            plan.quantizable.insert((module, name));
        }
        stack.extend(arguments(ty));
        match ty {
            Type::Tuple(tuple) => stack.extend(&tuple.elems),
            Type::Array(array) => stack.push(&array.elem),
            Type::Slice(slice) => stack.push(&slice.elem),
            Type::Paren(inner) => stack.push(&inner.elem),
            Type::TraitObject(object) => opaque_object(unit, draft, plan, module, object, at),
            _ => {}
        }
    }
}

/// Lists containers that hide layers, however deep, and plans `Clone` for what is shared.
fn containers(
    unit: &Unit<'_>,
    draft: &mut Draft,
    plan: &mut Plan,
    module: &[String],
    ty: &Type,
    at: usize,
) {
    if !holds(unit, module, ty) {
        return;
    }
    let inner = arguments(ty);
    let is_in = |names: &[&str], name: &str| names.contains(&name);
    let name = last_name(ty).filter(|_| !inner.is_empty());
    let mut hides = |what: String, advice: &str| {
        let advice = format!("{advice}, or mark the field `#[quantizable(skip)]`");
        draft.todos.push(unit.todo(at, what, advice));
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
                want_clone(unit, plan, module, ty, at);
            }
        }
        _ => {}
    }
    let mut all = inner;
    match ty {
        Type::Tuple(tuple) => all.extend(&tuple.elems),
        Type::Array(array) => all.push(&array.elem),
        Type::Slice(slice) => all.push(&slice.elem),
        Type::Paren(inner) => all.push(&inner.elem),
        _ => {}
    }
    for ty in all {
        containers(unit, draft, plan, module, ty, at);
    }
}

/// A container for which a type is not `Clone`.
fn lock(ty: &Type) -> Option<String> {
    let name = last_name(ty).unwrap_or_default();
    let shares = table::SHARING.contains(&name.as_str());
    if shares || name == "Weak" || name == "PhantomData" {
        return None;
    }
    if table::LOCKS.contains(&name.as_str()) && !arguments(ty).is_empty() {
        return Some(name);
    }
    let mut all = arguments(ty);
    match ty {
        Type::Tuple(tuple) => all.extend(&tuple.elems),
        Type::Array(array) => all.push(&array.elem),
        _ => {}
    }
    all.into_iter().find_map(lock)
}

fn has_object(ty: &Type) -> bool {
    matches!(ty, Type::TraitObject(_)) || arguments(ty).into_iter().any(has_object)
}

/// Lists a trait object that may hide layers.
fn opaque_object(
    unit: &Unit<'_>,
    draft: &mut Draft,
    plan: &mut Plan,
    module: &[String],
    object: &syn::TypeTraitObject,
    at: usize,
) {
    for name in trait_names(object) {
        let own = unit
            .types
            .declared
            .contains_key(&(module.to_vec(), name.clone()));
        let types = unit.types.implementing(&name);
        let hides = own && types.clone().any(|(at, ty)| holds(unit, at, ty));
        let known = own && holds(unit, module, &Type::TraitObject(object.clone()));
        if hides && !known && above(unit, plan, module, &name) {
            continue;
        }
        let mut list = |what: String, advice: String| {
            let todo = unit.todo(at, what, advice);
            let of_trait = Some(name.clone());
            draft.todos.push(Todo { of_trait, ..todo });
        };
        if hides && !known {
            list(
                format!("`dyn {name}` hides the layers in it"),
                format!("make `Quantizable` a supertrait: `trait {name}: Quantizable`"),
            );
        } else if name == "Module" {
            list(
                "`dyn Module` hides the layers in it".into(),
                "take an enum or a trait with the supertrait `Quantizable`, or mark the field \
                 `#[quantizable(skip)]` if there are none"
                    .into(),
            );
        } else if !own
            && !table::PLAIN_TRAITS.contains(&name.as_str())
            && !harmless(unit, module, &name)
        {
            list(
                format!("`dyn {name}` may hide layers"),
                format!(
                    "make `Quantizable` a supertrait of `{name}` where it is declared, hold the type \
                     itself, or mark the field `#[quantizable(skip)]` if there are none"
                ),
            );
        }
    }
}

/// Whether another file of the crate, or of one that is ported with it, declares a trait, and no
/// type of those ported has layers behind it.
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

/// Plans `Quantizable` above a trait, if all its types are known and can be derived for.
fn above(unit: &Unit<'_>, plan: &mut Plan, module: &[String], name: &str) -> bool {
    let key = (module.to_vec(), name.to_owned());
    if plan.traits.contains(&key) {
        return true;
    }
    let types = unit.types.implementing(name);
    let types = types.map(|(at, ty)| match unit.origin(at, ty) {
        Some(Origin::Local(module, name)) => {
            let mut declared = unit
                .types
                .declared
                .get(&(module.clone(), name.clone()))?
                .iter();
            let plain = declared.all(|one| one.is_derivable() && one.params.is_empty());
            plain.then_some((module, name))
        }
        _ => None,
    });
    let Some(types) = types.collect::<Option<Vec<_>>>() else {
        return false;
    };
    if unit.world.is_implemented_elsewhere(unit.path, name) {
        return false;
    }
    plan.quantizable.extend(types);
    plan.traits.insert(key)
}

/// Lists macros that may give a type with layers other fields.
fn macros(unit: &Unit<'_>, draft: &mut Draft, one: &Declared) {
    let mut fields = one.fields.iter();
    let holds = fields.any(|field| holds(unit, &one.module, &field.ty) || has_object(&field.ty));
    for attr in one.attrs().iter().filter(|_| holds) {
        let path = segments(attr.path()).join("::");
        let at = unit.source.range(attr).start;
        let tool = path.starts_with("rustfmt::") || path.starts_with("clippy::");
        if tool || table::PLAIN_ATTRIBUTES.contains(&path.as_str()) || unit.source.is_kept(at) {
            continue;
        }
        draft.todos.push(unit.todo(
            at,
            format!("the macro `#[{path}]` may give `{}` other fields", one.name),
            "port what it makes of it (`cargo expand`), or put `// dynquant: keep` here".into(),
        ));
    }
}

/// Lists a type with layers that another file declares and that is not ported with this one.
fn elsewhere(unit: &Unit<'_>, draft: &mut Draft, module: &[String], ty: &Type, at: usize) {
    let Some(Origin::Crate(segments)) = unit.origin(module, ty) else {
        return;
    };
    let Some((file, declared)) = unit.world.elsewhere(unit.path, module, &segments) else {
        return;
    };
    let derived = declared.iter().all(|one| one.derives("Quantizable"));
    if derived || unit.world.is_given(&file) {
        return;
    }
    let name = segments.last().cloned().unwrap_or_default();
    draft.todos.push(unit.todo(
        at,
        format!("`{name}` has layers, and its file is not among those ported"),
        format!("port {} too", file.display()),
    ));
}

/// An `Arc` is walked where its content is `Clone`, and so all that is in it.
fn want_clone(unit: &Unit<'_>, plan: &mut Plan, module: &[String], ty: &Type, at: usize) {
    if let Some(Origin::Local(module, name)) = unit.origin(module, ty) {
        let key = (module, name);
        if plan.clone.insert(key.clone(), at).is_some() {
            return;
        }
        for one in unit.types.declared.get(&key).into_iter().flatten() {
            for field in &one.fields {
                want_clone(unit, plan, &one.module, &field.ty, at);
            }
        }
        return;
    }
    if last_name(ty).is_some_and(|name| name == "Arc" || name == "Rc" || name == "PhantomData") {
        return;
    }
    arguments(ty)
        .into_iter()
        .for_each(|ty| want_clone(unit, plan, module, ty, at));
    match ty {
        Type::Tuple(tuple) => tuple
            .elems
            .iter()
            .for_each(|ty| want_clone(unit, plan, module, ty, at)),
        Type::Array(array) => want_clone(unit, plan, module, &array.elem, at),
        _ => {}
    }
}

fn is_clone(unit: &Unit<'_>, one: &Declared) -> bool {
    one.derives("Clone") || unit.types.implements(&one.module, &one.name, "Clone")
}

/// Whether a field of a type is not `Clone`.
fn bars_clone(one: &Declared) -> bool {
    let mut fields = one.fields.iter().map(|field| &field.ty);
    let object = |ty: &Type| last_name(ty).is_some_and(|name| name == "Box") && has_object(ty);
    fields.any(|ty| lock(ty).is_some() || object(ty))
}

/// Adds `Clone` to a type that an `Arc` needs it of and that gets no other derive.
fn clone(unit: &Unit<'_>, draft: &mut Draft, plan: &Plan, one: &Declared, at: usize) {
    if is_clone(unit, one) || !one.is_derivable() {
        return;
    }
    let cannot = bars_clone(one);
    if cannot {
        draft.todos.push(unit.todo(
            at,
            format!(
                "an `Arc` is walked where its content is `Clone`, and `{}` is not",
                one.name
            ),
            "implement `Clone`, or take the layers out of the `Arc`".into(),
        ));
    }
    let derived = one.derives("Quantizable")
        || unit.types.implements(&one.module, &one.name, "Quantizable")
        || !plan.quantizable.contains(&key(one));
    if derived && !cannot {
        derive(unit, draft, one, &["Clone"]);
    }
}

/// A wrapper of one layer, `struct Linear { inner: candle_nn::Linear, span }`, adds no name to
/// the path.
fn flatten(unit: &Unit<'_>, draft: &mut Draft, one: &Declared) {
    let Item::Struct(item) = &one.item else {
        return;
    };
    let mut layers = item
        .fields
        .iter()
        .filter(|field| holds(unit, &one.module, &field.ty));
    let (Some(field), None) = (layers.next(), layers.next()) else {
        return;
    };
    let inner = field.ident.as_ref().is_some_and(|ident| ident == "inner");
    let layer = unit
        .origin(&one.module, &field.ty)
        .is_some_and(|origin| origin.layer().is_some());
    let marked = field
        .attrs
        .iter()
        .any(|attr| attr.path().is_ident("quantizable"));
    if inner && layer && !marked {
        attribute(unit, draft, field, "flatten");
    }
}

fn uses_sequential(unit: &Unit<'_>, one: &Declared) -> bool {
    fn any(unit: &Unit<'_>, module: &[String], ty: &Type) -> bool {
        unit.origin(module, ty)
            .is_some_and(|origin| origin.layer() == Some("Sequential"))
            || arguments(ty).into_iter().any(|ty| any(unit, module, ty))
    }
    one.fields
        .iter()
        .any(|field| any(unit, &one.module, &field.ty))
}

/// `Sequential::add` takes module trees only.
fn modules(unit: &Unit<'_>, plan: &mut Plan) {
    let types = ["Module", "ModuleT"].map(|name| unit.types.implementing(name));
    for (module, ty) in types.into_iter().flatten() {
        if let Some(Origin::Local(module, name)) = unit.origin(module, ty) {
            plan.quantizable.insert((module, name));
        }
    }
}
