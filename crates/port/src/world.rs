//! Other files: the modules that a file names, and the contents of their types.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use syn::Type;

use super::features;
use super::functions::output;
use super::releases;
use super::scopes::Origin;
use super::source::Source;
use super::syntax::{get, has_attribute, mentions, segments};
use super::types::{Declared, Key, Types, arguments, is_named, parts};
use super::walk::{Node, places};
use crate::files;

/// The files that are ported together, and the files that they name.
#[derive(Default)]
pub struct World {
    pub(super) given: BTreeSet<PathBuf>,
    pub(super) read: Known<Option<Rc<Types>>>,
    /// Whether a `with_tracing` is unlike candle-transformers'.
    tracing: Known<bool>,
    packages: OnceCell<BTreeSet<String>>,
    /// The names of files' modules, which globs bring.
    pub(super) names: Known<Rc<ModuleNames>>,
    /// Files as they are, without what others say of them.
    pub(super) outlines: Known<Option<Rc<Outline>>>,
    /// The types of files that are `Clone` once they are ported.
    pub(super) clones: Known<Rc<BTreeSet<Key>>>,
    /// Whether a type holds a layer, where that is known.
    known: RefCell<HashMap<(TypePlace, bool), bool>>,
    /// The number of types that were looked into.
    #[cfg(test)]
    looked: std::cell::Cell<usize>,
}

/// A function that multiplies by an argument.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Helper {
    /// The type of the function's `impl`.
    pub owner: Option<String>,
    pub name: String,
    /// The number of the argument, without `self`.
    pub argument: usize,
    pub takes_self: bool,
}

pub type Helpers = BTreeSet<Helper>;

/// A file read in isolation.
pub struct Outline {
    pub types: Types,
    pub helpers: Helpers,
    /// The methods that return a weight, each with its type.
    pub getters: BTreeSet<(String, String)>,
    /// The fields that may be matrices.
    pub matrices: BTreeSet<(Key, String)>,
}

/// The facts that are found of each file, once.
pub type Known<T> = RefCell<BTreeMap<PathBuf, T>>;

/// The known fact of a file, or the fact that `find` finds now; `meanwhile` stands for it until
/// then.
pub fn known<T: Clone>(
    all: &Known<T>,
    path: &Path,
    meanwhile: Option<T>,
    find: impl FnOnce(&Path) -> T,
) -> T {
    let path = real(path);
    if let Some(known) = all.borrow().get(&path) {
        return known.clone();
    }
    if let Some(meanwhile) = meanwhile {
        all.borrow_mut().insert(path.clone(), meanwhile);
    }
    let found = find(&path);
    all.borrow_mut().insert(path, found.clone());
    found
}

/// The names of a module, each with its path where it is of another crate.
pub type ModuleNames = BTreeMap<String, Option<Vec<String>>>;

/// A type of a file, or a name that the file re-exports, with the file's [`Types::id`].
type TypePlace = (usize, Key);

/// A file's path and types.
type File<'f> = (&'f Path, &'f Types);

/// A search for layers in types that may hold each other in a cycle. Each type is visited once:
/// Tarjan's strongly connected components, whose types either all hold a layer or none do.
#[derive(Default)]
struct LayerSearch {
    /// The undecided types; each is in a field of the type before it, or of a type in a cycle with
    /// that.
    open: Vec<TypePlace>,
    /// The positions of these types in `open`.
    depths: HashMap<TypePlace, usize>,
    /// The first of them that was reached again, from the type that is visited.
    low: usize,
    /// Whether tensors that multiply count too.
    tensors: bool,
}

impl World {
    /// The world of these files.
    pub fn new<'p>(files: impl IntoIterator<Item = &'p Path>) -> Self {
        let given = files.into_iter().map(real).collect();
        Self { given, ..Self::default() }
    }

    /// Whether a file is among the files to port.
    pub fn is_given(&self, path: &Path) -> bool {
        self.given.contains(&real(path))
    }

    /// The files to port, without this one.
    fn others(&self, path: &Path) -> impl Iterator<Item = &PathBuf> {
        let path = real(path);
        self.given.iter().filter(move |other| **other != path)
    }

    /// Whether the module of a file is declared for GPUs only.
    pub fn is_left_out(&self, path: &Path) -> bool {
        let path = real(path);
        let name = if is_folder(&path) {
            path.parent().and_then(Path::file_name)
        } else {
            path.file_stem()
        };
        let name = name.and_then(|name| name.to_str());
        let above = parent(&path).filter(|above| *above != path);
        above.zip(name).is_some_and(|(above, name)| {
            has_item(&above, |item| {
                get!(item, syn::Item::Mod)
                    .is_some_and(|item| item.ident == name && features::leave_out(&item.attrs))
            })
        })
    }

    /// Whether the `with_tracing` that a file sees differs from candle-transformers': a function
    /// has other parameters or returns another type.
    pub fn has_own_tracing(&self, path: &Path) -> bool {
        let path = real(path);
        // The search goes up to the crate's folder.
        let mut last = false;
        let folders = path.ancestors().skip(1).take_while(|folder| {
            let within = !last;
            last = folder.join("Cargo.toml").exists();
            within
        });
        let mut modules = folders.map(|folder| folder.join("with_tracing.rs"));
        let Some(module) = modules.find(|module| module.is_file()) else { return false };
        known(&self.tracing, &module, None, |module| {
            has_item(module, |item| {
                get!(item, syn::Item::Fn).is_some_and(|item| is_unlike_candles(&item.sig))
            })
        })
    }

    /// The file of a module of the crate, as named in a file's module, if it is another file.
    pub fn module(&self, from: &Path, module: &[String], path: &[String]) -> Option<PathBuf> {
        let any = [path, &["*".to_owned()]].concat();
        let (file, _) = self.find(from, module, &any)?;
        let file = real(&file);
        (file.is_file() && file != real(from)).then_some(file)
    }

    /// Whether another file to port names a type that it does not declare.
    pub fn is_named_elsewhere(&self, path: &Path, name: &str) -> bool {
        let declared = format!("struct {name}");
        let mut texts = self.others(path).filter_map(|other| files::read(other).ok());
        texts.any(|text| mentions(&text, name) > 0 && !text.contains(&declared))
    }

    /// Whether a file to port gives the variables of a `VarMap` values, or trains them: a folded
    /// layer has the values that they began with.
    pub fn sets_variables(&self) -> bool {
        let sets = [".load(", ".set(", ".set_one(", ".all_vars("];
        let mut texts = self.given.iter().filter_map(|file| files::read(file).ok());
        texts.any(|text| mentions(&text, "VarMap") > 0 && sets.iter().any(|set| text.contains(set)))
    }

    /// Whether a file that is not given may be a module below a file, at any depth.
    pub fn is_read_below(&self, path: &Path) -> bool {
        let text = files::read(path).unwrap_or_default();
        let Ok((_, file)) = Source::parse(&text) else { return true };
        places(&file).any(|place| {
            let item = get!(place.node, Node::Item).and_then(|item| get!(item, syn::Item::Mod));
            item.filter(|item| item.content.is_none()).is_some_and(|item| {
                let inner = [&place.module[..], &[item.ident.to_string()]].concat();
                let file = self.module(path, &[], &inner);
                let file = file.filter(|file| self.is_given(file));
                let is_elsewhere = has_attribute(&item.attrs, "path");
                is_elsewhere || file.is_none_or(|file| self.is_read_below(&file))
            })
        })
    }

    /// Whether another file to port builds a type, or reads a field with one of these names.
    pub fn is_built_elsewhere<'f>(
        &self,
        path: &Path,
        name: &str,
        fields: impl Iterator<Item = &'f String>,
    ) -> bool {
        let literal = format!("{name} {{");
        let fields: Vec<_> = fields.map(|field| format!(".{field}")).collect();
        self.others(path).filter_map(|other| files::read(other).ok()).any(|text| {
            let read = |field: &String| {
                text.match_indices(field.as_str()).any(|(at, _)| {
                    let next = text[at + field.len()..].chars().next();
                    let goes_on = next.is_some_and(|c| c.is_alphanumeric() || "_(".contains(c));
                    !goes_on && !text[..at].ends_with("self")
                })
            };
            text.contains(&literal) || fields.iter().any(read)
        })
    }

    /// Whether a type with layers implements the trait at a path of this crate.
    pub fn may_hide(&self, path: &Path, module: &[String], segments: &[String]) -> bool {
        let known = self.elsewhere(path, module, segments);
        let Some(name) = segments.last().filter(|_| known.is_some()) else { return true };
        self.is_of_layers(name)
    }

    /// Whether [`may_hide`](Self::may_hide) holds for a trait of another crate, whose files may be
    /// ported too.
    pub fn may_hide_beside(&self, krate: &str, name: &str) -> bool {
        let declares = |file: &PathBuf| {
            self.types(file).is_some_and(|types| {
                let mut declared = types.declared.values().flatten();
                declared.any(|one| one.name == name && matches!(one.item, syn::Item::Trait(_)))
            })
        };
        let known = self.packages().contains(krate) && self.given.iter().any(declares);
        !known || self.is_of_layers(name)
    }

    /// Whether a type with layers implements a trait of this name.
    fn is_of_layers(&self, name: &str) -> bool {
        self.given.iter().any(|file| {
            self.types(file).is_some_and(|types| {
                types.implementing(name).any(|(module, ty)| self.holds(file, &types, module, ty))
            })
        })
    }

    /// The names of the crates whose files are ported.
    fn packages(&self) -> &BTreeSet<String> {
        self.packages.get_or_init(|| {
            let folders = self.given.iter().filter_map(|file| file.parent());
            let folders: BTreeSet<_> = folders.flat_map(Path::ancestors).collect();
            let manifests = folders.iter().map(|folder| folder.join("Cargo.toml"));
            manifests.filter_map(|manifest| releases::package(&manifest)).collect()
        })
    }

    /// Whether another file to port implements a trait of this file.
    pub fn is_implemented_elsewhere(&self, path: &Path, name: &str) -> bool {
        let path = real(path);
        self.others(&path).any(|other| {
            let Some(types) = self.types(other) else { return false };
            let mut impls = types.implementing(name);
            impls.any(|(module, _)| match types.scopes.resolve(module, &[name.to_owned()]) {
                Origin::Local(..) => false,
                Origin::Crate(segments) => {
                    self.find(other, module, &segments).is_none_or(|(file, _)| real(&file) == path)
                }
                _ => true,
            })
        })
    }

    /// Whether a type holds a layer, at any depth; the file at `path` declares `types`.
    pub fn holds(&self, path: &Path, types: &Types, module: &[String], ty: &Type) -> bool {
        self.search(&mut LayerSearch::default(), (path, types), module, ty)
    }

    /// Whether a type holds a layer, or a tensor that multiplies.
    pub fn multiplies(&self, path: &Path, types: &Types, module: &[String], ty: &Type) -> bool {
        let mut search = LayerSearch { tensors: true, ..LayerSearch::default() };
        self.search(&mut search, (path, types), module, ty)
    }

    /// Whether the type at a place holds a layer; `look` visits its fields.
    fn visit(
        &self,
        search: &mut LayerSearch,
        place: TypePlace,
        look: impl FnOnce(&mut LayerSearch) -> bool,
    ) -> bool {
        let key = (place.clone(), search.tensors);
        if let Some(known) = self.known.borrow().get(&key) {
            return *known;
        }
        if let Some(depth) = search.depths.get(&place) {
            search.low = search.low.min(*depth);
            return false;
        }
        #[cfg(test)]
        self.looked.set(self.looked.get() + 1);
        let depth = search.open.len();
        search.open.push(place.clone());
        search.depths.insert(place, depth);
        let low = std::mem::replace(&mut search.low, usize::MAX);
        let found = look(search);
        if found || search.low >= depth {
            // The types open above lead to this type or to a type that leads here.
            for place in search.open.drain(depth..) {
                search.depths.remove(&place);
                self.known.borrow_mut().insert((place, search.tensors), found);
            }
            search.low = low;
        } else {
            search.low = search.low.min(low);
        }
        found
    }

    fn search(
        &self,
        search: &mut LayerSearch,
        file: File<'_>,
        module: &[String],
        ty: &Type,
    ) -> bool {
        let types = file.1;
        let any = |ty: &Type| self.search(search, file, module, ty);
        if !is_named(ty, "PhantomData") && parts(ty).into_iter().any(any) {
            return true;
        }
        match ty {
            Type::TraitObject(object) => {
                trait_names(object).iter().any(|name| self.is_tree(types, module, name))
            }
            Type::Path(path_type) => {
                let origin = types.scopes.resolve(module, &segments(&path_type.path));
                origin.layer().is_some() || self.search_at(search, file, module, &origin)
            }
            _ => false,
        }
    }

    /// Whether a trait of this file has the supertrait `Quantizable`.
    fn is_tree(&self, types: &Types, module: &[String], name: &str) -> bool {
        let traits = types.declared.get(&(module.to_vec(), name.to_owned())).into_iter().flatten();
        let mut traits = traits.filter_map(|one| get!(&one.item, syn::Item::Trait));
        traits.any(|item| bounds(&item.supertraits).any(|bound| bound == "Quantizable"))
    }

    fn search_at(
        &self,
        search: &mut LayerSearch,
        (path, types): File<'_>,
        module: &[String],
        origin: &Origin,
    ) -> bool {
        match origin {
            Origin::Local(key) => self.visit(search, (types.id, key.clone()), |search| {
                let mut declared = types.declared.get(key).into_iter().flatten();
                search.tensors && types.multiplied.contains(key)
                    || declared.any(|one| {
                        let mut fields = one.fields.iter().filter(|field| !one.is_given(field));
                        fields.any(|it| self.search(search, (path, types), &key.0, &it.ty))
                    })
            }),
            Origin::Crate(segments) => {
                let found = self.find(path, module, segments);
                let found = found.and_then(|(file, name)| Some((self.types(&file)?, file, name)));
                let Some((types, file, name)) = found else { return false };
                // The place of a re-export, so that it cannot clash with a declaration.
                let passed = (types.id, (vec!["use".to_owned()], name.clone()));
                let origin = types.scopes.resolve(&[], &[name]);
                origin.layer().is_some()
                    || self.visit(search, passed, |search| {
                        self.search_at(search, (&file, &types), &[], &origin)
                    })
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
        // The longest chain of `pub use` that is followed.
        for _ in 0..8 {
            let types = self.types(&file)?;
            match types.scopes.resolve(&[], &[name.clone()]) {
                Origin::Local(key) => return Some((file, types.declared.get(&key)?.clone())),
                Origin::Crate(segments) => (file, name) = self.find(&file, &[], &segments)?,
                _ => return None,
            }
        }
        None
    }

    /// The part of a path of this crate that leads to no module, as named in a file's module.
    pub fn absent(&self, from: &Path, module: &[String], path: &[String]) -> Option<String> {
        let mut depth = module.len();
        let mut place = Some(from.to_path_buf());
        for (index, step) in path.iter().enumerate() {
            let next = match step.as_str() {
                "crate" => {
                    depth = 0;
                    crate_root(from, None)
                }
                "self" => continue,
                "super" if depth > 0 => {
                    depth -= 1;
                    continue;
                }
                "super" => place.and_then(|place| parent(&place)),
                // A module inside this file.
                _ if depth > 0 => return None,
                name => {
                    let inner = place.as_ref().and_then(|place| child(place, name));
                    let declares = |place: &PathBuf| {
                        files::read(place).is_ok_and(|text| mentions(&text, name) > 0)
                            || self.names(place).contains_key(name)
                    };
                    match inner {
                        Some(inner) => Some(inner),
                        None if place.as_ref().is_some_and(declares) => return None,
                        None if name.starts_with(char::is_lowercase) => {
                            return Some(path[..=index].join("::"));
                        }
                        None => return None,
                    }
                }
            };
            place = next;
        }
        None
    }

    /// The file and the name behind a path of this crate, as named in a file's module.
    pub(super) fn find(
        &self,
        from: &Path,
        module: &[String],
        path: &[String],
    ) -> Option<(PathBuf, String)> {
        let (name, mut modules) = path.split_last()?;
        let mut depth = module.len();
        let mut place = from.to_path_buf();
        if let [root, rest @ ..] = modules
            && root == "crate"
        {
            place = crate_root(from, rest.first().map(String::as_str))?;
            modules = rest;
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

/// The names of the traits in a trait object.
pub fn trait_names(object: &syn::TypeTraitObject) -> Vec<String> {
    bounds(&object.bounds).map(ToString::to_string).collect()
}

/// The last names of the traits among bounds.
fn bounds<'b>(
    all: impl IntoIterator<Item = &'b syn::TypeParamBound>,
) -> impl Iterator<Item = &'b syn::Ident> {
    let traits = all.into_iter().filter_map(|bound| get!(bound, syn::TypeParamBound::Trait));
    traits.filter_map(|bound| Some(&bound.path.segments.last()?.ident))
}

/// Whether a type or an argument of it has that name, as in `Result<Linear>`.
fn is_or_holds(ty: &Type, name: &str) -> bool {
    is_named(ty, name) || arguments(ty).into_iter().any(|ty| is_or_holds(ty, name))
}

/// Whether a file can be read and contains such an item.
fn has_item(path: &Path, is_it: impl FnMut(&syn::Item) -> bool) -> bool {
    let text = files::read(path).unwrap_or_default();
    Source::parse(&text).is_ok_and(|(_, file)| file.items.iter().any(is_it))
}

/// Whether a function has the name of a function in candle-transformers' `with_tracing`, and
/// another signature.
fn is_unlike_candles(signature: &syn::Signature) -> bool {
    let known = [
        ("linear", 3, "Linear"),
        ("linear_b", 4, "Linear"),
        ("linear_no_bias", 3, "Linear"),
        ("layer_norm", 3, "LayerNorm"),
    ];
    let mut known = known.iter().filter(|(name, ..)| signature.ident == name);
    known.any(|(_, inputs, result)| {
        let makes = output(signature).is_some_and(|ty| is_or_holds(ty, result));
        signature.inputs.len() != *inputs || !makes
    })
}

pub fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
}

/// Whether a file's modules are beside it, not in a folder with its name.
fn is_folder(file: &Path) -> bool {
    let name = file.file_name().and_then(|name| name.to_str());
    matches!(name, Some("mod.rs" | "lib.rs" | "main.rs"))
}

fn module_file(folder: &Path, name: &str) -> Option<PathBuf> {
    let name = name.strip_prefix("r#").unwrap_or(name);
    let file = folder.join(format!("{name}.rs"));
    let inner = folder.join(name);
    // A folder without a file still locates its modules.
    if file.is_file() { Some(file) } else { inner.is_dir().then(|| inner.join("mod.rs")) }
}

fn child(file: &Path, name: &str) -> Option<PathBuf> {
    let folder = if is_folder(file) || is_root(file) {
        file.parent()?.to_path_buf()
    } else {
        file.with_extension("")
    };
    module_file(&folder, name)
}

fn parent(file: &Path) -> Option<PathBuf> {
    let folder = file.parent()?;
    let folder = if is_folder(file) { folder.parent()? } else { folder };
    let above = folder.with_extension("rs");
    let ways = ["mod.rs", "lib.rs", "main.rs"].map(|name| folder.join(name));
    let found = ways.into_iter().find(|file| file.is_file());
    // If the file does not exist, its folder still locates its modules.
    Some(found.unwrap_or(if above.is_file() { above } else { folder.join("mod.rs") }))
}

/// Whether a file is a crate root: a test, an example, a benchmark or another program.
fn is_root(file: &Path) -> bool {
    let folder = file.parent();
    let name = folder.and_then(|folder| folder.file_name()?.to_str());
    let package = folder.and_then(Path::parent);
    let beside = |above: Option<&Path>| above.is_some_and(|at| at.join("Cargo.toml").is_file());
    match name {
        Some("tests" | "examples" | "benches") => beside(package),
        Some("bin") => beside(package.and_then(Path::parent)),
        _ => false,
    }
}

/// The file at the crate's root; if it is missing, the file that would have this module.
fn crate_root(from: &Path, first: Option<&str>) -> Option<PathBuf> {
    let from = real(from);
    if is_root(&from) {
        return Some(from);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether each of the types, in this order, holds a layer, and the number of types that were
    /// visited.
    fn held(text: &str, names: &[&str]) -> (Vec<bool>, usize) {
        let (_, file) = Source::parse(text).unwrap_or_else(|fault| panic!("{}", fault.message));
        let (world, types) = (World::default(), Types::new(&file));
        let held = |name: &&str| {
            let ty = syn::parse_str(name).expect("a type");
            world.holds(Path::new("a.rs"), &types, &[], &ty)
        };
        let held = names.iter().map(held).collect();
        (held, world.looked.get())
    }

    #[test]
    fn each_type_is_looked_into_once() {
        const COUNT: usize = 300;
        let names: Vec<_> = (0..COUNT).map(|i| format!("A{i}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for (last, expected) in [("candle_nn::Linear", true), ("u8", false)] {
            let held_by = |i: usize| match i + 1 {
                COUNT => last.to_owned(),
                next => format!("Option<A{next}>"),
            };
            let structs = (0..COUNT).map(|i| format!("struct A{i} {{ a: {} }}", held_by(i)));
            let text = structs.collect::<String>();
            assert_eq!(held(&text, &names), (vec![expected; COUNT], COUNT));
        }
    }

    #[test]
    fn types_in_a_circle_hold_a_layer_together_or_not_at_all() {
        // B and C lead back to A before A's direct layer is reached; E and F lead to it only.
        let text = "struct A { b: Box<B>, d: D, l: candle_nn::Linear }
                    struct B { c: Box<C>, d: D }
                    struct C { a: Box<A>, b: Box<B> }
                    struct D { d: Vec<D>, e: Option<E> }
                    struct E { d: Vec<D>, f: u8 }
                    struct F { d: D, a: Box<A> }";
        let names = ["A", "B", "C", "D", "E", "F"];
        let expected = [true, true, true, false, false, true];
        for first in 0..names.len() {
            let turned = |i: usize| (i + first) % names.len();
            let order: Vec<_> = (0..names.len()).map(|i| names[turned(i)]).collect();
            let expected: Vec<_> = (0..names.len()).map(|i| expected[turned(i)]).collect();
            assert_eq!(held(text, &order), (expected, 6), "{order:?}");
        }
    }
}
