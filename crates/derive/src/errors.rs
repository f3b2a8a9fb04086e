//! Mistakes in the input of the derive.

/// Mistakes in the input, each at its own span.
#[derive(Default)]
pub struct Errors {
    /// The first, with the others combined into it.
    pub first: Option<syn::Error>,
}

impl Errors {
    pub fn push(&mut self, error: syn::Error) {
        match &mut self.first {
            Some(first) => first.combine(error),
            None => self.first = Some(error),
        }
    }

    pub fn at(&mut self, span: proc_macro2::Span, message: impl std::fmt::Display) {
        self.push(syn::Error::new(span, message));
    }
}
