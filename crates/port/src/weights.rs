//! Tensors in fields that multiply and are no layer's: where they come from, and which are left.

use std::cell::RefCell;
use std::collections::BTreeSet;

use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Arm, Expr, ExprMethodCall, Item, Member, Pat, Token};

use super::draft::Draft;
use super::facts::{self, Facts};
use super::layers::literals::{Literals, given};
use super::source::{Source, is_inside};
use super::syntax::{called, condition, get, ident, is, member, segments, some_name, strip};
use super::table::{is_codebook, list};
use super::types::{arguments, is_named};
use super::unit::Unit;
use super::walk::{Node, Tree, nodes};

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
    "Arc", "Box", "D", "DType", "Device", "Err", "Ok", "Option", "Result", "Shape", "Some",
    "String", "Tensor", "Vec", "bool", "f32", "f64", "i64", "std", "u32", "u8", "usize",
];

/// Where the tensor of a struct's field comes from, of several constructors the most certain, and
/// its rank, if that is written.
pub fn origin(unit: &Unit<'_>, of: &str, field: &str) -> (Origin, Option<usize>) {
    let literals = Literals::of(unit, of);
    let named = literals.found.iter().filter_map(|(literal, _)| {
        Some((unit.source.range(*literal), &given(literal, field)?.expr))
    });
    let numbered = literals.tuples.iter().filter_map(|(call, _)| {
        let given = call.args.iter().nth(field.parse().ok()?)?;
        Some((unit.source.range(*call), given))
    });
    let origins = named.chain(numbered).filter_map(|(at, given)| {
        let block = |one: &Facts<'_>| unit.source.range(one.function.block);
        let facts = facts::of(unit).find(|one| is_inside(&at, &block(one)))?;
        let seen = RefCell::default();
        Some(value(facts, given, DEPTH, &seen))
    });
    // Built elsewhere.
    origins.max().unwrap_or((Origin::Given, None))
}

fn value<T: Tree>(
    facts: Facts<'_>,
    tree: &T,
    depth: usize,
    seen: &RefCell<BTreeSet<String>>,
) -> (Origin, Option<usize>) {
    let mut made = Made {
        facts,
        depth,
        seen,
        origin: Origin::Computed,
        rank: None,
    };
    tree.walk(&mut made);
    (made.origin, made.rank)
}

/// The origin of a value.
struct Made<'e> {
    facts: Facts<'e>,
    depth: usize,
    /// The functions that were looked into.
    seen: &'e RefCell<BTreeSet<String>>,
    origin: Origin,
    rank: Option<usize>,
}

impl Made<'_> {
    fn is_at_least(&mut self, origin: Origin) {
        self.origin = self.origin.max(origin);
    }

    /// How many dimensions a shape has, if that is written.
    fn dimensions(&self, shape: &Expr) -> Option<usize> {
        match shape {
            Expr::Tuple(shape) => Some(shape.elems.len()),
            shape => self.facts.is_size(shape).then_some(1),
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
        let known = segments.iter().any(|one| MAKERS.contains(&one.as_str()));
        let at = self.facts.unit.source.start(path);
        let is_variable = segments.len() == 1 && !self.facts.definitions(name, at).is_empty();
        if known || is_variable {
            return;
        }
        let own = facts::of(self.facts.unit).find(|one| one.function.signature.ident == name);
        let Some((facts, depth)) = own.zip(self.depth.checked_sub(1)) else {
            return self.is_at_least(Origin::Unknown);
        };
        if !self.seen.borrow_mut().insert(name.clone()) {
            return;
        }
        let (origin, _) = value(facts, facts.function.block, depth, self.seen);
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
        if let Some(rank) = shape.and_then(|shape| self.dimensions(shape)) {
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
        let at = self.facts.unit.source.start(path);
        let definitions = self.facts.definitions(&name, at);
        let (origin, rank) = match (definitions.first(), self.depth.checked_sub(1)) {
            (Some(made), Some(depth)) => value(self.facts, *made, depth, self.seen),
            (None, _) if self.facts.is_given_tensor(&name) => (Origin::Given, None),
            _ => (Origin::Computed, None),
        };
        self.origin = self.origin.max(origin);
        self.rank = self.rank.or(rank);
    }
}

/// Whether anything in a file is multiplied.
pub fn has_products(unit: &Unit<'_>) -> bool {
    unit.source.text.contains("matmul(")
}

/// The types of a file with tensors that multiply.
pub fn multiplied(unit: &Unit<'_>) -> BTreeSet<String> {
    let found = found(unit, |_| true);
    found.into_iter().map(|(_, (of, _), _)| of).collect()
}

/// Lists the products of tensors in fields, but for those that a layer holds now.
pub fn list(unit: &Unit<'_>, draft: &mut Draft, held: &BTreeSet<(String, String)>) {
    let left = |at| !draft.edits.is_rewritten(at) && !unit.source.is_kept(at);
    for (at, (of, field), advice) in found(unit, left) {
        if !held.contains(&(of.clone(), field.clone())) {
            let what = format!("`{field}` of `{of}` multiplies as a tensor, and is no layer");
            draft.list(unit.todo(at, what, advice));
        }
    }
}

/// Where a product is, the type and the field of its tensor, and what to do.
type Found = (usize, (String, String), String);

/// The first product of each field's tensor.
fn found(unit: &Unit<'_>, counts: impl Fn(usize) -> bool) -> Vec<Found> {
    let mut found = Vec::<Found>::new();
    if !has_products(unit) {
        return found;
    }
    let macros = multiplying_macros(unit.file);
    for facts in facts::of(unit) {
        let mut products = Products {
            source: unit.source,
            macros: &macros,
            found: Vec::new(),
        };
        products.visit_block(facts.function.block);
        for (at, operands) in products.found {
            for operand in &operands {
                let mut trace = Trace {
                    facts,
                    is_part: false,
                    turned: false,
                };
                let Some(place) = trace.field(operand, DEPTH).filter(|_| counts(at)) else {
                    continue;
                };
                let (of, field) = &place;
                let new = !found.iter().any(|(_, known, _)| *known == place);
                let is_weight = || origin(unit, of, field).0 > Origin::Computed;
                if new && !is_codebook(of) && is_weight() {
                    let advice = trace.advice(field);
                    found.push((at, place, advice));
                }
            }
        }
    }
    found
}

/// Macros of the file that multiply what they are given.
fn multiplying_macros(file: &syn::File) -> BTreeSet<String> {
    let items = nodes(file).filter_map(|node| get!(get!(node, Node::Item)?, Item::Macro));
    let multiplying = items.filter(|item| item.mac.tokens.to_string().contains("matmul"));
    let names = multiplying.filter_map(|item| item.ident.as_ref());
    names.map(ToString::to_string).collect()
}

/// Where products are, with their operands.
struct Products<'p, 't> {
    source: &'p Source<'t>,
    macros: &'p BTreeSet<String>,
    found: Vec<(usize, Vec<Expr>)>,
}

impl<'a> Visit<'a> for Products<'_, '_> {
    fn visit_expr_method_call(&mut self, call: &'a ExprMethodCall) {
        if (call.method == "matmul" || call.method == "broadcast_matmul") && call.args.len() == 1 {
            let operands = call.args.iter().chain([&*call.receiver]).cloned();
            let at = self.source.start(&call.method);
            self.found.push((at, operands.collect()));
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        let parser = Punctuated::<Expr, Token![,]>::parse_terminated;
        let is_known = self.macros.iter().any(|name| call.path.is_ident(name));
        if let (true, Ok(operands)) = (is_known, call.parse_body_with(parser)) {
            for operand in &operands {
                Visit::visit_expr(self, operand);
            }
            let at = self.source.start(&call.path);
            self.found.push((at, operands.into_iter().collect()));
        }
    }
}

/// The way from an operand back to a field.
struct Trace<'u> {
    facts: Facts<'u>,
    /// Whether the weight is one part of the field's tensor.
    is_part: bool,
    turned: bool,
}

/// Methods that give a view or a copy of a tensor.
const VIEWS: &[&str] = list![
    as_ref broadcast_as broadcast_left clone contiguous expand flatten permute reshape squeeze t
    to_dtype transpose unsqueeze unwrap
];

/// Methods that give a part of it.
const PARTS: &[&str] = &["get", "i", "index_select", "narrow", "chunk"];

impl<'u> Trace<'u> {
    /// The type and the field that an expression is a view of.
    fn field(&mut self, expr: &Expr, depth: usize) -> Option<(String, String)> {
        let depth = depth.checked_sub(1)?;
        match strip(expr) {
            Expr::Field(field) => self.of_type(field),
            Expr::Index(index) => {
                self.is_part = true;
                self.field(&index.expr, depth)
            }
            Expr::MethodCall(call) => {
                let is_in = |names: &[&str]| names.iter().any(|name| call.method == name);
                self.is_part |= is_in(PARTS);
                self.turned |= call.method == "t" || call.method == "transpose";
                (is_in(VIEWS) || is_in(PARTS)).then(|| self.field(&call.receiver, depth))?
            }
            Expr::Match(choice) => {
                let mut arms = choice.arms.iter();
                arms.find_map(|arm| self.field(&arm.body, depth))
            }
            Expr::Tuple(tuple) => tuple.elems.iter().find_map(|elem| self.field(elem, depth)),
            path @ Expr::Path(_) => {
                let at = self.facts.unit.source.start(path);
                let name = ident(path)?;
                let made = self.facts.definitions(&name, at).into_iter().next();
                let start = |expr: &Expr| self.facts.unit.source.start(expr);
                let option = self.option(&name, at);
                let option = option.filter(|one| made.is_none_or(|made| start(made) < start(one)));
                self.field(option.or(made)?, depth)
            }
            _ => None,
        }
    }

    /// The option whose value a name is at a byte, by `match` or `if let`.
    fn option(&self, name: &str, at: usize) -> Option<&'u Expr> {
        let source = self.facts.unit.source;
        let is_it = |pat: &Pat| some_name(pat).is_some_and(|own| own == name);
        let around = |node| match node {
            Node::Expr(Expr::Match(choice)) => {
                let gives = |arm: &Arm| source.range(arm).contains(&at) && is_it(&arm.pat);
                choice.arms.iter().any(gives).then_some(&*choice.expr)
            }
            Node::Expr(Expr::If(choice)) => {
                let bound = condition(choice)?;
                let inside = source.range(&choice.then_branch).contains(&at);
                (inside && is_it(&bound.pat)).then_some(&*bound.expr)
            }
            _ => None,
        };
        nodes(self.facts.function.block).filter_map(around).last()
    }

    /// The type that declares a field of tensors: of `self`, or the only one in the file.
    fn of_type(&self, field: &syn::ExprField) -> Option<(String, String)> {
        let own = is(&field.base, "self");
        // Numbers say too little of whose they are.
        if !own && matches!(field.member, Member::Unnamed(_)) {
            return None;
        }
        let all = self.facts.unit.types.declared.values().flatten();
        let holders = all.filter(|one| match &one.item {
            Item::Struct(item) => {
                let declared = item.fields.members().zip(&item.fields);
                let mut own = declared.filter(|(name, _)| *name == field.member);
                own.any(|(_, field)| is_tensor(&field.ty))
            }
            _ => false,
        });
        let names = holders.map(|one| &one.name);
        let mut holders = names.filter(|of| !own || self.facts.function.of.as_ref() == Some(*of));
        match (holders.next(), holders.next()) {
            (Some(of), None) => Some((of.clone(), member(&field.member))),
            _ => None,
        }
    }

    fn advice(&self, field: &str) -> String {
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

/// `Tensor`, `Vec<Tensor>`
fn is_tensor(ty: &syn::Type) -> bool {
    let is_one_of = |names: &[&str]| names.iter().any(|name| is_named(ty, name));
    let inner = || arguments(ty).into_iter().any(is_tensor);
    is_one_of(&["Tensor"]) || is_one_of(&["Vec", "Arc", "Box", "Option"]) && inner()
}
