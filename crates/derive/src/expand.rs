//! The impl: absolute paths only, and names that cannot meet the user's.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::visit::Visit;
use syn::{Generics, TypeMacro, TypePath, WherePredicate, parse_quote};

use crate::ast::{Data, Field, Input, Place};
use crate::attr::LayerAttr;
use crate::layer;

/// The impl of `Quantizable`, and of `Layer` where its kind is given.
pub fn implementation(input: &Input<'_>) -> TokenStream {
    let krate = crate_path(input);
    let mut generics = input.generics.clone();
    let mut layer = TokenStream::new();
    let (visit, visit_mut) = if let Some(LayerAttr { span, kind }) = &input.attrs.layer {
        if let (Some(kind), Data::Struct(fields)) = (kind, &input.data) {
            layer = layer::implementation(input, &krate, kind, fields);
        }
        let where_clause = generics.make_where_clause();
        // The bounds of the `Layer` impl on type parameters are repeated here.
        let is_layer = quote_spanned!(*span=> Self: #krate::Layer);
        where_clause.predicates.push(parse_quote!(#is_layer));
        let walk = walk_ident();
        let body = quote!(#walk.layer(self));
        (body.clone(), body)
    } else {
        bound_type_params(input, &krate, &mut generics);
        (body(input, &krate, Access::Shared), body(input, &krate, Access::Mutable))
    };
    let quantizable = wrap(input, &krate, &generics, &visit, &visit_mut);
    quote!(#quantizable #layer)
}

/// An impl that does nothing, for inputs with mistakes, so that uses of the type cause no further
/// errors.
pub fn stub(input: &Input<'_>) -> TokenStream {
    let nothing = quote!(::core::result::Result::Ok(()));
    let krate = crate_path(input);
    wrap(input, &krate, input.generics, &nothing, &nothing)
}

fn wrap(
    input: &Input<'_>,
    krate: &TokenStream,
    generics: &Generics,
    visit: &TokenStream,
    visit_mut: &TokenStream,
) -> TokenStream {
    let ident = input.ident;
    let walk = walk_ident();
    let (impl_generics, ty_generics, where_clause) = generics.split_for_impl();
    quote! {
        const _: () = {
            // Unused where every field is a module tree.
            #[allow(unused_imports)]
            use #krate::__private::{Copied as _, Fallback as _};

            #[allow(unused_variables, deprecated)]
            #[automatically_derived]
            impl #impl_generics #krate::Quantizable for #ident #ty_generics #where_clause {
                fn visit(&self, #walk: &mut #krate::Walk<'_>) -> #krate::Result<()> {
                    #visit
                }

                fn visit_mut(
                    &mut self,
                    #walk: &mut #krate::WalkMut<'_>,
                ) -> #krate::Result<()> {
                    #visit_mut
                }
            }
        };
    }
}

fn crate_path(input: &Input<'_>) -> TokenStream {
    match &input.attrs.crate_path {
        Some(path) => path.to_token_stream(),
        None => quote!(::candle_dynquant),
    }
}

/// A local of the expansion; a constant of its name would still be seen, hence the underscores.
fn walk_ident() -> Ident {
    Ident::new("__walk", Span::mixed_site())
}

#[derive(Clone, Copy)]
enum Access {
    Shared,
    Mutable,
}

fn body(input: &Input<'_>, krate: &TokenStream, access: Access) -> TokenStream {
    let walked = match &input.data {
        Data::Union(_) => TokenStream::new(),
        Data::Struct(fields) => {
            let fields = fields.iter().filter(|f| !f.is_skipped()).map(|field| {
                let member = &field.member;
                let place = match access {
                    Access::Shared => quote!(&self.#member),
                    Access::Mutable => quote!(&mut self.#member),
                };
                visit_field(field, krate, access, &place)
            });
            quote!(#(#fields)*)
        }
        // No value of it exists, which a match on the place itself, not on a reference, shows.
        Data::Enum(variants) if variants.is_empty() => return quote!(match *self {}),
        Data::Enum(variants) => {
            let arms = variants.iter().map(|variant| {
                let ident = variant.ident;
                let visited = || {
                    let fields = variant.fields.iter().enumerate();
                    fields
                        .filter(|(_, f)| !f.is_skipped())
                        .map(|(i, f)| (f, format_ident!("__field_{i}", span = Span::mixed_site())))
                };
                let patterns = visited().map(|(field, binding)| {
                    let member = &field.member;
                    quote!(#member: #binding,)
                });
                let visits = visited().map(|(field, binding)| {
                    visit_field(field, krate, access, &binding.to_token_stream())
                });
                quote! {
                    Self::#ident { #(#patterns)* .. } => { #(#visits)* }
                }
            });
            quote!(match self { #(#arms)* })
        }
    };
    // Both walks would have them: once is enough, and one mistake is one error.
    let asserts = match access {
        Access::Shared => input
            .visited()
            .filter(|f| input.attrs.strict.is_some() || f.attrs.flatten.is_some())
            .map(|f| assert_quantizable(f, krate))
            .collect(),
        Access::Mutable => TokenStream::new(),
    };
    let body = quote! {
        #asserts
        #walked
        ::core::result::Result::Ok(())
    };
    match (access, input.attrs.strict) {
        (Access::Shared, Some(_)) => {
            let walk = walk_ident();
            quote!(#krate::__private::strict(#walk, |#walk| { #body }))
        }
        _ => body,
    }
}

/// Visits what `place`, a reference, points to, or reports it as opaque: which of the two
/// is decided by `__private`'s method of that name that the field's type has.
fn visit_field(
    field: &Field<'_>,
    krate: &TokenStream,
    access: Access,
    place: &TokenStream,
) -> TokenStream {
    let walk = walk_ident();
    let probe = match access {
        Access::Shared => quote!(#krate::__private::Field),
        Access::Mutable => quote!(#krate::__private::FieldMut),
    };
    match &field.place {
        Place::Below(name, _) => quote!(#probe(#place).visit(#name, #walk)?;),
        Place::Here => quote!(#probe(#place).visit_here(#walk)?;),
    }
}

/// Makes the compiler report, at the field's type, that it is not a module tree.
fn assert_quantizable(field: &Field<'_>, krate: &TokenStream) -> TokenStream {
    let ty = field.ty;
    quote!(#krate::__private::assert_quantizable::<#ty>();)
}

/// Asks `Quantizable` of each type parameter that occurs in a visited field.
///
/// Without it the probe would take a field of that type for opaque, whatever the parameter
/// turns out to be. A field whose parameter is not a module tree is skipped instead.
fn bound_type_params(input: &Input<'_>, krate: &TokenStream, generics: &mut Generics) {
    let mut occurring = Occurring {
        params: input.generics.type_params().map(|p| &p.ident).collect(),
        bounded: Vec::new(),
    };
    for field in input.visited() {
        occurring.visit_type(field.ty);
    }
    let bounds = occurring
        .bounded
        .into_iter()
        .map(|ty| -> WherePredicate { parse_quote!(#ty: #krate::Quantizable) });
    generics.make_where_clause().predicates.extend(bounds);
}

/// Type parameters, types projected from them (`T::Head`) and macros that are given them, in the
/// order met.
struct Occurring<'a> {
    params: Vec<&'a Ident>,
    bounded: Vec<&'a dyn ToTokens>,
}

impl Occurring<'_> {
    fn is_param(&self, ty: &TypePath) -> bool {
        let first = ty.path.segments.first();
        ty.qself.is_none()
            && ty.path.leading_colon.is_none()
            && first.is_some_and(|s| self.params.contains(&&s.ident))
    }

    /// Whether `ty` is projected from something that a parameter occurs in.
    fn is_projected(&self, ty: &TypePath) -> bool {
        let Some(qself) = &ty.qself else {
            return false;
        };
        let mut inner = Occurring { params: self.params.clone(), bounded: Vec::new() };
        inner.visit_type(&qself.ty);
        !inner.bounded.is_empty()
    }

    fn is_in(&self, tokens: TokenStream) -> bool {
        tokens.into_iter().any(|token| match token {
            TokenTree::Ident(ident) => self.params.contains(&&ident),
            TokenTree::Group(group) => self.is_in(group.stream()),
            _ => false,
        })
    }
}

impl<'ast> Visit<'ast> for Occurring<'ast> {
    fn visit_type_path(&mut self, ty: &'ast TypePath) {
        if self.is_param(ty) || self.is_projected(ty) {
            self.bounded.push(ty);
            return;
        }
        // Holds no `T`, so it asks nothing of it.
        if ty.path.segments.last().is_some_and(|s| s.ident == "PhantomData") {
            return;
        }
        syn::visit::visit_type_path(self, ty);
    }

    /// The types that a macro makes of its parameters are unknown here, so the bound is on the
    /// whole type.
    fn visit_type_macro(&mut self, ty: &'ast TypeMacro) {
        if self.is_in(ty.mac.tokens.clone()) {
            self.bounded.push(ty);
        }
    }
}
