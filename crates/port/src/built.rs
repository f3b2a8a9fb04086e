//! The values that a file assigns to the fields of its types.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Expr, ExprMethodCall, Member};

use super::scopes::{Module, Origin, Scopes};
use super::syntax::{called, ends_with, get, is, member, method, segments, strip, without, words};
use super::table::list;
use super::types::{Key, is_named};

/// Methods that add to a container.
pub const ADDS: &[&str] = &[
    "append",
    "extend",
    "insert",
    "push",
    "push_back",
    "replace",
    "set",
];

/// Methods that combine a tensor with another tensor element by element.
const ELEMENTWISE: &[&str] = list![
    add broadcast_add broadcast_div broadcast_mul broadcast_sub div mul sub
];

/// Functions whose tensors are rows and vectors.
const NORMS: &[&str] = list![add_layer_norm layer_norm layer_norm_slow rms_norm rms_norm_slow];

/// Methods that sum a product.
const SUMS: &[&str] = list![mean mean_keepdim sum sum_all sum_keepdim];

/// The values of all fields by type, and the values of assignments by field name.
pub struct Built<'f> {
    scopes: &'f Scopes,
    module: Module,
    /// The type that `Self` names.
    self_type: Option<Key>,
    given: BTreeMap<Key, BTreeMap<String, Vec<&'f Expr>>>,
    assigned: BTreeMap<String, Vec<&'f Expr>>,
    /// The number of reads of a field, of `self` or of other values, and the number of those
    /// outside products.
    reads: BTreeMap<(Option<Key>, String), (usize, usize)>,
    /// The names of constants of type `usize`.
    pub sizes: BTreeSet<String>,
}

impl<'f> Built<'f> {
    pub fn new(scopes: &'f Scopes, file: &'f syn::File) -> Self {
        let mut built = Self {
            scopes,
            module: Vec::new(),
            self_type: None,
            given: BTreeMap::new(),
            assigned: BTreeMap::new(),
            reads: BTreeMap::new(),
            sizes: BTreeSet::new(),
        };
        built.visit_file(file);
        built
    }

    /// The values that constructors give to a field.
    pub fn given(&self, holder: &Key, field: &str) -> &[&'f Expr] {
        let fields = self.given.get(holder);
        fields
            .and_then(|fields| fields.get(field))
            .map_or(&[], Vec::as_slice)
    }

    /// The values that are assigned or added to a field of this name.
    pub fn assigned(&self, field: &str) -> &[&'f Expr] {
        self.assigned.get(field).map_or(&[], Vec::as_slice)
    }

    /// Whether all reads of a field are rows of a norm or element by element.
    pub fn is_elementwise(&self, holder: &Key, field: &str) -> bool {
        let counts = self.reads.get(&(Some(holder.clone()), field.to_owned()));
        let others = self.reads.contains_key(&(None, field.to_owned()));
        !others && counts.is_some_and(|(all, plain)| all == plain)
    }

    /// Counts a read of a field; `is_plain` marks a read outside products.
    fn read(&mut self, expr: &Expr, is_plain: bool) {
        let viewed = without(expr, &["clone", "reshape", "to_dtype", "unsqueeze"]);
        let Some(field) = get!(strip(viewed), Expr::Field) else {
            return;
        };
        let holder = self.self_type.clone().filter(|_| is(&field.base, "self"));
        let (all, plain) = self
            .reads
            .entry((holder, member(&field.member)))
            .or_default();
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
            Origin::Local(module, name) => ends_with(path, &name).then_some((module, name)),
            _ => None,
        }
    }

    fn take(&mut self, holder: Option<Key>, fields: impl Iterator<Item = (String, &'f Expr)>) {
        let Some(holder) = holder else { return };
        let given = self.given.entry(holder).or_default();
        for (name, value) in fields {
            given.entry(name).or_default().push(value);
        }
    }

    fn assign(&mut self, place: &Expr, values: impl Iterator<Item = &'f Expr>) {
        if let Some(field) = get!(strip(place), Expr::Field)
            && let Member::Named(name) = &field.member
        {
            let all = self.assigned.entry(name.to_string()).or_default();
            all.extend(values);
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
            self.sizes.insert(item.ident.to_string());
        }
        visit::visit_item_const(self, item);
    }

    fn visit_expr_struct(&mut self, literal: &'f syn::ExprStruct) {
        let fields = literal.fields.iter();
        let fields = fields.map(|given| (member(&given.member), &given.expr));
        self.take(self.local(&literal.path), fields);
        visit::visit_expr_struct(self, literal);
    }

    fn visit_expr_field(&mut self, field: &'f syn::ExprField) {
        let holder = self.self_type.clone().filter(|_| is(&field.base, "self"));
        self.reads
            .entry((holder, member(&field.member)))
            .or_default()
            .0 += 1;
        visit::visit_expr_field(self, field);
    }

    fn visit_field_pat(&mut self, pat: &'f syn::FieldPat) {
        self.mention(member(&pat.member));
        visit::visit_field_pat(self, pat);
    }

    fn visit_macro(&mut self, call: &'f syn::Macro) {
        for word in words(&call.tokens.to_string()) {
            self.mention(word.to_owned());
        }
    }

    fn visit_expr_call(&mut self, call: &'f syn::ExprCall) {
        let norm = called(call).is_some_and(|path| NORMS.iter().any(|name| ends_with(path, name)));
        for argument in call.args.iter().filter(|_| norm) {
            self.read(argument, true);
        }
        let numbered = call.args.iter().enumerate();
        let fields = numbered.map(|(at, given)| (at.to_string(), given));
        self.take(called(call).and_then(|path| self.local(path)), fields);
        visit::visit_expr_call(self, call);
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
            product
                .args
                .iter()
                .for_each(|argument| self.read(argument, false));
        }
        if ADDS.iter().any(|name| call.method == name) {
            self.assign(&call.receiver, call.args.iter());
        }
        visit::visit_expr_method_call(self, call);
    }
}
