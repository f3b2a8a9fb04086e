//! Statements that give scores a mask.

use syn::{Expr, Stmt};

use super::chain::{Env, Mask, Scores};
use crate::syntax::{assigned, condition, exactly, get, ident, is, method, only, some_name, value};

/// `let mask = mask.broadcast_as(scores.shape())?;`: what the mask is made from.
pub fn broadcast_mask(env: &Env<'_>, stmt: &Stmt) -> Option<(String, String)> {
    let (name, expr) = assigned(stmt)?;
    let call = method(expr)?;
    let by_scores = call.method == "broadcast_as" && call.args.iter().any(|arg| env.mentions(arg));
    (by_scores && !env.mentions(&call.receiver)).then(|| (name, env.borrow(&call.receiver)))
}

/// `let scores = if first { scores } else { let mask = ..; masked_fill(&scores, &mask, -inf)? };`
pub fn excluded_later(env: &Env<'_>, stmt: &Stmt) -> Option<(Scores, Option<String>)> {
    let (name, scores) = env.current.as_ref()?;
    let (bound, choice) = assigned(stmt)?;
    let choice = get!(choice, Expr::If)?;
    if bound != *name || scores.mask != Mask::None || matches!(&*choice.cond, Expr::Let(_)) {
        return None;
    }
    let plain = only(&choice.then_branch)?;
    let other = get!(&*choice.else_branch.as_ref()?.1, Expr::Block)?;
    let (filled, before) = value(&other.block)?;
    let [made] = exactly(before)?;
    let (mask, made) = assigned(made)?;
    let broadcast = method(made).filter(|call| call.method == "broadcast_as");
    let made = broadcast.map_or(made, |call| &call.receiver);
    let filled = get!(&*get!(filled, Expr::Try)?.expr, Expr::Call)?;
    let [xs, filler, filling] = exactly(&filled.args)?;
    let source = env.facts.unit.source;
    let certain = is(plain, name)
        && source.slice(&*filled.func).ends_with("masked_fill")
        && is(xs, name)
        && is(filler, &mask)
        && source.slice(filling).ends_with("f32::NEG_INFINITY")
        && matches!(made, Expr::Try(_))
        && !env.mentions(made)
        && !env.mentions(&choice.cond);
    if !certain {
        return None;
    }
    let text = format!(
        "let {mask} = if {} {{ None }} else {{ Some({}) }};",
        source.slice(&*choice.cond),
        source.slice(made)
    );
    let mut scores = scores.clone();
    scores.reads.push(mask.clone());
    scores.mask = Mask::ExcludeOption(format!("{mask}.as_ref()"));
    Some((scores, Some(text)))
}

/// `if let Some(mask) = mask { let mask = ..; scores = scores.broadcast_add(&mask)? }`
pub fn added_maybe(env: &Env<'_>, stmt: &Stmt) -> Option<(Scores, Option<String>)> {
    let (name, scores) = env.current.as_ref()?;
    let Stmt::Expr(Expr::If(choice), _) = stmt else {
        return None;
    };
    let bound = condition(choice)?;
    let given = some_name(&bound.pat)?;
    let (last, before) = choice.then_branch.stmts.split_last()?;
    let Stmt::Expr(Expr::Assign(last), _) = last else {
        return None;
    };
    let call = method(&last.right)?;
    let mask = ident(call.args.first()?)?;
    let is_first = scores.mask == Mask::None;
    let certain = !scores.soft
        && choice.else_branch.is_none()
        && is(&last.left, name)
        && is(&call.receiver, name)
        && (call.method == "broadcast_add" || call.method == "add");
    let option = env.option(&bound.expr).filter(|_| certain)?;
    let mut scores = scores.clone();
    let text = match before {
        [] if mask == given && (is_first || !scores.has_cast_mask) => {
            scores.mask = scores.with(Mask::AddOption(option))?;
            None
        }
        [made] if is_first => {
            let (made_name, made) = assigned(made)?;
            let Expr::Try(made) = made else { return None };
            let made = env.facts.unit.source.slice(&*made.expr);
            if made_name != mask || made.contains('?') || made.contains('|') {
                return None;
            }
            scores.mask = Mask::AddOption(format!("{mask}.as_ref()"));
            Some(format!(
                "let {mask} = {option}.map(|{given}| {made}).transpose()?;"
            ))
        }
        _ => return None,
    };
    scores.reads.push(mask);
    scores.reads.push(given);
    Some((scores, text))
}
