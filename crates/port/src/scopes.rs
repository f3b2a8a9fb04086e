//! The meaning of names in each module of a file.

use std::collections::{BTreeMap, BTreeSet};

use syn::{Item, ItemUse, UseTree};

use super::table::{self, Mapped};
use super::walk::{Node, part, places};

/// A module inside the file; the file itself is the empty path.
pub type Module = Vec<String>;

/// A type by its module and its name.
pub type Key = (Module, String);

/// The origin of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A path in `candle_nn`.
    Nn(Vec<String>),
    /// A path in `with_tracing`.
    Traced(Vec<String>),
    /// A path in `candle_dynquant`.
    Ours(Vec<String>),
    /// A type of this file.
    Local(Key),
    /// A path in this crate, by `crate`, `self` or `super`, or a module in this file's folder.
    Crate(Vec<String>),
    /// Any other path.
    Other(Vec<String>),
}

impl Origin {
    /// The namesake in candle-dynquant.
    pub fn mapped(&self) -> Option<Mapped> {
        match self {
            Self::Nn(path) => table::of_candle_nn(path),
            Self::Traced(path) => table::of_with_tracing(path),
            _ => None,
        }
    }

    /// The path inside `candle_nn`, `with_tracing` or `candle_dynquant`.
    pub fn in_library(&self) -> Option<&[String]> {
        match self {
            Self::Nn(path) | Self::Traced(path) | Self::Ours(path) => Some(path),
            _ => None,
        }
    }

    /// The name of the layer type, candle's or candle-dynquant's.
    pub fn layer(&self) -> Option<&str> {
        let name = match self {
            Self::Ours(path) => match path.as_slice() {
                [nn, name] if nn == "nn" => name.as_str(),
                _ => return None,
            },
            _ => self.mapped()?.name,
        };
        table::LAYERS.contains(&name).then_some(name)
    }

    fn join(&self, rest: &[String]) -> Self {
        let mut joined = self.clone();
        match &mut joined {
            Self::Nn(path) | Self::Traced(path) | Self::Ours(path) => path.extend_from_slice(rest),
            Self::Crate(path) | Self::Other(path) => path.extend_from_slice(rest),
            Self::Local(..) => {}
        }
        joined
    }
}

/// A name that a `use` brings, with its path.
#[derive(Clone, Debug)]
pub struct Leaf {
    pub path: Vec<String>,
    /// The name, `*` for a glob.
    pub name: String,
}

impl Leaf {
    /// The alias, if the name is not the path's last segment.
    pub fn alias(&self) -> Option<&str> {
        (self.path.last() != Some(&self.name) && self.name != "*").then_some(self.name.as_str())
    }
}

/// The leaves of a `use`, in order.
pub fn leaves(item: &ItemUse) -> Vec<Leaf> {
    fn collect(tree: &UseTree, path: &mut Vec<String>, leaves: &mut Vec<Leaf>) {
        let named = |path: &[String], ident: String, name: Option<String>| {
            let path = if ident == "self" { path.to_vec() } else { [path, &[ident]].concat() };
            let name = name.or_else(|| path.last().cloned()).unwrap_or_default();
            Leaf { path, name }
        };
        match tree {
            UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                collect(&tree.tree, path, leaves);
                path.pop();
            }
            UseTree::Name(name) => leaves.push(named(path, name.ident.to_string(), None)),
            UseTree::Rename(tree) => {
                let name = Some(tree.rename.to_string());
                leaves.push(named(path, tree.ident.to_string(), name));
            }
            UseTree::Glob(_) => leaves.push(Leaf { path: path.clone(), name: "*".into() }),
            UseTree::Group(group) => {
                for tree in &group.items {
                    collect(tree, path, leaves);
                }
            }
        }
    }
    let mut leaves = Vec::new();
    collect(&item.tree, &mut Vec::new(), &mut leaves);
    leaves
}

/// The names of one module.
#[derive(Debug, Default)]
pub struct Scope {
    pub bindings: BTreeMap<String, Origin>,
    /// The modules that are imported by a glob.
    pub globs: Vec<Origin>,
    /// The types, functions and modules declared here.
    pub items: BTreeSet<String>,
    types: BTreeSet<String>,
}

/// The modules of a file.
#[derive(Debug, Default)]
pub struct Scopes {
    pub modules: BTreeMap<Module, Scope>,
    /// Whether the crate's `with_tracing` differs from candle-transformers'.
    own_tracing: bool,
}

impl Scopes {
    /// The scopes of a parsed file. A `use` inside a function counts as a `use` of its module.
    pub fn new(file: &syn::File, own_tracing: bool) -> Self {
        let mut scopes = Self { own_tracing, modules: [(Vec::new(), Scope::default())].into() };
        let mut uses = Vec::new();
        for place in places(file) {
            if let Node::Item(item) = place.node {
                let leaves = scopes.declare(&place.module, item).into_iter();
                uses.extend(leaves.map(|leaf| (place.module.to_vec(), leaf)));
            }
        }
        // Two passes: a `use` may start from a name that another `use` brings.
        for _ in 0..2 {
            for (module, leaf) in &uses {
                let origin = scopes.resolve(module, &leaf.path);
                let scope = scopes.modules.entry(module.clone()).or_default();
                if leaf.name != "*" {
                    scope.bindings.insert(leaf.name.clone(), origin);
                } else if !scope.globs.contains(&origin) {
                    scope.globs.push(origin);
                }
            }
        }
        scopes
    }

    /// Adds the declarations of a module's item; returns the leaves of a `use`.
    fn declare(&mut self, module: &Module, item: &Item) -> Vec<Leaf> {
        if let Item::Use(item) = item {
            return leaves(item);
        }
        let a_type = part!(item, ident of Struct Enum Union Type Trait);
        let function = || part!(item, sig of Fn).map(|sig| &sig.ident);
        let other = || part!(item, ident of Const Static Mod).or_else(function);
        let Some(name) = a_type.or_else(other).map(ToString::to_string) else { return Vec::new() };
        let scope = self.modules.entry(module.clone()).or_default();
        scope.items.insert(name.clone());
        scope.types.extend(a_type.map(|_| name.clone()));
        if matches!(item, Item::Mod(item) if item.content.is_some()) {
            let inner = [&module[..], &[name]].concat();
            self.modules.entry(inner).or_default();
        }
        Vec::new()
    }

    /// The modules of the crate that are imported by a glob, each with the importing module.
    pub fn crate_globs(&self) -> Vec<(Module, Vec<String>)> {
        let globs = self.modules.iter().flat_map(|(module, scope)| {
            scope.globs.iter().filter_map(|glob| match glob {
                Origin::Crate(path) => Some((module.clone(), path.clone())),
                _ => None,
            })
        });
        globs.collect()
    }

    /// Binds a name that a glob brings, unless the module has a name of its own.
    pub fn bring(&mut self, module: &[String], name: &str, origin: Origin) {
        let scope = self.modules.entry(module.to_vec()).or_default();
        if !scope.items.contains(name) {
            scope.bindings.entry(name.to_owned()).or_insert(origin);
        }
    }

    /// The origin of a path that is written in `module`.
    pub fn resolve(&self, module: &[String], path: &[String]) -> Origin {
        let other = || Origin::Other(path.to_vec());
        let [first, rest @ ..] = path else { return other() };
        if first == "super" && !module.is_empty() {
            return self.resolve(&module[..module.len() - 1], rest);
        }
        if let Some(scope) = self.modules.get(module) {
            let is_itself = |path: &[String]| path == [first.clone()];
            match scope.bindings.get(first) {
                Some(Origin::Other(path)) if is_itself(path) => {}
                Some(origin) => return origin.join(rest),
                None => {}
            }
            if scope.types.contains(first) {
                return Origin::Local((module.to_vec(), first.clone()));
            }
            if let Some(inner) = self.inner(module, first) {
                return if rest.is_empty() { other() } else { self.resolve(&inner, rest) };
            }
        }
        let starts_here = ["self", "super", "crate"].contains(&first.as_str());
        // Another crate may re-export `candle_nn`.
        if let Some(at) = path.iter().position(|segment| segment == "candle_nn")
            && (at == 0 || !starts_here)
        {
            return Origin::Nn(path[at + 1..].to_vec());
        }
        if first == "candle_dynquant" {
            return Origin::Ours(rest.to_vec());
        }
        let ways = ["self", "super", "crate", "models", "candle_transformers"];
        let is_way = |step: &String| ways.contains(&step.as_str());
        if let Some(at) = path.iter().position(|segment| segment == "with_tracing")
            && path[..at].iter().all(is_way)
            && !(self.own_tracing && first != "candle_transformers")
        {
            return Origin::Traced(path[at + 1..].to_vec());
        }
        if starts_here {
            return Origin::Crate(path.to_vec());
        }
        let Some(scope) = self.modules.get(module) else { return other() };
        if let Some(origin) = self.through_glob(module, scope, path) {
            return origin;
        }
        if scope.items.contains(first) {
            return Origin::Crate([&["self".to_owned()], path].concat());
        }
        other()
    }

    fn inner(&self, module: &[String], name: &str) -> Option<Module> {
        let inner = [module, &[name.to_owned()]].concat();
        self.modules.contains_key(&inner).then_some(inner)
    }

    fn through_glob(&self, module: &[String], scope: &Scope, path: &[String]) -> Option<Origin> {
        let mut origins = scope.globs.iter().map(|glob| glob.join(path));
        let is_known = |origin: &Origin| match origin {
            Origin::Crate(_) | Origin::Other(_) | Origin::Local(..) => false,
            origin => origin.mapped().is_some() || matches!(origin, Origin::Ours(_)),
        };
        origins.find(is_known).or_else(|| {
            // The `use super::*` of a module in this file.
            let above = module.split_last()?.1;
            let is_above = |glob: &Origin| matches!(glob, Origin::Other(path) if path.is_empty());
            scope.globs.iter().any(is_above).then(|| self.resolve(above, path))
        })
    }
}
