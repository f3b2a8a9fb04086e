//! The nodes of a syntax tree in the order of the text, each before its children.

use std::rc::Rc;

use syn::Expr;
use syn::visit::{self, Visit};

/// The content of a value of this variant: `get!(expr, Expr::Path)?`.
macro_rules! get {
    ($value:expr, $variant:path) => {
        match $value {
            $variant(inner) => Some(inner),
            _ => None,
        }
    };
}
pub(crate) use get;

/// The common part of items of these kinds.
macro_rules! part {
    ($item:expr, $part:ident of $($kind:ident)*) => {
        match $item {
            $(syn::Item::$kind(item) => Some(&item.$part),)*
            _ => None,
        }
    };
}
pub(crate) use part;

pub trait Tree {
    fn walk<'a>(&'a self, visitor: &mut impl Visit<'a>);
}

/// All nodes of a tree, including the root.
pub fn nodes<T: Tree>(tree: &T) -> impl Iterator<Item = Node<'_>> {
    places(tree).map(|place| place.node)
}

/// All expressions of a tree, including the root.
pub fn exprs<T: Tree>(tree: &T) -> impl Iterator<Item = &syn::Expr> {
    nodes(tree).filter_map(|node| get!(node, Node::Expr))
}

/// All calls of functions in a tree.
pub fn calls<T: Tree>(tree: &T) -> impl Iterator<Item = &syn::ExprCall> {
    exprs(tree).filter_map(|expr| get!(expr, Expr::Call))
}

/// All calls of methods in a tree.
pub fn method_calls<T: Tree>(tree: &T) -> impl Iterator<Item = &syn::ExprMethodCall> {
    exprs(tree).filter_map(|expr| get!(expr, Expr::MethodCall))
}

/// All nodes with their places.
pub fn places<T: Tree>(tree: &T) -> impl Iterator<Item = NodePlace<'_>> {
    let mut nodes = Nodes { found: Vec::new(), module: Rc::default(), blocks: 0 };
    tree.walk(&mut nodes);
    nodes.found.into_iter()
}

/// A node, its module, and whether it is in a function.
pub struct NodePlace<'a> {
    pub node: Node<'a>,
    pub module: Rc<Vec<String>>,
    pub in_function: bool,
}

pub struct Nodes<'a> {
    found: Vec<NodePlace<'a>>,
    module: Rc<Vec<String>>,
    blocks: usize,
}

impl<'a> Nodes<'a> {
    fn push(&mut self, node: Node<'a>) {
        self.found.push(NodePlace {
            node,
            module: Rc::clone(&self.module),
            in_function: self.blocks > 0,
        });
    }
}

macro_rules! kinds {
    ($($visit:ident $kind:ident)*) => {
        /// A node of a kind that a pass looks for.
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

            /// The paths of a visibility name modules.
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
            fn walk<'a>(&'a self, visitor: &mut impl Visit<'a>) {
                visitor.$visit(self);
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
    visit_signature Signature
    visit_stmt Stmt
}

/// Visits the expressions of a tree from the outside in, entering those for which `look` returns
/// true.
pub fn descend<'a>(tree: &'a impl Tree, look: &mut dyn FnMut(&'a Expr) -> bool) {
    let straight = false;
    tree.walk(&mut Descent { look, straight });
}

/// Visits expressions as [`descend`] does, but only those that certainly run exactly once.
pub fn descend_straight<'a>(tree: &'a impl Tree, look: &mut dyn FnMut(&'a Expr) -> bool) {
    let straight = true;
    tree.walk(&mut Descent { look, straight });
}

struct Descent<'l, 'a> {
    look: &'l mut dyn FnMut(&'a Expr) -> bool,
    straight: bool,
}

macro_rules! unless_straight {
    ($($visit:ident $kind:ident)*) => {$(
        fn $visit(&mut self, node: &'a syn::$kind) {
            if !self.straight {
                visit::$visit(self, node);
            }
        }
    )*};
}

impl<'a> Visit<'a> for Descent<'_, 'a> {
    fn visit_expr(&mut self, expr: &'a Expr) {
        if (self.look)(expr) {
            visit::visit_expr(self, expr);
        }
    }

    unless_straight! {
        visit_block Block
        visit_expr_closure ExprClosure
        visit_arm Arm
        visit_item Item
        visit_macro Macro
    }
}
