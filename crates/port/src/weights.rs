//! Lists tensors in fields that multiply and are not in a layer: they stay as they are.

use std::collections::BTreeSet;

use syn::visit::{self, Visit};
use syn::{Expr, ExprMethodCall, Item};

use super::built::SUMS;
use super::draft::Draft;
use super::facts::{self, Facts};
use super::operands::{Root, Trace};
use super::origins::{TensorOrigin, origin};
use super::syntax::{arguments, called, get, is, segments, strip, words};
use super::table::{is_codebook, list};
use super::types::Key;
use super::unit::Unit;
use super::walk::{Node, nodes};
use super::world::{Helper, Helpers};

/// The names of weights that a recurrent layer reads.
const RECURRENT: &[&str] = &["weight_ih", "weight_hh"];

/// The advice for recurrent weights.
const RECURRENT_ADVICE: &str = "hold an `nn::LSTM` or an `nn::GRU`: `nn::lstm(in, hidden, \
    nn::LSTMConfig::default(), vb)` and `nn::gru` read weights of these names, and `seq` runs all \
    steps; or put `// dynquant: keep` here";

/// The advice for the weight of a layer.
const LAYER_ADVICE: &str = "quantized, it is dequantized whole, and kept: call the layer's \
    `forward`, or hold a layer of each part that is used; or put `// dynquant: keep` here";

/// The advice for a tensor that a function reads, and for a weight in another file.
const LOADED_ADVICE: &str = "hold an `nn::Linear` of it in a struct that derives `Quantizable`, \
    and call its `forward`; or put `// dynquant: keep` here";

/// The depth to which the factors of a product are followed.
const FACTORS: usize = 4;

/// Words in the names of tables that are no weights.
const TABLES: &[&str] = list![
basis cos dft fbank fft filter filterbank filters freq freqs hamming hann idft inv istft mel mels
rope rotary sin stft twiddle window
];

/// Words in the names of weights.
const LEARNED: &[&str] = &["embed", "fc", "head", "linear", "out", "proj", "weight"];

/// Whether a function or a macro of this name multiplies, wherever it is.
fn is_product(name: &str) -> bool {
    let known = ["bmm", "dot", "gemm", "mm", "mv"];
    name.contains("matmul") || name.contains("einsum") || known.contains(&name)
}

/// Whether anything in a file is multiplied.
pub fn has_products(unit: &Unit<'_>) -> bool {
    let calls = ["matmul", "einsum", ".mv(", ".sum", ".mean", "linear", "Linear::"];
    calls.iter().any(|call| unit.source.text.contains(call))
}

/// The types of a file with tensors that multiply.
pub fn multiplied(unit: &Unit<'_>) -> BTreeSet<Key> {
    let found = WeightSearch::new(unit, &|_| true, true).found;
    found.into_iter().filter_map(|one| one.place).map(|(key, _)| key).collect()
}

/// The functions of a file that multiply by an argument.
pub fn helpers(unit: &Unit<'_>) -> Helpers {
    if !has_products(unit) {
        return Helpers::new();
    }
    WeightSearch::new(unit, &|at| !unit.source.is_kept(at), false).helpers
}

/// The methods of a file that return a weight, each with its type.
pub fn getters(unit: &Unit<'_>) -> BTreeSet<(String, String)> {
    let methods = facts::all(unit).filter_map(|facts| {
        let (signature, returns) = (facts.function.signature, facts.returns_tensor());
        let name = signature.ident.to_string();
        let is_getter = returns && signature.receiver().is_some() && !name.starts_with("forward");
        let is_weight = |root: &Root| match root {
            Root::Field(holder, field) => origin(unit, holder, field).0 != TensorOrigin::Computed,
            Root::Argument(_) => false,
            Root::Layer(_) | Root::Loaded(_) => true,
        };
        let is_weight = is_getter && Trace::new(facts).returned().iter().any(is_weight);
        Some((facts.function.owner.clone().filter(|_| is_weight)?, name))
    });
    methods.collect()
}

/// Lists the products of tensors in fields, except those that a layer holds now.
pub fn list(unit: &Unit<'_>, draft: &mut Draft, held: &BTreeSet<(Key, String)>) {
    let left = |at| !draft.edits.is_rewritten(at) && !unit.source.is_kept(at);
    for one in WeightSearch::new(unit, &left, true).found {
        if !one.place.is_some_and(|place| held.contains(&place)) {
            draft.list(unit.todo(one.at, one.what, one.advice));
        }
    }
    recurrent(unit, draft);
}

/// Lists the places where weights of recurrent layers are read.
fn recurrent(unit: &Unit<'_>, draft: &mut Draft) {
    if !is_recurrent(unit.source.text) {
        return;
    }
    for facts in facts::all(unit) {
        let named = nodes(facts.function.block).find_map(|node| {
            let (text, at) = match node {
                Node::Expr(expr @ Expr::Lit(literal)) => {
                    (get!(&literal.lit, syn::Lit::Str)?.value(), facts.start(expr))
                }
                Node::Macro(call) => (call.tokens.to_string(), facts.start(call)),
                _ => return None,
            };
            is_recurrent(&text).then_some(at)
        });
        if let Some(at) = named.filter(|at| !unit.source.is_kept(*at)) {
            let what = "weights of the names `weight_ih*`, `weight_hh*` are an LSTM's or a GRU's";
            draft.list(unit.todo(at, what, RECURRENT_ADVICE));
        }
    }
}

/// A product of a weight that is in no layer.
struct FoundWeight {
    at: usize,
    /// The type and the field of its tensor; `None` for the weight of a layer.
    place: Option<(Key, String)>,
    what: String,
    advice: String,
}

/// The first product of each field's tensor, including products in functions of this and other
/// files.
struct WeightSearch {
    found: Vec<FoundWeight>,
    helpers: Helpers,
}

impl WeightSearch {
    fn new(unit: &Unit<'_>, counts: &dyn Fn(usize) -> bool, others: bool) -> Self {
        let mut search = Self { found: Vec::new(), helpers: Helpers::new() };
        let others =
            others && ["crate", "super", "self::"].iter().any(|way| unit.source.text.contains(way));
        if !has_products(unit) && !others {
            return search;
        }
        let macros = multiplying_macros(unit.file);
        let mut new = None;
        loop {
            let mut next = Helpers::new();
            for facts in facts::all(unit) {
                let mut sites = Sites {
                    facts,
                    macros: &macros,
                    helpers: new.as_ref(),
                    others,
                    found: Vec::new(),
                };
                sites.visit_block(facts.function.block);
                for (at, kind, operands) in sites.found.into_iter().filter(|one| counts(one.0)) {
                    for operand in &operands {
                        next.extend(search.take(facts, (at, kind), operand));
                    }
                }
            }
            next.retain(|helper| !search.helpers.contains(helper));
            if next.is_empty() {
                return search;
            }
            search.helpers.extend(next.iter().cloned());
            new = Some(next);
        }
    }

    /// Adds the fields behind an operand; returns the function if the operand is an argument.
    fn take(&mut self, facts: Facts<'_>, (at, kind): (usize, Kind), operand: &Expr) -> Vec<Helper> {
        let mut helpers = Vec::new();
        let mut trace = Trace::new(facts);
        for root in trace.roots(operand) {
            let (place, what, advice) = match root {
                Root::Argument(argument) => {
                    let function = facts.function;
                    helpers.push(Helper {
                        owner: function.owner.clone(),
                        name: function.signature.ident.to_string(),
                        argument,
                        takes_self: function.signature.receiver().is_some(),
                    });
                    continue;
                }
                Root::Layer(layer) => {
                    let what = format!("the weight of `{layer}`, a layer, multiplies as a tensor");
                    (None, what, LAYER_ADVICE.to_owned())
                }
                Root::Loaded(read) => {
                    let what = match kind {
                        Kind::Made => format!("a layer, `{read}`, is made at each call"),
                        _ => {
                            format!("`{read}` is read and multiplies as a tensor, and is no layer")
                        }
                    };
                    (None, what, LOADED_ADVICE.to_owned())
                }
                Root::Field(holder, field) => {
                    let tensor = format!("`{field}` of `{}`", holder.1);
                    let is_it = |(of, name): &(Key, String)| *of == holder && *name == field;
                    let mut known = self.found.iter().filter_map(|one| one.place.as_ref());
                    let is_plain = || {
                        let (origin, rank) = origin(facts.unit, &holder, &field);
                        origin == TensorOrigin::Computed || kind == Kind::Sum && rank == Some(1)
                    };
                    if known.any(is_it) || is_codebook(&holder.1) || is_plain() {
                        continue;
                    }
                    let advice = trace.advice(&field, is_table(facts.unit, &holder, &field));
                    let (what, advice) = if kind == Kind::Made {
                        let advice = advice.replace(", and call", " as a field, and call");
                        (format!("a layer of {tensor} is made at each call"), advice)
                    } else {
                        let is_recurrent = names(facts.unit, &holder, &field).any(is_recurrent);
                        let what = format!("{tensor} multiplies as a tensor, and is no layer");
                        (what, if is_recurrent { RECURRENT_ADVICE.to_owned() } else { advice })
                    };
                    (Some((holder, field)), what, advice)
                }
            };
            if place.is_some() || self.found.iter().all(|one| one.what != what) {
                self.found.push(FoundWeight { at, place, what, advice });
            }
        }
        helpers
    }
}

/// Whether a field has the name of a table, in the code or in the checkpoint.
fn is_table(unit: &Unit<'_>, key: &Key, field: &str) -> bool {
    let names = names(unit, key, field);
    let mut parts = names.flat_map(|text| text.split(|c: char| !c.is_alphanumeric()));
    let is_in = |names: &[&str], part: &str| names.contains(&part.to_lowercase().as_str());
    let is_learned = field.split('_').any(|part| is_in(LEARNED, part));
    !is_learned && parts.any(|part| is_in(TABLES, part))
}

/// Whether a text has the name of a recurrent layer's weight.
fn is_recurrent(text: &str) -> bool {
    RECURRENT.iter().any(|name| text.contains(name))
}

/// The names of a field, in the code and in the expressions that load it from a checkpoint.
fn names<'f>(unit: &'f Unit<'_>, key: &Key, field: &'f str) -> impl Iterator<Item = &'f str> {
    unit.built.given(key, field).map(|value| unit.source.slice(value)).chain([field])
}

/// The macros of the file that multiply their arguments.
fn multiplying_macros(file: &syn::File) -> BTreeSet<String> {
    let items = nodes(file).filter_map(|node| get!(get!(node, Node::Item)?, Item::Macro));
    let multiplying = items.filter(|item| item.mac.tokens.to_string().contains("matmul"));
    multiplying.filter_map(|item| item.ident.as_ref()).map(ToString::to_string).collect()
}

/// A kind of product.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Product,
    /// The sum of a product of elements.
    Sum,
    /// A layer of the operand is made.
    Made,
}

/// The places of products, with their operands.
struct Sites<'p> {
    facts: Facts<'p>,
    macros: &'p BTreeSet<String>,
    /// The functions whose calls are found; `None` finds products themselves.
    helpers: Option<&'p Helpers>,
    /// Whether functions of other files count.
    others: bool,
    found: Vec<(usize, Kind, Vec<Expr>)>,
}

impl Sites<'_> {
    fn push<'e>(&mut self, at: usize, operands: impl Iterator<Item = &'e Expr>) {
        let operands: Vec<_> = operands.cloned().collect();
        if !operands.is_empty() {
            self.found.push((at, Kind::Product, operands));
        }
    }

    /// Whether a path makes a `Linear` in a function that returns a tensor, not the layer.
    fn is_made(&self, path: &syn::Path) -> bool {
        let Facts { unit, function } = self.facts;
        let returns =
            |name| words(unit.source.slice(&function.signature.output)).any(|word| word == name);
        let is_new = match self.facts.resolve(&segments(path)).in_library() {
            Some([.., layer, new]) if layer == "Linear" => new == "new" || new == "from_weights",
            path => path.and_then(<[_]>::last).is_some_and(|name| name.starts_with("linear")),
        };
        is_new && returns("Tensor") && !returns("Linear") && !returns("Self")
    }

    /// Whether a path is a variable that holds a function.
    fn is_value(&self, path: &syn::Path) -> bool {
        let Some(name) = path.get_ident().map(ToString::to_string) else { return false };
        let at = self.facts.start(path);
        match self.facts.definitions(&name, at).first() {
            Some(value) => !matches!(value, Expr::Closure(_)),
            None => {
                let is_bound = self.facts.bindings(&name).is_some();
                is_bound || self.facts.type_of_parameter(&name).is_some()
            }
        }
    }

    /// Whether an expression is the name of a function that may multiply.
    fn is_function(&self, expr: &Expr) -> bool {
        get!(expr, Expr::Path).and_then(|path| path.path.segments.last()).is_some_and(|last| {
            let name = last.ident.to_string();
            let mut named = facts::of_name(self.facts.unit, &name);
            let several = |one: &Facts<'_>| one.function.signature.inputs.len() > 1;
            is_product(&name) || named.any(|one| several(&one) && one.returns_tensor())
        })
    }

    /// Adds the fields that a function gets which is not known by name.
    fn values<'e>(&mut self, at: usize, args: impl Iterator<Item = &'e Expr>) {
        if self.helpers.is_none() {
            self.push(at, args.filter(|arg| matches!(strip(arg), Expr::Field(_))));
        }
    }

    /// The factors of a product of elements, or of a variable that holds one.
    fn factors(&self, expr: &Expr, depth: usize) -> Vec<Expr> {
        let Some(depth) = depth.checked_sub(1) else { return Vec::new() };
        let factors: Vec<&Expr> = match strip(self.facts.definition(expr).unwrap_or(expr)) {
            Expr::Binary(pair) if matches!(pair.op, syn::BinOp::Mul(_)) => {
                vec![&pair.left, &pair.right]
            }
            Expr::MethodCall(call) if call.method == "mul" || call.method == "broadcast_mul" => {
                call.args.iter().chain([&*call.receiver]).collect()
            }
            _ => Vec::new(),
        };
        let inner: Vec<_> = factors.iter().flat_map(|one| self.factors(one, depth)).collect();
        factors.into_iter().cloned().chain(inner).collect()
    }

    /// The numbers of the arguments by which a function multiplies.
    fn arguments(&self, path: &syn::Path) -> Vec<usize> {
        let path = segments(path);
        let Some((name, before)) = path.split_last() else { return Vec::new() };
        let Some(helpers) = self.helpers else {
            let world = self.facts.unit.world;
            return if self.others { world.multiplies_by(&self.facts, &path) } else { Vec::new() };
        };
        let owner = self.facts.owner_of(before);
        let found = helpers.iter().filter(|one| one.name == *name && one.owner.as_ref() == owner);
        found.map(|one| one.argument + usize::from(one.takes_self)).collect()
    }
}

impl<'a> Visit<'a> for Sites<'_> {
    fn visit_expr_call(&mut self, call: &'a syn::ExprCall) {
        visit::visit_expr_call(self, call);
        let path = called(call).filter(|path| !self.is_value(path));
        let Some(path) = path else {
            let at = self.facts.start(&*call.func);
            return self.values(at, call.args.iter());
        };
        let at = self.facts.start(path);
        let last = path.segments.last().map(|last| last.ident.to_string());
        if self.helpers.is_none() && self.is_made(path) {
            let is_read = last.is_some_and(|last| last.starts_with("linear"));
            let whole = Expr::Call(call.clone());
            let weight = if is_read { Some(whole) } else { call.args.first().cloned() };
            return self.found.push((at, Kind::Made, weight.into_iter().collect()));
        }
        if last.is_some_and(|last| is_product(&last)) && self.helpers.is_none() {
            return self.push(at, call.args.iter());
        }
        if call.args.iter().any(|arg| self.is_function(arg)) {
            self.values(at, call.args.iter());
        }
        let numbers = self.arguments(path);
        self.push(at, numbers.iter().filter_map(|number| call.args.get(*number)));
    }

    fn visit_expr_method_call(&mut self, call: &'a ExprMethodCall) {
        visit::visit_expr_method_call(self, call);
        let at = self.facts.start(&call.method);
        let name = call.method.to_string();
        let Some(helpers) = self.helpers else {
            let operands = call.args.iter().chain([&*call.receiver]);
            if is_product(&name) && !call.args.is_empty() {
                self.push(at, operands);
            } else if SUMS.contains(&name.as_str()) {
                let factors = self.factors(&call.receiver, FACTORS);
                let text = |factor: &Expr| self.facts.text(strip(factor));
                // A sum of squares multiplies nothing.
                if factors.windows(2).any(|two| text(&two[0]) != text(&two[1])) {
                    self.found.push((at, Kind::Sum, factors));
                }
            } else if call.args.iter().any(|arg| self.is_function(arg)) {
                self.values(at, operands);
            }
            return;
        };
        let is_self = is(&call.receiver, "self");
        // An argument of a layer is not its weight.
        let is_forward = name.starts_with("forward") || name == "apply";
        let own_type = self.facts.function.owner.as_ref();
        let found = helpers.iter().filter(|one| {
            let of_type = is_self && one.owner.as_ref() == own_type || one.owner.is_none();
            one.takes_self && one.name == name && (of_type || !is_self && !is_forward)
        });
        let numbers: Vec<_> = found.map(|one| one.argument).collect();
        self.push(at, numbers.iter().filter_map(|number| call.args.get(*number)));
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        let Some(operands) = arguments(call) else { return };
        for operand in &operands {
            Visit::visit_expr(self, operand);
        }
        let mut names = self.macros.iter();
        let last = call.path.segments.last();
        let is_known = names.any(|name| call.path.is_ident(name))
            || last.is_some_and(|last| is_product(&last.ident.to_string()));
        if is_known && self.helpers.is_none() {
            let at = self.facts.start(&call.path);
            self.push(at, operands.iter());
        }
    }
}
