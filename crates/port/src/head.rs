//! A head that an embedding's table is multiplied for.

use std::ops::Range;

use syn::Expr;

use super::facts::Facts;

/// A product with a table.
pub struct Head<'a> {
    pub facts: Facts<'a>,
    pub range: Range<usize>,
    pub input: String,
    pub borrowed: bool,
    /// The field of `self` that is the embedding, if the product is a head for certain.
    pub field: Option<String>,
    /// Statements that go: what binds the table, and a size that only it reads.
    pub gone: Vec<Range<usize>>,
    /// The `match`es and `if`s that it is in, the innermost last.
    pub around: Vec<&'a Expr>,
}
