//! Attention found in the source.

use std::ops::Range;

use syn::{Expr, Stmt};

use super::chain::Scores;

/// The statements to remove, and the text that replaces each.
pub type Removed = Vec<(Range<usize>, Option<String>)>;

/// Attention in a block.
pub struct FoundAttention<'a> {
    pub scores: Scores,
    pub removed: Removed,
    /// The product with the values, and its statement.
    pub product: &'a Expr,
    pub values: &'a Expr,
    pub last: &'a Stmt,
    pub ranks: Vec<usize>,
}
