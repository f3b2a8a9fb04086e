//! The origins of the tensors in fields.

use std::cell::RefCell;
use std::collections::BTreeSet;

use syn::visit::{self, Visit};
use syn::{Expr, ExprMethodCall};

use super::facts::{self, Facts};
use super::scopes::Origin;
use super::syntax::{arguments, called, ident, segments, strip};
use super::table::list;
use super::types::{Declared, Key, is_named, key, parts, referred};
use super::unit::Unit;
use super::walk::Tree;

/// The origin of a field's tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TensorOrigin {
    /// Computed from other tensors or numbers, such as the angles of rotary embeddings.
    Computed,
    /// The result of an unknown function or loader.
    Unknown,
    /// A parameter of the constructor.
    Given,
    /// Read from a checkpoint.
    Loaded,
}

/// The depth to which a value is followed through the variables of a function.
const DEPTH: usize = 8;

/// Methods of a `VarBuilder` that read a tensor.
pub const READS: &[&str] = list![get get_unchecked get_unchecked_dtype get_with_hints];

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

/// Methods after which a vector has more dimensions.
const WIDENS: &[&str] = list![broadcast_as broadcast_matmul expand matmul repeat unsqueeze];

/// The known facts about a tensor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct TensorValue {
    origin: TensorOrigin,
    /// The number of dimensions, if the code states it.
    rank: Option<usize>,
    /// Whether it may have more than one dimension.
    wide: bool,
}

/// The origin of the tensor in a struct's field, the most certain of several constructors, and its
/// rank, if the code states it.
pub fn origin(unit: &Unit<'_>, holder: &Key, field: &str) -> (TensorOrigin, Option<usize>) {
    let largest = values(unit, holder, field).into_iter().max();
    // The struct is built elsewhere.
    largest.map_or((TensorOrigin::Given, None), |value| (value.origin, value.rank))
}

/// The values that a field may hold.
fn values(unit: &Unit<'_>, holder: &Key, field: &str) -> Vec<TensorValue> {
    let known = |expr: &&Expr| {
        let facts = Facts::around(unit, unit.source.start(*expr))?;
        let mut known = value(facts, *expr, DEPTH, &RefCell::default());
        if known.origin == TensorOrigin::Computed && is_given(facts, expr, DEPTH) {
            known.origin = TensorOrigin::Given;
        }
        Some(known)
    };
    let given = unit.built.given(holder, field).filter_map(|expr| known(&expr));
    // What is assigned later may be a state, unless it is read.
    let assigned = unit.built.assigned(field).iter().filter_map(known);
    let assigned = assigned.filter(|value| value.origin == TensorOrigin::Loaded);
    given.chain(assigned).collect()
}

/// The origin of the tensor of an expression.
pub fn beginning(facts: Facts<'_>, expr: &Expr) -> TensorOrigin {
    value(facts, expr, DEPTH, &RefCell::default()).origin
}

/// Whether a value is a part of a parameter, or the result of a method of it.
fn is_given(facts: Facts<'_>, expr: &Expr, depth: usize) -> bool {
    let Some(depth) = depth.checked_sub(1) else { return false };
    match strip(expr) {
        Expr::MethodCall(call) => is_given(facts, &call.receiver, depth),
        Expr::Field(field) => is_given(facts, &field.base, depth),
        Expr::Index(index) => is_given(facts, &index.expr, depth),
        path @ Expr::Path(_) => match facts.definition(path) {
            Some(value) => is_given(facts, value, depth),
            None => ident(path).is_some_and(|name| facts.type_of_parameter(&name).is_some()),
        },
        _ => false,
    }
}

/// The fields of a file's types with tensors that are not known to be vectors or computed.
pub fn matrices(unit: &Unit<'_>) -> BTreeSet<(Key, String)> {
    let mut found = BTreeSet::new();
    for one in unit.types.declared.values().flatten() {
        for (at, field) in one.fields.iter().enumerate() {
            let (holder, name) = (key(one), name_of(field, at));
            // Whatever the constructor gets, a bias is a vector, and so is the weight of a norm.
            let hidden = matches!(field.vis, syn::Visibility::Inherited)
                && name.starts_with(char::is_alphabetic);
            let is_vector = name == "bias"
                || name.ends_with("_bias")
                || hidden && unit.built.is_elementwise(&holder, &name);
            if holds_tensor(&field.ty) && !is_vector && may_be_matrix(unit, one, &holder, &name) {
                found.insert((holder, name));
            }
        }
    }
    found
}

fn may_be_matrix(unit: &Unit<'_>, one: &Declared, holder: &Key, field: &str) -> bool {
    let values = values(unit, holder, field);
    let is_plain = |value: &TensorValue| {
        value.origin == TensorOrigin::Computed || value.rank == Some(1) && !value.wide
    };
    !matches!(one.item, syn::Item::Struct(_)) || values.is_empty() || !values.iter().all(is_plain)
}

/// The name of a field, or its number.
pub fn name_of(field: &syn::Field, at: usize) -> String {
    field.ident.as_ref().map_or_else(|| at.to_string(), ToString::to_string)
}

/// Whether a type mentions `Tensor`.
pub fn holds_tensor(ty: &syn::Type) -> bool {
    let ty = referred(ty);
    let is_tensor = is_named(ty, "Tensor") || is_named(ty, "Var");
    is_tensor || !is_named(ty, "PhantomData") && parts(ty).into_iter().any(holds_tensor)
}

fn value<T: Tree>(
    facts: Facts<'_>,
    tree: &T,
    depth: usize,
    seen: &RefCell<BTreeSet<String>>,
) -> TensorValue {
    let mut finder = OriginFinder {
        facts,
        depth,
        seen,
        origin: TensorOrigin::Computed,
        rank: None,
        wide: false,
    };
    tree.walk(&mut finder);
    TensorValue { origin: finder.origin, rank: finder.rank, wide: finder.wide }
}

/// The origin of a value.
struct OriginFinder<'e> {
    facts: Facts<'e>,
    depth: usize,
    /// The visited functions.
    seen: &'e RefCell<BTreeSet<String>>,
    origin: TensorOrigin,
    rank: Option<usize>,
    wide: bool,
}

impl OriginFinder<'_> {
    fn is_at_least(&mut self, origin: TensorOrigin) {
        self.origin = self.origin.max(origin);
    }

    /// The number of dimensions of a shape, if the code states it.
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

impl<'a> Visit<'a> for OriginFinder<'_> {
    fn visit_expr_index(&mut self, index: &'a syn::ExprIndex) {
        if is_name(&index.index) {
            self.is_at_least(TensorOrigin::Unknown);
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
        let at = self.facts.start(path);
        let is_variable = segments.len() == 1 && !self.facts.definitions(name, at).is_empty();
        if known || is_variable {
            return;
        }
        // `Self::` or a type before the name identifies the function.
        let owner = segments.iter().rev().nth(1).map(|owner| match owner.as_str() {
            "Self" => self.facts.function.owner.as_ref().unwrap_or(owner),
            _ => owner,
        });
        let owner = owner.filter(|owner| owner.starts_with(char::is_uppercase));
        let all = facts::all(self.facts.unit);
        // A function of another crate may have the name of one of this file.
        let is_foreign = match self.facts.resolve(&segments) {
            Origin::Other(path) => path.len() > 1 && owner.is_none(),
            _ => false,
        };
        let function = all.filter(|_| !is_foreign).find(|Facts { function, .. }| {
            function.signature.ident == name && function.owner.as_ref() == owner
        });
        let Some((facts, depth)) = function.zip(self.depth.checked_sub(1)) else {
            return self.is_at_least(TensorOrigin::Unknown);
        };
        if !self.seen.borrow_mut().insert(name.clone()) {
            return;
        }
        let origin = value(facts, facts.function.block, depth, self.seen).origin;
        // Its arguments are visited where it is called; values that it computes from a read are
        // not.
        if matches!(origin, TensorOrigin::Unknown | TensorOrigin::Loaded) {
            self.is_at_least(TensorOrigin::Unknown);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'a ExprMethodCall) {
        let reads = READS.iter().any(|name| call.method == name);
        if reads {
            self.origin = TensorOrigin::Loaded;
        }
        let named = NAMED.iter().any(|name| call.method == name);
        if !named && call.args.iter().any(is_name) {
            self.is_at_least(TensorOrigin::Unknown);
        }
        // The outermost shape comes first.
        let is_outer = self.rank.is_none();
        let shape = call.args.first().filter(|_| reads || call.method == "reshape");
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
        let Some(name) = path.path.get_ident().map(ToString::to_string) else { return };
        let (facts, seen) = (self.facts, self.seen);
        let at = facts.start(path);
        let definitions = facts.definitions(&name, at);
        if definitions.is_empty() && facts.is_given_tensor(&name) {
            self.is_at_least(TensorOrigin::Given);
        }
        let mut values: Vec<_> = definitions.into_iter().take(1).collect();
        // The values that fill a container step by step.
        if seen.borrow_mut().insert(format!("{name} at {at}")) {
            values.extend(facts.added(&name));
        }
        let Some(depth) = self.depth.checked_sub(1) else { return };
        for expr in values {
            let value = value(facts, expr, depth, seen);
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
