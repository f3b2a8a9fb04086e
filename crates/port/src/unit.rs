//! A file as the passes see it.

use std::path::Path;

use syn::{Item, Type};

use super::built::Built;
use super::draft::Todo;
use super::features;
use super::functions::{self, Function};
use super::scopes::Origin;
use super::source::Source;
use super::syntax::{bare_name, binds, ends_with, exactly, segments};
use super::types::{Types, named};
use super::walk::{Node, nodes};
use super::world::World;

/// A file as the passes see it.
pub struct Unit<'u> {
    pub source: &'u Source<'u>,
    pub file: &'u syn::File,
    pub types: &'u Types,
    pub path: &'u Path,
    pub world: &'u World,
    /// All functions in order, except nested functions.
    pub functions: Vec<Function<'u>>,
    /// The parameters of type `&Tensor` by name, with the bytes of their functions.
    borrowed: Vec<(String, std::ops::Range<usize>)>,
    /// The expressions that build types, and the values of fields.
    pub built: Built<'u>,
    /// Code that no CPU runs.
    pub left_out: Vec<std::ops::Range<usize>>,
}

impl<'u> Unit<'u> {
    pub fn new(
        path: &'u Path,
        world: &'u World,
        source: &'u Source<'u>,
        file: &'u syn::File,
        types: &'u Types,
    ) -> Self {
        Self {
            borrowed: borrowed(source, file),
            functions: functions::all(source, file),
            built: Built::new(&types.scopes, file),
            left_out: features::left_out(source, file),
            source,
            file,
            types,
            path,
            world,
        }
    }

    pub fn todo(&self, at: usize, what: impl Into<String>, advice: impl Into<String>) -> Todo {
        Todo {
            line: self.source.line(at),
            what: what.into(),
            advice: advice.into(),
            of_trait: None,
        }
    }

    /// Whether the file may use candle: it names it, or has names of other modules.
    pub fn is_of_candle(&self) -> bool {
        let has_globs = || !self.types.scopes.crate_globs().is_empty();
        self.source.text.contains("candle") || has_globs()
    }

    /// Whether no CPU runs the code at a byte.
    pub fn is_left_out(&self, at: usize) -> bool {
        self.left_out.iter().any(|range| range.contains(&at))
    }

    /// The type of a field, if a struct of the file has a field of this name.
    pub fn field(&self, module: &[String], owner: &str, field: &str) -> Option<&'u Type> {
        let key = (module.to_vec(), owner.to_owned());
        let [declared] = exactly(self.types.declared.get(&key)?)?;
        Some(&named(&declared.fields, field)?.ty)
    }

    /// The origin of a type that is a path.
    pub fn origin(&self, module: &[String], ty: &Type) -> Option<Origin> {
        let Type::Path(path) = ty else { return None };
        Some(self.types.scopes.resolve(module, &segments(&path.path)))
    }

    /// Whether a type holds a layer, at any depth.
    pub fn holds(&self, module: &[String], ty: &Type) -> bool {
        self.world.holds(self.path, self.types, module, ty)
    }

    /// Whether a type holds a layer, or a tensor that multiplies.
    pub fn multiplies(&self, module: &[String], ty: &Type) -> bool {
        self.world.multiplies(self.path, self.types, module, ty)
    }

    /// Whether an expression is the name of a parameter `&Tensor` here.
    pub fn is_borrowed_path(&self, expr: &syn::Expr) -> bool {
        bare_name(expr).is_some_and(|bare| {
            let at = self.source.start(expr);
            self.borrowed.iter().any(|(name, body)| bare == *name && body.contains(&at))
        })
    }
}

/// The parameters of type `&Tensor` that their function does not rebind.
fn borrowed(source: &Source<'_>, file: &syn::File) -> Vec<(String, std::ops::Range<usize>)> {
    let mut found = Vec::new();
    for node in nodes(file) {
        let (signature, block) = match node {
            Node::Item(Item::Fn(item)) => (&item.sig, &*item.block),
            Node::ImplItemFn(item) => (&item.sig, &item.block),
            _ => continue,
        };
        for input in functions::inputs(signature) {
            if let (syn::Pat::Ident(pat), Type::Reference(ty)) = (&*input.pat, &*input.ty)
                && matches!(&*ty.elem, Type::Path(ty) if ends_with(&ty.path, "Tensor"))
                && !binds(block, &pat.ident.to_string())
            {
                found.push((pat.ident.to_string(), source.range(block)));
            }
        }
    }
    found
}
