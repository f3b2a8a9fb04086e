//! The call of `ops::scaled_dot_product_attention` that replaces attention.

use std::ops::Range;

use syn::{Expr, Stmt};

use super::chain::{Cast, Mask, Scores, borrow};
use crate::draft::Draft;
use crate::facts::Facts;
use crate::source::Source;
use crate::table::Home;

/// The statements to remove, and the text that replaces each.
type Removed = Vec<(Range<usize>, Option<String>)>;

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

/// Writes the call in place of the last product, and removes the statements that led to it.
pub fn write(facts: &Facts<'_>, draft: &mut Draft, ops: &str, found: FoundAttention<'_>) {
    let source = facts.unit.source;
    let is_four = found.ranks.contains(&4);
    if is_four == found.ranks.contains(&3) || is_four && found.scores.shape.is_some() {
        return;
    }
    let FoundAttention { scores, removed, product, values, last, .. } = found;
    let product_range = source.range(product);
    let starts = removed.iter().map(|(range, _)| range.start);
    if starts.chain([product_range.start]).any(|at| source.is_kept(at)) {
        return;
    }
    let call = Call {
        ops,
        scores: &scores,
        operands: [scores.q.clone(), scores.k.clone(), borrow(facts, values)],
        is_four,
        indent: source.indent(product_range.start),
        column: product_range.start - source.line_start(product_range.start),
        newline: source.newline,
    };
    let text = call.text();
    let text = match product {
        Expr::Try(_) => &text,
        // The last call's `Result` replaces the product's.
        _ => text.trim_end_matches('?'),
    };
    let text = guarded(source, draft, &scores, text.to_owned(), product, last);
    draft.edits.rewrite(product_range, text);
    let at = source.start(last);
    for (range, text) in joined(source, removed, at) {
        match text {
            Some(text) => draft.edits.rewrite(range, text),
            None => draft.edits.rewrite(source.lines_of(range), ""),
        }
    }
    draft.need(&facts.function.module, ops, Home::Ops);
}

/// The call under the guards of the softmax: in a block if the call is all of a variable's value,
/// else after the guards.
fn guarded(
    source: &Source<'_>,
    draft: &mut Draft,
    scores: &Scores,
    call: String,
    product: &Expr,
    last: &Stmt,
) -> String {
    let after = source.slice(last);
    let guards = scores.guards.iter().filter(|guard| {
        let span = guard.split_once('=').map_or("", |(_, span)| span.trim());
        !after.contains(span.trim_end_matches(';'))
    });
    let guards: Vec<_> = guards.collect();
    if guards.is_empty() {
        return call;
    }
    let range = source.range(product);
    let (indent, newline) = (source.indent(range.start), source.newline);
    let is_init = matches!(last, Stmt::Local(local) if local.init.as_ref()
        .is_some_and(|init| source.range(&*init.expr) == range));
    if !is_init {
        let at = source.line_start(source.start(last));
        let indent = source.indent(at);
        let lines = guards.iter().map(|guard| format!("{indent}{guard}{newline}"));
        draft.edits.insert(at, lines.collect::<String>());
        return call;
    }
    let inner = format!("{newline}{indent}    ");
    let lines: String = guards.iter().map(|guard| format!("{inner}{guard}")).collect();
    let shifted = call.replace(newline, &format!("{newline}    "));
    format!("{{{lines}{inner}{shifted}{newline}{indent}}}")
}

/// Joins adjacent removed statements, so that no empty lines are left between them. Their comments
/// are removed too, except those above the first if the call at `call` follows.
pub fn joined(source: &Source<'_>, removed: Removed, call: usize) -> Removed {
    let blank = |range: Range<usize>| source.text[range].trim().is_empty();
    let mut all = Removed::new();
    for (range, text) in removed {
        let range = match text {
            None => source.with_comments(range),
            Some(_) => range,
        };
        match all.last_mut() {
            Some((last, None)) if text.is_none() && blank(last.end..range.start) => {
                last.end = range.end;
            }
            _ => all.push((range, text)),
        }
    }
    let next = source.line_start(call);
    for (range, _) in all.iter_mut().filter(|(_, text)| text.is_none()) {
        let is_last = range.end <= next && blank(range.end..next);
        let start = source.without_comments(range.clone()).start;
        if is_last && start > range.start {
            *range = start..next;
        }
    }
    all
}

/// The call in rustfmt's format.
struct Call<'c> {
    /// The name of the `ops` module.
    ops: &'c str,
    scores: &'c Scores,
    operands: [String; 3],
    is_four: bool,
    indent: &'c str,
    column: usize,
    newline: &'static str,
}

impl Call<'_> {
    fn text(&self) -> String {
        let Self { ops, newline, indent, .. } = self;
        let operands = self.operands.iter().zip([false, true, true]);
        let mut args: Vec<_> =
            operands.map(|(text, has_keys)| self.operand(text, has_keys)).collect();
        args.push(match &self.scores.mask {
            Mask::None => "None".to_owned(),
            Mask::Add(mask) | Mask::AddOption(mask) => mask.clone(),
            Mask::Exclude(mask) => format!("{ops}::Mask::Exclude({mask})"),
            Mask::ExcludeOption(mask) => {
                format!("{mask}.map_or({ops}::Mask::All, {ops}::Mask::Exclude)")
            }
        });
        args.push(scale(&self.scores.scale));
        let mut after = String::new();
        if !self.is_four {
            let is_shaped = self.scores.shape.is_some();
            after += if is_shaped { ".flatten_to(1)?" } else { ".squeeze(0)?" };
        }
        match &self.scores.cast {
            Some(Cast::To(dtype)) => after += &format!(".to_dtype({dtype})?"),
            Some(Cast::Queries) => {
                let queries = self.scores.q.trim_start_matches('&');
                after += &format!(".to_dtype({queries}.dtype())?");
            }
            None => {}
        }
        let one_line = args.join(", ");
        let text = format!("{ops}::scaled_dot_product_attention({one_line})?{after}");
        if one_line.len() <= 60 && self.column + text.len() < 100 {
            return text;
        }
        let inner = format!("{newline}{indent}    ");
        let lines: String = args.iter().map(|arg| format!("{inner}{arg},")).collect();
        let after = after.replace(")?.", &format!(")?{newline}{indent}."));
        let mut text = format!("{ops}::scaled_dot_product_attention({lines}{newline}{indent})?");
        if !after.is_empty() {
            text += &format!("{newline}{indent}{after}");
        }
        text
    }

    /// An operand of rank 4: attention in candle-dynquant takes batch and heads as separate
    /// dimensions.
    fn operand(&self, text: &str, has_keys: bool) -> String {
        let bare = text.trim_start_matches('&');
        match &self.scores.shape {
            _ if self.is_four => text.to_owned(),
            None => format!("&{bare}.unsqueeze(0)?"),
            Some([batch, heads, queries]) => {
                let rows = if has_keys { &self.scores.keys } else { queries };
                format!("&{bare}.reshape(({batch}, {heads}, {rows}, ()))?")
            }
        }
    }
}

fn scale(factors: &[(char, String)]) -> String {
    match factors {
        [] => "1.".to_owned(),
        [('*', factor)] => factor.clone(),
        factors => {
            let start = if factors[0].0 == '*' { "" } else { "1." };
            let texts = factors.iter().map(|(op, factor)| format!(" {op} {factor}"));
            let text = start.to_owned() + &texts.collect::<String>();
            text.trim_start_matches([' ', '*']).to_owned()
        }
    }
}
