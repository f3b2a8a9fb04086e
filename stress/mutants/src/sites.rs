//! The places of a file that can be changed, found on its syntax tree.

use std::ops::Range;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, UnOp};

use crate::values;

/// A place, and what could stand there instead.
pub struct Site {
    pub kind: Kind,
    /// The number of the function that it is in.
    pub function: usize,
    /// As cargo-mutants calls them: one for each change.
    pub names: Vec<String>,
    pub line: usize,
}

/// By ranges of bytes.
pub enum Kind {
    /// Behind the brace of a body, with the value that is returned at once.
    Body(usize, Vec<String>),
    /// Operands that are compared, by reference.
    Compare(Binary),
    /// Operands that are moved or copied.
    Arithmetic(Binary),
    /// `&&`, which becomes `||`, or the reverse.
    Logic(Binary),
    Assign(Binary),
    Unary {
        op: Range<usize>,
        operand: Range<usize>,
    },
    /// Behind a pattern, where a guard could be.
    Arm(usize),
    /// An arm that has this guard.
    GuardedArm(Range<usize>),
    /// A guard: true, or false.
    Guard(Range<usize>),
}

pub struct Binary {
    pub lhs: Range<usize>,
    pub op: Range<usize>,
    pub rhs: Range<usize>,
    pub others: Vec<&'static str>,
}

/// The sites of a file, and the bodies of its functions.
pub struct Found {
    pub sites: Vec<Site>,
    pub functions: Vec<Range<usize>>,
}

pub fn find(text: &str) -> syn::Result<Found> {
    let file = syn::parse_file(text)?;
    let mut finder = Finder {
        text,
        scope: Vec::new(),
        function: None,
        found: Found {
            sites: Vec::new(),
            functions: Vec::new(),
        },
    };
    finder.visit_file(&file);
    Ok(finder.found)
}

struct Finder<'a> {
    text: &'a str,
    /// Names of types and functions around.
    scope: Vec<String>,
    function: Option<usize>,
    found: Found,
}

/// Alternatives of an operator.
fn others(op: &str) -> &'static [&'static str] {
    match op {
        "==" => &["!="],
        "!=" => &["=="],
        "<" => &["==", ">", "<="],
        ">" => &["==", "<", ">="],
        "<=" => &[">"],
        ">=" => &["<"],
        "&&" => &["||"],
        "||" => &["&&"],
        "+" => &["-", "*"],
        "-" => &["+", "/"],
        "*" => &["+", "/"],
        "/" => &["%", "*"],
        "%" => &["/", "+"],
        "<<" => &[">>"],
        ">>" => &["<<"],
        "&" => &["|", "^"],
        "|" => &["&", "^"],
        "^" => &["|", "&"],
        "+=" => &["-=", "*="],
        "-=" => &["+=", "/="],
        "*=" => &["+=", "/="],
        "/=" => &["%=", "*="],
        "%=" => &["/=", "+="],
        "<<=" => &[">>="],
        ">>=" => &["<<="],
        "&=" => &["|="],
        "|=" => &["&="],
        "^=" => &["|="],
        _ => &[],
    }
}

/// Whether a condition declares variables: its parts cannot be taken from their places.
fn declares(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) if matches!(binary.op, BinOp::And(_)) => {
            declares(&binary.left) || declares(&binary.right)
        }
        _ => false,
    }
}

/// Whether an item is no code that runs on this machine, or tests.
fn left_out(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        let is_feature = || match &attribute.meta {
            syn::Meta::List(list) => list.tokens.to_string().starts_with("feature"),
            _ => false,
        };
        path.is_ident("test") || path.is_ident("cfg") && !is_feature()
    })
}

impl Finder<'_> {
    fn source(&self, of: &impl Spanned) -> String {
        let words = self.text[of.span().byte_range()].split_whitespace();
        words.collect::<Vec<_>>().join(" ")
    }

    fn add(&mut self, line: usize, kind: Kind, names: impl Iterator<Item = String>) {
        let Some(function) = self.function else {
            return;
        };
        self.found.sites.push(Site {
            kind,
            function,
            line,
            names: names.collect(),
        });
    }

    fn within(&self) -> String {
        self.scope.join("::")
    }

    fn scoped(&mut self, name: String, visit: impl FnOnce(&mut Self)) {
        self.scope.push(name);
        visit(self);
        self.scope.pop();
    }

    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        if signature.constness.is_some() || signature.asyncness.is_some() {
            return;
        }
        let outer = self.function.replace(self.found.functions.len());
        self.found.functions.push(block.span().byte_range());
        self.scoped(signature.ident.to_string(), |own| {
            if !matches!(signature.safety, syn::Safety::Unsafe(_)) && signature.ident != "default" {
                own.body(signature, block);
            }
            visit::visit_block(own, block);
        });
        self.function = outer;
    }

    fn body(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let body = self.source(block);
        let is_same = |value: &String| body == format!("{{ {value} }}") || body == "{}";
        let values = values::of(&signature.output);
        let values: Vec<String> = values.into_iter().filter(|v| !is_same(v)).collect();
        let output = match &signature.output {
            syn::ReturnType::Default => String::new(),
            syn::ReturnType::Type(_, ty) => format!(" -> {}", self.source(&**ty)),
        };
        let scope = self.within();
        let names: Vec<String> = (values.iter())
            .map(|value| format!("replace {scope}{output} with {value}"))
            .collect();
        let at = block.brace_token.span.open().byte_range().end;
        let line = signature.ident.span().start().line;
        self.add(line, Kind::Body(at, values), names.into_iter());
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes: &[syn::Attribute] = match item {
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Trait(item) => &item.attrs,
            _ => return,
        };
        if !left_out(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let of = self.source(&*item.self_ty);
        let name = match &item.trait_ {
            None => of,
            Some(implemented) => {
                let path = self.source(&implemented.0);
                format!("<impl {path} for {of}>")
            }
        };
        self.scoped(name, |own| visit::visit_item_impl(own, item));
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        let name = item.ident.to_string();
        self.scoped(name, |own| visit::visit_item_trait(own, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !left_out(&item.attrs) {
            self.function(&item.sig, &item.block);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let (false, Some(block)) = (left_out(&item.attrs), &item.default) {
            self.function(&item.sig, block);
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if !left_out(&local.attrs) {
            visit::visit_local(self, local);
        }
    }

    // Types and patterns have constants only.
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}

    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        let op = binary.op.span().byte_range();
        let name = self.text[op.clone()].to_owned();
        let others = others(&name);
        if !others.is_empty() && !declares(&binary.left) && !declares(&binary.right) {
            let line = binary.op.span().start().line;
            let scope = self.within();
            let ranges = Binary {
                lhs: binary.left.span().byte_range(),
                op,
                rhs: binary.right.span().byte_range(),
                others: others.to_vec(),
            };
            let kind = match &*name {
                "==" | "!=" | "<" | ">" | "<=" | ">=" => Kind::Compare(ranges),
                "&&" | "||" => Kind::Logic(ranges),
                assign if assign.ends_with('=') => Kind::Assign(ranges),
                _ => Kind::Arithmetic(ranges),
            };
            let names = others
                .iter()
                .map(|other| format!("replace {name} with {other} in {scope}"));
            self.add(line, kind, names);
        }
        // The place of an assignment stands in it once for each change.
        if name.len() < 2 || !name.ends_with('=') || matches!(&*name, "==" | "!=" | "<=" | ">=") {
            self.visit_expr(&binary.left);
        }
        self.visit_expr(&binary.right);
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        if matches!(unary.op, UnOp::Not(_) | UnOp::Neg(_)) {
            let op = unary.op.span().byte_range();
            let name = format!("delete {} in {}", &self.text[op.clone()], self.within());
            let operand = unary.expr.span().byte_range();
            let line = unary.span().start().line;
            self.add(line, Kind::Unary { op, operand }, std::iter::once(name));
        }
        visit::visit_expr_unary(self, unary);
    }

    fn visit_expr_match(&mut self, expr: &'ast syn::ExprMatch) {
        let is_wild = |arm: &syn::Arm| matches!(arm.pat, syn::Pat::Wild(_));
        let has_wild = expr.arms.iter().any(is_wild);
        self.visit_expr(&expr.expr);
        for arm in &expr.arms {
            let (pattern, guard) = match &arm.pat {
                syn::Pat::Guard(guarded) => (&*guarded.pat, Some(&*guarded.guard)),
                pattern => (pattern, None),
            };
            if !guard.is_some_and(declares) {
                self.arm(pattern, guard, has_wild && !is_wild(arm));
            }
            if let Some(guard) = guard {
                self.visit_expr(guard);
            }
            self.visit_expr(&arm.body);
        }
    }
}

impl Finder<'_> {
    fn arm(&mut self, pattern: &syn::Pat, guard: Option<&Expr>, can_go: bool) {
        let line = pattern.span().start().line;
        let scope = self.within();
        let range = guard.map(|guard| guard.span().byte_range());
        if can_go {
            let kind = match &range {
                Some(range) => Kind::GuardedArm(range.clone()),
                None => Kind::Arm(pattern.span().byte_range().end),
            };
            let name = format!("delete match arm {} in {scope}", self.source(pattern));
            self.add(line, kind, std::iter::once(name));
        }
        if let (Some(range), Some(guard)) = (range, guard) {
            let text = self.source(guard);
            let names = ["true", "false"]
                .map(|value| format!("replace match guard {text} with {value} in {scope}"));
            self.add(line, Kind::Guard(range), names.into_iter());
        }
    }
}
