//! `#[derive(Quantizable)]` for `candle-dynquant`, which re-exports it and documents it.
//!
//! A derive goes through its modules in order: `attr` reads the `#[quantizable(..)]` attributes,
//! `ast` gives every field its place and its name, `valid` rejects contradictions, `expand` writes
//! the impl of `Quantizable`, `layer` the impl of `Layer`. Every mistake is collected, so that one
//! compilation shows all of them, and a stub replaces the impl, so that none is followed by a
//! "`Quantizable` is not implemented".

mod ast;
mod attr;
mod errors;
mod expand;
mod layer;
mod valid;

use errors::Errors;
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
