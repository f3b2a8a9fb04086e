//! `#[derive(Quantizable)]` for `candle-dynquant`, which re-exports it and documents it.
//!
//! A derive goes through its modules in order: `attr` reads the `#[quantizable(..)]` attributes,
//! `ast` gives every field its place and its name, `valid` rejects contradictions, `expand` writes
//! the impl of `Quantizable`, `layer` the impl of `Layer`. Every mistake is collected, so that one
//! compilation shows all of them, and a stub replaces the impl, so that none is followed by a
//! "`Quantizable` is not implemented".

mod ast;
mod attr;
mod expand;
mod layer;
mod valid;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Derives `Quantizable`.
#[proc_macro_derive(Quantizable, attributes(quantizable))]
pub fn derive_quantizable(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    let mut errors = Errors::default();
    let parsed = ast::Input::parse(&input, &mut errors);
    valid::check(&parsed, &mut errors);
    let tokens = match errors.first {
        None => expand::implementation(&parsed),
        Some(errors) => {
            let errors = errors.into_compile_error();
            let stub = expand::stub(&parsed);
            quote::quote!(#errors #stub)
        }
    };
    tokens.into()
}

/// Mistakes in the input, each at its own span.
#[derive(Default)]
struct Errors {
    /// The first, with the others combined into it.
    first: Option<syn::Error>,
}

impl Errors {
    fn push(&mut self, error: syn::Error) {
        match &mut self.first {
            Some(first) => first.combine(error),
            None => self.first = Some(error),
        }
    }

    fn at(&mut self, span: proc_macro2::Span, message: impl std::fmt::Display) {
        self.push(syn::Error::new(span, message));
    }
}
