//! Products with tensors of `self` in the form that a layer computes: `x W^T`, plus a bias.

use std::collections::BTreeMap;
use std::ops::Range;

use syn::{Expr, Pat, Stmt};

use crate::facts::Facts;
use crate::syntax::{
    axes, choice, condition, exactly, get, ident, is_ok, mentions, only, own_member, some_name,
    strip, tail, untyped, value, variable, without,
};
use crate::table::list;

/// The byte range of an expression, ignored by comparisons.
#[derive(Clone, Debug)]
pub struct ExprPlace(pub Range<usize>);

impl PartialEq for ExprPlace {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ExprPlace {}

/// A product with a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Product {
    /// An expression of type `&Tensor`, and its range.
    pub input: String,
    pub place: ExprPlace,
    /// The field that is the weight.
    pub weight: String,
    /// The index of the weight, if the field is a stack of weights.
    pub index: Option<String>,
    /// Whether the weight is stored as `[in, out]`.
    pub turned: bool,
    /// The field that is added.
    pub bias: Option<String>,
    /// The dimensions of the input, if they were flattened to two: `x.reshape((a * b, c))`.
    pub flat: bool,
    /// The product before the bias was added, as an index into the found products.
    pub before: Option<usize>,
}

/// A tensor that may be a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weight {
    field: String,
    pub index: Option<String>,
    turned: bool,
}

impl Weight {
    fn turn(self) -> Meaning {
        Meaning::Weight(Self { turned: !self.turned, ..self })
    }
}

/// The methods whose results have a meaning. Other calls are read no further: chains may be long.
const METHODS: &[&str] = list![
add broadcast_add broadcast_left broadcast_matmul clone contiguous get i matmul narrow reshape
squeeze t to_dtype transpose
];

/// The meaning of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// A weight or its transpose, broadcast over any batch.
    Weight(Weight),
    /// A stack of weights, and a selected weight as a stack of one.
    Stack(String),
    One(String, String),
    /// The input, unchanged or with its first dimensions flattened.
    Input {
        text: String,
        flat: bool,
    },
    Bias(String),
    Product(Product),
}

/// The fields of a struct with tensors.
pub struct Tensors {
    /// The fields of type `Tensor`.
    pub single: Vec<String>,
    /// The fields of type `Tensor` with three dimensions.
    pub stacks: Vec<String>,
    /// The fields of type `Option<Tensor>`.
    pub options: Vec<String>,
}

/// The context in which expressions are read.
pub struct ProductContext<'e> {
    pub facts: Facts<'e>,
    pub fields: &'e Tensors,
    /// Whether a term that is added to a product belongs to it.
    biases: bool,
    pub variables: BTreeMap<String, Meaning>,
    /// The names of an input's dimensions, inside a `match` on them.
    dims: Vec<String>,
    /// Whether `Ok` is of candle's `Result`, like the products.
    pub is_candle: bool,
}

/// Whether an expression that is known here is a `Result`.
pub fn is_result(expr: &Expr) -> bool {
    match expr {
        Expr::Paren(inner) => is_result(&inner.expr),
        Expr::MethodCall(call) => call.method != "clone",
        Expr::Call(_) => true,
        Expr::Match(choice) => choice.arms.last().is_some_and(|arm| is_result(&arm.body)),
        Expr::If(choice) => tail(&choice.then_branch).is_some_and(is_result),
        Expr::Block(block) => tail(&block.block).is_some_and(is_result),
        _ => false,
    }
}

impl<'e> ProductContext<'e> {
    pub fn new(facts: Facts<'e>, fields: &'e Tensors, biases: bool) -> Self {
        Self {
            facts,
            fields,
            biases,
            variables: BTreeMap::new(),
            dims: Vec::new(),
            is_candle: facts.returns_result_of(&["candle", "candle_core"]),
        }
    }

    fn copy(&self) -> Self {
        Self { variables: self.variables.clone(), dims: self.dims.clone(), ..*self }
    }

    /// The context for an expression with the type of `other`: a product's `Result` is candle's.
    fn beside(&self, other: &Expr) -> Self {
        let is_call = matches!(other, Expr::MethodCall(_));
        Self { is_candle: self.is_candle || is_call, ..self.copy() }
    }

    /// The meaning of an expression, if it is certain.
    pub fn eval(&self, expr: &Expr) -> Option<Meaning> {
        match expr {
            Expr::Try(inner) => self.eval(&inner.expr),
            Expr::Paren(inner) => self.eval(&inner.expr),
            Expr::Reference(inner) if inner.mutability.is_none() => self.eval(&inner.expr),
            Expr::Path(_) => self.variables.get(&ident(expr)?).cloned(),
            Expr::Field(_) => self.field(expr),
            Expr::MethodCall(call) => self.method(call),
            Expr::Call(call) => {
                let ok = is_ok(call) && self.is_candle;
                self.eval(call.args.first().filter(|_| ok)?)
            }
            Expr::Block(block) => self.block(&block.block),
            Expr::Match(choice) => match self.option(&choice.expr) {
                Some(bias) => self.choice(&bias, expr),
                None => self.arms(choice),
            },
            Expr::If(branches) => match condition(branches) {
                Some(bound) => self.choice(&self.option(&bound.expr)?, expr),
                None => {
                    let first = self.block(&branches.then_branch);
                    let other = &branches.else_branch.as_ref()?.1;
                    same([first, self.eval(other)].into_iter())
                }
            },
            _ => None,
        }
    }

    fn field(&self, expr: &Expr) -> Option<Meaning> {
        let field = own_member(expr)?;
        if self.fields.options.contains(&field) {
            return Some(Meaning::Bias(field));
        }
        if self.fields.stacks.contains(&field) {
            return Some(Meaning::Stack(field));
        }
        self.fields.single.contains(&field).then(|| weight(field, None))
    }

    /// The field of an expression of type `&Option<Tensor>` or `Option<&Tensor>`.
    fn option(&self, expr: &Expr) -> Option<String> {
        let expr = match strip(expr) {
            Expr::MethodCall(call) if call.method == "as_ref" => &call.receiver,
            expr => expr,
        };
        own_member(expr).filter(|field| self.fields.options.contains(field))
    }

    /// An operand that is not a weight, as an expression of type `&Tensor`.
    fn input(&self, expr: &Expr) -> Option<(String, bool)> {
        match self.eval(expr) {
            Some(Meaning::Input { text, flat }) => Some((text, flat)),
            Some(Meaning::Product(product)) if !product.flat => {
                Some((self.facts.borrowed(without(expr, &["contiguous"])), false))
            }
            Some(_) => None,
            None => {
                let bare = without(expr, &["contiguous"]);
                let text = self.facts.text(bare);
                let is_other = |(name, value): (&String, &Meaning)| {
                    !matches!(value, Meaning::Input { .. }) && mentions(text, name) > 0
                };
                let is_read = self.variables.iter().any(is_other);
                (!is_read).then(|| (self.facts.borrowed(bare), false))
            }
        }
    }

    fn method(&self, call: &syn::ExprMethodCall) -> Option<Meaning> {
        let args: Vec<_> = call.args.iter().collect();
        let name = call.method.to_string();
        if let ("matmul" | "broadcast_matmul", [operand]) = (name.as_str(), args.as_slice()) {
            return self.product(&call.receiver, operand);
        }
        if !METHODS.contains(&&*name) {
            return None;
        }
        let Some(value) = self.eval(&call.receiver) else { return self.flattened(call) };
        match (value, name.as_str(), args.as_slice()) {
            (Meaning::Weight(weight), name, args) => weight_of(weight, name, args),
            (Meaning::Stack(field), name, args) => self.one(field, name, args),
            (Meaning::One(field, index), "squeeze", [dim]) if self.is_text(dim, "0") => {
                Some(weight(field, Some(index)))
            }
            (value @ Meaning::Input { .. }, "contiguous" | "clone", []) => Some(value),
            (Meaning::Input { flat: false, .. }, "reshape", _) => self.flattened(call),
            (value @ Meaning::Product(_), "contiguous", []) => Some(value),
            (Meaning::Product(product), "broadcast_add" | "add", [bias]) => {
                self.biased(product, bias)
            }
            (Meaning::Product(product), "reshape", [shape]) if product.flat => {
                self.restored(product, shape)
            }
            _ => None,
        }
    }

    fn is_text(&self, expr: &Expr, text: &str) -> bool {
        self.facts.text(expr) == text
    }

    fn product(&self, receiver: &Expr, operand: &Expr) -> Option<Meaning> {
        let weight = get!(self.eval(operand)?, Meaning::Weight)?;
        let (input, flat) = self.input(receiver)?;
        let source = self.facts.unit.source;
        Some(Meaning::Product(Product {
            place: ExprPlace(source.range(without(receiver, &["contiguous"]))),
            input,
            weight: weight.field,
            index: weight.index,
            turned: !weight.turned,
            bias: None,
            flat,
            before: None,
        }))
    }

    /// A selected weight of a stack.
    fn one(&self, field: String, method: &str, args: &[&Expr]) -> Option<Meaning> {
        let text = |index: &Expr| self.facts.text(index).to_owned();
        match (method, args) {
            ("get", [index]) => Some(weight(field, Some(text(index)))),
            ("i", [index]) if self.facts.is_given_size(index) => {
                Some(weight(field, Some(text(index))))
            }
            ("narrow", [dim, index, len]) if self.is_text(dim, "0") && self.is_text(len, "1") => {
                Some(Meaning::One(field, text(index)))
            }
            _ => None,
        }
    }

    fn biased(&self, product: Product, bias: &Expr) -> Option<Meaning> {
        let field = match self.eval(bias)? {
            Meaning::Bias(field) => field,
            Meaning::Weight(weight) if !weight.turned => weight.field,
            _ => return None,
        };
        let certain = self.biases && product.bias.is_none() && field != product.weight;
        let bias = Some(field);
        certain.then_some(Meaning::Product(Product { bias, ..product }))
    }

    /// The input flattened by `x.reshape((a * b, c))` in an arm of `match x.dims()` with the
    /// pattern `[a, b, c]`.
    fn flattened(&self, call: &syn::ExprMethodCall) -> Option<Meaning> {
        let (last, first) = self.dims.split_last()?;
        let [shape] = exactly(&call.args)?;
        let [rows, columns] = exactly(&get!(shape, Expr::Tuple)?.elems)?;
        let source = self.facts.unit.source;
        let product = first.join("*");
        let certain = call.method == "reshape"
            && source.slice(rows).replace([' ', '('], "").replace(')', "") == product
            && source.slice(columns) == last;
        let (text, flat) = self.input(&call.receiver).filter(|_| certain)?;
        (!flat).then_some(Meaning::Input { text, flat: true })
    }

    /// The product restored by `product.reshape((a, b, ()))` in that arm.
    fn restored(&self, product: Product, shape: &Expr) -> Option<Meaning> {
        let (_, first) = self.dims.split_last()?;
        let shape = get!(shape, Expr::Tuple)?;
        let source = self.facts.unit.source;
        let texts: Vec<_> = shape.elems.iter().map(|elem| source.slice(elem)).collect();
        let (_, leading) = texts.split_last()?;
        let flat = false;
        (leading == first).then_some(Meaning::Product(Product { flat, ..product }))
    }

    /// The last expression of a block of definitions.
    fn block(&self, block: &syn::Block) -> Option<Meaning> {
        let (last, before) = value(block)?;
        let mut context = self.copy();
        for stmt in before {
            let bound = context.bound(get!(stmt, Stmt::Local)?)?;
            context.variables.extend(bound);
        }
        context.eval(last)
    }

    /// The meanings of the names of a declaration.
    pub fn bound(&self, local: &syn::Local) -> Option<Vec<(String, Meaning)>> {
        let init = local.init.as_ref().filter(|init| init.diverge.is_none())?;
        match untyped(&local.pat) {
            Pat::Ident(pat) => Some(vec![(pat.ident.to_string(), self.eval(&init.expr)?)]),
            Pat::Tuple(tuple) => {
                let values = self.tuple(&init.expr)?;
                let names = idents(&tuple.elems)?;
                (names.len() == values.len()).then(|| names.into_iter().zip(values).collect())
            }
            _ => None,
        }
    }

    /// The elements of a tuple, if they are the same in all arms.
    fn tuple(&self, expr: &Expr) -> Option<Vec<Meaning>> {
        match strip(expr) {
            Expr::Tuple(tuple) => {
                let value = |expr: &Expr| match self.eval(expr) {
                    Some(value) => Some(value),
                    None => {
                        let (text, flat) = self.input(expr)?;
                        Some(Meaning::Input { text, flat })
                    }
                };
                tuple.elems.iter().map(value).collect()
            }
            Expr::Match(choice) => {
                let arms = choice.arms.iter().map(|arm| self.tuple(&arm.body));
                same(arms)
            }
            Expr::If(choice) => {
                let other = self.tuple(&choice.else_branch.as_ref()?.1);
                let first = tail(&choice.then_branch).and_then(|expr| self.tuple(expr));
                same([first, other].into_iter())
            }
            Expr::Block(block) => self.tuple(only(&block.block)?),
            _ => None,
        }
    }

    fn arms(&self, choice: &syn::ExprMatch) -> Option<Meaning> {
        same(choice.arms.iter().map(|arm| {
            let dims = names(&arm.pat).unwrap_or_default();
            Self { dims, ..self.copy() }.eval(&arm.body)
        }))
    }

    fn choice(&self, bias: &str, expr: &Expr) -> Option<Meaning> {
        let choice = choice(expr)?;
        let some = choice.some.only()?;
        let none = self.beside(some).eval(choice.none);
        self.optional(bias, choice.name, none, some)
    }

    /// The product in `match bias { None => product, Some(bias) => product + bias }`.
    fn optional(
        &self,
        bias: &str,
        name: String,
        plain: Option<Meaning>,
        some: &Expr,
    ) -> Option<Meaning> {
        let mut context = self.copy();
        context.variables.insert(name, Meaning::Bias(bias.to_owned()));
        match (plain?, context.eval(some)?) {
            (Meaning::Product(plain), Meaning::Product(some))
                if plain.bias.is_none()
                    && some.bias.as_deref() == Some(bias)
                    && plain.input == some.input
                    && plain.weight == some.weight
                    && plain.index == some.index
                    && plain.turned == some.turned
                    && plain.flat == some.flat =>
            {
                Some(Meaning::Product(some))
            }
            _ => None,
        }
    }

    /// The product's name and new meaning after
    /// `if let Some(bias) = &self.bias { product = product.broadcast_add(bias)?; }`, or the same
    /// without a condition.
    pub fn added(&self, stmt: &Stmt) -> Option<(String, Product)> {
        let value = match stmt {
            Stmt::Expr(Expr::Assign(assign), Some(_)) => {
                (ident(&assign.left)?, self.eval(&assign.right)?)
            }
            Stmt::Expr(Expr::If(choice), _) if choice.else_branch.is_none() => {
                let bound = condition(choice)?;
                let [Stmt::Expr(Expr::Assign(assign), _)] = choice.then_branch.stmts.as_slice()
                else {
                    return None;
                };
                let (bias, name) = (self.option(&bound.expr)?, some_name(&bound.pat)?);
                let product = ident(&assign.left)?;
                let plain = self.variables.get(&product).cloned();
                let value = self.optional(&bias, name, plain, &assign.right)?;
                (product, value)
            }
            _ => return None,
        };
        let same = |name: &str, product: &Product| match self.variables.get(name) {
            Some(Meaning::Product(before)) => before.before == product.before,
            _ => false,
        };
        match value {
            (name, Meaning::Product(product))
                if product.bias.is_some() && same(&name, &product) =>
            {
                Some((name, product))
            }
            _ => None,
        }
    }
}

fn weight(field: String, index: Option<String>) -> Meaning {
    Meaning::Weight(Weight { field, index, turned: false })
}

/// The result of a method on a weight.
fn weight_of(weight: Weight, method: &str, args: &[&Expr]) -> Option<Meaning> {
    match (method, args) {
        ("clone" | "contiguous", []) | ("broadcast_left", [_]) => Some(Meaning::Weight(weight)),
        // A cast to the dtype of something else, which is the weight's.
        ("to_dtype", [Expr::MethodCall(target)]) if target.method == "dtype" => {
            Some(Meaning::Weight(weight))
        }
        ("t", []) => Some(weight.turn()),
        ("transpose", args) if matches!(axes(args), Some((0, 1) | (-2, -1))) => Some(weight.turn()),
        _ => None,
    }
}

/// The names in a pattern of dimensions.
fn names(pat: &Pat) -> Option<Vec<String>> {
    match pat {
        Pat::Reference(inner) => names(&inner.pat),
        Pat::Slice(slice) => idents(&slice.elems),
        _ => None,
    }
}

/// The names of patterns that are plain identifiers.
fn idents<'p>(pats: impl IntoIterator<Item = &'p Pat>) -> Option<Vec<String>> {
    pats.into_iter().map(variable).collect()
}

/// The common value of all elements.
fn same<T: PartialEq>(mut values: impl Iterator<Item = Option<T>>) -> Option<T> {
    let first = values.next()??;
    values.all(|value| value.as_ref() == Some(&first)).then_some(first)
}
