//! The types of a file and the contents of their fields.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use syn::{Attribute, GenericArgument, Item, PathArguments, Type};

use super::features::attributes;
pub use super::scopes::Key;
use super::scopes::{Module, Scopes};
use super::source::{Fault, Source};
use super::syntax::{ends_with, get, has_attribute, lists, words};
use super::table;
use super::walk::{Node, NodePlace, part, places};

/// The most types of a file: the searches recurse from a type to the types of its fields.
const MAX_TYPES: usize = 100_000;

/// A declared type.
#[derive(Clone)]
pub struct Declared {
    pub name: String,
    pub module: Module,
    pub item: Item,
    pub fields: Vec<syn::Field>,
    /// The type parameters.
    pub params: BTreeSet<String>,
    /// Whether the type is declared in a function; another function may declare the same name.
    pub is_local: bool,
}

impl Declared {
    pub fn attrs(&self) -> &[Attribute] {
        attributes(&self.item)
    }

    /// Whether the type has a derive of this name.
    pub fn derives(&self, name: &str) -> bool {
        lists(self.attrs(), "derive", |path| ends_with(path, name))
    }

    /// Whether the type of a field is a type parameter.
    pub fn is_given(&self, field: &syn::Field) -> bool {
        let name = get!(&field.ty, Type::Path).and_then(|path| path.path.get_ident());
        name.is_some_and(|name| self.params.contains(&name.to_string()))
    }

    /// Whether the type can have a derive.
    pub fn is_derivable(&self) -> bool {
        matches!(self.item, Item::Struct(_) | Item::Enum(_))
    }
}

/// The module of an `impl` and the last name of its type.
type Implementing = (Module, Option<String>);

/// The types of a file.
pub struct Types {
    /// A number that identifies this reading of the file.
    pub id: usize,
    pub scopes: Scopes,
    pub declared: BTreeMap<Key, Vec<Declared>>,
    /// The names of the methods of this file's types and traits.
    pub methods: BTreeSet<String>,
    /// The types of each `impl Trait for Type`, by the trait's last name.
    impls: BTreeMap<String, BTreeMap<Implementing, Vec<Type>>>,
    /// The types with a tensor that multiplies and is not in a layer.
    pub multiplied: BTreeSet<Key>,
    /// The fields with tensors that may be matrices.
    pub matrices: BTreeSet<(Key, String)>,
    /// The macro calls that may declare types.
    pub macros: Vec<syn::Macro>,
}

impl Types {
    /// The types of a parsed file.
    pub fn new(file: &syn::File) -> Self {
        Self::within(file, false)
    }

    /// The types of a parsed file of a crate, which may define a `with_tracing`.
    pub fn within(file: &syn::File, own_tracing: bool) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let mut types = Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            scopes: Scopes::new(file, own_tracing),
            declared: BTreeMap::new(),
            methods: BTreeSet::new(),
            impls: BTreeMap::new(),
            multiplied: BTreeSet::new(),
            matrices: BTreeSet::new(),
            macros: Vec::new(),
        };
        for place in places(file) {
            let method = match place.node {
                Node::Item(item) => {
                    types.take(item, &place);
                    continue;
                }
                Node::ImplItemFn(item) => &item.sig.ident,
                Node::TraitItemFn(item) => &item.sig.ident,
                _ => continue,
            };
            types.methods.insert(method.to_string());
        }
        types
    }

    fn take(&mut self, item: &Item, place: &NodePlace<'_>) {
        let module = place.module.to_vec();
        if let Some((name, fields, generics)) = declared(item) {
            let name = name.to_string();
            let params = generics.type_params().map(|one| one.ident.to_string());
            self.declared.entry((module.clone(), name.clone())).or_default().push(Declared {
                name,
                module,
                item: item.clone(),
                fields,
                params: params.collect(),
                is_local: place.in_function,
            });
            return;
        }
        match item {
            Item::Impl(block) => {
                let of_trait = block.trait_.as_ref();
                if let Some(last) = of_trait.and_then(|(path, _)| path.segments.last()) {
                    let of_trait = self.impls.entry(last.ident.to_string()).or_default();
                    let types = of_trait.entry((module, last_name(&block.self_ty))).or_default();
                    types.push((*block.self_ty).clone());
                }
            }
            Item::Macro(call) if call.ident.is_none() => self.macros.push(call.mac.clone()),
            _ => {}
        }
    }

    /// # Errors
    /// When there are more than [`MAX_TYPES`], when a macro declares types with layers, or when two
    /// types of a module share a name and no `cfg` separates them.
    pub fn check(&self, source: &Source<'_>) -> Result<(), Fault> {
        if self.declared.len() > MAX_TYPES {
            let count = self.declared.len();
            return Err(Fault::whole(format!("expected at most {MAX_TYPES} types, got {count}")));
        }
        // Other faults of a file do not matter if there is nothing to port.
        if !words(source.text).any(|word| word.starts_with("candle")) {
            return Ok(());
        }
        for call in &self.macros {
            let tokens = call.tokens.to_string();
            let has = |wanted: &dyn Fn(&str) -> bool| words(&tokens).any(wanted);
            let declares = has(&|word| word == "struct" || word == "enum");
            let at = source.start(&call.path);
            if declares
                && has(&|word| table::LAYERS.contains(&word))
                && !has(&|word| word == "Quantizable")
                && !source.is_kept(at)
            {
                return Err(Fault {
                    line: source.line(at),
                    message:
                        "types with layers are declared by a macro, where they are not seen: write \
                              them out, derive `Quantizable` there, or put `// dynquant: keep` here"
                            .into(),
                });
            }
        }
        for declared in self.declared.values() {
            let is_sure = |one: &&Declared| !has_attribute(one.attrs(), "cfg") && !one.is_local;
            let sure: Vec<_> = declared.iter().filter(is_sure).collect();
            let [first, second, ..] = sure.as_slice() else { continue };
            let at = source.start(&second.item);
            let earlier = source.line(source.start(&first.item));
            return Err(Fault {
                line: source.line(at),
                message: format!("two types `{}`, the other at line {earlier}", second.name),
            });
        }
        Ok(())
    }

    /// Whether a type implements a trait of this name by hand.
    pub fn implements(&self, module: &[String], name: &str, implemented: &str) -> bool {
        let place = (module.to_vec(), Some(name.to_owned()));
        self.impls.get(implemented).is_some_and(|types| types.contains_key(&place))
    }

    /// Whether a type implements a trait of this name, by hand or by a derive.
    pub fn has(&self, one: &Declared, name: &str) -> bool {
        one.derives(name) || self.implements(&one.module, &one.name, name)
    }

    /// The types that implement a trait of this name by hand, with their modules.
    pub fn implementing(
        &self,
        implemented: &str,
    ) -> impl Iterator<Item = (&Module, &Type)> + Clone {
        let places = self.impls.get(implemented).into_iter().flatten();
        places.flat_map(|((module, _), types)| types.iter().map(move |ty| (module, ty)))
    }
}

/// Whether a type is a path that ends with this name.
pub fn is_named(ty: &Type, name: &str) -> bool {
    last_name(ty).is_some_and(|last| last == name)
}

/// The type that a type refers to, or the type itself.
pub fn referred(ty: &Type) -> &Type {
    match ty {
        Type::Reference(reference) => referred(&reference.elem),
        ty => ty,
    }
}

/// Whether an item is an `impl` of a type of this name.
pub fn is_impl_of(item: &Item, name: &str) -> bool {
    matches!(item, Item::Impl(one) if is_named(&one.self_ty, name))
}

/// The last segment of a type that is a path.
pub fn last_name(ty: &Type) -> Option<String> {
    match ty {
        Type::Path(path) => Some(path.path.segments.last()?.ident.to_string()),
        Type::Paren(inner) => last_name(&inner.elem),
        Type::Group(inner) => last_name(&inner.elem),
        _ => None,
    }
}

/// The name, fields and parameters of the type that an item declares.
fn declared(item: &Item) -> Option<(&syn::Ident, Vec<syn::Field>, &syn::Generics)> {
    let fields: Vec<_> = match item {
        Item::Struct(item) => item.fields.iter().cloned().collect(),
        Item::Enum(item) => {
            item.variants.iter().flat_map(|one| one.fields.iter().cloned()).collect()
        }
        Item::Union(item) => item.fields.named.iter().cloned().collect(),
        Item::Type(item) => {
            // An alias is a type of one field without a name.
            let field = syn::parse::Parser::parse_str(syn::Field::parse_unnamed, "()");
            let ty = (*item.ty).clone();
            field.into_iter().map(|field| syn::Field { ty: ty.clone(), ..field }).collect()
        }
        _ => Vec::new(),
    };
    let name = part!(item, ident of Struct Enum Union Type Trait)?;
    Some((name, fields, part!(item, generics of Struct Enum Union Type Trait)?))
}

pub fn key(declared: &Declared) -> Key {
    (declared.module.clone(), declared.name.clone())
}

/// Whether a field is marked as having no layers.
pub fn is_skipped(field: &syn::Field) -> bool {
    lists(&field.attrs, "quantizable", |path| path.is_ident("skip"))
}

pub fn named<'f>(
    fields: impl IntoIterator<Item = &'f syn::Field>,
    name: &str,
) -> Option<&'f syn::Field> {
    fields.into_iter().find(|one| one.ident.as_ref().is_some_and(|ident| ident == name))
}

/// The types that a type is composed of: arguments in angle brackets, and elements.
pub fn parts(ty: &Type) -> Vec<&Type> {
    match ty {
        Type::Tuple(tuple) => tuple.elems.iter().collect(),
        Type::Array(array) => vec![&array.elem],
        Type::Slice(slice) => vec![&slice.elem],
        Type::Paren(inner) => vec![&inner.elem],
        Type::Group(inner) => vec![&inner.elem],
        _ => arguments(ty),
    }
}

/// The types in angle brackets.
pub fn arguments(ty: &Type) -> Vec<&Type> {
    let last = get!(ty, Type::Path).and_then(|path| path.path.segments.last());
    let list = last.and_then(|last| get!(&last.arguments, PathArguments::AngleBracketed));
    let all = list.into_iter().flat_map(|list| &list.args);
    all.filter_map(|one| get!(one, GenericArgument::Type)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn implementations_are_known_by_trait_place_and_type() {
        let text = "impl a::Walk for A {} impl Walk for (b::B<u8>) {} impl Walk for &C {}
                    impl Skip for A {}
                    mod inner { impl Walk for D {} impl Walk for [D; 2] {} }";
        let types = Types::new(&syn::parse_str(text).expect("a file"));
        assert_eq!(types.implementing("Walk").count(), 5);
        assert_eq!(types.implementing("Skip").count(), 1);
        assert_eq!(types.implementing("None").count(), 0);
        let implements = |module: &[&str], name| {
            let module: Vec<_> = module.iter().map(|&part| part.to_owned()).collect();
            types.implements(&module, name, "Walk")
        };
        assert!(implements(&[], "A") && implements(&[], "B") && implements(&["inner"], "D"));
        assert!(!implements(&[], "C") && !implements(&[], "D") && !implements(&["inner"], "A"));
        assert!(!types.implements(&[], "B", "Skip"));
    }
}
