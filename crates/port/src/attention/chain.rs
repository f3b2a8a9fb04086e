//! Attention as candle models write it: a product, a scale, a mask, a softmax.

use std::collections::BTreeMap;

use syn::Expr;

use crate::facts::{DEPTH, Facts};
use crate::syntax::{
    Choice, axes, called, choice, guard, ident, method, strip, value, without, words,
};

/// Methods that change only a mask's shape or layout.
const SHAPED: &[&str] = &["broadcast_as", "broadcast_left", "contiguous"];

/// The known facts about scores.
#[derive(Clone, Debug, Default)]
pub struct Scores {
    pub q: String,
    pub k: String,
    /// The factors and divisors, as written.
    pub scale: Vec<(char, String)>,
    pub mask: Mask,
    /// Whether a mask was cast to the dtype of the scores.
    pub has_cast_mask: bool,
    pub soft: bool,
    /// Whether the scores were cast to f32 before the softmax.
    pub wide: bool,
    /// The dtype to which the probabilities are cast.
    pub cast: Option<Cast>,
    pub guards: Vec<String>,
    /// The first three of `[batch, heads, queries, keys]`, if scores of rank 3 are brought to that
    /// shape.
    pub shape: Option<[String; 3]>,
    /// The number of keys in that shape.
    pub keys: String,
    /// The variables that the scores are computed from.
    pub reads: Vec<String>,
}

/// The target dtype of a cast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cast {
    /// The dtype as written.
    To(String),
    /// The dtype of the scores, which is the queries'.
    Queries,
}

/// The keys that count; the text is an expression of type `&Tensor` or `Option<&Tensor>`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Mask {
    #[default]
    None,
    Add(String),
    AddOption(String),
    Exclude(String),
    ExcludeOption(String),
}

impl Mask {
    fn text(&self) -> Option<&str> {
        match self {
            Self::None => None,
            Self::Add(text)
            | Self::AddOption(text)
            | Self::Exclude(text)
            | Self::ExcludeOption(text) => Some(text),
        }
    }
}

impl Scores {
    /// The mask together with another: two added masks become their sum.
    pub fn with(&self, mask: Mask) -> Option<Mask> {
        let bare = |text: &str| text.trim_start_matches('&').to_owned();
        match (&self.mask, &mask) {
            (Mask::None, _) => Some(mask),
            // An earlier mask has the dtype that the scores had then.
            _ if self.wide => None,
            (Mask::Add(first), Mask::Add(second)) => {
                let first = bare(first);
                Some(Mask::Add(format!("&{first}.broadcast_add({second})?")))
            }
            (Mask::Add(one), Mask::AddOption(other)) | (Mask::AddOption(other), Mask::Add(one)) => {
                let one = bare(one);
                let is_taken = words(&one).any(|word| word == "mask");
                let name = if is_taken { "other" } else { "mask" };
                Some(Mask::Add(format!(
                    "&match {other} {{ Some({name}) => {one}.broadcast_add({name})?, \
                     None => {one}.clone() }}"
                )))
            }
            _ => None,
        }
    }
}

/// The context in which expressions are read.
pub struct ScoreContext<'u> {
    pub facts: Facts<'u>,
    /// The variable that holds scores.
    pub current: Option<(String, Scores)>,
    /// The variables that are reshaped masks, with the original masks.
    pub masks: BTreeMap<String, String>,
}

/// An expression of type `&Tensor` for an expression of type `Tensor` or `&Tensor`.
pub fn borrow(facts: &Facts<'_>, expr: &Expr) -> String {
    let inner = unreferenced(without(expr, &["contiguous"]));
    let text = facts.text(inner);
    match inner {
        Expr::Path(_) if facts.unit.is_borrowed_path(inner) || facts.is_reference(inner) => {
            text.to_owned()
        }
        _ => format!("&{text}"),
    }
}

/// The expression that is referred to, or `expr` itself.
fn unreferenced(expr: &Expr) -> &Expr {
    match expr {
        Expr::Reference(reference) => &reference.expr,
        _ => expr,
    }
}

impl ScoreContext<'_> {
    fn text(&self, expr: &Expr) -> String {
        self.facts.text(expr).to_owned()
    }

    /// The keys, if `expr` is their transposed view.
    fn keys(&self, expr: &Expr) -> String {
        let inner = without(expr, &["contiguous"]);
        if let Some(call) = method(inner) {
            let args: Vec<_> = call.args.iter().collect();
            let last_two = match call.method.to_string().as_str() {
                "t" => args.is_empty(),
                "transpose" => matches!(axes(&args), Some((2, 3) | (-2, -1) | (1, 2))),
                _ => false,
            };
            if last_two {
                return borrow(&self.facts, &call.receiver);
            }
        }
        format!("&{}.t()?", self.text(unreferenced(inner)))
    }

    /// The scores that an expression computes.
    pub fn eval(&self, expr: &Expr) -> Option<Scores> {
        match strip(expr) {
            Expr::Path(path) => {
                let (name, scores) = self.current.as_ref()?;
                path.path.is_ident(name).then(|| scores.clone())
            }
            Expr::Block(block) => self.block(&block.block),
            Expr::MethodCall(call) => self.method(call),
            Expr::Call(call) => self.call(call),
            Expr::Binary(binary) => self.binary(binary),
            choice @ (Expr::Match(_) | Expr::If(_)) => self.choice(choice),
            _ => None,
        }
    }

    fn block(&self, block: &syn::Block) -> Option<Scores> {
        let (last, guards) = value(block)?;
        let mut scores = self.eval(last)?;
        for stmt in guards {
            let text = guard(stmt).then(|| self.facts.text(stmt))?;
            scores.guards.push(text.to_owned());
        }
        Some(scores)
    }

    fn method(&self, call: &syn::ExprMethodCall) -> Option<Scores> {
        let args: Vec<_> = call.args.iter().collect();
        let name = call.method.to_string();
        match (name.as_str(), args.as_slice()) {
            ("contiguous", []) => self.eval(&call.receiver),
            ("matmul", [k]) if self.mentions(&call.receiver) || self.mentions(k) => None,
            ("matmul", [k]) => Some(Scores {
                q: borrow(&self.facts, &call.receiver),
                k: self.keys(k),
                reads: self.reads([&*call.receiver, k]),
                ..Scores::default()
            }),
            ("broadcast_add" | "add", [mask]) => {
                let scores = self.eval(&call.receiver).filter(|scores| !scores.soft)?;
                self.added(scores, mask)
            }
            ("to_dtype", [dtype]) => {
                let mut scores = self.eval(&call.receiver)?;
                if scores.soft {
                    scores.cast = Some(self.cast(dtype)?);
                } else if self.text(dtype).ends_with("F32") {
                    scores.wide = true;
                } else {
                    return None;
                }
                Some(scores)
            }
            ("forward" | "forward_t", [xs]) if self.facts.is_identity(&call.receiver) => {
                self.eval(xs)
            }
            ("apply", [layer]) if self.facts.is_identity(layer) => self.eval(&call.receiver),
            ("affine", [factor, zero])
                if ["0.", "0.0", "0f64"].contains(&self.text(zero).as_str())
                    && !self.mentions(factor) =>
            {
                let mut scores = self.eval(&call.receiver).filter(|scores| !scores.soft)?;
                scores.scale.push(('*', self.text(factor)));
                (scores.mask == Mask::None).then_some(scores)
            }
            ("reshape", [Expr::Tuple(shape)]) if !shape.elems.iter().any(|e| self.mentions(e)) => {
                self.reshaped(&call.receiver, shape)
            }
            _ => None,
        }
    }

    /// The dtype of the probabilities. The scores are consumed where it is used.
    fn cast(&self, dtype: &Expr) -> Option<Cast> {
        if !self.mentions(dtype) {
            return Some(Cast::To(self.text(dtype)));
        }
        let (name, scores) = self.current.as_ref()?;
        let is_variable = |text: &str| words(text).eq([text]);
        let certain = self.text(dtype) == format!("{name}.dtype()")
            && !scores.wide
            && scores.cast.is_none()
            && is_variable(scores.q.trim_start_matches('&'));
        certain.then_some(Cast::Queries)
    }

    /// The scores of `[batch * heads, ..]` as `[batch, heads, ..]`, or back.
    fn reshaped(&self, scores: &Expr, shape: &syn::ExprTuple) -> Option<Scores> {
        let mut scores = self.eval(scores).filter(|scores| !scores.soft)?;
        let texts: Vec<_> = shape.elems.iter().map(|elem| self.text(elem)).collect();
        match texts.as_slice() {
            [batch, heads, queries, keys] if scores.shape.is_none() => {
                scores.reads.extend(self.reads(&shape.elems));
                scores.shape = Some([batch.clone(), heads.clone(), queries.clone()]);
                scores.keys.clone_from(keys);
            }
            [_, queries, keys] if scores.shape.as_ref()?[2] == *queries && scores.keys == *keys => {
            }
            _ => return None,
        }
        Some(scores)
    }

    fn call(&self, call: &syn::ExprCall) -> Option<Scores> {
        let name = called(call)?.segments.last()?.ident.to_string();
        let args: Vec<_> = call.args.iter().collect();
        let last_dim = |dim: &Expr| self.text(dim).ends_with("D::Minus1") || self.text(dim) == "3";
        let soft = match (name.as_str(), args.as_slice()) {
            ("softmax_last_dim", [xs]) => xs,
            ("softmax", [xs, dim]) if last_dim(dim) => xs,
            ("masked_fill", [xs, mask, value]) => {
                let scores = self.eval(xs).filter(|scores| !scores.soft)?;
                let infinite = self.text(value).ends_with("f32::NEG_INFINITY");
                let mask = self.mask(mask).filter(|_| infinite)?;
                return self.masked(scores, Mask::Exclude(mask));
            }
            _ => return None,
        };
        let mut scores = self.eval(soft).filter(|scores| !scores.soft)?;
        scores.soft = true;
        Some(scores)
    }

    fn binary(&self, binary: &syn::ExprBinary) -> Option<Scores> {
        let mut scores = self.eval(&binary.left).filter(|scores| !scores.soft)?;
        let factor = match binary.op {
            syn::BinOp::Mul(_) => '*',
            syn::BinOp::Div(_) => '/',
            syn::BinOp::Add(_) => return self.added(scores, &binary.right),
            _ => return None,
        };
        let is_number = self.facts.is_number(&binary.right, DEPTH);
        let certain = is_number && !self.mentions(&binary.right);
        if scores.mask != Mask::None || !certain {
            return None;
        }
        scores.scale.push((factor, self.text(&binary.right)));
        scores.reads.extend(self.reads([&*binary.right]));
        Some(scores)
    }

    /// The scores with a mask added.
    fn added(&self, scores: Scores, mask: &Expr) -> Option<Scores> {
        let is_cast = self.is_cast(mask);
        let is_first = scores.mask == Mask::None;
        let has_cast_mask = scores.has_cast_mask || is_cast;
        let certain = is_first || !has_cast_mask;
        let mask = Mask::Add(self.mask(mask).filter(|_| certain)?);
        let scores = self.masked(scores, mask)?;
        Some(Scores { has_cast_mask, ..scores })
    }

    fn masked(&self, mut scores: Scores, mask: Mask) -> Option<Scores> {
        let text = mask.text()?;
        scores.reads.extend(words(text).map(str::to_owned));
        scores.mask = scores.with(mask)?;
        Some(scores)
    }

    /// A mask as an expression of type `&Tensor`; it is broadcast where it is used.
    fn mask(&self, expr: &Expr) -> Option<String> {
        let expr = self.without_cast(without(expr, SHAPED));
        let inner = unreferenced(expr);
        if let Some(name) = ident(inner)
            && let Some(original) = self.masks.get(&name)
        {
            return Some(original.clone());
        }
        if self.mentions(inner) {
            return None;
        }
        match inner {
            Expr::Path(_) if matches!(expr, Expr::Reference(_)) => Some(borrow(&self.facts, expr)),
            // A variable that is passed to a method that takes `&Tensor` is a `&Tensor`.
            Expr::Path(_) => Some(self.text(inner)),
            Expr::Field(_) | Expr::Try(_) | Expr::Paren(_) => {
                Some(format!("&{}", self.text(inner)))
            }
            _ => None,
        }
    }

    fn is_cast(&self, mask: &Expr) -> bool {
        let bare = without(mask, SHAPED);
        !std::ptr::eq(self.without_cast(bare), bare)
    }

    /// The expression without a cast to the dtype of the scores: a mask may have any dtype.
    fn without_cast<'x>(&self, expr: &'x Expr) -> &'x Expr {
        match strip(expr) {
            Expr::MethodCall(call) if call.method == "to_dtype" => match call.args.first() {
                Some(dtype) if self.mentions(dtype) => &call.receiver,
                _ => expr,
            },
            _ => expr,
        }
    }

    /// Whether an expression mentions the scores.
    pub fn mentions(&self, expr: &Expr) -> bool {
        let Some((name, _)) = &self.current else { return false };
        words(&self.text(expr)).any(|word| word == name)
    }

    fn reads<'x>(&self, exprs: impl IntoIterator<Item = &'x Expr>) -> Vec<String> {
        let texts = exprs.into_iter().map(|expr| self.facts.text(expr));
        texts.flat_map(words).map(str::to_owned).collect()
    }

    /// `match mask { None => scores, Some(mask) => scores + mask }`.
    fn choice(&self, expr: &Expr) -> Option<Scores> {
        let Choice { option, name, some, none } = choice(expr)?;
        let (plain, scores) = (self.eval(none)?, self.eval(some.only()?)?);
        if plain.scale != scores.scale || plain.wide != scores.wide || plain.soft || scores.soft {
            return None;
        }
        let option = self.option(option)?;
        let is_name = |text: &str| text.trim_start_matches('&') == name;
        // The operations that the mask adds.
        let added = plain.with(Mask::Add(name.clone())) == Some(scores.mask.clone());
        let is_first = plain.mask == Mask::None;
        let plain = Scores { shape: scores.shape.clone(), keys: scores.keys.clone(), ..plain };
        let mask = match &scores.mask {
            Mask::Add(text) if is_first && is_name(text) || added => Mask::AddOption(option),
            Mask::Exclude(text) if is_name(text) => Mask::ExcludeOption(option),
            _ => return None,
        };
        let certain = is_first || !scores.has_cast_mask;
        self.masked(plain, mask).filter(|_| certain)
    }

    /// A variable as an expression of type `Option<&Tensor>`.
    pub fn option(&self, expr: &Expr) -> Option<String> {
        let name = ident(expr)?;
        if let Some(owned) = self.facts.is_owned(expr) {
            return owned.then(|| format!("{name}.as_ref()"));
        }
        let ty = self.facts.type_of_parameter(&name)?;
        match self.facts.text(ty).replace(' ', "").as_str() {
            "Option<&Tensor>" => Some(name),
            "Option<Tensor>" | "&Option<Tensor>" => Some(format!("{name}.as_ref()")),
            _ => None,
        }
    }
}
