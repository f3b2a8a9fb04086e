//! The path from an operand of a product back to a field or an argument of the function.

use std::ops::Range;

use syn::{Expr, Item, Local, Member, Pat, Type};

use super::facts::{self, Facts};
use super::functions::inputs;
use super::origins::{READS, holds_tensor, name_of};
use super::scopes::Origin;
use super::syntax::{
    binds, called, ends_with, exactly, get, ident, is, member, segments, strip, tail, values,
    variable,
};
use super::table::list;
use super::types::{Key, named, parts, referred};
use super::walk::{Node, calls, exprs, nodes};

/// The depth to which a value is followed through the variables of a function.
const DEPTH: usize = 16;

/// Methods that return a view or a copy of a tensor.
const VIEWS: &[&str] = list![
    as_deref as_ref borrow broadcast_as broadcast_left clone cloned contiguous copied copy detach
    expand flatten flatten_all flatten_from flatten_to force_contiguous into_inner lock ok_or
    ok_or_else permute read reshape squeeze t to_device to_dtype transpose unsqueeze unwrap
    unwrap_or unwrap_or_else expect
];

/// Methods that return a part of a tensor, or one of several parts.
const PARTS: &[&str] = list![
    chunk chunks entry enumerate filter first get get_on_dim i index_select into_iter into_values
    iter last narrow next nth rev skip split split_at step_by take values zip
];

/// Methods whose closure returns the result.
const MAPS: &[&str] = list![and_then fold map map_or map_or_else then try_fold];

/// The advice for a table of a transform.
const CONSTANT_ADVICE: &str = "put `// dynquant: keep` here, if it is a constant table, such as a \
    filterbank: quantized, it costs accuracy";

/// The beginnings of names of methods whose result is another tensor, or none.
const OTHERS: &[&str] = list![
    add apply arange arg broadcast_ cat contains conv device dim div dtype elem_count embedding eq
    forward from full gather index_add is_ keys layout len load matmul mean mul mv new ones rand rank
    scatter shape stack sub sum to_scalar to_vec where_cond zeros
];

/// Methods that compute a tensor from the receiver and the arguments.
const COMBINE: &[&str] = list![
    add broadcast_add broadcast_div broadcast_matmul broadcast_maximum broadcast_minimum
    broadcast_mul broadcast_sub div matmul maximum minimum mul sub where_cond
];

/// Methods that compute a tensor from the receiver.
const REDUCE: &[&str] = list![
    dequantize max_keepdim mean mean_keepdim min_keepdim sum sum_all sum_keepdim
];

/// The most expressions that are followed from an operand.
const STEPS: usize = 500;

/// The depth to which each part of a sum is followed.
const PARTIAL: usize = 6;

/// The largest number of functions around a value that is followed into them.
const CALLS: usize = 4;

/// The root of a value.
pub enum Root {
    Field(Key, String),
    /// An argument by its number, without `self`.
    Argument(usize),
    /// The weight of a layer, which is this expression.
    Layer(String),
    /// A tensor that the function reads or another file's method returns, as it is written.
    Loaded(String),
}

/// A pattern that binds names in a byte range.
struct Binder<'u> {
    scope: Range<usize>,
    pat: &'u Pat,
    value: Bound<'u>,
}

/// The value of a pattern.
#[derive(Clone)]
enum Bound<'u> {
    Value(&'u Expr),
    /// An argument of an inner function or a closure, by name.
    Argument(String, usize),
}

/// The search from an operand back to its roots.
pub struct Trace<'u> {
    facts: Facts<'u>,
    roots: Vec<Root>,
    binders: Option<Vec<Binder<'u>>>,
    /// Whether the weight is one part of the field's tensor.
    is_part: bool,
    turned: bool,
    /// The functions around this one, by the places of their names.
    calls: Vec<usize>,
    /// The number of expressions that were followed.
    steps: usize,
}

impl<'u> Trace<'u> {
    pub fn new(facts: Facts<'u>) -> Self {
        Self {
            facts,
            roots: Vec::new(),
            binders: None,
            is_part: false,
            turned: false,
            calls: Vec::new(),
            steps: 0,
        }
    }

    /// The fields and the arguments that an operand is a view of.
    pub fn roots(&mut self, operand: &Expr) -> Vec<Root> {
        self.follow(operand, DEPTH);
        std::mem::take(&mut self.roots)
    }

    fn follow(&mut self, expr: &Expr, depth: usize) {
        self.steps += 1;
        let Some(depth) = depth.checked_sub(1).filter(|_| self.steps < STEPS) else { return };
        match strip(expr) {
            Expr::Field(field) => match self.field(field) {
                Some((holder, field)) => self.roots.push(Root::Field(holder, field)),
                None if self.is_elsewhere(&field.base, &member(&field.member)) => {
                    self.roots.push(Root::Loaded(self.facts.text(field).to_owned()));
                }
                None => self.follow(&field.base, depth),
            },
            Expr::Index(index) => {
                self.is_part = true;
                self.follow(&index.expr, depth);
            }
            Expr::Unary(inner) => self.follow(&inner.expr, depth),
            Expr::Binary(pair) => self.combine(&[&*pair.left, &*pair.right], depth),
            Expr::MethodCall(call) => {
                let args: Vec<_> = call.args.iter().collect();
                self.method(&call.method.to_string(), &call.receiver, &args, depth);
            }
            Expr::Call(call) => {
                let passes = ["Some", "Ok", "clone", "Borrowed"];
                let Some(path) = called(call) else { return };
                if passes.iter().any(|name| ends_with(path, name)) {
                    call.args.iter().for_each(|arg| self.follow(arg, depth));
                } else {
                    self.call(path, &call.args.iter().collect::<Vec<_>>(), depth);
                }
            }
            Expr::Tuple(all) => all.elems.iter().for_each(|one| self.follow(one, depth)),
            Expr::Array(all) => all.elems.iter().for_each(|one| self.follow(one, depth)),
            path @ Expr::Path(_) => {
                if let Some(name) = ident(path) {
                    self.variable(&name, self.facts.start(path), depth);
                }
            }
            other => values(other).into_iter().for_each(|one| self.follow(one, depth)),
        }
    }

    /// Follows the result of a method; a method that is not known returns a view.
    fn method(&mut self, name: &str, receiver: &Expr, args: &[&Expr], depth: usize) {
        let is_other = OTHERS.iter().any(|other| name.starts_with(other));
        let text = self.facts.text(strip(receiver));
        if self.is_read(name, receiver, args) {
            return self.roots.push(Root::Loaded(format!("{text}.{name}(..)")));
        }
        if COMBINE.contains(&name) {
            return self.combine(&[&[receiver], args].concat(), depth);
        }
        if name == "cat" || name == "stack" {
            let parts = get!(strip(receiver), Expr::Array).into_iter().flat_map(|all| &all.elems);
            return self.combine(&parts.collect::<Vec<_>>(), depth);
        }
        if REDUCE.contains(&name) {
            return self.follow(receiver, depth);
        }
        let ty = self.type_of(receiver);
        if (ty.is_some() || is(receiver, "self")) && !name.starts_with("forward") {
            let owner = ty.map(|(_, owner)| owner);
            if self.results(name, owner.as_ref(), true, args, depth) {
                return;
            }
        }
        self.is_part |= PARTS.contains(&name);
        self.turned |= name == "t" || name == "mT" || name == "transpose";
        if VIEWS.contains(&name) || PARTS.contains(&name) {
            return self.follow(receiver, depth);
        }
        let closures = args.iter().filter_map(|arg| get!(arg, Expr::Closure));
        let closures: Vec<_> = closures.filter(|_| MAPS.contains(&name)).collect();
        for closure in &closures {
            self.follow(&closure.body, depth);
        }
        if is_other || !closures.is_empty() {
            return;
        }
        if name == "weight" && args.is_empty() && self.is_layer(receiver, depth) {
            self.roots.push(Root::Layer(text.to_owned()));
        } else if !self.results(name, None, true, args, depth) {
            if self.is_elsewhere(receiver, name) {
                self.roots.push(Root::Loaded(format!("{text}.{name}(..)")));
            } else {
                self.follow(receiver, depth);
            }
        }
    }

    /// Whether a member of a type of another file is a weight.
    fn is_elsewhere(&self, base: &Expr, name: &str) -> bool {
        let types = match strip(base) {
            Expr::Field(field) => self.facts.field_types(field),
            Expr::Index(index) => return self.is_elsewhere(&index.expr, name),
            path => {
                let given = ident(path).and_then(|name| self.facts.type_of_parameter(&name));
                given.into_iter().collect()
            }
        };
        let world = self.facts.unit.world;
        types.iter().any(|ty| world.has_weight(&self.facts, ty, name))
    }

    /// The fields, the arguments and the reads that a function returns.
    pub fn returned(&mut self) -> Vec<Root> {
        self.follow_returned(DEPTH);
        std::mem::take(&mut self.roots)
    }

    fn follow_returned(&mut self, depth: usize) {
        let block = self.facts.function.block;
        let returned = exprs(block).filter_map(|expr| get!(expr, Expr::Return)?.expr.as_deref());
        for value in tail(block).into_iter().chain(returned) {
            self.follow(value, depth);
        }
    }

    /// Whether a method reads a tensor by name, from a `VarBuilder` or a file.
    fn is_read(&self, name: &str, receiver: &Expr, args: &[&Expr]) -> bool {
        let is_of_files = |expr: &Expr| {
            let given = ident(expr).and_then(|name| self.facts.type_of_parameter(&name));
            given.is_some_and(|ty| self.facts.text(ty).contains("Safetensors"))
        };
        match name {
            "get" => args.len() == 2,
            "load" => args.len() == 2 && is_of_files(receiver),
            name => READS.contains(&name) && !args.is_empty(),
        }
    }

    /// Follows a tensor that is computed from several, if all of them are weights.
    fn combine(&mut self, parts: &[&Expr], depth: usize) {
        let mut found = Vec::new();
        for part in parts.iter().filter(|part| !self.facts.is_number(part, DEPTH)) {
            let mut inner = Trace::new(self.facts);
            inner.calls.clone_from(&self.calls);
            inner.binders = self.binders.take();
            inner.steps = self.steps;
            inner.follow(part, depth.min(PARTIAL));
            self.binders = inner.binders.take();
            self.steps = inner.steps;
            let is_given = |root: &Root| matches!(root, Root::Argument(_));
            if inner.roots.is_empty() || inner.roots.iter().any(is_given) {
                return;
            }
            self.is_part |= inner.is_part;
            found.extend(inner.roots);
        }
        self.roots.extend(found);
    }

    /// Follows the result of a function; a function that is not known returns a view of its first
    /// argument.
    fn call(&mut self, path: &syn::Path, args: &[&Expr], depth: usize) {
        let path = segments(path);
        let Some((name, before)) = path.split_last() else { return };
        let is_of_nn = self.facts.resolve(&path).in_library().is_some();
        let is_file = path.iter().any(|one| one.contains("safetensors")) || name == "read_npy";
        if is_file || is_of_nn && name.starts_with("linear") {
            return self.roots.push(Root::Loaded(format!("{name}(..)")));
        }
        let at = args.first().map(|arg| self.facts.start(*arg));
        let value = at.and_then(|at| self.facts.definitions(name, at).into_iter().next());
        if let (Some(Expr::Closure(closure)), []) = (value, before) {
            return self.follow(&closure.body, depth);
        }
        let owner = before.last().filter(|one| one.starts_with(char::is_uppercase));
        let around = self.facts.function.owner.as_ref();
        let owner = owner.map(|owner| around.filter(|_| owner == "Self").unwrap_or(owner));
        let is_known = self.results(name, owner, false, args, depth);
        let ([first, rest @ ..], false) = (args, is_known) else { return };
        if owner.is_some() {
            self.method(name, first, rest, depth);
        } else if name.starts_with(char::is_lowercase) && !is_of_nn {
            self.follow(first, depth);
        }
    }

    /// Follows the results of the file's functions of a name that return tensors; returns whether
    /// there are any.
    fn results(
        &mut self,
        name: &str,
        owner: Option<&String>,
        takes_self: bool,
        args: &[&Expr],
        depth: usize,
    ) -> bool {
        let unit = self.facts.unit;
        let all = facts::of_name(unit, name).filter(Facts::returns_tensor);
        let (mut found, others): (Vec<_>, Vec<_>) =
            all.partition(|one| one.function.owner.as_ref() == owner);
        // A method of a trait, or of a type that is not known.
        if takes_self && found.is_empty() {
            found = others;
            found.retain(|one| owner.is_none() || one.function.owner.is_none());
        }
        found.retain(|one| !takes_self || one.function.signature.receiver().is_some());
        for callee in &found {
            let at = unit.source.start(callee.function.signature);
            if self.calls.len() == CALLS || self.calls.contains(&at) {
                continue;
            }
            let mut inner = Trace::new(*callee);
            inner.calls = [&self.calls[..], &[at]].concat();
            inner.steps = self.steps;
            inner.follow_returned(depth);
            self.steps = inner.steps;
            self.is_part |= inner.is_part;
            self.turned |= inner.turned;
            let by_path = !takes_self && callee.function.signature.receiver().is_some();
            for root in inner.roots {
                match root {
                    Root::Argument(number) => {
                        if let Some(given) = args.get(number + usize::from(by_path)) {
                            self.follow(given, depth);
                        }
                    }
                    root => self.roots.push(root),
                }
            }
        }
        !found.is_empty()
    }

    /// Whether an expression is a layer, as far as the text states it.
    fn is_layer(&self, expr: &Expr, depth: usize) -> bool {
        let Some(depth) = depth.checked_sub(1) else { return false };
        match strip(expr) {
            Expr::Field(field) => {
                self.facts.field_types(field).into_iter().any(|ty| self.holds_layer(ty))
            }
            Expr::Index(index) => self.is_layer(&index.expr, depth),
            Expr::MethodCall(call) => self.is_layer(&call.receiver, depth),
            path @ Expr::Path(_) => ident(path).is_some_and(|name| {
                let mut bound = binders(self.facts).into_iter();
                self.facts.type_of_parameter(&name).is_some_and(|ty| self.holds_layer(ty))
                    || bound.any(|one| match one.value {
                        Bound::Value(value) => binds(one.pat, &name) && self.is_layer(value, depth),
                        Bound::Argument(..) => false,
                    })
            }),
            _ => false,
        }
    }

    fn holds_layer(&self, ty: &Type) -> bool {
        let ty = referred(ty);
        let origin = self.facts.unit.origin(&self.facts.function.module, ty);
        origin.is_some_and(|origin| origin.layer().is_some())
            || parts(ty).into_iter().any(|ty| self.holds_layer(ty))
    }

    /// Follows a variable at a byte to its roots.
    fn variable(&mut self, name: &str, at: usize, depth: usize) {
        let source = self.facts.unit.source;
        let facts = self.facts;
        let binders = self.binders.get_or_insert_with(|| binders(facts));
        let value = self.facts.definitions(name, at).into_iter().next();
        let declared = |expr: &Expr| {
            let is_it = |bound: &Bound<'u>| match bound {
                Bound::Value(value) => std::ptr::eq(*value, expr),
                Bound::Argument(..) => false,
            };
            binders.iter().find(|one| is_it(&one.value)).map(|one| one.pat)
        };
        let inner = binders.iter().filter(|one| {
            let is_inside = one.scope.contains(&at) && source.range(one.pat).end <= at;
            is_inside && binds(one.pat, name)
        });
        let inner = inner.max_by_key(|one| source.start(one.pat));
        let later =
            |value: &&Expr| inner.is_none_or(|one| source.start(*value) >= source.start(one.pat));
        match (value.filter(later), inner) {
            (Some(value), _) => match declared(value) {
                Some(pat) => self.bound(pat, value, name, depth),
                None => self.follow(value, depth),
            },
            (None, Some(one)) => match (one.pat, one.value.clone()) {
                (pat, Bound::Value(value)) => self.bound(pat, value, name, depth),
                (_, Bound::Argument(function, number)) => {
                    let calls =
                        calls(facts.function.block).filter(|call| is(&call.func, &function));
                    for given in calls.filter_map(|call| call.args.get(number)) {
                        self.follow(given, depth);
                    }
                }
            },
            (None, None) => {
                let mut inputs = inputs(facts.function.signature);
                let number = inputs.position(|input| binds(&*input.pat, name));
                self.roots.extend(number.map(Root::Argument));
            }
        }
    }

    /// Follows a name that a pattern binds in a value to its roots.
    fn bound(&mut self, pat: &Pat, value: &Expr, name: &str, depth: usize) {
        let Some(depth) = depth.checked_sub(1) else { return };
        match (pat, strip(value)) {
            (Pat::Reference(pat), _) => self.bound(&pat.pat, value, name, depth),
            (Pat::Paren(pat), _) => self.bound(&pat.pat, value, name, depth),
            (Pat::Type(pat), _) => self.bound(&pat.pat, value, name, depth),
            (Pat::Tuple(_), Expr::Array(all)) => {
                all.elems.iter().for_each(|value| self.bound(pat, value, name, depth));
            }
            (Pat::Tuple(pats), Expr::Tuple(values)) if pats.elems.len() == values.elems.len() => {
                for (pat, value) in pats.elems.iter().zip(&values.elems) {
                    if binds(pat, name) {
                        self.bound(pat, value, name, depth);
                    }
                }
            }
            (Pat::Tuple(pats), Expr::MethodCall(call)) if !pats.elems.is_empty() => {
                let pats = &pats.elems;
                match (call.method.to_string().as_str(), call.args.first()) {
                    ("zip", Some(other)) if pats.len() == 2 && binds(&pats[1], name) => {
                        self.bound(&pats[1], other, name, depth);
                    }
                    ("zip", Some(_)) => self.bound(&pats[0], &call.receiver, name, depth),
                    ("enumerate", _) if pats.len() == 2 => {
                        self.bound(&pats[1], &call.receiver, name, depth);
                    }
                    (method, _) if PARTS.contains(&method) => {
                        self.bound(pat, &call.receiver, name, depth);
                    }
                    _ => self.follow(value, depth),
                }
            }
            (Pat::TupleStruct(some), _) => match exactly(&some.elems) {
                Some([inner]) if ends_with(&some.path, "Some") || ends_with(&some.path, "Ok") => {
                    self.bound(inner, value, name, depth);
                }
                _ => {
                    let at = some.elems.iter().position(|one| binds(one, name));
                    let at = at.unwrap_or_default().to_string();
                    self.part(&some.path, at);
                }
            },
            (Pat::Struct(fields), _) => {
                let fields_of = fields.fields.iter().find(|field| binds(&*field.pat, name));
                if let Some(field) = fields_of {
                    self.part(&fields.path, member(&field.member));
                }
            }
            _ => self.follow(value, depth),
        }
    }

    /// Adds a field that a pattern with a path takes out of a type of the file.
    fn part(&mut self, path: &syn::Path, field: String) {
        let holder = match self.facts.resolve(&segments(path)) {
            _ if path.segments.first().is_some_and(|first| first.ident == "Self") => self.owner(),
            Origin::Local(key) => Some(key),
            _ => None,
        };
        let declared =
            holder.as_ref().and_then(|holder| self.facts.unit.types.declared.get(holder));
        let mut fields = declared.into_iter().flatten().flat_map(|one| &one.fields);
        if fields.any(|field| holds_tensor(&field.ty)) {
            self.roots.extend(holder.map(|holder| Root::Field(holder, field)));
        }
    }

    /// The type of the function's `impl`.
    fn owner(&self) -> Option<Key> {
        let function = self.facts.function;
        self.key(&function.module, function.owner.as_ref()?)
    }

    /// The type of a name, in a module or else the only one in the file.
    fn key(&self, module: &[String], name: &str) -> Option<Key> {
        let declared = &self.facts.unit.types.declared;
        let here = (module.to_vec(), name.to_owned());
        if declared.contains_key(&here) {
            return Some(here);
        }
        let [one] = exactly(declared.keys().filter(|(_, known)| known == name))?;
        Some(one.clone())
    }

    /// The type of an expression, if it is a type of the file and the text states it.
    fn type_of(&self, expr: &Expr) -> Option<Key> {
        match strip(expr) {
            Expr::Path(_) if is(expr, "self") => self.owner(),
            path @ Expr::Path(_) => self.local(self.facts.type_of_parameter(&ident(path)?)?),
            Expr::Field(field) => {
                let holder = self.type_of(&field.base)?;
                let declared = self.facts.unit.types.declared.get(&holder)?.first()?;
                self.local(&named(&declared.fields, &member(&field.member))?.ty)
            }
            Expr::Index(index) => self.type_of(&index.expr),
            _ => None,
        }
    }

    /// The type of the file that a type is or holds.
    fn local(&self, ty: &Type) -> Option<Key> {
        let ty = referred(ty);
        match self.facts.unit.origin(&self.facts.function.module, ty) {
            Some(Origin::Local(key)) => Some(key),
            _ => parts(ty).into_iter().find_map(|ty| self.local(ty)),
        }
    }

    /// The type that declares a field of tensors: the type before the dot, or the only such type of
    /// the file.
    fn field(&self, field: &syn::ExprField) -> Option<(Key, String)> {
        let base = self.type_of(&field.base);
        // A field number does not identify a type.
        if base.is_none() && matches!(field.member, Member::Unnamed(_)) {
            return None;
        }
        let name = member(&field.member);
        let holders = self.facts.unit.types.declared.iter().filter(|(holder, declared)| {
            base.as_ref().is_none_or(|base| base == *holder)
                && declared.iter().any(|one| {
                    let mut fields = one.fields.iter().enumerate();
                    let is_it = |(at, one): (usize, &syn::Field)| {
                        name_of(one, at) == name && holds_tensor(&one.ty)
                    };
                    matches!(one.item, Item::Struct(_)) && fields.any(is_it)
                })
        });
        let [(holder, _)] = exactly(holders)?;
        Some((holder.clone(), name))
    }

    pub fn advice(&self, field: &str, is_constant: bool) -> String {
        if is_constant {
            return CONSTANT_ADVICE.to_owned();
        }
        let held = match (self.is_part, self.turned) {
            (true, _) => format!(
                "a `Vec` of them, `nn::Linear::new({field}.get(index)?, None)`, of rows `[out, in]`"
            ),
            (false, true) => format!("`nn::Linear::new({field}, bias)`"),
            (false, false) => {
                format!("`nn::Linear::new({field}.t()?, bias)`, if it is a weight `[in, out]`")
            }
        };
        format!("hold {held}, and call its `forward`; or put `// dynquant: keep` here")
    }
}

/// The patterns of a function that bind names.
fn binders<'u>(facts: Facts<'u>) -> Vec<Binder<'u>> {
    let source = facts.unit.source;
    let mut found = Vec::new();
    let mut push = |scope, pat, value| found.push(Binder { scope, pat, value });
    for node in nodes(facts.function.block) {
        match node {
            Node::Expr(Expr::Match(choice)) => {
                for arm in &choice.arms {
                    push(source.range(arm), &arm.pat, Bound::Value(&choice.expr));
                }
            }
            Node::Expr(expr @ (Expr::If(_) | Expr::While(_))) => {
                let (condition, end) = match expr {
                    Expr::If(choice) => (&choice.cond, source.range(&choice.then_branch).end),
                    Expr::While(each) => (&each.cond, source.range(&each.body).end),
                    _ => continue,
                };
                for bound in exprs(&**condition).filter_map(|expr| get!(expr, Expr::Let)) {
                    // The names are not bound in the value.
                    let scope = source.range(&*bound.expr).end..end;
                    push(scope, &bound.pat, Bound::Value(&bound.expr));
                }
            }
            Node::Expr(Expr::ForLoop(each)) => {
                push(source.range(each), &each.pat, Bound::Value(&each.expr));
            }
            Node::Expr(Expr::MethodCall(call)) => {
                for closure in call.args.iter().filter_map(|arg| get!(arg, Expr::Closure)) {
                    // `fold` passes the folded element last.
                    let last = closure.inputs.len().saturating_sub(1);
                    for (at, pat) in closure.inputs.iter().enumerate() {
                        let first = call.args.first().filter(|_| at < last);
                        let value = first.unwrap_or(&call.receiver);
                        push(source.range(closure), pat, Bound::Value(value));
                    }
                }
            }
            Node::Local(local) => locals(source, local, &mut push),
            Node::Item(Item::Fn(item)) => {
                let name = item.sig.ident.to_string();
                for (at, input) in inputs(&item.sig).enumerate() {
                    let value = Bound::Argument(name.clone(), at);
                    push(source.range(item), &input.pat, value);
                }
            }
            _ => {}
        }
    }
    found
}

/// Adds a declaration, and the arguments of a closure that it names.
fn locals<'u>(
    source: &super::source::Source<'_>,
    local: &'u Local,
    push: &mut impl FnMut(Range<usize>, &'u Pat, Bound<'u>),
) {
    let Some(init) = &local.init else { return };
    // The function knows its scope.
    push(0..0, &local.pat, Bound::Value(&init.expr));
    if let (Some(name), Expr::Closure(closure)) = (variable(&local.pat), &*init.expr) {
        for (at, pat) in closure.inputs.iter().enumerate() {
            push(source.range(closure), pat, Bound::Argument(name.clone(), at));
        }
    }
}
