//! A scale that is applied to queries in a statement before their product.

use std::ops::Range;

use syn::{Block, Expr, Stmt};

use super::chain::Scores;
use crate::facts::{DEPTH, Facts};
use crate::syntax::{assigned, binds, get, mentions, strip, words};

/// Moves `let q = (q * factor)?;` into the scores whose product is in the statements `first` to
/// `last`, if nothing else reads that `q`. Returns the statement to remove.
pub fn of_queries(
    facts: &Facts<'_>,
    block: &Block,
    (first, last): (usize, usize),
    scores: &mut Scores,
) -> Option<Range<usize>> {
    let source = facts.unit.source;
    let name = scores.q.trim_start_matches('&').to_owned();
    let gives = |stmt: &Stmt| assigned(stmt).is_some_and(|(given, _)| given == name);
    let at = block.stmts[..first].iter().rposition(gives)?;
    let stmt = &block.stmts[at];
    let (_, init) = assigned(stmt)?;
    let product = get!(strip(init), Expr::Binary)?;
    let op = match product.op {
        syn::BinOp::Mul(_) => '*',
        syn::BinOp::Div(_) => '/',
        _ => return None,
    };
    let (queries, factor) = (&*product.left, source.slice(&*product.right));
    let is_plain = matches!(strip(queries), Expr::Path(_)) && matches!(stmt, Stmt::Local(_));
    if !is_plain || !facts.is_number(&product.right, DEPTH) || source.slice(stmt).contains("//") {
        return None;
    }
    let reads = block.stmts[at + 1..].iter();
    let reads: usize = reads.map(|stmt| mentions(source.slice(stmt), &name)).sum();
    let between = &block.stmts[at + 1..last];
    let is_bound = |word: &str| {
        let binds_it = |stmt: &Stmt| match stmt {
            Stmt::Local(local) => binds(&local.pat, word),
            stmt => assigned(stmt).is_some_and(|(given, _)| given == word),
        };
        between.iter().any(binds_it)
    };
    let text = source.slice(queries);
    if reads != 1 || words(factor).chain(words(text)).any(is_bound) {
        return None;
    }
    scores.q = facts.borrowed(queries);
    scores.scale.insert(0, (op, factor.to_owned()));
    Some(source.range(stmt))
}
