//! `#[quantizable(..)]`: what may be written on a type and on a field.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Attribute, LitStr, Path, Token};

use crate::errors::Errors;

/// Attributes of the type.
#[derive(Default)]
pub struct ContainerAttrs {
    /// `crate = "path"`: where `candle_dynquant` is found.
    pub crate_path: Option<Path>,
    /// `strict`: every field is a module tree or skipped.
    pub strict: Option<Span>,
    /// `layer` or `layer = "Kind"`: the type is a leaf.
    pub layer: Option<LayerAttr>,
}

pub struct LayerAttr {
    pub span: Span,
    /// The kind of a layer whose `Layer` is derived too.
    pub kind: Option<LitStr>,
}

/// Attributes of a field.
#[derive(Default)]
pub struct FieldAttrs {
    /// `skip`: neither visited nor reported.
    pub skip: Option<Span>,
    /// `flatten`: visited without a path segment.
    pub flatten: Option<Span>,
    /// `rename = "name"`: visited under another name.
    pub rename: Option<LitStr>,
    /// `weight` or `weight = "name"`: a projection of a derived layer, under that name.
    pub weight: Option<LitStr>,
    /// `name`: the name that a derived layer was loaded under.
    pub name: Option<Span>,
}

impl FieldAttrs {
    /// The attributes that are given, by name, with their spans.
    pub fn spans(&self) -> impl Iterator<Item = (&'static str, Span)> {
        [
            ("skip", self.skip),
            ("flatten", self.flatten),
            ("rename", self.rename.as_ref().map(LitStr::span)),
            ("weight", self.weight.as_ref().map(LitStr::span)),
            ("name", self.name),
        ]
        .into_iter()
        .filter_map(|(name, span)| Some((name, span?)))
    }
}

const ON_TYPE: [&str; 3] = ["crate", "layer", "strict"];
const ON_FIELD: [&str; 5] = ["flatten", "name", "rename", "skip", "weight"];

pub fn container(attrs: &[Attribute], errors: &mut Errors) -> ContainerAttrs {
    let mut found = ContainerAttrs::default();
    for entry in entries(attrs, errors) {
        match entry.key.to_string().as_str() {
            "strict" => entry.flag(&mut found.strict, errors),
            "layer" => {
                let span = entry.key.span();
                let kind = entry.optional_string("Kind", errors);
                let layer = kind.map(|kind| LayerAttr { span, kind });
                entry.value(layer, &mut found.layer, errors);
            }
            "crate" => {
                let value = entry.string("path::to::candle_dynquant", errors);
                let path = value.and_then(|path| {
                    let parsed = path.parse_with(Path::parse_mod_style).ok();
                    if parsed.is_none() {
                        errors.at(path.span(), "expected a path to `candle_dynquant`");
                    }
                    parsed
                });
                entry.value(path, &mut found.crate_path, errors);
            }
            name if ON_FIELD.contains(&name) => errors.at(
                entry.key.span(),
                format!("`{name}` belongs on a field, not on the type"),
            ),
            name => errors.at(
                entry.key.span(),
                format!(
                    "unknown attribute `{name}`: a type takes `strict`, `layer`, `layer = \"..\"` or \
                     `crate = \"..\"`"
                ),
            ),
        }
    }
    found
}

pub fn field(attrs: &[Attribute], errors: &mut Errors) -> FieldAttrs {
    let mut found = FieldAttrs::default();
    for entry in entries(attrs, errors) {
        match entry.key.to_string().as_str() {
            "skip" => entry.flag(&mut found.skip, errors),
            "flatten" => entry.flag(&mut found.flatten, errors),
            "rename" => {
                let name = entry.string("name", errors);
                entry.value(name, &mut found.rename, errors);
            }
            "weight" => {
                let name = entry.optional_string("name", errors);
                let name = name
                    .map(|name| name.unwrap_or_else(|| LitStr::new("weight", entry.key.span())));
                entry.value(name, &mut found.weight, errors);
            }
            "name" => entry.flag(&mut found.name, errors),
            name if ON_TYPE.contains(&name) => {
                errors.at(entry.key.span(), format!("`{name}` belongs on the type, not on a field"))
            }
            name => errors.at(
                entry.key.span(),
                format!(
                    "unknown attribute `{name}`: a field takes `skip`, `flatten` or \
                     `rename = \"..\"`, of a layer `weight`, `weight = \"..\"` or `name`"
                ),
            ),
        }
    }
    found
}

/// A variant takes nothing: it adds no path segment that could be renamed or flattened.
pub fn variant(attrs: &[Attribute], errors: &mut Errors) {
    for entry in entries(attrs, errors) {
        errors.at(
            entry.key.span(),
            format!(
                "`{}` cannot stand on a variant: write it on the type or on a field",
                entry.key
            ),
        );
    }
}

/// An entry, `key` or `key = value`, between commas.
struct Entry {
    key: Ident,
    /// Everything that follows the key, to be judged by what the key expects.
    rest: TokenStream,
}

impl Parse for Entry {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let key = Ident::parse_any(input)?;
        let mut rest = TokenStream::new();
        while !input.is_empty() && !input.peek(Token![,]) {
            rest.extend([input.parse::<TokenTree>()?]);
        }
        Ok(Self { key, rest })
    }
}

fn entries(attrs: &[Attribute], errors: &mut Errors) -> Vec<Entry> {
    let mut all = Vec::new();
    for attr in attrs.iter().filter(|a| a.path().is_ident("quantizable")) {
        let parsed = attr.parse_args_with(Punctuated::<Entry, Token![,]>::parse_terminated);
        match parsed {
            Ok(entries) => all.extend(entries),
            Err(error) => errors.push(error),
        }
    }
    all
}

impl Entry {
    /// Sets a flag that takes no value.
    fn flag(&self, slot: &mut Option<Span>, errors: &mut Errors) {
        if !self.rest.is_empty() {
            errors.push(syn::Error::new_spanned(
                &self.rest,
                format!("`{}` takes no value", self.key),
            ));
        }
        self.value(Some(self.key.span()), slot, errors);
    }

    /// The string in `key = "string"`, or none in `key`; `None` after a mistake.
    fn optional_string(&self, example: &str, errors: &mut Errors) -> Option<Option<LitStr>> {
        if self.rest.is_empty() {
            return Some(None);
        }
        self.string(example, errors).map(Some)
    }

    /// The string in `key = "string"`.
    fn string(&self, example: &str, errors: &mut Errors) -> Option<LitStr> {
        let parser = |input: ParseStream<'_>| {
            input.parse::<Token![=]>()?;
            input.parse::<LitStr>()
        };
        match syn::parse::Parser::parse2(parser, self.rest.clone()) {
            Ok(string) => Some(string),
            Err(_) => {
                let message = format!("expected `{} = \"{example}\"`", self.key);
                // Without a value there is nothing but the key to point at.
                errors.push(if self.rest.is_empty() {
                    syn::Error::new(self.key.span(), message)
                } else {
                    syn::Error::new_spanned(&self.rest, message)
                });
                None
            }
        }
    }

    /// Fills `slot`, once.
    fn value<T>(&self, value: Option<T>, slot: &mut Option<T>, errors: &mut Errors) {
        match slot {
            Some(_) => errors.at(self.key.span(), format!("duplicate attribute `{}`", self.key)),
            None => *slot = value,
        }
    }
}
