//! Statements that apply a mask to scores, or a scale to queries.

use std::ops::Range;

use syn::{Block, Expr, Stmt};

use super::chain::{Mask, ScoreContext, Scores, borrow};
use crate::facts::{DEPTH, Facts};
use crate::syntax::{
    assigned, binds, condition, exactly, get, ident, is, mentions, method, only, some_name, strip,
    value, words,
};

/// The mask and its source in `let mask = mask.broadcast_as(scores.shape())?;`.
pub fn broadcast_mask(context: &ScoreContext<'_>, stmt: &Stmt) -> Option<(String, String)> {
    let (name, expr) = assigned(stmt)?;
    let call = method(expr)?;
    let by_scores =
        call.method == "broadcast_as" && call.args.iter().any(|arg| context.mentions(arg));
    (by_scores && !context.mentions(&call.receiver))
        .then(|| (name, borrow(&context.facts, &call.receiver)))
}

/// `let scores = if first { scores } else { let mask = ..; masked_fill(&scores, &mask, -inf)? };`
pub fn excluded_later(context: &ScoreContext<'_>, stmt: &Stmt) -> Option<(Scores, Option<String>)> {
    let (name, scores) = context.current.as_ref()?;
    let (bound, choice) = assigned(stmt)?;
    let choice = get!(choice, Expr::If)?;
    if bound != *name || scores.mask != Mask::None || matches!(&*choice.cond, Expr::Let(_)) {
        return None;
    }
    let plain = only(&choice.then_branch)?;
    let other = get!(&*choice.else_branch.as_ref()?.1, Expr::Block)?;
    let (filled, before) = value(&other.block)?;
    let [stmt] = exactly(before)?;
    let (mask, value) = assigned(stmt)?;
    let broadcast = method(value).filter(|call| call.method == "broadcast_as");
    let original = broadcast.map_or(value, |call| &call.receiver);
    let filled = get!(&*get!(filled, Expr::Try)?.expr, Expr::Call)?;
    let [xs, filler, filling] = exactly(&filled.args)?;
    let source = context.facts.unit.source;
    let certain = is(plain, name)
        && source.slice(&*filled.func).ends_with("masked_fill")
        && is(xs, name)
        && is(filler, &mask)
        && source.slice(filling).ends_with("f32::NEG_INFINITY")
        && matches!(original, Expr::Try(_))
        && !context.mentions(original)
        && !context.mentions(&choice.cond);
    if !certain {
        return None;
    }
    let text = format!(
        "let {mask} = if {} {{ None }} else {{ Some({}) }};",
        source.slice(&*choice.cond),
        source.slice(original)
    );
    let mut scores = scores.clone();
    scores.reads.push(mask.clone());
    scores.mask = Mask::ExcludeOption(format!("{mask}.as_ref()"));
    Some((scores, Some(text)))
}

/// `if let Some(mask) = mask { let mask = ..; scores = scores.broadcast_add(&mask)? }`
pub fn added_maybe(context: &ScoreContext<'_>, stmt: &Stmt) -> Option<(Scores, Option<String>)> {
    let (name, scores) = context.current.as_ref()?;
    let Stmt::Expr(Expr::If(choice), _) = stmt else { return None };
    let bound = condition(choice)?;
    let given = some_name(&bound.pat)?;
    let (last, before) = choice.then_branch.stmts.split_last()?;
    let Stmt::Expr(Expr::Assign(last), _) = last else { return None };
    let call = method(&last.right)?;
    let mask = ident(call.args.first()?)?;
    let is_first = scores.mask == Mask::None;
    let certain = !scores.soft
        && choice.else_branch.is_none()
        && is(&last.left, name)
        && is(&call.receiver, name)
        && (call.method == "broadcast_add" || call.method == "add");
    let option = context.option(&bound.expr).filter(|_| certain)?;
    let mut scores = scores.clone();
    let text = match before {
        [] if mask == given && (is_first || !scores.has_cast_mask) => {
            scores.mask = scores.with(Mask::AddOption(option))?;
            None
        }
        [value] if is_first => {
            let (name, value) = assigned(value)?;
            let Expr::Try(value) = value else { return None };
            let value = context.facts.text(&*value.expr);
            if name != mask || value.contains('?') || value.contains('|') {
                return None;
            }
            scores.mask = Mask::AddOption(format!("{mask}.as_ref()"));
            Some(format!("let {mask} = {option}.map(|{given}| {value}).transpose()?;"))
        }
        _ => return None,
    };
    scores.reads.push(mask);
    scores.reads.push(given);
    Some((scores, text))
}

/// Moves `let q = (q * factor)?;` into the scores whose product is in the statements `first` to
/// `last`, if nothing else reads that `q`. Returns the statement to remove.
pub fn scale_of_queries(
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
