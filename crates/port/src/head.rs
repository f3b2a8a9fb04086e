//! A head that multiplies by an embedding's table.

use std::ops::Range;

use syn::Expr;

use super::facts::Facts;

/// A product with a table.
pub struct Head<'a> {
    pub facts: Facts<'a>,
    pub range: Range<usize>,
    pub input: String,
    pub borrowed: bool,
    /// The field of `self` that holds the embedding, if the product is certainly a head.
    pub field: Option<String>,
    /// The statements to remove: the binding of the table, and of a size that only it reads.
    pub gone: Vec<Range<usize>>,
    /// The enclosing `match`es and `if`s, the innermost last.
    pub around: Vec<&'a Expr>,
}
