//! A struct with tensors that multiply, the products of its methods, and the layers that replace
//! them.

use std::collections::BTreeMap;
use std::ops::Range;

use syn::{Fields as StructFields, Item};

use super::product::{Product, Tensors};
use crate::facts::{self, Facts};
use crate::origins::{TensorOrigin, name_of, origin};
use crate::source::is_inside;
use crate::syntax::{get, has_attribute, words};
use crate::table::is_codebook;
use crate::types::{Declared, key};
use crate::unit::Unit;

/// A struct with tensors.
pub struct Holder<'h> {
    pub unit: &'h Unit<'h>,
    pub declared: &'h Declared,
    pub fields: &'h StructFields,
    pub methods: Vec<Facts<'h>>,
    pub tensors: Tensors,
    /// Whether the trait of `forward` is imported.
    pub has_module: bool,
}

/// The products of a struct and the statements removed with them.
#[derive(Default)]
pub struct ProductPlan {
    pub products: Vec<FoundProduct>,
    pub gone: Vec<Range<usize>>,
    /// The variables to remove, and the range where each would be read.
    pub variables: Vec<(String, Range<usize>)>,
}

/// A product in the text.
pub struct FoundProduct {
    pub range: Range<usize>,
    /// The range of the input, if it stays in its place.
    pub input: Option<Range<usize>>,
    pub product: Product,
    pub is_result: bool,
    /// The variable that the product is bound to, and the statement.
    pub bound: Option<(String, Range<usize>)>,
    /// Whether the product is a part of another product.
    pub is_part: bool,
}

impl FoundProduct {
    /// The range that the new text replaces.
    pub fn rewritten(&self) -> Range<usize> {
        let input = self.input.as_ref();
        input.map_or(self.range.start, |input| input.end)..self.range.end
    }

    /// The product as a call of a layer.
    pub fn call(&self, layer: &str, has_module: bool) -> String {
        let index = self.product.index.as_ref();
        let layer = match index {
            Some(index) => format!("{layer}[{index}]"),
            None => layer.to_owned(),
        };
        let tried = if self.is_result { "" } else { "?" };
        let input = &self.product.input;
        match (&self.input, has_module) {
            (Some(_), _) => format!(".apply(&self.{layer}){tried}"),
            (None, true) => format!("self.{layer}.forward({input}){tried}"),
            (None, false) => {
                let bare = input.trim_start_matches('&');
                format!("{bare}.apply(&self.{layer}){tried}")
            }
        }
    }
}

/// Replacements of byte ranges.
pub type Replacements = Vec<(Range<usize>, String)>;

/// Layers by their weights.
pub type Layers = BTreeMap<String, Layer>;

/// The layer that replaces tensors of a struct.
pub struct Layer {
    pub name: String,
    pub bias: Option<String>,
    pub turned: bool,
    /// Whether there is a list of layers, chosen by an index.
    pub is_list: bool,
}

/// The fields of a struct with their names, or with their numbers.
pub fn named(fields: &StructFields) -> impl Iterator<Item = (String, &syn::Field)> {
    fields.iter().enumerate().map(|(at, field)| (name_of(field, at), field))
}

impl<'h> Holder<'h> {
    pub fn new(unit: &'h Unit<'_>, declared: &'h Declared) -> Option<Self> {
        let fields = &get!(&declared.item, Item::Struct)?.fields;
        let of_type = |wanted: &str| {
            let fields = named(fields).filter(|(_, field)| {
                unit.source.slice(&field.ty).replace(' ', "") == wanted
                    && !has_attribute(&field.attrs, "cfg")
            });
            fields.map(|(name, _)| name).collect::<Vec<_>>()
        };
        let mut single = of_type("Tensor");
        if single.is_empty() {
            return None;
        }
        let mut stacks = Vec::new();
        single.retain(|field| {
            let (origin, rank) = origin(unit, &key(declared), field);
            let is_known = origin > TensorOrigin::Unknown;
            stacks.extend((is_known && rank == Some(3)).then(|| field.clone()));
            // A bias has one dimension.
            is_known && rank.is_none_or(|rank| rank <= 2)
        });
        let is_method = |Facts { function, .. }: &Facts<'_>| {
            function.module == declared.module && function.owner.as_ref() == Some(&declared.name)
        };
        let scope = unit.types.scopes.modules.get(&declared.module);
        let any = !single.is_empty() || !stacks.is_empty();
        (any && !is_codebook(&declared.name)).then(|| Self {
            unit,
            declared,
            fields,
            methods: facts::all(unit).filter(is_method).collect(),
            tensors: Tensors { single, stacks, options: of_type("Option<Tensor>") },
            has_module: scope.is_some_and(|scope| scope.bindings.contains_key("Module")),
        })
    }

    pub fn has_field(&self, name: &str) -> bool {
        named(self.fields).any(|(field, _)| field == name)
    }

    pub fn is_tuple(&self) -> bool {
        matches!(self.fields, StructFields::Unnamed(_))
    }

    /// The name of the layer that holds a weight.
    pub fn name(&self, weight: &str) -> Option<String> {
        let stem = ["_weight", "_kernel", "_w"].iter().find_map(|end| weight.strip_suffix(end));
        let names = match weight {
            "weight" | "kernel" | "w" => vec!["inner", "linear", "projection"],
            _ => stem.into_iter().chain([weight]).collect(),
        };
        let free = |name: &&&str| **name == weight || !self.has_field(name);
        names.iter().find(free).map(|name| (*name).to_owned())
    }
}

impl ProductPlan {
    /// Whether a range is removed or rewritten.
    pub fn is_done(&self, range: &Range<usize>) -> bool {
        let products = self.products.iter().map(FoundProduct::rewritten);
        products.chain(self.gone.iter().cloned()).any(|outer| is_inside(range, &outer))
    }

    /// Whether a variable is read in the part of a range that stays.
    pub fn is_read(&self, unit: &Unit<'_>, name: &str, range: &Range<usize>) -> bool {
        let text = &unit.source.text[range.clone()];
        words(text).filter(|word| *word == name).any(|word| {
            let at = range.start + (word.as_ptr() as usize - text.as_ptr() as usize);
            !self.is_done(&(at..at + word.len()))
        })
    }

    /// The layers by their weights; `None` if a weight is used in two ways.
    pub fn layers(&self, holder: &Holder<'_>) -> Option<Layers> {
        let mut layers = Layers::new();
        for FoundProduct { product, .. } in &self.products {
            if let Some(layer) = layers.get(&product.weight) {
                if layer.bias != product.bias || layer.turned != product.turned {
                    return None;
                }
                continue;
            }
            // An argument of a constructor is a weight only if some code says so.
            let origin = || origin(holder.unit, &key(holder.declared), &product.weight).0;
            if product.turned && product.bias.is_none() && origin() < TensorOrigin::Loaded {
                return None;
            }
            let layer = Layer {
                name: holder.name(&product.weight)?,
                bias: product.bias.clone(),
                turned: product.turned,
                is_list: product.index.is_some(),
            };
            let taken = layers.values().any(|other| {
                other.name == layer.name || other.bias.is_some() && other.bias == layer.bias
            });
            if taken {
                return None;
            }
            layers.insert(product.weight.clone(), layer);
        }
        let biases: Vec<_> = layers.values().filter_map(|l| l.bias.clone()).collect();
        (!biases.iter().any(|bias| layers.contains_key(bias))).then_some(layers)
    }
}
