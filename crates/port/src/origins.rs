//! Where the tensors in fields come from.

use std::cell::RefCell;
use std::collections::BTreeSet;

use syn::visit::{self, Visit};
use syn::{Expr, ExprMethodCall};

use super::facts::{self, Facts};
use super::syntax::{arguments, called, ident, segments, strip};
use super::table::list;
use super::types::{Declared, Key, is_named, key, parts};
use super::unit::Unit;
use super::walk::Tree;

/// Where a field's tensor comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Made of other tensors or of numbers, as the angles of rotary embeddings are.
    Computed,
    /// From a function or a loader that is not known.
    Unknown,
    /// A parameter of the constructor.
    Given,
    /// Read from a checkpoint.
    Loaded,
}

/// As deep as a value is followed through the variables of a function.
const DEPTH: usize = 8;

/// Methods of a `VarBuilder` that read a tensor.
const READS: &[&str] = list![get get_unchecked get_unchecked_dtype get_with_hints];

/// Methods that take a name and read nothing.
const NAMED: &[&str] = list![
    contains_key contains_tensor context expect pp push_prefix set_prefix
];

/// Types whose functions read nothing.
const MAKERS: &[&str] = &[
    "Arc", "BTreeMap", "Box", "Cell", "D", "DType", "Device", "Err", "HashMap", "Mutex", "Ok",
    "Option", "Rc", "RefCell", "Result", "RwLock", "Shape", "Some", "String", "Tensor", "Vec",
    "VecDeque", "bool", "f32", "f64", "i64", "std", "u32", "u8", "usize",
];

/// Methods after which a vector is none.
const WIDENS: &[&str] = list![broadcast_as broadcast_matmul expand matmul repeat unsqueeze];

/// What is known of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Value {
    origin: Origin,
    /// The number of dimensions, if that is written.
    rank: Option<usize>,
    /// Whether it may have more than one dimension.
    wide: bool,
}

/// Where the tensor of a struct's field comes from, of several constructors the most certain, and
/// its rank, if that is written.
pub fn origin(unit: &Unit<'_>, of: &Key, field: &str) -> (Origin, Option<usize>) {
    let largest = values(unit, of, field).into_iter().max();
    // Built elsewhere.
    largest.map_or((Origin::Given, None), |value| (value.origin, value.rank))
}

/// What a field may hold.
fn values(unit: &Unit<'_>, of: &Key, field: &str) -> Vec<Value> {
    let known = |expr: &&Expr| {
        let facts = Facts::around(unit, unit.source.start(*expr))?;
        let mut known = value(facts, *expr, DEPTH, &RefCell::default());
        if known.origin == Origin::Computed && is_given(facts, expr, DEPTH) {
            known.origin = Origin::Given;
        }
        Some(known)
    };
    let given = unit.built.given(of, field).filter_map(|expr| known(&expr));
    // What is assigned later may be a state, unless it is read.
    let assigned = unit.built.assigned(field).iter().filter_map(known);
    let assigned = assigned.filter(|value| value.origin == Origin::Loaded);
    given.chain(assigned).collect()
}

/// Where the tensor of an expression comes from.
pub fn beginning(facts: Facts<'_>, expr: &Expr) -> Origin {
    value(facts, expr, DEPTH, &RefCell::default()).origin
}

/// Whether a value is a part of a parameter, or what a method of it gives.
fn is_given(facts: Facts<'_>, expr: &Expr, depth: usize) -> bool {
    let Some(depth) = depth.checked_sub(1) else {
        return false;
    };
    match strip(expr) {
        Expr::MethodCall(call) => is_given(facts, &call.receiver, depth),
        Expr::Field(field) => is_given(facts, &field.base, depth),
        Expr::Index(index) => is_given(facts, &index.expr, depth),
        path @ Expr::Path(_) => ident(path).is_some_and(|name| {
            let at = facts.unit.source.start(path);
            match facts.definitions(&name, at).first() {
                Some(made) => is_given(facts, made, depth),
                None => facts.type_of_parameter(&name).is_some(),
            }
        }),
        _ => false,
    }
}

/// The fields of a file's types with tensors that are not known to be vectors, or to be computed.
pub fn matrices(unit: &Unit<'_>) -> BTreeSet<(Key, String)> {
    let mut found = BTreeSet::new();
    for one in unit.types.declared.values().flatten() {
        for (at, field) in one.fields.iter().enumerate() {
            let (of, name) = (key(one), name_of(field, at));
            // Whatever the constructor is given, a bias is a vector, and so is the weight of a norm.
            let hidden = matches!(field.vis, syn::Visibility::Inherited)
                && name.starts_with(char::is_alphabetic);
            let is_vector = name == "bias"
                || name.ends_with("_bias")
                || hidden && unit.built.is_elementwise(&of, &name);
            if holds_tensor(&field.ty) && !is_vector && may_be_matrix(unit, one, &of, &name) {
                found.insert((of, name));
            }
        }
    }
    found
}

fn may_be_matrix(unit: &Unit<'_>, one: &Declared, of: &Key, field: &str) -> bool {
    let values = values(unit, of, field);
    let is_plain =
        |value: &Value| value.origin == Origin::Computed || value.rank == Some(1) && !value.wide;
    !matches!(one.item, syn::Item::Struct(_)) || values.is_empty() || !values.iter().all(is_plain)
}

/// The name of a field, or its number.
pub fn name_of(field: &syn::Field, at: usize) -> String {
    let name = field.ident.as_ref();
    name.map_or_else(|| at.to_string(), ToString::to_string)
}

/// Whether a type is written with that of a tensor.
pub fn holds_tensor(ty: &syn::Type) -> bool {
    if let syn::Type::Reference(inner) = ty {
        return holds_tensor(&inner.elem);
    }
    let is_tensor = is_named(ty, "Tensor") || is_named(ty, "Var");
    is_tensor || !is_named(ty, "PhantomData") && parts(ty).into_iter().any(holds_tensor)
}

fn value<T: Tree>(
    facts: Facts<'_>,
    tree: &T,
    depth: usize,
    seen: &RefCell<BTreeSet<String>>,
) -> Value {
    let mut made = Made {
        facts,
        depth,
        seen,
        origin: Origin::Computed,
        rank: None,
        wide: false,
    };
    tree.walk(&mut made);
    Value {
        origin: made.origin,
        rank: made.rank,
        wide: made.wide,
    }
}

/// The origin of a value.
struct Made<'e> {
    facts: Facts<'e>,
    depth: usize,
    /// The functions that were looked into.
    seen: &'e RefCell<BTreeSet<String>>,
    origin: Origin,
    rank: Option<usize>,
    wide: bool,
}

impl Made<'_> {
    fn is_at_least(&mut self, origin: Origin) {
        self.origin = self.origin.max(origin);
    }

    /// How many dimensions a shape has, if that is written.
    fn dimensions(&self, shape: &Expr) -> Option<usize> {
        match shape {
            Expr::Tuple(shape) => Some(shape.elems.len()),
            shape => self.facts.is_size(shape, DEPTH).then_some(1),
        }
    }
}

/// Whether an expression is a name in a checkpoint.
fn is_name(expr: &Expr) -> bool {
    match strip(expr) {
        Expr::Lit(literal) => matches!(literal.lit, syn::Lit::Str(_)),
        Expr::Macro(call) => call.mac.path.is_ident("format"),
        _ => false,
    }
}

impl<'a> Visit<'a> for Made<'_> {
    fn visit_expr_index(&mut self, index: &'a syn::ExprIndex) {
        if is_name(&index.index) {
            self.is_at_least(Origin::Unknown);
        }
        visit::visit_expr_index(self, index);
    }

    fn visit_expr_call(&mut self, call: &'a syn::ExprCall) {
        visit::visit_expr_call(self, call);
        let Some(path) = called(call) else { return };
        let segments = segments(path);
        let Some(name) = segments.last() else { return };
        self.wide |= name == "stack";
        let known = segments.iter().any(|one| MAKERS.contains(&one.as_str()));
        let at = self.facts.unit.source.start(path);
        let is_variable = segments.len() == 1 && !self.facts.definitions(name, at).is_empty();
        if known || is_variable {
            return;
        }
        // `Self::` and a type before the name say whose function it is.
        let of = segments.iter().rev().nth(1).map(|of| match of.as_str() {
            "Self" => self.facts.function.of.as_ref().unwrap_or(of),
            _ => of,
        });
        let of = of.filter(|of| of.starts_with(char::is_uppercase));
        let mut all = facts::of(self.facts.unit);
        let own = all.find(|Facts { function, .. }| {
            function.signature.ident == name && (of.is_none() || function.of.as_ref() == of)
        });
        let Some((facts, depth)) = own.zip(self.depth.checked_sub(1)) else {
            return self.is_at_least(Origin::Unknown);
        };
        if !self.seen.borrow_mut().insert(name.clone()) {
            return;
        }
        let origin = value(facts, facts.function.block, depth, self.seen).origin;
        // Its arguments are seen where it is called; values that it computes from a read are not.
        if matches!(origin, Origin::Unknown | Origin::Loaded) {
            self.is_at_least(Origin::Unknown);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'a ExprMethodCall) {
        let reads = READS.iter().any(|name| call.method == name);
        if reads {
            self.origin = Origin::Loaded;
        }
        let named = NAMED.iter().any(|name| call.method == name);
        if !named && call.args.iter().any(is_name) {
            self.is_at_least(Origin::Unknown);
        }
        // The outermost shape comes first.
        let is_outer = self.rank.is_none();
        let shape = call.args.first();
        let shape = shape.filter(|_| reads || call.method == "reshape");
        let rank = shape.and_then(|shape| self.dimensions(shape));
        self.wide |= shape.is_some() && rank != Some(1);
        self.wide |= WIDENS.iter().any(|name| call.method == name);
        if let Some(rank) = rank {
            self.rank.get_or_insert(rank);
        }
        visit::visit_expr_method_call(self, call);
        if is_outer && call.method == "unsqueeze" {
            self.rank = self.rank.map(|rank| rank + 1);
        }
    }

    fn visit_expr_path(&mut self, path: &'a syn::ExprPath) {
        let Some(name) = path.path.get_ident().map(ToString::to_string) else {
            return;
        };
        let (facts, seen) = (self.facts, self.seen);
        let at = facts.unit.source.start(path);
        let definitions = facts.definitions(&name, at);
        if definitions.is_empty() && facts.is_given_tensor(&name) {
            self.is_at_least(Origin::Given);
        }
        let mut made: Vec<_> = definitions.into_iter().take(1).collect();
        // A container that is filled step by step.
        if seen.borrow_mut().insert(format!("{name} at {at}")) {
            made.extend(facts.added(&name));
        }
        let Some(depth) = self.depth.checked_sub(1) else {
            return;
        };
        for made in made {
            let value = value(facts, made, depth, seen);
            self.origin = self.origin.max(value.origin);
            self.rank = self.rank.or(value.rank);
            self.wide |= value.wide;
        }
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        for expr in arguments(call).iter().flatten() {
            Visit::visit_expr(self, expr);
        }
    }
}
