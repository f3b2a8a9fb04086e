//! The nodes of a syntax tree in the order of the text, each before those in it.

use syn::visit::{self, Visit};

/// What has nodes.
pub trait Tree {
    fn walk<'a>(&'a self, nodes: &mut Nodes<'a>);
}

/// All nodes in a tree, itself among them.
pub fn nodes<T: Tree>(tree: &T) -> impl Iterator<Item = Node<'_>> {
    let mut nodes = Nodes(Vec::new());
    tree.walk(&mut nodes);
    nodes.0.into_iter()
}

/// The nodes that were found.
pub struct Nodes<'a>(Vec<Node<'a>>);

macro_rules! kinds {
    ($($visit:ident $kind:ident)*) => {
        /// A node of a kind that something looks for.
        #[derive(Clone, Copy)]
        pub enum Node<'a> {
            $($kind(&'a syn::$kind),)*
        }

        impl<'a> Visit<'a> for Nodes<'a> {
            $(fn $visit(&mut self, node: &'a syn::$kind) {
                self.0.push(Node::$kind(node));
                visit::$visit(self, node);
            })*
        }
    };
}

kinds! {
    visit_block Block
    visit_expr Expr
    visit_field_pat FieldPat
    visit_impl_item_fn ImplItemFn
    visit_item_fn ItemFn
    visit_item_macro ItemMacro
    visit_local Local
    visit_macro Macro
    visit_pat_ident PatIdent
    visit_stmt Stmt
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
