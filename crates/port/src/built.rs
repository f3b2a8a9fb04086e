//! The literals and calls that build the types of a file, and the values of their fields.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};
use syn::{Expr, ExprCall, ExprMethodCall, ExprStruct, FieldValue, Member};

use super::functions::output;
use super::scopes::{Module, Origin, Scopes};
use super::syntax::{called, ends_with, get, idents, is, member, method, segments, strip, without};
use super::table::list;
use super::types::{Key, arguments, is_named};

/// Methods that add to a container.
pub const ADDS: &[&str] = list![append extend insert push push_back replace set];

/// Methods that combine a tensor with another tensor element by element.
const ELEMENTWISE: &[&str] = list![
    add broadcast_add broadcast_div broadcast_mul broadcast_sub div mul sub
];

/// Functions whose tensors are rows and vectors.
const NORMS: &[&str] = list![add_layer_norm layer_norm layer_norm_slow rms_norm rms_norm_slow];

/// Methods that sum a product.
pub const SUMS: &[&str] = list![mean mean_keepdim sum sum_all sum_keepdim];

/// The expressions that build a type.
#[derive(Default)]
pub struct Literals<'f> {
    /// The literals, each with whether its function returns a `Result`.
    pub found: Vec<(&'f ExprStruct, bool)>,
    /// The calls that build a tuple, each with the same.
    pub tuples: Vec<(&'f ExprCall, bool)>,
    /// Whether the function that builds a tuple is given away.
    pub is_value: bool,
    /// Whether a pattern names all of its fields.
    pub patterns: bool,
}

/// The value of a field in a literal.
pub fn given<'f>(literal: &'f ExprStruct, name: &str) -> Option<&'f FieldValue> {
    literal.fields.iter().find(|given| member(&given.member) == name)
}

/// The expressions that build all types, and the values that are assigned to fields, by their names
/// alone.
pub struct Built<'f> {
    scopes: &'f Scopes,
    module: Module,
    /// The type that is `Self`.
    self_type: Option<Key>,
    /// Whether the functions around return a `Result`, the innermost last.
    results: Vec<bool>,
    /// The expressions that build each type.
    pub literals: BTreeMap<Key, Literals<'f>>,
    assigned: BTreeMap<String, Vec<&'f Expr>>,
    /// The number of reads of a field, of `self` or of other values, and the number of those
    /// outside products.
    reads: BTreeMap<(Option<Key>, String), (usize, usize)>,
    /// The constants of type `usize`.
    pub sizes: BTreeMap<String, &'f Expr>,
}

impl<'f> Built<'f> {
    pub fn new(scopes: &'f Scopes, file: &'f syn::File) -> Self {
        let mut built = Self {
            scopes,
            module: Vec::new(),
            self_type: None,
            results: Vec::new(),
            literals: BTreeMap::new(),
            assigned: BTreeMap::new(),
            reads: BTreeMap::new(),
            sizes: BTreeMap::new(),
        };
        built.visit_file(file);
        built
    }

    /// The values that constructors give to a field.
    pub fn given(&self, key: &Key, field: &str) -> impl Iterator<Item = &'f Expr> {
        let (found, tuples) = match self.literals.get(key) {
            Some(literals) => (&*literals.found, &*literals.tuples),
            None => (&[][..], &[][..]),
        };
        let named = found.iter().filter_map(move |(literal, _)| Some(&given(literal, field)?.expr));
        let at = field.parse();
        let numbered = tuples.iter();
        named.chain(numbered.filter_map(move |(call, _)| call.args.iter().nth(at.clone().ok()?)))
    }

    /// The values that are assigned or added to a field of this name.
    pub fn assigned(&self, field: &str) -> &[&'f Expr] {
        self.assigned.get(field).map_or(&[], Vec::as_slice)
    }

    /// Whether all reads of a field are rows of a norm or element by element.
    pub fn is_elementwise(&self, holder: &Key, field: &str) -> bool {
        self.self_reads(holder, field).is_some_and(|(all, plain)| all == plain)
    }

    /// The number of reads of a field and of those outside products, if all are of `self`.
    pub fn self_reads(&self, holder: &Key, field: &str) -> Option<(usize, usize)> {
        let counts = self.reads.get(&(Some(holder.clone()), field.to_owned()));
        let others = self.reads.contains_key(&(None, field.to_owned()));
        counts.filter(|_| !others).copied()
    }

    /// Counts a read of a field; `is_plain` marks a read outside products.
    fn read(&mut self, expr: &Expr, is_plain: bool) {
        let viewed = without(expr, &["clone", "reshape", "to_dtype", "unsqueeze"]);
        let Some(field) = get!(strip(viewed), Expr::Field) else { return };
        let holder = self.self_type.clone().filter(|_| is(&field.base, "self"));
        let (all, plain) = self.reads.entry((holder, member(&field.member))).or_default();
        *if is_plain { plain } else { all } += 1;
    }

    fn mention(&mut self, field: String) {
        self.reads.entry((None, field)).or_default().0 += 1;
    }

    /// The type of this file that a path names.
    fn local(&self, path: &syn::Path) -> Option<Key> {
        if path.is_ident("Self") {
            return self.self_type.clone();
        }
        match self.scopes.resolve(&self.module, &segments(path)) {
            Origin::Local(key) => ends_with(path, &key.1).then_some(key),
            _ => None,
        }
    }

    /// The expressions that build the type of a path, if that is a type of this file.
    fn of_path(&mut self, path: &syn::Path) -> Option<&mut Literals<'f>> {
        Some(self.literals.entry(self.local(path)?).or_default())
    }

    fn in_result(&self) -> bool {
        self.results.last().copied().unwrap_or_default()
    }

    fn function(&mut self, signature: &syn::Signature, visit: impl FnOnce(&mut Self)) {
        // One with an error of its own may take none of candle's.
        let is_candle = |ty| is_named(ty, "Result") && arguments(ty).len() == 1;
        self.results.push(output(signature).is_some_and(is_candle));
        visit(self);
        self.results.pop();
    }

    fn assign(&mut self, place: &Expr, values: impl Iterator<Item = &'f Expr>) {
        if let Some(field) = get!(strip(place), Expr::Field)
            && let Member::Named(name) = &field.member
        {
            self.assigned.entry(name.to_string()).or_default().extend(values);
        }
    }
}

impl<'f> Visit<'f> for Built<'f> {
    fn visit_item_mod(&mut self, item: &'f syn::ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_impl(&mut self, item: &'f syn::ItemImpl) {
        let self_type = get!(&*item.self_ty, syn::Type::Path).and_then(|ty| self.local(&ty.path));
        let outer = std::mem::replace(&mut self.self_type, self_type);
        visit::visit_item_impl(self, item);
        self.self_type = outer;
    }

    fn visit_item_const(&mut self, item: &'f syn::ItemConst) {
        if is_named(&item.ty, "usize") {
            self.sizes.insert(item.ident.to_string(), &item.expr);
        }
        visit::visit_item_const(self, item);
    }

    fn visit_item_fn(&mut self, item: &'f syn::ItemFn) {
        self.function(&item.sig, |inner| visit::visit_item_fn(inner, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'f syn::ImplItemFn) {
        self.function(&item.sig, |inner| visit::visit_impl_item_fn(inner, item));
    }

    fn visit_expr_closure(&mut self, closure: &'f syn::ExprClosure) {
        // The return type of a closure is not written.
        self.results.push(false);
        visit::visit_expr_closure(self, closure);
        self.results.pop();
    }

    fn visit_expr_struct(&mut self, literal: &'f ExprStruct) {
        let result = self.in_result();
        if let Some(literals) = self.of_path(&literal.path) {
            literals.found.push((literal, result));
        }
        visit::visit_expr_struct(self, literal);
    }

    fn visit_expr_path(&mut self, path: &'f syn::ExprPath) {
        if let Some(literals) = self.of_path(&path.path) {
            literals.is_value = true;
        }
    }

    fn visit_pat_tuple_struct(&mut self, pat: &'f syn::PatTupleStruct) {
        if let Some(literals) = self.of_path(&pat.path) {
            literals.patterns = true;
        }
        visit::visit_pat_tuple_struct(self, pat);
    }

    fn visit_pat_struct(&mut self, pat: &'f syn::PatStruct) {
        if let Some(literals) = self.of_path(&pat.path) {
            literals.patterns |= pat.rest.is_none();
        }
        visit::visit_pat_struct(self, pat);
    }

    fn visit_expr_field(&mut self, field: &'f syn::ExprField) {
        let holder = self.self_type.clone().filter(|_| is(&field.base, "self"));
        self.reads.entry((holder, member(&field.member))).or_default().0 += 1;
        visit::visit_expr_field(self, field);
    }

    fn visit_field_pat(&mut self, pat: &'f syn::FieldPat) {
        self.mention(member(&pat.member));
        visit::visit_field_pat(self, pat);
    }

    fn visit_macro(&mut self, call: &'f syn::Macro) {
        // Text in literals reads no field.
        idents(&call.tokens.to_string()).into_keys().for_each(|name| self.mention(name));
    }

    fn visit_expr_call(&mut self, call: &'f ExprCall) {
        let norm = called(call).is_some_and(|path| NORMS.iter().any(|name| ends_with(path, name)));
        for argument in call.args.iter().filter(|_| norm) {
            self.read(argument, true);
        }
        let result = self.in_result();
        match called(call).and_then(|path| self.of_path(path)) {
            Some(literals) => literals.tuples.push((call, result)),
            None => return visit::visit_expr_call(self, call),
        }
        call.args.iter().for_each(|arg| self.visit_expr(arg));
    }

    fn visit_expr_assign(&mut self, assign: &'f syn::ExprAssign) {
        self.assign(&assign.left, std::iter::once(&*assign.right));
        visit::visit_expr_assign(self, assign);
    }

    fn visit_expr_method_call(&mut self, call: &'f syn::ExprMethodCall) {
        let is_in =
            |call: &ExprMethodCall, names: &[&str]| names.iter().any(|name| call.method == name);
        for argument in call.args.iter().filter(|_| is_in(call, ELEMENTWISE)) {
            self.read(argument, true);
        }
        // A product written as a sum.
        if let Some(product) = method(&call.receiver)
            && is_in(call, SUMS)
            && is_in(product, ELEMENTWISE)
        {
            product.args.iter().for_each(|argument| self.read(argument, false));
        }
        if ADDS.iter().any(|name| call.method == name) {
            self.assign(&call.receiver, call.args.iter());
        }
        visit::visit_expr_method_call(self, call);
    }
}
