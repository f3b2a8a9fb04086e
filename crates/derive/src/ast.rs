//! The type as the derive sees it: every field with its place, its name and its attributes.

use proc_macro2::{Ident, Span};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{DeriveInput, Fields, Generics, Index, Member, Token, Type};

use crate::attr::{self, ContainerAttrs, FieldAttrs};
use crate::errors::Errors;

pub struct Input<'a> {
    pub ident: &'a Ident,
    pub generics: &'a Generics,
    pub attrs: ContainerAttrs,
    pub data: Data<'a>,
}

pub enum Data<'a> {
    Struct(Vec<Field<'a>>),
    Enum(Vec<Variant<'a>>),
    Union(Token![union]),
}

pub struct Variant<'a> {
    pub ident: &'a Ident,
    pub fields: Vec<Field<'a>>,
}

pub struct Field<'a> {
    pub member: Member,
    pub ty: &'a Type,
    pub attrs: FieldAttrs,
    pub place: Place,
}

/// The path of a field, relative to the type that contains it.
pub enum Place {
    /// A segment below that path: the name, written or implied at that span.
    Below(String, Span),
    /// The path of the type itself: `flatten`, and the only field of a newtype variant.
    Here,
}

impl<'a> Input<'a> {
    pub fn parse(input: &'a DeriveInput, errors: &mut Errors) -> Self {
        let attrs = attr::container(&input.attrs, errors);
        let data = match &input.data {
            syn::Data::Struct(data) => Data::Struct(Field::parse_all(&data.fields, errors)),
            syn::Data::Enum(data) => {
                let variants = data.variants.iter();
                Data::Enum(variants.map(|v| Variant::parse(v, errors)).collect())
            }
            syn::Data::Union(data) => Data::Union(data.union_token),
        };
        Self { ident: &input.ident, generics: &input.generics, attrs, data }
    }

    /// The fields of each list in which names must differ.
    pub fn field_lists(&self) -> impl Iterator<Item = &[Field<'a>]> {
        let (fields, variants): (&[Field<'a>], &[Variant<'a>]) = match &self.data {
            Data::Struct(fields) => (fields, &[]),
            Data::Enum(variants) => (&[], variants),
            Data::Union(_) => (&[], &[]),
        };
        std::iter::once(fields).chain(variants.iter().map(|v| v.fields.as_slice()))
    }

    /// All fields that the walk sees.
    pub fn visited(&self) -> impl Iterator<Item = &Field<'a>> {
        self.field_lists().flatten().filter(|f| !f.is_skipped())
    }
}

impl<'a> Variant<'a> {
    fn parse(variant: &'a syn::Variant, errors: &mut Errors) -> Self {
        attr::variant(&variant.attrs, errors);
        let mut fields = Field::parse_all(&variant.fields, errors);
        // A variant selects the value at a path, so the value needs no segment.
        if let (Fields::Unnamed(_), [only]) = (&variant.fields, fields.as_mut_slice())
            && only.attrs.rename.is_none()
        {
            only.place = Place::Here;
        }
        Self { ident: &variant.ident, fields }
    }
}

impl<'a> Field<'a> {
    fn parse_all(fields: &'a Fields, errors: &mut Errors) -> Vec<Self> {
        let fields = fields.iter().enumerate();
        fields.map(|(index, f)| Self::parse(index, f, errors)).collect()
    }

    fn parse(index: usize, field: &'a syn::Field, errors: &mut Errors) -> Self {
        let attrs = attr::field(&field.attrs, errors);
        let member = match &field.ident {
            Some(ident) => Member::Named(ident.clone()),
            None => Member::Unnamed(Index::from(index)),
        };
        let place = match (&attrs, &field.ident) {
            (attrs, _) if attrs.flatten.is_some() => Place::Here,
            (FieldAttrs { rename: Some(name), .. }, _) => Place::Below(name.value(), name.span()),
            (_, Some(ident)) => Place::Below(ident.unraw().to_string(), ident.span()),
            (_, None) => Place::Below(index.to_string(), field.ty.span()),
        };
        Self { member, ty: &field.ty, attrs, place }
    }

    pub fn is_skipped(&self) -> bool {
        self.attrs.skip.is_some()
    }
}
