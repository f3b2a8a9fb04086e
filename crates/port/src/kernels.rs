//! Sizes of kernels: `conv.weight().dim(D::Minus1)?` would dequantize the weight to know its shape.

use syn::{Expr, ExprField, Type};

use super::draft::Draft;
use super::facts::{self, Facts};
use super::syntax::{axis, get, is, member, method};
use super::types::last_name;
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
                let conv = get!(&*weight.receiver, Expr::Field).filter(|_| is_weight)?;
                let origin = unit.origin(&facts.function.module, facts.type_of(conv)?)?;
                let rank = match origin.layer()? {
                    "Conv1d" | "ConvTranspose1d" => 1,
                    "Conv2d" => 2,
                    _ => return None,
                };
                let size = size(dim.args.first()?, rank)?;
                Some((unit.source.range(&*weight.receiver).end, size))
            };
            let range = unit.source.range(expr);
            if let Some((start, size)) = found().filter(|_| !unit.source.is_kept(range.start)) {
                let text = format!(".kernel_size()[{size}]");
                draft.edits.replace(start..range.end, text);
            }
        }
    }
}

impl<'u> Facts<'u> {
    /// The type of a field of `self`, or of a field of this file's type that is one.
    fn type_of(&self, field: &ExprField) -> Option<&'u Type> {
        let owner = if is(&field.base, "self") {
            self.function.owner.clone()?
        } else {
            last_name(self.type_of(get!(&*field.base, Expr::Field)?)?)?
        };
        let module = &self.function.module;
        self.unit.field(module, &owner, &member(&field.member))
    }
}

/// The place among the sizes of a kernel of an axis of a weight.
fn size(of: &Expr, rank: usize) -> Option<usize> {
    match axis(of)? {
        -1 => Some(rank - 1),
        -2 if rank == 2 => Some(0),
        at => usize::try_from(at - 2).ok().filter(|size| *size < rank),
    }
}
