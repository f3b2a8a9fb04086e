//! Tensors of a struct that multiply as a layer's weight does: a `Linear` holds them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Block, Expr, ExprField, Fields as StructFields, Item, Member, Stmt, Token};

use super::draft::Draft;
use super::facts::Facts;
use super::functions::{self, Function};
use super::literals::Literals;
use super::names::House;
use super::product::{Env, Fields, Product, Value, is_result, returns_candle};
use super::source::Source;
use super::syntax::{changed, ident, member, mentions, own_member, words};
use super::table::{Home, is_codebook};
use super::types::{Declared, last_name};
use super::unit::Unit;
use super::weights::{Origin, has_products, origin};

/// Rewrites the structs that are certain; returns their names and the names of removed tensors.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft, house: &House) -> BTreeSet<(String, String)> {
    let mut held = BTreeSet::new();
    if !has_products(unit) {
        return held;
    }
    for declared in unit.types.declared.values() {
        let [one] = declared.as_slice() else { continue };
        let at = unit.source.range(&one.item).start;
        if unit.source.is_kept(at) || draft.edits.is_rewritten(at) {
            continue;
        }
        let Some(holder) = Holder::of(unit, one) else {
            continue;
        };
        let nn = house.name(Home::Nn);
        let scope = unit.types.scopes.scope(&one.module);
        let holder = Holder {
            has_module: scope.is_some_and(|scope| scope.bindings.contains_key("Module")),
            ..holder
        };
        let with_bias = holder.plan(true).and_then(|plan| plan.edits(&holder, nn));
        let edits = with_bias.or_else(|| holder.plan(false)?.edits(&holder, nn));
        let Some(edits) = edits else { continue };
        for (range, text) in edits.changes {
            draft.edits.rewrite(range, text);
        }
        let gone = edits.gone.into_iter();
        held.extend(gone.map(|field| (one.name.clone(), field)));
        draft.need(&one.module, nn, Home::Nn);
    }
    held
}

/// A struct with tensors.
struct Holder<'h, 'u> {
    unit: &'h Unit<'u>,
    declared: &'h Declared,
    fields: &'h StructFields,
    methods: Vec<Function<'h>>,
    tensors: Vec<String>,
    stacks: Vec<String>,
    options: Vec<String>,
    /// Whether the trait of `forward` is imported.
    has_module: bool,
}

/// The changes of a struct, and the fields that go.
struct Changes {
    changes: Vec<(Range<usize>, String)>,
    gone: Vec<String>,
}

/// The products of a struct and what is left out for them.
#[derive(Default)]
struct Plan {
    products: Vec<Found>,
    gone: Vec<Range<usize>>,
    /// Variables that go, and where they would be read.
    variables: Vec<(String, Range<usize>)>,
}

/// A product in the text.
struct Found {
    range: Range<usize>,
    /// The input, where it stays in its place.
    input: Option<Range<usize>>,
    product: Product,
    is_result: bool,
    /// The variable that it is bound to, and the statement.
    bound: Option<(String, Range<usize>)>,
    /// It is part of another one.
    is_part: bool,
}

impl Found {
    /// The text that replaces the old one.
    fn rewritten(&self) -> Range<usize> {
        let start = self
            .input
            .as_ref()
            .map_or(self.range.start, |input| input.end);
        start..self.range.end
    }

    /// The product as a call of a layer.
    fn call(&self, layer: &str, has_module: bool) -> String {
        let index = self.product.index.as_ref();
        let layer = match index {
            Some(index) => format!("{layer}[{index}]"),
            None => layer.to_owned(),
        };
        let tried = if self.is_result { "" } else { "?" };
        let input = &self.product.input;
        match (&self.input, has_module) {
            (Some(_), _) => format!(".apply(&self.{layer}){tried}"),
            (None, true) => format!("self.{layer}.forward({input}){tried}"),
            (None, false) => {
                let bare = input.trim_start_matches('&');
                format!("{bare}.apply(&self.{layer}){tried}")
            }
        }
    }
}

/// The fields of a struct with their names, or with their numbers.
fn named(fields: &StructFields) -> impl Iterator<Item = (String, &syn::Field)> {
    fields.iter().enumerate().map(|(at, field)| {
        let name = field.ident.as_ref().map(ToString::to_string);
        (name.unwrap_or_else(|| at.to_string()), field)
    })
}

fn is_inside(range: &Range<usize>, outer: &Range<usize>) -> bool {
    outer.start <= range.start && range.end <= outer.end
}

/// Whether an expression is calls of methods, the first of something at this place.
fn begins_with(source: &Source<'_>, expr: &Expr, place: &Range<usize>) -> bool {
    if source.range(expr) == *place {
        return true;
    }
    match expr {
        Expr::Try(inner) => begins_with(source, &inner.expr, place),
        Expr::Paren(inner) => begins_with(source, &inner.expr, place),
        Expr::MethodCall(call) => begins_with(source, &call.receiver, place),
        _ => false,
    }
}

/// How a layer stands for the tensors of a struct.
struct Layer {
    name: String,
    bias: Option<String>,
    turned: bool,
    /// There are several, by an index.
    is_list: bool,
}

impl<'h, 'u> Holder<'h, 'u> {
    fn of(unit: &'h Unit<'u>, declared: &'h Declared) -> Option<Self> {
        let Item::Struct(item) = &declared.item else {
            return None;
        };
        let fields = &item.fields;
        let of_type = |wanted: &str| {
            let fields = named(fields).filter(|(_, field)| {
                unit.source.slice(&field.ty).replace(' ', "") == wanted
                    && !field.attrs.iter().any(|attr| attr.path().is_ident("cfg"))
            });
            fields.map(|(name, _)| name).collect::<Vec<_>>()
        };
        let mut tensors = of_type("Tensor");
        if tensors.is_empty() {
            return None;
        }
        let mut stacks = Vec::new();
        tensors.retain(|field| {
            let (origin, rank) = origin(unit, &declared.name, field);
            let made = origin > Origin::Unknown;
            stacks.extend((made && rank == Some(3)).then(|| field.clone()));
            // A bias has one dimension.
            made && rank.is_none_or(|rank| rank <= 2)
        });
        let all = functions::of(unit.file).into_iter();
        let own = |function: &Function<'_>| {
            function.module == declared.module && function.of.as_ref() == Some(&declared.name)
        };
        let any = !tensors.is_empty() || !stacks.is_empty();
        (any && !is_codebook(&declared.name)).then(|| Self {
            unit,
            declared,
            fields,
            methods: all.filter(own).collect(),
            tensors,
            stacks,
            options: of_type("Option<Tensor>"),
            has_module: false,
        })
    }

    /// The products of all methods, with what is added to them or without.
    fn plan(&self, biases: bool) -> Option<Plan> {
        let fields = Fields {
            tensors: self.tensors.clone(),
            stacks: self.stacks.clone(),
            options: self.options.clone(),
            // Without one of its fields, a tuple's others have other numbers.
            biases: biases && !self.is_tuple(),
        };
        let mut plan = Plan::default();
        for method in &self.methods {
            let facts = Facts::of(self.unit, method);
            let mut search = Search {
                env: Env::new(&facts, &fields),
                plan: Plan::default(),
                stmt: 0..0,
                within: None,
            };
            search.env.is_candle = returns_candle(self.unit, &method.module, method.signature);
            search.block(method.block);
            let Plan {
                products,
                gone,
                variables,
            } = search.plan;
            plan.gone.extend(gone);
            plan.variables.extend(variables);
            plan.products
                .extend(products.into_iter().filter(|found| !found.is_part));
        }
        let read = |(name, range): &(String, Range<usize>)| plan.is_read(self.unit, name, range);
        let certain = !plan.products.is_empty() && !plan.variables.iter().any(read);
        certain.then_some(plan)
    }

    fn has_field(&self, name: &str) -> bool {
        named(self.fields).any(|(own, _)| own == name)
    }

    fn is_tuple(&self) -> bool {
        matches!(self.fields, StructFields::Unnamed(_))
    }

    /// The name of the layer that a weight is in.
    fn name(&self, weight: &str) -> Option<String> {
        let ends = ["_weight", "_kernel", "_w"];
        let stem = ends.iter().find_map(|end| weight.strip_suffix(end));
        let names = match weight {
            "weight" | "kernel" | "w" => vec!["inner", "linear", "projection"],
            _ => stem.into_iter().chain([weight]).collect(),
        };
        let free = |name: &&&str| **name == weight || !self.has_field(name);
        names.iter().find(free).map(|name| (*name).to_owned())
    }
}

impl Plan {
    /// Whether a place is in what goes or is written anew.
    fn is_done(&self, range: &Range<usize>) -> bool {
        let products = self.products.iter().map(Found::rewritten);
        let mut all = products.chain(self.gone.iter().cloned());
        all.any(|outer| is_inside(range, &outer))
    }

    /// Whether a variable is read in what stays of a range.
    fn is_read(&self, unit: &Unit<'_>, name: &str, range: &Range<usize>) -> bool {
        let text = &unit.source.text[range.clone()];
        words(text).filter(|word| *word == name).any(|word| {
            let at = range.start + (word.as_ptr() as usize - text.as_ptr() as usize);
            !self.is_done(&(at..at + word.len()))
        })
    }

    /// The layers by their weights; `None` where a weight is used in two ways.
    fn layers(&self, holder: &Holder<'_, '_>) -> Option<BTreeMap<String, Layer>> {
        let mut layers = BTreeMap::<String, Layer>::new();
        for Found { product, .. } in &self.products {
            if let Some(layer) = layers.get(&product.weight) {
                if layer.bias != product.bias || layer.turned != product.turned {
                    return None;
                }
                continue;
            }
            // An argument of a constructor may be no weight, if nothing says so.
            let origin = || origin(holder.unit, &holder.declared.name, &product.weight).0;
            if product.turned && product.bias.is_none() && origin() < Origin::Loaded {
                return None;
            }
            let layer = Layer {
                name: holder.name(&product.weight)?,
                bias: product.bias.clone(),
                turned: product.turned,
                is_list: product.index.is_some(),
            };
            let taken = layers.values().any(|other| {
                other.name == layer.name || other.bias.is_some() && other.bias == layer.bias
            });
            if taken {
                return None;
            }
            layers.insert(product.weight.clone(), layer);
        }
        let biases: Vec<_> = layers.values().filter_map(|l| l.bias.clone()).collect();
        (!biases.iter().any(|bias| layers.contains_key(bias))).then_some(layers)
    }

    fn edits(&self, holder: &Holder<'_, '_>, nn: &str) -> Option<Changes> {
        let layers = self.layers(holder)?;
        let source = holder.unit.source;
        let mut changes = Vec::new();
        for found in &self.products {
            let layer = &layers[&found.product.weight];
            // An input that is written elsewhere reads no tensor that goes.
            let reads = |name: &String| mentions(&found.product.input, name) > 0;
            if found.input.is_none() && layers.keys().any(reads) {
                return None;
            }
            let call = found.call(&layer.name, holder.has_module);
            changes.push((found.rewritten(), call));
        }
        for range in &self.gone {
            changes.push((source.with_comments(range.clone()), String::new()));
        }
        changes.extend(others(holder, self, &layers)?);
        changes.extend(declaration(holder, &layers, nn)?);
        changes.extend(literals(holder, &layers, nn)?);
        let biases = layers.values().filter_map(|layer| layer.bias.clone());
        let gone = layers.keys().cloned().chain(biases).collect();
        Some(Changes { changes, gone })
    }
}

/// The fields: a layer in the place of the weight, and no bias.
fn declaration(
    holder: &Holder<'_, '_>,
    layers: &BTreeMap<String, Layer>,
    nn: &str,
) -> Option<Vec<(Range<usize>, String)>> {
    let source = holder.unit.source;
    let mut changes = Vec::new();
    let mut public = false;
    for (index, (name, field)) in named(holder.fields).enumerate() {
        let is_bias = layers.values().any(|l| l.bias.as_ref() == Some(&name));
        if !is_bias && !layers.contains_key(&name) {
            continue;
        }
        public |= !matches!(field.vis, syn::Visibility::Inherited);
        if let Some(layer) = layers.get(&name) {
            let ty = if layer.is_list {
                format!("Vec<{nn}::Linear>")
            } else {
                format!("{nn}::Linear")
            };
            changes.push(match &field.ident {
                Some(ident) => {
                    let range = source.range(ident).start..source.range(&field.ty).end;
                    (range, format!("{}: {ty}", layer.name))
                }
                None => (source.range(&field.ty), ty),
            });
        } else if let StructFields::Named(fields) = holder.fields {
            let range = item_of_list(source, &fields.named, index);
            changes.push((range, String::new()));
        }
    }
    let own = &holder.declared.name;
    let (unit, names) = (holder.unit, layers.keys());
    let elsewhere =
        public && (holder.is_tuple() || unit.world.is_built_elsewhere(unit.path, own, names));
    (!elsewhere).then_some(changes)
}

/// An element of a list with its comma and the comments above it.
fn item_of_list<T: Spanned>(
    source: &Source<'_>,
    list: &Punctuated<T, Token![,]>,
    index: usize,
) -> Range<usize> {
    let range = source.range(&list[index]);
    let next = list.get(index + 1).map(|next| source.range(next).start);
    let pair = list.pairs().nth(index);
    let comma = pair.and_then(|pair| pair.punct().map(|comma| source.range(*comma).end));
    let Some(comma) = comma else {
        // The last one takes the comma before it along.
        let before = index
            .checked_sub(1)
            .map(|before| source.range(&list[before]).end);
        return before.unwrap_or(range.start)..range.end;
    };
    match next {
        Some(next) if source.line(next) == source.line(comma) => range.start..next,
        _ => source.with_comments(range.start..comma),
    }
}

/// The constructors: the layer is made of what the tensors were.
fn literals(
    holder: &Holder<'_, '_>,
    layers: &BTreeMap<String, Layer>,
    nn: &str,
) -> Option<Vec<(Range<usize>, String)>> {
    let (unit, source) = (holder.unit, holder.unit.source);
    let literals = Literals::of(unit, &holder.declared.name);
    if holder.is_tuple() {
        return tuples(holder, &literals, layers, nn);
    }
    if literals.found.is_empty() || literals.patterns {
        return None;
    }
    let mut changes = Vec::new();
    for (literal, in_result) in literals.found {
        if literal.rest.is_some() {
            return None;
        }
        let given = |name: &str| {
            let is_it = |value: &syn::FieldValue| matches!(&value.member, Member::Named(member) if member == name);
            literal.fields.iter().position(is_it)
        };
        for (weight, layer) in layers {
            let value = &literal.fields[given(weight)?];
            let mut made = source.slice(&value.expr).to_owned();
            if layer.is_list {
                ident(&value.expr).filter(|_| layer.bias.is_none())?;
                made += ".get(index)?";
            }
            if layer.turned {
                made += ".t()?";
            }
            if !in_result && (layer.turned || layer.is_list) {
                return None;
            }
            let bias = match &layer.bias {
                None => "None".to_owned(),
                Some(bias) => {
                    let index = given(bias)?;
                    let range = item_of_list(source, &literal.fields, index);
                    changes.push((range, String::new()));
                    let text = source.slice(&literal.fields[index].expr);
                    if holder.options.contains(bias) {
                        text.to_owned()
                    } else {
                        format!("Some({text})")
                    }
                }
            };
            let made = format!("{nn}::Linear::new({made}, {bias})");
            let made = match (layer.is_list, ident(&value.expr)) {
                (true, Some(stack)) => {
                    format!("(0..{stack}.dim(0)?).map(|index| Ok({made})).collect::<Result<_>>()?")
                }
                _ => made,
            };
            let text = format!("{}: {made}", layer.name);
            changes.push((source.range(value), text));
        }
    }
    Some(changes)
}

/// The edits of a tuple, which is built by calls.
fn tuples(
    holder: &Holder<'_, '_>,
    literals: &Literals<'_>,
    layers: &BTreeMap<String, Layer>,
    nn: &str,
) -> Option<Vec<(Range<usize>, String)>> {
    let source = holder.unit.source;
    let other = literals.patterns || literals.is_value || !literals.found.is_empty();
    if literals.tuples.is_empty() || other {
        return None;
    }
    let mut changes = Vec::new();
    for (call, in_result) in &literals.tuples {
        for (weight, layer) in layers {
            let value = call.args.iter().nth(weight.parse().ok()?)?;
            let turn = if layer.turned { ".t()?" } else { "" };
            if layer.is_list || layer.turned && !in_result {
                return None;
            }
            let made = format!("{nn}::Linear::new({}{turn}, None)", source.slice(value));
            changes.push((source.range(value), made));
        }
    }
    Some(changes)
}

/// Makes other reads of the tensors read from the layer. `None` where that is not certain.
fn others(
    holder: &Holder<'_, '_>,
    plan: &Plan,
    layers: &BTreeMap<String, Layer>,
) -> Option<Vec<(Range<usize>, String)>> {
    let mut reads = Reads {
        holder,
        plan,
        layers,
        own: false,
        is_const: false,
        called: called(holder.unit, plan),
        is_called: false,
        on_gpu: false,
        changes: Vec::new(),
        certain: true,
    };
    for item in &holder.unit.file.items {
        reads.own = matches!(item, Item::Impl(one)
            if last_name(&one.self_ty).is_some_and(|name| name == holder.declared.name));
        reads.visit_item(item);
    }
    reads.certain.then_some(reads.changes)
}

/// The names of functions that compute products, of those called `forward`, and of all that these call.
fn called(unit: &Unit<'_>, plan: &Plan) -> BTreeSet<String> {
    struct Calls(BTreeSet<String>);
    impl<'a> Visit<'a> for Calls {
        fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
            self.0.insert(call.method.to_string());
            visit::visit_expr_method_call(self, call);
        }
        fn visit_expr_path(&mut self, path: &'a syn::ExprPath) {
            let last = path.path.segments.last();
            self.0.extend(last.map(|last| last.ident.to_string()));
        }
    }
    let functions = functions::of(unit.file);
    let computes = |function: &&Function<'_>| {
        let block = unit.source.range(function.block);
        let mut products = plan.products.iter();
        let forward = function.signature.ident.to_string().starts_with("forward");
        forward || products.any(|found| is_inside(&found.range, &block))
    };
    let name = |function: &Function<'_>| function.signature.ident.to_string();
    let mut called: BTreeSet<_> = functions.iter().filter(computes).map(name).collect();
    let mut open: Vec<_> = called.iter().cloned().collect();
    while let Some(next) = open.pop() {
        let mut calls = Calls(BTreeSet::new());
        for function in functions.iter().filter(|one| name(one) == next) {
            calls.visit_block(function.block);
        }
        for function in functions.iter().map(name) {
            if calls.0.contains(&function) && called.insert(function.clone()) {
                open.push(function);
            }
        }
    }
    called
}

/// Whether a condition or a pattern holds for what is on a GPU only.
fn is_gpu(condition: &str) -> bool {
    let condition = condition.to_lowercase();
    let gpu = |part: &str| part.contains("cuda") || part.contains("metal");
    let other = condition.contains('!') || condition.contains("cpu");
    !other
        && condition
            .split('|')
            .filter(|one| !one.trim().is_empty())
            .all(gpu)
}

/// Whether a condition holds for all that is on a CPU.
fn is_cpu(condition: &str) -> bool {
    condition.to_lowercase().contains("cpu") && !condition.contains(['!', '&', '|'])
}

struct Reads<'r, 'h, 'u> {
    holder: &'r Holder<'h, 'u>,
    plan: &'r Plan,
    layers: &'r BTreeMap<String, Layer>,
    /// In an `impl` of the struct.
    own: bool,
    /// In a `const fn`, which calls no accessor of a layer.
    is_const: bool,
    /// The functions that run in `forward`.
    called: BTreeSet<String>,
    /// In one of them.
    is_called: bool,
    /// In a branch that no CPU takes.
    on_gpu: bool,
    changes: Vec<(Range<usize>, String)>,
    certain: bool,
}

impl Reads<'_, '_, '_> {
    /// `self.inner.weight()` for a weight, `self.inner.bias()` for an optional bias.
    fn accessor(&self, field: &str) -> Option<String> {
        if let Some(layer) = self.layers.get(field) {
            return (!layer.turned && !layer.is_list)
                .then(|| format!("self.{}.weight()", layer.name));
        }
        let options = &self.holder.options;
        let mut layers = self.layers.values();
        let layer = layers.find(|layer| layer.bias.as_deref() == Some(field))?;
        options
            .iter()
            .any(|option| option == field)
            .then(|| format!("self.{}.bias()", layer.name))
    }

    fn goes(&self, name: &str) -> bool {
        let biases = self.layers.values().filter_map(|l| l.bias.as_deref());
        self.layers.contains_key(name) || biases.into_iter().any(|bias| bias == name)
    }

    /// A read by which nothing is taken or changed.
    fn read(&mut self, expr: &Expr, whole: Range<usize>, end: &str) -> bool {
        let Expr::Field(_) = expr else { return false };
        let field = own_member(expr).filter(|field| self.own && self.goes(field));
        let Some(field) = field else { return false };
        if self.plan.is_done(&whole) {
            return true;
        }
        // A quantized layer keeps the float weight from the first read of it on.
        let no_cpu = self.on_gpu || self.holder.unit.is_left_out(whole.start);
        let costs = self.layers.contains_key(&field) && self.is_called && !no_cpu;
        match self.accessor(&field).filter(|_| !self.is_const && !costs) {
            Some(text) => self.changes.push((whole, text + end)),
            None => self.certain = false,
        }
        true
    }
}

impl Reads<'_, '_, '_> {
    fn branch(&mut self, on_gpu: bool, visit: impl FnOnce(&mut Self)) {
        let outer = self.on_gpu;
        self.on_gpu |= on_gpu;
        visit(self);
        self.on_gpu = outer;
    }

    fn is_option(&self, expr: &Expr) -> bool {
        own_member(expr).is_some_and(|field| self.holder.options.contains(&field))
    }

    /// The matched value may be an option of a reference or a reference to an option.
    fn matched(&mut self, expr: &Expr) {
        let whole = self.holder.unit.source.range(expr);
        let Expr::Reference(reference) = expr else {
            return self.visit_expr(expr);
        };
        if !self.read(&reference.expr, whole, "") {
            self.visit_expr(expr);
        }
    }
}

impl<'a> Visit<'a> for Reads<'_, '_, '_> {
    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        self.is_const = item.sig.constness.is_some();
        self.is_called = self.called.contains(&item.sig.ident.to_string());
        visit::visit_impl_item_fn(self, item);
        (self.is_const, self.is_called) = (false, false);
    }

    fn visit_expr_if(&mut self, choice: &'a syn::ExprIf) {
        let condition = self.holder.unit.source.slice(&*choice.cond);
        self.visit_expr(&choice.cond);
        self.branch(is_gpu(condition), |branch| {
            branch.visit_block(&choice.then_branch);
        });
        if let Some((_, other)) = &choice.else_branch {
            self.branch(is_cpu(condition), |branch| branch.visit_expr(other));
        }
    }

    fn visit_arm(&mut self, arm: &'a syn::Arm) {
        // The pattern, with its guard.
        let on_gpu = is_gpu(self.holder.unit.source.slice(&arm.pat));
        self.visit_pat(&arm.pat);
        self.branch(on_gpu, |branch| branch.visit_expr(&arm.body));
    }

    fn visit_expr_match(&mut self, choice: &'a syn::ExprMatch) {
        self.matched(&choice.expr);
        choice.arms.iter().for_each(|arm| self.visit_arm(arm));
    }

    fn visit_expr_let(&mut self, bound: &'a syn::ExprLet) {
        self.matched(&bound.expr);
    }

    fn visit_expr_reference(&mut self, reference: &'a syn::ExprReference) {
        let whole = self.holder.unit.source.range(reference);
        let other = reference.mutability.is_some() || self.is_option(&reference.expr);
        if other || !self.read(&reference.expr, whole, "") {
            visit::visit_expr_reference(self, reference);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        let source = self.holder.unit.source;
        let is_option = self.is_option(&call.receiver);
        let name = call.method.to_string();
        let (range, end) = match (is_option, name.as_str()) {
            (true, "as_ref") => (source.range(call), ""),
            (true, "clone") => (source.range(call), ".cloned()"),
            (true, "is_some" | "is_none") | (false, _) => (source.range(&*call.receiver), ""),
            (true, _) => return visit::visit_expr_method_call(self, call),
        };
        if !self.read(&call.receiver, range, end) {
            visit::visit_expr(self, &call.receiver);
        }
        call.args.iter().for_each(|arg| self.visit_expr(arg));
    }

    fn visit_expr_field(&mut self, field: &'a ExprField) {
        let source = self.holder.unit.source;
        let is_self = ident(&field.base).is_some_and(|base| base == "self");
        let other = is_self && !self.own;
        let goes = self.goes(&member(&field.member));
        if goes && !other && !self.plan.is_done(&source.range(field)) {
            self.certain = false;
        }
        visit::visit_expr_field(self, field);
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        let tokens = call.tokens.to_string();
        let read = words(&tokens).any(|word| self.goes(word));
        self.certain &= !(read && self.own && tokens.contains("self"));
    }
}

/// The search for products in a function.
struct Search<'e, 'f, 'u> {
    env: Env<'e, 'f, 'u>,
    plan: Plan,
    /// The statement that is searched.
    stmt: Range<usize>,
    /// Where products are looked for: in the input of one.
    within: Option<Range<usize>>,
}

impl Search<'_, '_, '_> {
    fn range(&self, node: &impl Spanned) -> Range<usize> {
        self.env.facts.unit.source.range(node)
    }

    fn block(&mut self, block: &Block) {
        let outer = self.env.variables.clone();
        let whole = self.range(block);
        for stmt in &block.stmts {
            self.stmt(stmt, &whole);
        }
        self.env.variables = outer;
    }

    fn stmt(&mut self, stmt: &Stmt, block: &Range<usize>) {
        let range = self.range(stmt);
        if let Some((name, product)) = self.env.added(stmt) {
            self.plan.gone.push(range);
            return self.extend(&name, product);
        }
        let values = match stmt {
            Stmt::Local(local) => self.env.bound(local).unwrap_or_default(),
            _ => Vec::new(),
        };
        let rest = range.end..block.end;
        if values.iter().any(|(_, value)| is_weight(value)) {
            self.plan.gone.push(range);
            self.leave_out(&values, &rest);
            return self.env.variables.extend(values);
        }
        let first = self.plan.products.len();
        self.stmt = range.clone();
        visit::visit_stmt(self, stmt);
        self.rebound(stmt);
        for place in first..self.plan.products.len() {
            self.leave_out_part(place, &values, &range, &rest);
        }
        for (name, value) in values {
            self.bind(name, value, &range);
        }
    }

    /// The variable of a product that is part of another goes.
    fn leave_out_part(
        &mut self,
        place: usize,
        values: &[(String, Value)],
        stmt: &Range<usize>,
        rest: &Range<usize>,
    ) {
        let Some(part) = self.plan.products[place].product.before else {
            return;
        };
        let Some((name, made)) = self.plan.products[part].bound.clone() else {
            return;
        };
        let between = made.end..stmt.start.max(made.end);
        self.plan.variables.push((name.clone(), between));
        if !values.iter().any(|(bound, _)| *bound == name) {
            self.plan.variables.push((name, rest.clone()));
        }
    }

    /// A variable that is a product from here on.
    fn bind(&mut self, name: String, value: Value, stmt: &Range<usize>) {
        let Value::Product(product) = value else {
            return;
        };
        // The outermost of a statement comes first.
        let in_stmt = |found: &Found| is_inside(&found.range, stmt);
        let Some(last) = self.plan.products.iter().position(in_stmt) else {
            return;
        };
        self.plan.products[last].bound = Some((name.clone(), stmt.clone()));
        let product = product.after(last);
        self.env.variables.insert(name, Value::Product(product));
    }

    /// A bias that a later statement adds to a product.
    fn extend(&mut self, name: &str, product: Product) {
        if let Some(place) = product.before {
            let found = &mut self.plan.products[place];
            found.product.bias.clone_from(&product.bias);
            let stmt = found.bound.as_ref().map(|(_, stmt)| stmt.clone());
            let constant = stmt.filter(|_| self.env.facts.assignments(name) == 1);
            self.plan
                .gone
                .extend(constant.and_then(|stmt| self.mutable(name, stmt)));
        }
        self.env
            .variables
            .insert(name.to_owned(), Value::Product(product));
    }

    /// The `mut` of a declaration.
    fn mutable(&self, name: &str, stmt: Range<usize>) -> Option<Range<usize>> {
        let text = &self.env.facts.unit.source.text[stmt.clone()];
        let at = stmt.start + text.find(&format!("mut {name}"))?;
        Some(at..at + "mut ".len())
    }

    /// Values that a statement changes are known no more.
    fn rebound(&mut self, stmt: &Stmt) {
        let names = changed(stmt);
        let is_read = |text: &str| words(text).any(|word| names.contains(word));
        self.env.variables.retain(|name, value| {
            let input = match value {
                Value::Input { text, .. } => is_read(text),
                Value::Product(product) => is_read(&product.input),
                Value::Weight(weight) => weight.index.as_deref().is_some_and(is_read),
                Value::One(_, index) => is_read(index),
                Value::Stack(_) | Value::Bias(_) => false,
            };
            !input && !names.contains(name)
        });
    }

    /// Variables that go are read by what goes with them.
    fn leave_out(&mut self, values: &[(String, Value)], rest: &Range<usize>) {
        for (name, value) in values {
            let same = matches!(value, Value::Input { text, .. }
                if text.trim_start_matches('&') == name);
            if !same {
                self.plan.variables.push((name.clone(), rest.clone()));
            }
        }
    }

    /// A product, if it is more than the variable that holds one.
    fn found(&mut self, expr: &Expr) -> bool {
        let range = self.range(expr);
        if self
            .within
            .as_ref()
            .is_some_and(|within| !is_inside(&range, within))
        {
            return false;
        }
        let Some(Value::Product(product)) = self.env.eval(expr) else {
            return false;
        };
        if product.is_flat() {
            return false;
        }
        if let Some(place) = product.before {
            let before = &mut self.plan.products[place];
            if before.product.bias == product.bias {
                return false;
            }
            before.is_part = true;
            let stmt = before.bound.as_ref().map(|(_, stmt)| stmt.clone());
            self.plan.gone.extend(stmt);
            // The comments about the bias.
            let source = self.env.facts.unit.source;
            let whole = source.whole_lines(self.stmt.clone());
            let comments = source.with_comments(self.stmt.clone()).start..whole.start;
            self.plan
                .gone
                .extend(Some(comments).filter(|range| !range.is_empty()));
        }
        let source = self.env.facts.unit.source;
        let place = product.place.0.clone();
        let is_name = source.text[place.clone()]
            .chars()
            .all(|c| c.is_alphanumeric() || c == '_');
        let direct = product.before.is_none() && !is_name && begins_with(source, expr, &place);
        let (range, is_result) = (self.range(expr), is_result(expr));
        self.plan.products.push(Found {
            range,
            input: direct.then_some(place),
            product,
            is_result,
            bound: None,
            is_part: false,
        });
        true
    }
}

fn is_weight(value: &Value) -> bool {
    matches!(value, Value::Weight(_) | Value::One(..))
}

impl<'a> Visit<'a> for Search<'_, '_, '_> {
    fn visit_expr(&mut self, expr: &'a Expr) {
        let borrowed = matches!(expr, Expr::Reference(_) | Expr::Paren(_));
        if borrowed || !self.found(expr) {
            return visit::visit_expr(self, expr);
        }
        let input = self
            .plan
            .products
            .last()
            .and_then(|found| found.input.clone());
        if input.is_some() {
            let outer = std::mem::replace(&mut self.within, input);
            visit::visit_expr(self, expr);
            self.within = outer;
        }
    }

    fn visit_block(&mut self, block: &'a Block) {
        self.block(block);
    }

    fn visit_expr_closure(&mut self, closure: &'a syn::ExprClosure) {
        // Its return type is not written.
        let outer = std::mem::replace(&mut self.env.is_candle, false);
        visit::visit_expr_closure(self, closure);
        self.env.is_candle = outer;
    }

    fn visit_item(&mut self, _: &'a Item) {}
}
