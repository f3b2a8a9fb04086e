//! Norms over the last dimension as models write them by hand: step by step, from the rows on.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use syn::{Expr, ExprMethodCall, Pat};

use crate::facts::{DEPTH, Facts};
use crate::layers::product::ExprPlace;
use crate::origins::origin;
use crate::source::Extent;
use crate::syntax::{
    exactly, get, ident, is, mentions, method, only, optional, own_field, some_name, strip,
};

/// A variable's known value, and the statements that compute it.
#[derive(Clone, Debug)]
pub struct Known {
    pub value: RowValue,
    pub made_by: BTreeSet<usize>,
}

/// The meaning of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowValue {
    /// The size of the rows' last dimension.
    Size(Input),
    /// The dtype of the rows, the dtype to compute in, and whether these may differ.
    Dtype(Input),
    Wide,
    IsNarrow,
    Tensor(Norm),
}

/// The rows: a variable, or the sum of a variable and an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    pub name: String,
    /// The place where the variable is read.
    pub place: ExprPlace,
    pub residual: Option<Residual>,
}

/// The optional sum `if let pattern = option { rows = rows.add(term)?; }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Residual {
    pub option: String,
    pub pattern: String,
    pub name: String,
    pub term: String,
}

/// A norm as far as it is computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Norm {
    pub input: Input,
    /// Whether the mean is subtracted.
    pub centered: bool,
    /// Whether it is in the dtype to compute in.
    wide: bool,
    step: Step,
    pub eps: String,
    pub weight: String,
    pub bias: Option<String>,
}

/// The last step; each step follows from an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Rows,
    Sum,
    Mean,
    Squares,
    SquareSum,
    Variance,
    /// The variance plus epsilon, its root, and the reciprocal of the root.
    Shifted,
    Deviation,
    Inverse,
    Normal,
    Weighted,
}

impl Norm {
    fn new(input: Input) -> Self {
        Self {
            input,
            centered: false,
            wide: false,
            step: Step::Rows,
            eps: String::new(),
            weight: String::new(),
            bias: None,
        }
    }

    /// Whether a function of `ops` computes it: with a weight, in the dtype of its input.
    pub fn is_complete(&self) -> bool {
        let is_rms = !self.centered;
        let has_function = !(is_rms && (self.bias.is_some() || self.input.residual.is_some()));
        self.step == Step::Weighted && !self.wide && has_function
    }

    /// Whether the residual's variable shadows a variable that is read beside it.
    pub fn is_hidden(&self) -> bool {
        let Some(residual) = &self.input.residual else { return false };
        let bias = self.bias.as_deref().unwrap_or_default();
        let others = [&self.input.name, &self.weight, bias, &self.eps];
        others.iter().any(|text| mentions(text, &residual.name) > 0)
    }

    fn at(self, step: Step) -> RowValue {
        RowValue::Tensor(Self { step, ..self })
    }

    fn is_of(&self, other: &Self) -> bool {
        self.input == other.input && self.centered == other.centered
    }
}

/// The most parts of an expression that are read, and statements of a norm.
pub const MAX_PARTS: usize = 256;

/// The state of reading an expression.
struct Trail {
    /// The statements of its variables.
    made_by: BTreeSet<usize>,
    /// The number of parts that may follow.
    left: usize,
}

/// The fields that were looked up, by type, and whether they have one dimension.
pub type Vectors = BTreeMap<(String, String), bool>;

/// The context in which expressions are read.
pub struct RowContext<'u> {
    pub facts: Facts<'u>,
    pub variables: BTreeMap<String, Known>,
    /// Whether rows may be a sum.
    pub sums: bool,
    pub vectors: &'u RefCell<Vectors>,
}

impl RowContext<'_> {
    fn text(&self, node: &impl Extent) -> &str {
        self.facts.text(node)
    }

    fn rows(&self, name: String, expr: &Expr, residual: Option<Residual>) -> RowValue {
        let place = ExprPlace(self.facts.range(expr));
        let input = Input { name, place, residual };
        Norm::new(input).at(Step::Rows)
    }

    /// The rows that copy a variable, or `name.add(term)?` where an option is `Some(term)`.
    pub fn sum(
        &self,
        option: &Expr,
        some: &Pat,
        (name, sum): (&str, &Expr),
        copy: &Expr,
    ) -> Option<RowValue> {
        let (sum, copy) = (method(sum)?, get!(copy, Expr::MethodCall)?);
        let is_sum = sum.method == "add" && is(&sum.receiver, name);
        let is_copy = copy.method == "clone" && copy.args.is_empty();
        let rows = ident(&copy.receiver).filter(|_| is_sum && is_copy && self.sums)?;
        let residual = Residual {
            option: self.text(option).to_owned(),
            pattern: self.text(some).to_owned(),
            name: some_name(some)?,
            term: self.text(sum.args.first()?).to_owned(),
        };
        let is_new = !self.variables.contains_key(&rows);
        is_new.then(|| self.rows(rows, &copy.receiver, Some(residual)))
    }

    /// The sum in `match residual { Some(term) => rows.add(term)?, None => rows.clone() }`.
    fn optional(&self, choice: &syn::ExprMatch) -> Option<RowValue> {
        let (_, some, none) = optional(choice)?;
        let name = ident(&method(&none.body)?.receiver)?;
        let copy = strip(&none.body);
        self.sum(&choice.expr, &some.pat, (&name, &some.body), copy)
    }

    /// The meaning of an expression, if it is certain.
    pub fn eval(&self, expr: &Expr) -> Option<Known> {
        let mut trail = Trail { made_by: BTreeSet::new(), left: MAX_PARTS };
        let value = self.value(expr, &mut trail)?;
        let made_by = trail.made_by;
        Some(Known { value, made_by })
    }

    fn value(&self, expr: &Expr, trail: &mut Trail) -> Option<RowValue> {
        trail.left = trail.left.checked_sub(1)?;
        match expr {
            Expr::Path(_) => {
                let name = ident(expr)?;
                let Some(known) = self.variables.get(&name) else {
                    return Some(self.rows(name, expr, None));
                };
                trail.made_by.extend(&known.made_by);
                Some(known.value.clone())
            }
            Expr::Try(inner) => self.value(&inner.expr, trail),
            Expr::Paren(inner) => self.value(&inner.expr, trail),
            Expr::Reference(inner) => self.value(&inner.expr, trail),
            Expr::Cast(cast) => {
                let size = self.value(&cast.expr, trail)?;
                matches!(size, RowValue::Size(_)).then_some(size)
            }
            Expr::MethodCall(call) => self.method(call, trail),
            Expr::Binary(binary) => self.binary(binary, trail),
            Expr::Match(choice) => {
                (self.wide_dtype(choice, trail)).or_else(|| self.optional(choice))
            }
            Expr::If(choice) => self.widened(choice, trail),
            _ => None,
        }
    }

    fn tensor(&self, expr: &Expr, trail: &mut Trail) -> Option<Norm> {
        get!(self.value(expr, trail)?, RowValue::Tensor)
    }

    fn method(&self, call: &ExprMethodCall, trail: &mut Trail) -> Option<RowValue> {
        let norm = self.tensor(&call.receiver, trail)?;
        let args: Vec<_> = call.args.iter().collect();
        match (call.method.to_string().as_str(), args.as_slice(), norm.step) {
            ("clone" | "contiguous", [], _) => Some(RowValue::Tensor(norm)),
            ("dtype", [], Step::Rows) => Some(RowValue::Dtype(norm.input)),
            ("dim", [dim], Step::Rows) if self.is_last(dim) => Some(RowValue::Size(norm.input)),
            ("to_dtype", [dtype], _) => self.converted(norm, dtype, trail),
            ("sqr", [], Step::Rows) => Some(norm.at(Step::Squares)),
            ("powf", [two], Step::Rows) if is_two(two) => Some(norm.at(Step::Squares)),
            ("mul" | "broadcast_mul", [by], Step::Rows) => {
                let by = self.tensor(by, trail)?;
                if by == norm {
                    Some(norm.at(Step::Squares))
                } else {
                    divided(norm, by, Step::Inverse)
                }
            }
            ("sum_keepdim", [dim], Step::Rows) if self.is_last(dim) => Some(norm.at(Step::Sum)),
            ("sum_keepdim", [dim], Step::Squares) if self.is_last(dim) => {
                Some(norm.at(Step::SquareSum))
            }
            ("mean_keepdim", [dim], Step::Rows) if self.is_last(dim) => Some(norm.at(Step::Mean)),
            ("mean_keepdim", [dim], Step::Squares) if self.is_last(dim) => {
                Some(norm.at(Step::Variance))
            }
            ("sqrt", [], Step::Shifted) => Some(norm.at(Step::Deviation)),
            ("recip", [], Step::Deviation) => Some(norm.at(Step::Inverse)),
            ("powf", [power], Step::Shifted) if self.text(*power) == "-0.5" => {
                Some(norm.at(Step::Inverse))
            }
            ("broadcast_sub", [mean], Step::Rows) => {
                let mean = self.tensor(mean, trail)?;
                let certain = mean.step == Step::Mean && !norm.centered && mean.is_of(&norm);
                let centered = true;
                certain.then_some(RowValue::Tensor(Norm { centered, ..norm }))
            }
            ("broadcast_div", [by], Step::Rows) => {
                divided(norm, self.tensor(by, trail)?, Step::Deviation)
            }
            ("broadcast_mul", [weight], Step::Normal) => {
                let weight = self.vector(weight, trail)?;
                Some(Norm { weight, ..norm }.at(Step::Weighted))
            }
            ("broadcast_add", [bias], Step::Weighted) if norm.bias.is_none() => {
                let bias = Some(self.vector(bias, trail)?);
                Some(RowValue::Tensor(Norm { bias, ..norm }))
            }
            _ => None,
        }
    }

    fn converted(&self, norm: Norm, dtype: &Expr, trail: &mut Trail) -> Option<RowValue> {
        let wide = match self.dtype(dtype, trail)? {
            RowValue::Dtype(rows) if rows == norm.input => false,
            RowValue::Wide => true,
            _ => return None,
        };
        Some(RowValue::Tensor(Norm { wide, ..norm }))
    }

    fn dtype(&self, dtype: &Expr, trail: &mut Trail) -> Option<RowValue> {
        if self.is_f32(dtype) {
            return Some(RowValue::Wide);
        }
        let dtype = self.value(dtype, trail)?;
        matches!(dtype, RowValue::Dtype(_) | RowValue::Wide).then_some(dtype)
    }

    fn binary(&self, binary: &syn::ExprBinary, trail: &mut Trail) -> Option<RowValue> {
        let (left, right) = (self.value(&binary.left, trail)?, &*binary.right);
        match (left, binary.op) {
            (RowValue::Tensor(norm), syn::BinOp::Div(_)) => {
                let rows = get!(self.value(right, trail)?, RowValue::Size)?;
                let step = match norm.step {
                    Step::Sum => Step::Mean,
                    Step::SquareSum => Step::Variance,
                    _ => return None,
                };
                (rows == norm.input).then(|| norm.at(step))
            }
            (RowValue::Tensor(norm), syn::BinOp::Mul(_)) if norm.step == Step::Rows => {
                (self.tensor(right, trail)? == norm).then(|| norm.at(Step::Squares))
            }
            (RowValue::Tensor(norm), syn::BinOp::Add(_)) if norm.step == Step::Variance => {
                let eps = self.text(right).to_owned();
                self.facts.is_number(right, DEPTH).then(|| Norm { eps, ..norm }.at(Step::Shifted))
            }
            (RowValue::Dtype(_), syn::BinOp::Ne(_)) => {
                self.is_f32(right).then_some(RowValue::IsNarrow)
            }
            _ => None,
        }
    }

    /// The dtype in `match dtype { DType::F16 | DType::BF16 => DType::F32, d => d }`.
    fn wide_dtype(&self, choice: &syn::ExprMatch, trail: &mut Trail) -> Option<RowValue> {
        get!(self.value(&choice.expr, trail)?, RowValue::Dtype)?;
        let [half, other] = exactly(&choice.arms)?;
        let same = match &other.pat {
            Pat::Ident(pat) => ident(&other.body).is_some_and(|name| pat.ident == name),
            _ => self.text(&other.body) == self.text(&choice.expr),
        };
        (same && self.is_f32(&half.body)).then_some(RowValue::Wide)
    }

    /// The rows in `if is_narrow { xs.to_dtype(DType::F32)? } else { xs.clone() }`.
    fn widened(&self, choice: &syn::ExprIf, trail: &mut Trail) -> Option<RowValue> {
        let RowValue::IsNarrow = self.value(&choice.cond, trail)? else { return None };
        let then = only(&choice.then_branch)?;
        let other = get!(&*choice.else_branch.as_ref()?.1, Expr::Block)?;
        let other = only(&other.block)?;
        let (then, other) = (self.tensor(then, trail)?, self.tensor(other, trail)?);
        let wide = then.wide;
        (Norm { wide, ..other } == then).then_some(RowValue::Tensor(then))
    }

    /// A tensor of one dimension as an expression of type `&Tensor`: a field, optionally with a
    /// number added or cast.
    fn vector(&self, expr: &Expr, trail: &mut Trail) -> Option<String> {
        if let Some(call) = method(expr).filter(|call| call.method == "to_dtype") {
            self.dtype(call.args.first()?, trail)?;
            return self.vector(&call.receiver, trail);
        }
        self.is_vector(expr).then(|| self.facts.borrowed(expr))
    }

    fn is_vector(&self, expr: &Expr) -> bool {
        match strip(expr) {
            Expr::Binary(binary) => {
                let number = |side| self.facts.is_number(side, DEPTH);
                number(&binary.right) && self.is_vector(&binary.left)
                    || number(&binary.left) && self.is_vector(&binary.right)
            }
            Expr::Field(_) => {
                let named = own_field(expr).zip(self.facts.function.owner.as_ref());
                named.is_some_and(|(field, owner)| self.is_vector_field(owner, field))
            }
            _ => false,
        }
    }

    fn is_vector_field(&self, owner: &str, field: String) -> bool {
        let is_vector = || {
            let holder = (self.facts.function.module.clone(), owner.to_owned());
            let ty = self.facts.field_type(&field);
            ty.is_some_and(|ty| self.text(ty) == "Tensor")
                && origin(self.facts.unit, &holder, &field).1 == Some(1)
        };
        let mut vectors = self.vectors.borrow_mut();
        *vectors.entry((owner.to_owned(), field.clone())).or_insert_with(is_vector)
    }

    fn is_last(&self, dim: &Expr) -> bool {
        matches!(dim, Expr::Path(_)) && self.text(dim).ends_with("Minus1")
    }

    fn is_f32(&self, dtype: &Expr) -> bool {
        matches!(dtype, Expr::Path(_)) && self.text(dtype).ends_with("DType::F32")
    }
}

/// The rows divided by their deviation, or multiplied by its reciprocal.
fn divided(norm: Norm, by: Norm, step: Step) -> Option<RowValue> {
    let certain = by.step == step && by.is_of(&norm);
    let eps = by.eps;
    certain.then(|| Norm { eps, ..norm }.at(Step::Normal))
}

fn is_two(expr: &Expr) -> bool {
    let number =
        get!(strip(expr), Expr::Lit).and_then(|literal| get!(&literal.lit, syn::Lit::Float));
    number.is_some_and(|number| number.base10_digits().parse() == Ok(2f64))
}
