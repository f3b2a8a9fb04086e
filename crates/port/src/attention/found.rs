//! Attention that was found.

use std::ops::Range;

use syn::{Expr, Stmt};

use super::chain::Scores;

/// Statements that go, and what stands for them.
pub type Removed = Vec<(Range<usize>, Option<String>)>;

/// Attention in one block.
pub struct Found<'a> {
    pub scores: Scores,
    pub removed: Removed,
    /// The product with the values, and the statement that it stands in.
    pub product: &'a Expr,
    pub values: &'a Expr,
    pub last: &'a Stmt,
    pub ranks: Vec<usize>,
}
