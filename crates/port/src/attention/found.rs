//! Attention that was found.

use std::ops::Range;

use syn::{Expr, Stmt};

use super::chain::Scores;

/// Attention in one block.
pub struct Found<'a> {
    pub scores: Scores,
    /// Statements that go, and what stands for them.
    pub removed: Vec<(Range<usize>, Option<String>)>,
    /// The product with the values, and the statement that it stands in.
    pub product: &'a Expr,
    pub values: &'a Expr,
    pub last: &'a Stmt,
    pub ranks: Vec<usize>,
}
