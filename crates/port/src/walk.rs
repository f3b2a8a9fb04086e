//! The nodes of a syntax tree in the order of the text, each before those in it.

use std::rc::Rc;

use syn::visit::{self, Visit};

/// What a value of this variant holds: `get!(expr, Expr::Path)?`.
macro_rules! get {
    ($value:expr, $variant:path) => {
        match $value {
            $variant(inner) => Some(inner),
            _ => None,
        }
    };
}
pub(crate) use get;

/// A tree of nodes.
pub trait Tree {
    fn walk<'a>(&'a self, nodes: &mut Nodes<'a>);
}

/// All nodes in a tree, itself among them.
pub fn nodes<T: Tree>(tree: &T) -> impl Iterator<Item = Node<'_>> {
    places(tree).map(|place| place.node)
}

/// All expressions in a tree, itself among them.
pub fn exprs<T: Tree>(tree: &T) -> impl Iterator<Item = &syn::Expr> {
    nodes(tree).filter_map(|node| get!(node, Node::Expr))
}

/// All nodes, each with where it is.
pub fn places<T: Tree>(tree: &T) -> impl Iterator<Item = Place<'_>> {
    let mut nodes = Nodes {
        found: Vec::new(),
        module: Rc::default(),
        blocks: 0,
    };
    tree.walk(&mut nodes);
    nodes.found.into_iter()
}

/// A node, the module of the tree that it is in, and whether it is in a function.
pub struct Place<'a> {
    pub node: Node<'a>,
    pub module: Rc<Vec<String>>,
    pub in_function: bool,
}

/// The nodes that were found.
pub struct Nodes<'a> {
    found: Vec<Place<'a>>,
    module: Rc<Vec<String>>,
    blocks: usize,
}

impl<'a> Nodes<'a> {
    fn push(&mut self, node: Node<'a>) {
        self.found.push(Place {
            node,
            module: Rc::clone(&self.module),
            in_function: self.blocks > 0,
        });
    }
}

macro_rules! kinds {
    ($($visit:ident $kind:ident)*) => {
        /// A node of a kind that something looks for.
        #[derive(Clone, Copy)]
        pub enum Node<'a> {
            Block(&'a syn::Block),
            $($kind(&'a syn::$kind),)*
        }

        impl<'a> Visit<'a> for Nodes<'a> {
            $(fn $visit(&mut self, node: &'a syn::$kind) {
                self.push(Node::$kind(node));
                visit::$visit(self, node);
            })*

            fn visit_block(&mut self, block: &'a syn::Block) {
                self.push(Node::Block(block));
                self.blocks += 1;
                visit::visit_block(self, block);
                self.blocks -= 1;
            }

            fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
                let inner = [&self.module[..], &[item.ident.to_string()]].concat();
                let outer = std::mem::replace(&mut self.module, Rc::new(inner));
                visit::visit_item_mod(self, item);
                self.module = outer;
            }

            /// Its paths name modules.
            fn visit_visibility(&mut self, _: &'a syn::Visibility) {}
        }
    };
}

kinds! {
    visit_expr Expr
    visit_field_pat FieldPat
    visit_impl_item_fn ImplItemFn
    visit_item Item
    visit_local Local
    visit_macro Macro
    visit_pat_ident PatIdent
    visit_path Path
    visit_stmt Stmt
    visit_trait_item_fn TraitItemFn
}

macro_rules! trees {
    ($($visit:ident $tree:ident)*) => {$(
        impl Tree for syn::$tree {
            fn walk<'a>(&'a self, nodes: &mut Nodes<'a>) {
                nodes.$visit(self);
            }
        }
    )*};
}

trees! {
    visit_block Block
    visit_expr Expr
    visit_file File
    visit_item Item
    visit_item_impl ItemImpl
    visit_pat Pat
    visit_stmt Stmt
}
