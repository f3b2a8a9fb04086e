//! A `Linear` of an embedding's table becomes a tied one: both hold one weight, quantized or not.

use syn::visit::{self, Visit};
use syn::{Expr, ExprStruct, Item, PatIdent, Path, ReturnType, Signature, Stmt, Type};

use super::derives::arguments;
use super::draft::Draft;
use super::facts::Facts;
use super::functions::{self, Function};
use super::scopes::Origin;
use super::syntax::{assigned, member, mentions, segments, strip, without};
use super::types::last_name;
use super::unit::Unit;

/// Methods of a `Result` or an `Option` that give what is in it.
const UNWRAPS: &[&str] = &["context", "expect", "map_err", "unwrap", "with_context"];

/// Rewrites `Linear::new(embedding.embeddings().clone(), bias)` and `from_weights`, where the layer
/// and the embedding are ours for certain: an earlier round makes them so.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft) {
    let functions = functions::of(unit.file);
    for function in &functions {
        let mut heads = Heads {
            unit,
            draft,
            functions: &functions,
            function,
        };
        heads.visit_block(function.block);
    }
}

struct Heads<'a, 'u, 'd> {
    unit: &'a Unit<'u>,
    draft: &'d mut Draft,
    functions: &'a [Function<'a>],
    function: &'a Function<'a>,
}

impl<'a> Visit<'a> for Heads<'a, '_, '_> {
    fn visit_expr(&mut self, expr: &'a Expr) {
        self.head(expr);
        visit::visit_expr(self, expr);
    }

    fn visit_item(&mut self, _: &'a Item) {}
}

impl Heads<'_, '_, '_> {
    fn head(&mut self, expr: &Expr) -> Option<()> {
        let Expr::Call(call) = expr else { return None };
        let [weight, bias] = call.args.iter().collect::<Vec<_>>()[..] else {
            return None;
        };
        let embedding = receiver(receiver(weight, "clone")?, "embeddings")?;
        let path = called(expr)?;
        let linear = self.resolve(path)?;
        let constructors = ["new", "from_weights"].map(|name| ours(&["Linear", name]));
        let source = self.unit.source;
        let text = source.slice(weight);
        let has_comment = text.contains("//") || text.contains("/*");
        // The embedding is borrowed while the bias is computed.
        let is_read = mentions(source.slice(bias), &root(embedding)?) > 0;
        let is_left = has_comment || is_read || source.is_kept(source.range(expr).start);
        let is_ours = constructors.contains(&linear) && !is_left;
        if !is_ours || self.origin(embedding)? != ours(&["Embedding"]) {
            return None;
        }
        let constructor = source.range(&path.segments.last()?.ident);
        let borrowed = Facts::of(self.unit, self.function).borrowed(embedding);
        self.draft.edits.replace(constructor, "tied");
        self.draft.edits.replace(source.range(weight), borrowed);
        Some(())
    }

    /// The type of a variable or of a field, or of what it refers to.
    fn origin(&self, expr: &Expr) -> Option<Origin> {
        match expr {
            Expr::Field(field) => self.field(self.origin(&field.base)?, &member(&field.member)),
            Expr::Path(path) if path.path.is_ident("self") => {
                let of = self.function.of.clone()?;
                Some(self.unit.types.scopes.resolve(&self.function.module, &[of]))
            }
            Expr::Path(path) => self.variable(&path.path.get_ident()?.to_string()),
            _ => None,
        }
    }

    /// The type of a variable that the function binds once.
    fn variable(&self, name: &str) -> Option<Origin> {
        let function = self.function;
        let mut variable = Variable::new(name);
        variable.visit_signature(function.signature);
        variable.visit_block(function.block);
        if variable.bindings != 1 {
            return None;
        }
        let facts = Facts::of(self.unit, function);
        if let Some(ty) = facts.type_of_parameter(name) {
            return self.unit.origin(&function.module, referred(ty));
        }
        let mut values = variable.values.iter();
        let mut fields = variable.fields.iter();
        values
            .find_map(|value| self.made(value))
            .or_else(|| fields.find_map(|(path, field)| self.field(self.resolve(path)?, field)))
    }

    fn field(&self, of: Origin, name: &str) -> Option<Origin> {
        let Origin::Local(module, of) = of else {
            return None;
        };
        self.unit
            .origin(&module, self.unit.field(&module, &of, name)?)
    }

    /// The type that a constructor makes.
    fn made(&self, value: &Expr) -> Option<Origin> {
        let path = called(strip(without(value, UNWRAPS)))?;
        match self.resolve(path)? {
            Origin::Ours(made) if made == ["nn", "embedding"] => Some(ours(&["Embedding"])),
            Origin::Ours(made) if made.starts_with(&["nn".into(), "Embedding".into()]) => {
                Some(ours(&["Embedding"]))
            }
            Origin::Local(module, of) => {
                let name = &path.segments.last()?.ident;
                let own = |one: &&Function<'_>| {
                    one.of.as_ref() == Some(&of) && one.signature.ident == *name
                };
                let all: Vec<_> = self.functions.iter().filter(own).collect();
                let makes = |one: &&Function<'_>| returns(one.signature, &of);
                (!all.is_empty() && all.iter().all(makes)).then_some(Origin::Local(module, of))
            }
            _ => None,
        }
    }

    /// Where a path leads that is written in the function.
    fn resolve(&self, path: &Path) -> Option<Origin> {
        let mut segments = segments(path);
        if segments[0] == "Self" {
            segments[0].clone_from(self.function.of.as_ref()?);
        }
        let scopes = &self.unit.types.scopes;
        Some(scopes.resolve(&self.function.module, &segments))
    }
}

/// What a function does with a variable.
struct Variable<'a, 'n> {
    name: &'n str,
    bindings: usize,
    values: Vec<&'a Expr>,
    /// The fields that it becomes, each with the path of the struct.
    fields: Vec<(&'a Path, String)>,
}

impl<'n> Variable<'_, 'n> {
    fn new(name: &'n str) -> Self {
        Self {
            name,
            bindings: 0,
            values: Vec::new(),
            fields: Vec::new(),
        }
    }
}

impl<'a> Visit<'a> for Variable<'a, '_> {
    fn visit_pat_ident(&mut self, pat: &'a PatIdent) {
        self.bindings += usize::from(pat.ident == self.name);
        visit::visit_pat_ident(self, pat);
    }

    fn visit_stmt(&mut self, stmt: &'a Stmt) {
        let assigned = assigned(stmt).filter(|(name, _)| name == self.name);
        self.values.extend(assigned.map(|(_, value)| value));
        visit::visit_stmt(self, stmt);
    }

    fn visit_expr_struct(&mut self, literal: &'a ExprStruct) {
        for given in &literal.fields {
            if matches!(&given.expr, Expr::Path(path) if path.path.is_ident(self.name)) {
                self.fields.push((&literal.path, member(&given.member)));
            }
        }
        visit::visit_expr_struct(self, literal);
    }

    fn visit_item(&mut self, _: &'a Item) {}
}

fn ours(path: &[&str]) -> Origin {
    let path = ["nn"].iter().chain(path);
    Origin::Ours(path.map(|segment| (*segment).to_owned()).collect())
}

/// The path of the function that is called.
fn called(expr: &Expr) -> Option<&Path> {
    match expr {
        Expr::Call(call) => match &*call.func {
            Expr::Path(function) if function.qself.is_none() => Some(&function.path),
            _ => None,
        },
        _ => None,
    }
}

/// The receiver of a method without arguments.
fn receiver<'x>(expr: &'x Expr, method: &str) -> Option<&'x Expr> {
    match expr {
        Expr::MethodCall(call) if call.method == method && call.args.is_empty() => {
            Some(&call.receiver)
        }
        _ => None,
    }
}

/// The variable in `variable.field.field`.
fn root(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Field(field) => root(&field.base),
        Expr::Path(path) => path.path.get_ident().map(ToString::to_string),
        _ => None,
    }
}

/// The type that a reference is to.
fn referred(ty: &Type) -> &Type {
    match ty {
        Type::Reference(reference) => referred(&reference.elem),
        _ => ty,
    }
}

/// Whether a function of a type makes one, or a `Result` of one.
fn returns(signature: &Signature, of: &str) -> bool {
    let ReturnType::Type(_, ty) = &signature.output else {
        return false;
    };
    let is_it = |ty: &Type| last_name(ty).is_some_and(|name| name == "Self" || name == of);
    let is_result = last_name(ty).is_some_and(|name| name == "Result");
    is_it(ty) || is_result && arguments(ty).first().is_some_and(|ty| is_it(ty))
}
