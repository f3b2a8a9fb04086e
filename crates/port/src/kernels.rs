//! Sizes of kernels: `conv.weight().dim(D::Minus1)?` would dequantize the weight to know its shape.

use syn::{Expr, Lit};

use super::draft::Draft;
use super::facts;
use super::syntax::{get, method, strip};
use super::unit::Unit;
use super::walk::exprs;

/// Reads the sizes of kernels by `kernel_size`.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft) {
    for facts in facts::all(unit) {
        for expr in exprs(facts.function.block) {
            let found = || {
                let dim = get!(&*get!(expr, Expr::Try)?.expr, Expr::MethodCall)?;
                let weight = method(&dim.receiver).filter(|_| dim.method == "dim")?;
                let is_weight = weight.method == "weight" && weight.args.is_empty();
                let field = get!(&*weight.receiver, Expr::Field).filter(|_| is_weight)?;
                let module = &facts.function.module;
                let types = facts.field_types(field).into_iter();
                let mut ranks = types.map(|ty| {
                    let origin = unit.origin(module, ty)?;
                    match origin.layer()? {
                        "Conv1d" => Some(1),
                        "Conv2d" => Some(2),
                        _ => None,
                    }
                });
                let rank = ranks.next().flatten()?;
                let is_same = ranks.all(|one| one == Some(rank));
                let size = size(dim.args.first()?, rank).filter(|_| is_same)?;
                Some((unit.source.range(field).end, size))
            };
            let range = unit.source.range(expr);
            if let Some((start, size)) = found().filter(|_| !unit.source.is_kept(range.start)) {
                let text = format!(".kernel_size()[{size}]");
                draft.edits.replace(start..range.end, text);
            }
        }
    }
}

/// The place among the sizes of a kernel of an axis of a weight.
fn size(axis: &Expr, rank: usize) -> Option<usize> {
    match strip(axis) {
        Expr::Lit(literal) => {
            let axis: usize = get!(&literal.lit, Lit::Int)?.base10_parse().ok()?;
            axis.checked_sub(2).filter(|size| *size < rank)
        }
        Expr::Path(path) => match path.path.segments.last()?.ident.to_string().as_str() {
            "Minus1" => Some(rank - 1),
            "Minus2" if rank == 2 => Some(0),
            _ => None,
        },
        _ => None,
    }
}
