//! A file as the passes see it.

use std::collections::BTreeSet;
use std::path::Path;

use syn::Type;
use syn::visit::{self, Visit};

use super::draft::Todo;
use super::features;
use super::scopes::Origin;
use super::source::Source;
use super::syntax::segments;
use super::types::Types;
use super::world::World;

/// A file as the passes see it.
pub struct Unit<'u> {
    pub source: &'u Source<'u>,
    pub file: &'u syn::File,
    pub types: &'u Types,
    pub path: &'u Path,
    pub world: &'u World,
    /// Where parameters of type `&Tensor` are, by name: the bytes of their functions.
    borrowed: Vec<(String, std::ops::Range<usize>)>,
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
            left_out: features::left_out(source, file),
            source,
            file,
            types,
            path,
            world,
        }
    }

    pub fn todo(&self, at: usize, what: String, advice: String) -> Todo {
        Todo {
            line: self.source.line(at),
            what,
            advice,
            of_trait: None,
        }
    }

    /// Whether the file may have to do with candle: it names it, or has names of other modules.
    pub fn is_of_candle(&self) -> bool {
        let has_globs = || !self.types.scopes.crate_globs().is_empty();
        self.source.text.contains("candle") || has_globs()
    }

    /// Whether no CPU runs the code at a byte.
    pub fn is_left_out(&self, at: usize) -> bool {
        self.left_out.iter().any(|range| range.contains(&at))
    }

    /// The type of a field, where a struct of the file has one of this name.
    pub fn field(&self, module: &[String], of: &str, field: &str) -> Option<&'u Type> {
        let declared = self.types.declared.get(&(module.to_vec(), of.to_owned()))?;
        let [declared] = declared.as_slice() else {
            return None;
        };
        let named = |one: &&syn::Field| one.ident.as_ref().is_some_and(|ident| ident == field);
        let fields: Vec<_> = declared.fields.iter().filter(named).collect();
        match fields[..] {
            [one] => Some(&one.ty),
            _ => None,
        }
    }

    /// Where a type leads that is a path.
    pub fn origin(&self, module: &[String], ty: &Type) -> Option<Origin> {
        let Type::Path(path) = ty else { return None };
        Some(self.types.scopes.resolve(module, &segments(&path.path)))
    }

    /// Whether a name is a parameter `&Tensor` here.
    pub fn is_borrowed(&self, ident: &syn::Ident) -> bool {
        let at = self.source.range(ident).start;
        self.borrowed
            .iter()
            .any(|(name, body)| ident == name && body.contains(&at))
    }
}

/// The type of a field as it is written, if it is this layer of `candle_dynquant::nn`.
pub fn is_ours(
    unit: &Unit<'_>,
    module: &[String],
    of: &str,
    field: &str,
    layer: &str,
) -> Option<String> {
    let ty = unit.field(module, of, field)?;
    let ours = Origin::Ours(vec!["nn".into(), layer.into()]);
    (unit.origin(module, ty)? == ours).then(|| unit.source.slice(ty).to_owned())
}

/// Parameters of type `&Tensor` that their function does not bind anew.
fn borrowed(source: &Source<'_>, file: &syn::File) -> Vec<(String, std::ops::Range<usize>)> {
    struct Find<'s> {
        source: &'s Source<'s>,
        found: Vec<(String, std::ops::Range<usize>)>,
    }
    struct Bound(BTreeSet<String>);
    impl<'a> Visit<'a> for Bound {
        fn visit_pat_ident(&mut self, pat: &'a syn::PatIdent) {
            self.0.insert(pat.ident.to_string());
        }
    }
    impl Find<'_> {
        fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
            let mut bound = Bound(BTreeSet::new());
            bound.visit_block(block);
            for input in &signature.inputs {
                let syn::FnArg::Typed(input) = input else {
                    continue;
                };
                let (syn::Pat::Ident(pat), syn::Type::Reference(ty)) = (&*input.pat, &*input.ty)
                else {
                    continue;
                };
                let syn::Type::Path(ty) = &*ty.elem else {
                    continue;
                };
                let tensor = ty
                    .path
                    .segments
                    .last()
                    .is_some_and(|last| last.ident == "Tensor");
                let name = pat.ident.to_string();
                if tensor && !bound.0.contains(&name) {
                    self.found.push((name, self.source.range(block)));
                }
            }
        }
    }
    impl<'a> Visit<'a> for Find<'_> {
        fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
            self.function(&item.sig, &item.block);
            visit::visit_item_fn(self, item);
        }
        fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
            self.function(&item.sig, &item.block);
            visit::visit_impl_item_fn(self, item);
        }
    }
    let mut find = Find {
        source,
        found: Vec::new(),
    };
    find.visit_file(file);
    find.found
}
