//! The functions of a file, each with its module and type.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};
use syn::{Block, File, ItemImpl, ItemMod, Signature};

use super::bindings::{self, Bindings};
use super::scopes::Module;
use super::source::Source;
use super::syntax::get;
use super::types::last_name;
use super::walk::{Node, nodes};

/// A function that has a body.
pub struct Function<'a> {
    pub module: Module,
    /// The type of the function's `impl`.
    pub owner: Option<String>,
    pub signature: &'a Signature,
    pub block: &'a Block,
    /// The bindings of each name.
    pub bindings: BTreeMap<String, Bindings<'a>>,
}

/// All functions in order, except nested functions.
pub fn all<'a>(source: &Source<'_>, file: &'a File) -> Vec<Function<'a>> {
    let mut find = FunctionFinder { source, module: Vec::new(), owner: None, found: Vec::new() };
    find.visit_file(file);
    find.found
}

struct FunctionFinder<'a, 's> {
    source: &'s Source<'s>,
    module: Module,
    owner: Option<String>,
    found: Vec<Function<'a>>,
}

impl<'a> FunctionFinder<'a, '_> {
    fn push(&mut self, signature: &'a Signature, block: &'a Block) {
        self.found.push(Function {
            module: self.module.clone(),
            owner: self.owner.clone(),
            signature,
            block,
            bindings: bindings::all(self.source, block),
        });
    }
}

impl<'a> Visit<'a> for FunctionFinder<'a, '_> {
    fn visit_item_mod(&mut self, item: &'a ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_impl(&mut self, item: &'a ItemImpl) {
        self.owner = last_name(&item.self_ty);
        visit::visit_item_impl(self, item);
        self.owner = None;
    }

    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        self.push(&item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        self.push(&item.sig, &item.block);
    }

    fn visit_trait_item_fn(&mut self, item: &'a syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.push(&item.sig, block);
        }
    }
}

/// The parameters of a function without `self`.
pub fn inputs(signature: &Signature) -> impl Iterator<Item = &syn::PatType> {
    let inputs = signature.inputs.iter();
    inputs.filter_map(|input| get!(input, syn::FnArg::Typed))
}

/// A block and all blocks in it, in order.
pub fn blocks(block: &Block) -> Vec<&Block> {
    let blocks = nodes(block).filter_map(|node| get!(node, Node::Block));
    blocks.collect()
}
