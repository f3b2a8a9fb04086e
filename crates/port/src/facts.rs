//! Facts about the variables of a function, as far as the text states them.

use std::ops::Range;

use syn::Expr;

use super::built::ADDS;
use super::functions::{Bindings, Function, inputs, output};
use super::scopes::Origin;
use super::source::Extent;
use super::syntax::{binds, called, get, ident, is, is_ok, only, strip, tail, values, words};
use super::types::{arguments, is_named, last_name};
use super::unit::Unit;
use super::walk::exprs;

/// The depth of a search, enough for any chain of definitions in a function.
pub const DEPTH: usize = 24;

/// A function and its file, as a source of facts.
#[derive(Clone, Copy)]
pub struct Facts<'u> {
    pub unit: &'u Unit<'u>,
    pub function: &'u Function<'u>,
}

/// All functions of a file in order, except nested functions.
pub fn all<'u>(unit: &'u Unit<'_>) -> impl Iterator<Item = Facts<'u>> {
    unit.functions.iter().map(move |function| Facts { unit, function })
}

/// The functions of a name, of any type.
pub fn of_name<'u>(unit: &'u Unit<'_>, name: &str) -> impl Iterator<Item = Facts<'u>> {
    all(unit).filter(move |one| one.function.signature.ident == name)
}

impl<'u> Facts<'u> {
    /// The places where the function binds a name.
    pub fn bindings(&self, name: &str) -> Option<&'u Bindings<'u>> {
        self.function.bindings.get(name)
    }

    /// The definitions of a variable before a byte, the last first, without definitions in blocks
    /// that have ended.
    pub fn definitions(&self, name: &str, before: usize) -> Vec<&'u Expr> {
        let source = self.unit.source;
        let all = self.bindings(name).into_iter().flat_map(|all| all.found.iter().rev());
        // An assignment in such a block changes a variable of an outer block.
        let counts = all.filter(|one| one.is_assigned || one.scope.end > before);
        // The values of a tuple are outside of the bindings that it gives them to.
        let counts = counts.filter(|one| one.at <= before);
        let values = counts.filter_map(|one| one.value);
        values.filter(|value| source.range(*value).end <= before).collect()
    }

    pub fn text(&self, node: &impl Extent) -> &'u str {
        self.unit.source.slice(node)
    }

    pub fn start(&self, node: &impl Extent) -> usize {
        self.unit.source.start(node)
    }

    pub fn range(&self, node: &impl Extent) -> Range<usize> {
        self.unit.source.range(node)
    }

    /// The last definition of the variable that an expression is.
    pub fn definition(&self, expr: &Expr) -> Option<&'u Expr> {
        self.definitions(&ident(expr)?, self.start(expr)).into_iter().next()
    }

    /// Whether an expression is a parameter of type `usize`.
    pub fn is_given_size(&self, expr: &Expr) -> bool {
        ident(expr).is_some_and(|name| self.parameter(&name) == Some("usize"))
    }

    /// Whether an expression is a number of type `usize`, as far as the text states it.
    pub fn is_size(&self, expr: &Expr, depth: usize) -> bool {
        let Some(depth) = depth.checked_sub(1) else { return false };
        match strip(expr) {
            Expr::Lit(literal) => matches!(literal.lit, syn::Lit::Int(_)),
            Expr::Cast(cast) => is_named(&cast.ty, "usize"),
            Expr::Binary(sum) => self.is_size(&sum.left, depth) && self.is_size(&sum.right, depth),
            Expr::MethodCall(call) => {
                let gives = |names: &[&str]| names.iter().any(|name| call.method == name);
                gives(&["dim", "elem_count", "len"])
                    || gives(&["div_ceil", "max", "min", "pow", "unwrap_or"])
                        && self.is_size(&call.receiver, depth)
            }
            Expr::Field(field) => self.are_all(field, |ty| is_named(ty, "usize")),
            path @ Expr::Path(_) => match self.definition(path) {
                Some(value) => self.is_size(value, depth),
                None => ident(path).is_some_and(|name| match self.parameter(&name) {
                    Some(ty) => ty == "usize",
                    None => self.unit.built.sizes.contains_key(&name),
                }),
            },
            _ => false,
        }
    }

    /// The function around a byte.
    pub fn around(unit: &'u Unit<'_>, at: usize) -> Option<Self> {
        let start = |one: &Function<'_>| unit.source.start(one.signature);
        let next = unit.functions.partition_point(|one| start(one) <= at);
        let function = &unit.functions[next.checked_sub(1)?];
        unit.source.range(function.block).contains(&at).then_some(Self { unit, function })
    }

    /// The values that the function adds to a container variable.
    pub fn added(&self, name: &str) -> Vec<&'u Expr> {
        let text = self.text(self.function.block);
        if !ADDS.iter().any(|add| text.contains(&format!("{name}.{add}("))) {
            return Vec::new();
        }
        let calls = exprs(self.function.block).filter_map(|expr| get!(expr, Expr::MethodCall));
        let adds = calls
            .filter(|call| is(&call.receiver, name) && ADDS.iter().any(|add| call.method == add));
        adds.flat_map(|call| &call.args).collect()
    }

    /// The number of assignments to a variable in the function.
    pub fn assignments(&self, name: &str) -> usize {
        let all = self.bindings(name).into_iter().flat_map(|all| &all.found);
        all.filter(|one| one.is_assigned).count()
    }

    /// Whether an expression is a number, not a tensor.
    pub fn is_number(&self, expr: &Expr, depth: usize) -> bool {
        let Some(depth) = depth.checked_sub(1) else { return false };
        match expr {
            Expr::Lit(_) | Expr::Cast(_) => true,
            Expr::Paren(inner) => self.is_number(&inner.expr, depth),
            Expr::Unary(inner) => self.is_number(&inner.expr, depth),
            Expr::Binary(binary) => {
                self.is_number(&binary.left, depth) || self.is_number(&binary.right, depth)
            }
            Expr::MethodCall(call) => {
                ["sqrt", "powf", "powi", "recip"].iter().any(|name| call.method == name)
            }
            Expr::Call(call) => {
                let text = self.text(&*call.func);
                text.starts_with("f64::") || text.starts_with("f32::")
            }
            Expr::Path(_) => {
                ident(expr).and_then(|name| self.parameter(&name)).is_some_and(is_float)
                    || self.definition(expr).is_some_and(|value| self.is_number(value, depth))
            }
            Expr::Field(field) => self.are_all(field, |ty| is_float(self.text(ty))),
            _ => false,
        }
    }

    /// Whether all fields of this name, in all types of the file, have such a type.
    fn are_all(&self, field: &syn::ExprField, is_it: impl Fn(&syn::Type) -> bool) -> bool {
        let types = self.field_types(field);
        !types.is_empty() && types.into_iter().all(is_it)
    }

    /// Whether an expression is a tensor, or a reference to a tensor.
    pub fn is_tensor(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Reference(inner) => self.is_tensor(&inner.expr),
            Expr::Paren(inner) => self.is_tensor(&inner.expr),
            Expr::Try(tried) => match &*tried.expr {
                Expr::MethodCall(call) => {
                    let name = call.method.to_string();
                    !(name.starts_with("dim") || name.starts_with("to_scalar") || name == "rank")
                }
                inner => matches!(strip(inner), Expr::Binary(_)),
            },
            Expr::MethodCall(call) => call.method == "clone" && self.is_tensor(&call.receiver),
            Expr::If(choice) => tail(&choice.then_branch).is_some_and(|last| self.is_tensor(last)),
            Expr::Match(choice) => choice.arms.iter().any(|arm| self.is_tensor(&arm.body)),
            Expr::Block(block) => tail(&block.block).is_some_and(|last| self.is_tensor(last)),
            Expr::Path(_) => match self.definition(expr) {
                Some(value) => self.is_tensor(value),
                None => ident(expr).is_some_and(|name| {
                    matches!(self.parameter(&name), Some("&Tensor" | "Tensor"))
                }),
            },
            _ => false,
        }
    }

    /// Whether a name is a parameter that is a tensor, an optional tensor, or a reference to a
    /// tensor.
    pub fn is_given_tensor(&self, name: &str) -> bool {
        let ty = self.parameter(name).unwrap_or_default();
        words(ty).any(|word| word == "Tensor")
    }

    /// Whether the function returns something with a tensor.
    pub fn returns_tensor(&self) -> bool {
        words(self.text(&self.function.signature.output)).any(|word| word == "Tensor")
    }

    /// The type of a parameter.
    pub fn type_of_parameter(&self, name: &str) -> Option<&'u syn::Type> {
        let found = inputs(self.function.signature).find(|input| binds(&*input.pat, name));
        found.map(|input| &*input.ty)
    }

    fn parameter(&self, name: &str) -> Option<&'u str> {
        Some(self.text(self.type_of_parameter(name)?))
    }

    /// The value of an expression, which may be a reference, as a reference.
    pub fn borrowed(&self, expr: &Expr) -> String {
        let text = self.text(expr);
        match expr {
            Expr::Paren(inner) => self.borrowed(&inner.expr),
            _ if self.is_reference(expr) => text.to_owned(),
            _ => format!("&{text}"),
        }
    }

    /// Whether an expression is a reference, as far as its definition states it.
    pub fn is_reference(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Reference(_) => true,
            Expr::Path(_) => {
                ident(expr).is_some_and(|name| self.is_reference_at(&name, self.start(expr)))
            }
            _ => false,
        }
    }

    /// Whether a variable is a reference, at a byte.
    pub fn is_reference_at(&self, name: &str, at: usize) -> bool {
        match self.definitions(name, at).first() {
            Some(value) => self.is_reference(value),
            None => self.parameter(name).is_some_and(|ty| ty.starts_with('&')),
        }
    }

    /// Whether an expression is a parameter of type `Option`.
    pub fn is_option(&self, expr: &Expr) -> bool {
        let given = ident(expr).filter(|_| self.definition(expr).is_none());
        let ty = given.and_then(|name| self.parameter(&name));
        ty.is_some_and(|ty| ty.starts_with("Option<"))
    }

    /// Whether a variable is an `Option<Tensor>`, by its last definition; `None` without a
    /// definition.
    pub fn is_owned(&self, expr: &Expr) -> Option<bool> {
        let name = ident(expr)?;
        let at = self.start(expr);
        let definitions = self.definitions(&name, at);
        let clone = format!("Some({name}.clone())");
        // `let (.., mask) = if .. { (.., None) } else { (.., Some(mask.clone())) };`
        let cloned = |value: &&Expr| self.text(*value).contains(&clone);
        Some(owns(definitions.first()?) || definitions.iter().any(cloned))
    }

    /// Whether the `forward` of a field's type returns its input.
    pub fn is_identity(&self, layer: &Expr) -> bool {
        let field = get!(strip(layer), Expr::Field).into_iter();
        let types = field.flat_map(|field| self.field_types(field));
        let names: Vec<_> = types.filter_map(last_name).collect();
        !names.is_empty() && names.iter().all(|name| identity(self.unit, name))
    }

    /// The type of a field of `self` as written, if it is this layer of `candle_dynquant::nn`.
    pub fn ours(&self, field: &str, layer: &str) -> Option<&'u str> {
        let (unit, ty) = (self.unit, self.field_type(field)?);
        let ours = Origin::Ours(vec!["nn".into(), layer.into()]);
        (unit.origin(&self.function.module, ty)? == ours).then(|| unit.source.slice(ty))
    }

    /// The type of a field of `self`.
    pub fn field_type(&self, field: &str) -> Option<&'u syn::Type> {
        let function = self.function;
        let owner = function.owner.as_ref()?;
        self.unit.field(&function.module, owner, field)
    }

    /// Whether the function returns the `Result` of one of these crates, with their error.
    pub fn returns_result_of(&self, crates: &[&str]) -> bool {
        let Some(ty) = output(self.function.signature) else { return false };
        let is_it = match self.unit.origin(&self.function.module, ty) {
            Some(Origin::Other(path)) => match &path[..] {
                [krate, .., name] => crates.contains(&&**krate) && name == "Result",
                _ => false,
            },
            _ => false,
        };
        is_it && arguments(ty).len() == 1
    }

    /// The type that the last of these segments names, or the `impl`'s type for `Self`.
    pub fn owner_of<'s>(&self, segments: &'s [String]) -> Option<&'s String>
    where
        'u: 's,
    {
        let owner = segments.last().filter(|one| one.starts_with(char::is_uppercase))?;
        if owner == "Self" { self.function.owner.as_ref() } else { Some(owner) }
    }

    /// The origin of a path that is written in the function.
    pub fn resolve(&self, path: &[String]) -> Origin {
        let scopes = &self.unit.types.scopes;
        scopes.resolve(&self.function.module, path)
    }

    /// The types of the fields of this name, in all types of the file.
    pub fn field_types(&self, field: &syn::ExprField) -> Vec<&'u syn::Type> {
        let name = get!(&field.member, syn::Member::Named);
        let fields = self.unit.types.declared.values().flatten().flat_map(|one| &one.fields);
        let same = fields.filter(|one| name.is_some() && one.ident.as_ref() == name);
        same.map(|one| &one.ty).collect()
    }
}

/// Whether an expression is an option of a value, not of a reference.
fn owns(expr: &Expr) -> bool {
    match expr {
        Expr::Try(inner) => {
            matches!(&*inner.expr, Expr::MethodCall(call) if call.method == "transpose")
        }
        Expr::MethodCall(call) => call.method == "cloned",
        Expr::Call(call) => {
            let some = called(call).is_some_and(|path| path.is_ident("Some"));
            let value = |expr: &Expr| match expr {
                Expr::MethodCall(call) => call.method == "clone",
                expr => matches!(expr, Expr::Try(_)),
            };
            some && call.args.first().is_some_and(value)
        }
        other => values(other).into_iter().any(owns),
    }
}

fn is_float(ty: &str) -> bool {
    ty == "f64" || ty == "f32"
}

/// Whether `forward` of a type of this file is `Ok(x.clone())`.
fn identity(unit: &Unit<'_>, name: &str) -> bool {
    let methods = unit.functions.iter().filter(|one| one.owner.as_deref() == Some(name));
    let mut forwards = methods.filter(|one| one.signature.ident == "forward").peekable();
    let clones = |function: &Function<'_>| {
        let call = only(function.block).and_then(|last| get!(last, Expr::Call));
        let given = call.filter(|call| is_ok(call)).and_then(|call| call.args.first());
        let clone = given.and_then(|given| get!(given, Expr::MethodCall));
        clone.is_some_and(|inner| inner.method == "clone" && ident(&inner.receiver).is_some())
    };
    forwards.peek().is_some() && forwards.all(clones)
}
