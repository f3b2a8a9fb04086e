//! Rewrites a `Linear` with an embedding's table as tied: both hold one weight, quantized or not.

use syn::{Expr, ExprCall, FieldValue, Ident, Pat, Path, Signature, Stmt, Type};

use super::draft::Draft;
use super::facts::{self, Facts};
use super::functions::{Function, inputs, output};
use super::scopes::Origin;
use super::syntax::{
    assigns, called, exactly, get, member, mentions, segments, strip, variable, without,
};
use super::table::{self, list};
use super::types::{arguments, is_named, referred};
use super::unit::Unit;
use super::walk::{Node, calls, exprs, nodes};

/// The depth to which a value is followed through the variables of a function.
const DEPTH: usize = 8;

/// Methods that return a value of the same type, apart from errors.
const SAME: &[&str] = list![clone context expect map_err unwrap with_context];

/// Rewrites `Linear::new(embedding.embeddings().clone(), bias)` and `from_weights`, if the layer
/// and the embedding are certainly candle-dynquant's: an earlier round converts them.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft) {
    for facts in facts::all(unit) {
        let mut heads = Heads { facts, draft };
        for call in calls(facts.function.block) {
            heads.head(call);
        }
    }
}

struct Heads<'a, 'd> {
    facts: Facts<'a>,
    draft: &'d mut Draft,
}

impl Heads<'_, '_> {
    fn head(&mut self, call: &ExprCall) -> Option<()> {
        let [weight, bias] = exactly(&call.args)?;
        let embedding = receiver(receiver(weight, "clone")?, "embeddings")?;
        let path = called(call)?;
        let linear = self.resolve(path)?;
        let constructors = ["new", "from_weights"].map(|name| ours(&["Linear", name]));
        let source = self.facts.unit.source;
        let text = source.slice(weight);
        let has_comment = text.contains("//") || text.contains("/*");
        // The embedding is borrowed while the bias is computed.
        let is_read = mentions(source.slice(bias), &root(embedding)?) > 0;
        let is_left = has_comment || is_read || source.is_kept(source.start(call));
        let is_ours = constructors.contains(&linear) && !is_left;
        if !is_ours || self.origin(embedding, DEPTH)? != ours(&["Embedding"]) {
            return None;
        }
        let constructor = source.range(&path.segments.last()?.ident);
        let borrowed = self.facts.borrowed(embedding);
        self.draft.edits.replace(constructor, "tied");
        self.draft.edits.replace(source.range(weight), borrowed);
        Some(())
    }

    /// The type of a value, or of the value that it points to.
    fn origin(&self, expr: &Expr, depth: usize) -> Option<Origin> {
        let depth = depth.checked_sub(1)?;
        let methods = &self.facts.unit.types.methods;
        let same = |name: &&str| *name == "clone" || !methods.contains(*name);
        let same: Vec<_> = SAME.iter().copied().filter(same).collect();
        match strip(without(expr, &same)) {
            Expr::Field(field) => {
                let holder = self.origin(&field.base, depth)?;
                self.field(holder, &member(&field.member))
            }
            Expr::Path(path) if path.path.is_ident("self") => {
                let owner = self.facts.function.owner.clone()?;
                Some(self.facts.resolve(&[owner]))
            }
            Expr::Path(path) => self.variable(path.path.get_ident()?, depth),
            Expr::Call(call) => {
                let path = called(call)?;
                let pointer = path.segments.iter().rev().nth(1);
                match call.args.first() {
                    Some(inner) if pointer.is_some_and(|one| is_pointer(&one.ident)) => {
                        self.origin(inner, depth)
                    }
                    _ => self.constructed(path),
                }
            }
            _ => None,
        }
    }

    /// The type of a variable, by the definition that is read or by the field that it becomes.
    fn variable(&self, name: &Ident, depth: usize) -> Option<Origin> {
        let (facts, function) = (self.facts, self.facts.function);
        let at = facts.start(name);
        let name = name.to_string();
        let is_it = |pat: &Pat| variable(pat).as_ref() == Some(&name);
        let nodes = || nodes(function.signature).chain(nodes(function.block));
        let all =
            nodes().filter(|node| matches!(node, Node::PatIdent(pat) if pat.ident == name)).count();
        // The definitions by a `let` or a parameter that is the plain name.
        let lets = nodes().filter(|node| match node {
            Node::Stmt(stmt @ Stmt::Local(_)) => assigns(stmt, &name),
            _ => false,
        });
        let inputs = inputs(function.signature).filter(|input| is_it(&input.pat));
        let plain = lets.count() + inputs.count();
        let parameter = facts.type_of_parameter(&name);
        let by_definition = || match facts.definitions(&name, at).first() {
            Some(value) => self.origin(value, depth),
            None => self.pointee(&function.module, parameter?),
        };
        let is_known = all == plain && facts.assignments(&name) == 0;
        is_known.then(by_definition).flatten().or_else(|| {
            let literals = exprs(function.block).filter_map(|expr| get!(expr, Expr::Struct));
            let mut literals = literals.filter(|_| all == 1);
            literals.find_map(|literal| {
                let is_it = |given: &&FieldValue| {
                    matches!(&given.expr, Expr::Path(path) if path.path.is_ident(&name))
                };
                let mut given = literal.fields.iter().filter(is_it);
                given.find_map(|one| self.field(self.resolve(&literal.path)?, &member(&one.member)))
            })
        })
    }

    fn field(&self, holder: Origin, name: &str) -> Option<Origin> {
        let Origin::Local((module, type_name)) = holder else { return None };
        self.pointee(&module, self.facts.unit.field(&module, &type_name, name)?)
    }

    /// A type, or the type that it points to.
    fn pointee(&self, module: &[String], ty: &Type) -> Option<Origin> {
        match ty {
            Type::Reference(_) => self.pointee(module, referred(ty)),
            Type::Path(path) if is_pointer(&path.path.segments.last()?.ident) => {
                self.pointee(module, arguments(ty).first()?)
            }
            _ => self.facts.unit.origin(module, ty),
        }
    }

    /// The type that a constructor returns.
    fn constructed(&self, constructor: &Path) -> Option<Origin> {
        match self.resolve(constructor)? {
            Origin::Ours(path) => {
                let path: Vec<_> = path.iter().map(String::as_str).collect();
                let is_it = matches!(path[..], ["nn", "embedding"] | ["nn", "Embedding", _]);
                is_it.then(|| ours(&["Embedding"]))
            }
            Origin::Local(key) => {
                let name = &constructor.segments.last()?.ident;
                let is_constructor = |one: &&Function<'_>| {
                    one.owner.as_ref() == Some(&key.1) && one.signature.ident == *name
                };
                let all: Vec<_> = self.facts.unit.functions.iter().filter(is_constructor).collect();
                let makes = |one: &&Function<'_>| returns(one.signature, &key.1);
                (!all.is_empty() && all.iter().all(makes)).then_some(Origin::Local(key))
            }
            _ => None,
        }
    }

    /// The origin of a path that is written in the function.
    fn resolve(&self, path: &Path) -> Option<Origin> {
        let mut segments = segments(path);
        if segments[0] == "Self" {
            segments[0].clone_from(self.facts.function.owner.as_ref()?);
        }
        Some(self.facts.resolve(&segments))
    }
}

fn ours(path: &[&str]) -> Origin {
    let path = ["nn"].iter().chain(path);
    Origin::Ours(path.map(|segment| (*segment).to_owned()).collect())
}

/// Whether a reference to this type coerces to a reference to its target.
fn is_pointer(name: &Ident) -> bool {
    table::SHARING.iter().any(|pointer| name == pointer)
}

/// The receiver of a method without arguments.
fn receiver<'x>(expr: &'x Expr, method: &str) -> Option<&'x Expr> {
    let call = get!(expr, Expr::MethodCall)?;
    (call.method == method && call.args.is_empty()).then_some(&*call.receiver)
}

/// The variable in `variable.field.field`.
fn root(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Field(field) => root(&field.base),
        Expr::Path(path) => path.path.get_ident().map(ToString::to_string),
        _ => None,
    }
}

/// Whether a function returns a type, or a `Result` of it.
fn returns(signature: &Signature, name: &str) -> bool {
    let is_it = |ty: &Type| is_named(ty, "Self") || is_named(ty, name);
    output(signature).is_some_and(|ty| {
        is_it(ty) || is_named(ty, "Result") && arguments(ty).first().is_some_and(|ty| is_it(ty))
    })
}
