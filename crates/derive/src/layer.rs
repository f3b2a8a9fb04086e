//! The impl of `Layer` for a struct around projections, each of which knows what to do.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Generics, LitStr, WherePredicate, parse_quote};

use crate::ast::{Field, Input};

pub fn implementation(
    input: &Input<'_>,
    krate: &TokenStream,
    kind: &LitStr,
    fields: &[Field<'_>],
) -> TokenStream {
    let ident = input.ident;
    let generics = generics(input);
    let (impl_generics, ty_generics, where_clause) = generics.split_for_impl();

    let (qconfig, name) = (local("__qconfig"), local("__name"));
    let Parts { names, projections, quantized, checkpoint_name, measured } =
        Parts::new(fields, krate, &qconfig);
    quote! {
        const _: () = {
            #[allow(unused_imports)]
            use #krate::__private::{Name as __Name, Weight as __Weight};

            #[allow(deprecated)]
            #[automatically_derived]
            impl #impl_generics #krate::Layer for #ident #ty_generics #where_clause {
                fn kind(&self) -> #krate::LayerKind {
                    #krate::LayerKind::custom(#kind)
                }

                #checkpoint_name

                fn weight_infos(&self) -> ::std::vec::Vec<#krate::WeightInfo> {
                    ::std::vec![#(#projections.info(#names)),*]
                }

                fn quantize(&self, #qconfig: &#krate::QConfig) -> #krate::Result<Self> {
                    ::core::result::Result::Ok(Self { #(#quantized),* })
                }

                fn lend(&self, #name: &str) -> ::core::option::Option<#krate::LentWeight> {
                    match #name {
                        #(#names => #projections.lend(),)*
                        _ => ::core::option::Option::None,
                    }
                }

                fn stored(&self) -> #krate::Result<::std::vec::Vec<#krate::StoredWeight>> {
                    ::core::result::Result::Ok(::std::vec![#(#projections.stored(#names)),*])
                }

                fn weights(&self) -> #krate::Result<::std::vec::Vec<#krate::candle_core::Tensor>> {
                    ::core::result::Result::Ok(::std::vec![#(#projections.value()?),*])
                }

                #measured
            }
        };
    }
}

/// The generics of the impl: what the struct has, with the bounds of `Layer`.
fn generics(input: &Input<'_>) -> Generics {
    let mut generics = input.generics.clone();
    let clone = quote!(::core::clone::Clone);
    let params = input.generics.type_params().map(|param| &param.ident);
    let predicates = &mut generics.make_where_clause().predicates;
    predicates.extend(params.map(|param| -> WherePredicate { parse_quote!(#param: #clone) }));
    predicates.push(parse_quote!(Self: 'static));
    generics
}

/// The parts of the impl that fields give.
#[derive(Default)]
struct Parts<'f> {
    /// The names of the weights.
    names: Vec<&'f LitStr>,
    projections: Vec<TokenStream>,
    /// The fields of the quantized twin.
    quantized: Vec<TokenStream>,
    checkpoint_name: Option<TokenStream>,
    /// The methods that report calls and replay them.
    measured: Option<TokenStream>,
}

impl<'f> Parts<'f> {
    fn new(fields: &'f [Field<'_>], krate: &TokenStream, qconfig: &Ident) -> Self {
        let mut parts = Self::default();
        for field in fields {
            let member = &field.member;
            // Mistakes in a field's type are shown there.
            let span = Span::call_site().located_at(field.ty.span());
            if field.attrs.name.is_some() {
                let own_name = quote_spanned!(span=> __Name::name(&self.#member));
                parts.checkpoint_name = Some(quote! {
                    fn checkpoint_name(&self) -> ::core::option::Option<&str> {
                        #own_name
                    }
                });
            }
            let Some(weight) = &field.attrs.weight else {
                let cloned = quote_spanned!(span=> ::core::clone::Clone::clone(&self.#member));
                parts.quantized.push(quote!(#member: #cloned));
                continue;
            };
            let projection = quote_spanned!(span=> __Weight::projection(&self.#member));
            let projection_mut = quote_spanned!(span=> __Weight::projection_mut(&mut self.#member));
            let twin = quote_spanned!(span=> __Weight::quantize(&self.#member, #weight, #qconfig)?);
            // Several projections are called one by one: no call is the layer's.
            let is_first = parts.projections.is_empty();
            parts.measured = is_first.then(|| measured(&projection, &projection_mut, krate));
            parts.quantized.push(quote!(#member: #twin));
            parts.names.push(weight);
            parts.projections.push(projection);
        }
        parts
    }
}

fn measured(
    projection: &TokenStream,
    projection_mut: &TokenStream,
    krate: &TokenStream,
) -> TokenStream {
    let tap = local("__tap");
    quote! {
        fn attach(&mut self, #tap: ::core::option::Option<#krate::Tap>) -> bool {
            #projection_mut.attach(#tap)
        }

        fn replay(&self) -> ::core::option::Option<#krate::Replay> {
            #projection.replay()
        }
    }
}

/// A local of the expansion, which a user's constant cannot meet.
fn local(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}
