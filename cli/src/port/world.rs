//! Other files: where the modules are that a file names, and what their types hold.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use syn::{GenericArgument, PathArguments, Type};

use super::scopes::{Module, Origin};
use super::source::Source;
use super::types::{Declared, Types};
use crate::files;

/// The files that are ported together, and those that they name.
#[derive(Default)]
pub struct World {
    given: BTreeSet<PathBuf>,
    read: RefCell<BTreeMap<PathBuf, Option<Rc<Types>>>>,
}

/// A type of some file.
pub type Place = (PathBuf, Module, String);

/// Types with layers, and what hides some of them.
#[derive(Default)]
pub struct Search {
    seen: BTreeSet<Place>,
}

impl World {
    /// Of these files.
    pub fn new<'p>(files: impl IntoIterator<Item = &'p Path>) -> Self {
        let given = files.into_iter().map(real).collect();
        Self {
            given,
            ..Self::default()
        }
    }

    /// Whether a file is among those that are ported.
    pub fn is_given(&self, path: &Path) -> bool {
        self.given.contains(&real(path))
    }

    fn types(&self, path: &Path) -> Option<Rc<Types>> {
        let path = real(path);
        if let Some(types) = self.read.borrow().get(&path) {
            return types.clone();
        }
        let parse = || {
            let text = files::read(&path).ok()?;
            let (_, file) = Source::parse(&text).ok()?;
            Some(Rc::new(Types::of(&file)))
        };
        let types = parse();
        self.read.borrow_mut().insert(path, types.clone());
        types
    }

    /// Whether a type holds a layer, however deep; `types` are those of the file at `path`.
    pub fn holds(&self, path: &Path, types: &Types, module: &[String], ty: &Type) -> bool {
        self.search(&mut Search::default(), path, types, module, ty)
    }

    fn search(
        &self,
        search: &mut Search,
        path: &Path,
        types: &Types,
        module: &[String],
        ty: &Type,
    ) -> bool {
        let mut any = |ty: &Type| self.search(search, path, types, module, ty);
        match ty {
            Type::Tuple(tuple) => tuple.elems.iter().any(any),
            Type::Array(array) => any(&array.elem),
            Type::Slice(slice) => any(&slice.elem),
            Type::Paren(inner) => any(&inner.elem),
            Type::Group(inner) => any(&inner.elem),
            Type::TraitObject(object) => {
                let names = trait_names(object);
                names.iter().any(|name| self.is_tree(types, module, name))
            }
            Type::Path(path_type) => {
                let Some(last) = path_type.path.segments.last() else {
                    return false;
                };
                if let PathArguments::AngleBracketed(arguments) = &last.arguments {
                    let types = arguments.args.iter().filter_map(|argument| match argument {
                        GenericArgument::Type(ty) => Some(ty),
                        _ => None,
                    });
                    if last.ident != "PhantomData" && types.into_iter().any(&mut any) {
                        return true;
                    }
                }
                let segments = path_type.path.segments.iter();
                let segments: Vec<_> = segments.map(|segment| segment.ident.to_string()).collect();
                let origin = types.scopes.resolve(module, &segments);
                origin.layer().is_some() || self.search_at(search, path, types, module, &origin)
            }
            _ => false,
        }
    }

    /// Whether a trait of this file has `Quantizable` above it.
    fn is_tree(&self, types: &Types, module: &[String], name: &str) -> bool {
        let declared = types.declared.get(&(module.to_vec(), name.to_owned()));
        declared.into_iter().flatten().any(|one| match &one.item {
            syn::Item::Trait(of) => of.supertraits.iter().any(|bound| match bound {
                syn::TypeParamBound::Trait(bound) => bound
                    .path
                    .segments
                    .last()
                    .is_some_and(|last| last.ident == "Quantizable"),
                _ => false,
            }),
            _ => false,
        })
    }

    fn search_at(
        &self,
        search: &mut Search,
        path: &Path,
        types: &Types,
        module: &[String],
        origin: &Origin,
    ) -> bool {
        match origin {
            Origin::Local(at, name) => {
                let place = (real(path), at.clone(), name.clone());
                if !search.seen.insert(place) {
                    return false;
                }
                let declared = types.declared.get(&(at.clone(), name.clone()));
                declared.into_iter().flatten().any(|one| {
                    let own = |ty: &Type| {
                        matches!(ty, Type::Path(p) if p.path.get_ident()
                        .is_some_and(|ident| one.params.contains(&ident.to_string())))
                    };
                    let mut fields = one.fields.iter().map(|field| &field.ty);
                    fields.any(|ty| !own(ty) && self.search(search, path, types, at, ty))
                })
            }
            Origin::Crate(segments) => {
                let Some((file, name)) = self.find(path, module, segments) else {
                    return false;
                };
                // As something that a file passes on, which is not what it declares.
                let passed = (file.clone(), vec!["use".to_owned()], name.clone());
                if !search.seen.insert(passed) {
                    return false;
                }
                let Some(types) = self.types(&file) else {
                    return false;
                };
                let origin = types.scopes.resolve(&[], &[name]);
                origin.layer().is_some() || self.search_at(search, &file, &types, &[], &origin)
            }
            _ => false,
        }
    }

    /// The declarations of a type in another file, with that file.
    pub fn elsewhere(
        &self,
        path: &Path,
        module: &[String],
        segments: &[String],
    ) -> Option<(PathBuf, Vec<Declared>)> {
        let (mut file, mut name) = self.find(path, module, segments)?;
        // As far as a `pub use` may lead.
        for _ in 0..8 {
            let types = self.types(&file)?;
            match types.scopes.resolve(&[], &[name.clone()]) {
                Origin::Local(at, name) => {
                    return Some((file, types.declared.get(&(at, name))?.clone()));
                }
                Origin::Crate(segments) => (file, name) = self.find(&file, &[], &segments)?,
                _ => return None,
            }
        }
        None
    }

    /// The file and the name that a path of this crate means, as written in a file's module.
    fn find(
        &self,
        from: &Path,
        module: &[String],
        segments: &[String],
    ) -> Option<(PathBuf, String)> {
        let (name, mut modules) = segments.split_last()?;
        let mut depth = module.len();
        let mut place = from.to_path_buf();
        if let ["crate", rest @ ..] = as_strs(modules).as_slice() {
            place = crate_root(from, rest.first().copied())?;
            modules = &modules[1..];
        }
        for step in modules {
            match step.as_str() {
                "self" => {}
                "super" if depth > 0 => depth -= 1,
                "super" => place = parent(&place)?,
                _ => place = child(&place, step)?,
            }
        }
        Some((place, name.clone()))
    }
}

fn as_strs(segments: &[String]) -> Vec<&str> {
    segments.iter().map(String::as_str).collect()
}

/// The names of a trait object's traits.
pub fn trait_names(object: &syn::TypeTraitObject) -> Vec<String> {
    let bounds = object.bounds.iter().filter_map(|bound| match bound {
        syn::TypeParamBound::Trait(bound) => bound.path.segments.last(),
        _ => None,
    });
    bounds.map(|segment| segment.ident.to_string()).collect()
}

fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
}

/// Whether a file's modules are beside it, not in a folder of its name.
fn is_folder(file: &Path) -> bool {
    let name = file.file_name().and_then(|name| name.to_str());
    matches!(name, Some("mod.rs" | "lib.rs" | "main.rs"))
}

fn module_file(folder: &Path, name: &str) -> Option<PathBuf> {
    let name = name.strip_prefix("r#").unwrap_or(name);
    let file = folder.join(format!("{name}.rs"));
    let inner = folder.join(name);
    // A folder without a file still says where its modules are.
    if file.is_file() {
        Some(file)
    } else {
        inner.is_dir().then(|| inner.join("mod.rs"))
    }
}

fn child(file: &Path, name: &str) -> Option<PathBuf> {
    let folder = if is_folder(file) {
        file.parent()?.to_path_buf()
    } else {
        file.with_extension("")
    };
    module_file(&folder, name)
}

fn parent(file: &Path) -> Option<PathBuf> {
    let folder = file.parent()?;
    let folder = if is_folder(file) {
        folder.parent()?
    } else {
        folder
    };
    let above = folder.with_extension("rs");
    let ways = ["mod.rs", "lib.rs", "main.rs"].map(|name| folder.join(name));
    let found = ways.into_iter().find(|file| file.is_file());
    // Where there is no such file, its folder still says where its modules are.
    Some(found.unwrap_or(if above.is_file() {
        above
    } else {
        folder.join("mod.rs")
    }))
}

/// The file at the crate's root; where it is not there, the one that would have this module.
fn crate_root(from: &Path, first: Option<&str>) -> Option<PathBuf> {
    let from = real(from);
    for folder in from.ancestors().skip(1) {
        for name in ["lib.rs", "main.rs"] {
            if folder.join(name).is_file() {
                return Some(folder.join(name));
            }
        }
        if first.is_some_and(|first| folder.file_name().is_some_and(|name| name == first)) {
            return Some(folder.parent()?.join("lib.rs"));
        }
    }
    None
}
