//! The impl of `Layer` for a struct around projections, each of which knows what to do.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{LitStr, WherePredicate, parse_quote};

use crate::ast::{Field, Input};

pub fn implementation(
    input: &Input<'_>,
    krate: &TokenStream,
    kind: &LitStr,
    fields: &[Field<'_>],
) -> TokenStream {
    let ident = input.ident;
    let generics = {
        let mut generics = input.generics.clone();
        let clone = quote!(::core::clone::Clone);
        let params = input.generics.type_params().map(|param| &param.ident);
        let predicates = &mut generics.make_where_clause().predicates;
        predicates.extend(params.map(|param| -> WherePredicate { parse_quote!(#param: #clone) }));
        // As `Layer` asks.
        predicates.push(parse_quote!(Self: 'static));
        generics
    };
    let (impl_generics, ty_generics, where_clause) = generics.split_for_impl();

    let (qconfig, name, tap) = (local("__qconfig"), local("__name"), local("__tap"));
    let (mut names, mut projections) = (Vec::new(), Vec::new());
    let (mut quantized, mut checkpoint_name, mut measured) = (Vec::new(), None, None);
    for field in fields {
        let member = &field.member;
        // Mistakes in a field's type are shown there.
        let span = Span::call_site().located_at(field.ty.span());
        if field.attrs.name.is_some() {
            let own_name = quote_spanned!(span=> __Name::name(&self.#member));
            checkpoint_name = Some(quote! {
                fn checkpoint_name(&self) -> ::core::option::Option<&str> {
                    #own_name
                }
            });
        }
        let Some(weight) = &field.attrs.weight else {
            let cloned = quote_spanned!(span=> ::core::clone::Clone::clone(&self.#member));
            quantized.push(quote!(#member: #cloned));
            continue;
        };
        let projection = quote_spanned!(span=> __Weight::projection(&self.#member));
        let projection_mut = quote_spanned!(span=> __Weight::projection_mut(&mut self.#member));
        let twin = quote_spanned!(span=> __Weight::quantize(&self.#member, #weight, #qconfig)?);
        // The calls of several projections are not those of one function.
        measured = projections.is_empty().then(|| {
            quote! {
                fn attach(&mut self, #tap: ::core::option::Option<#krate::module::Tap>) -> bool {
                    #projection_mut.attach(#tap)
                }

                fn replay(&self) -> ::core::option::Option<#krate::module::Replay> {
                    #projection.replay()
                }
            }
        });
        quantized.push(quote!(#member: #twin));
        names.push(weight);
        projections.push(projection);
    }
    quote! {
        const _: () = {
            #[allow(unused_imports)]
            use #krate::nn::__private::{Name as __Name, Weight as __Weight};

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

/// A local of the expansion, which a user's constant cannot meet.
fn local(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}
