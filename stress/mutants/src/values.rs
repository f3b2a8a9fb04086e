//! Simple values of a type, by its name.

use syn::{GenericArgument, PathArguments, ReturnType, Type};

/// The most values of a type.
const MOST: usize = 4;

/// The values that a function could return instead.
pub fn of(output: &ReturnType) -> Vec<String> {
    match output {
        ReturnType::Default => vec!["()".into()],
        ReturnType::Type(_, ty) => of_type(ty),
    }
}

fn of_type(ty: &Type) -> Vec<String> {
    let default = || vec!["Default::default()".to_owned()];
    let leaked = |inner: &Type| -> Vec<String> {
        let values = of_type(inner).into_iter().take(1);
        values
            .map(|value| format!("Box::leak(Box::new({value}))"))
            .collect()
    };
    match ty {
        Type::Paren(inner) => of_type(&inner.elem),
        Type::Tuple(tuple) => {
            let first = |ty| of_type(ty).into_iter().next();
            let values: Option<Vec<String>> = tuple.elems.iter().map(first).collect();
            let comma = if tuple.elems.len() == 1 { "," } else { "" };
            values.map_or(Vec::new(), |v| vec![format!("({}{comma})", v.join(", "))])
        }
        Type::Array(array) => {
            let each = of_type(&array.elem).into_iter();
            each.map(|value| format!("std::array::from_fn(|_| {value})"))
                .collect()
        }
        Type::Reference(reference) => match &*reference.elem {
            Type::Slice(_) if reference.mutability.is_none() => vec!["&[]".into()],
            Type::Path(path) if path.path.is_ident("str") => {
                vec!["\"\"".into(), "\"xyzzy\"".into()]
            }
            Type::TraitObject(_) => Vec::new(),
            inner => leaked(inner),
        },
        Type::Path(path) => {
            let Some(last) = path.path.segments.last() else {
                return default();
            };
            let inner = || match &last.arguments {
                PathArguments::AngleBracketed(arguments) => {
                    let types = arguments.args.iter().filter_map(|argument| match argument {
                        GenericArgument::Type(ty) => Some(ty),
                        _ => None,
                    });
                    types.take(1).flat_map(of_type).collect()
                }
                _ => Vec::new(),
            };
            let each = |form: fn(String) -> String| inner().into_iter().map(form);
            let values: Vec<String> = match &*last.ident.to_string() {
                "bool" => vec!["true".into(), "false".into()],
                "u8" | "u16" | "u32" | "u64" | "usize" => vec!["0".into(), "1".into()],
                "i8" | "i16" | "i32" | "i64" | "isize" => {
                    vec!["0".into(), "1".into(), "-1".into()]
                }
                "f32" | "f64" => vec!["0.0".into(), "1.0".into(), "-1.0".into()],
                "String" => vec!["String::new()".into(), "\"xyzzy\".into()".into()],
                "Option" => {
                    let some = each(|value| format!("Some({value})"));
                    std::iter::once("None".into()).chain(some).collect()
                }
                "Result" => each(|value| format!("Ok({value})")).collect(),
                "Vec" => {
                    let one = each(|value| format!("vec![{value}]"));
                    std::iter::once("vec![]".into()).chain(one).collect()
                }
                "Box" | "Arc" | "Rc" => each(|value| format!("{{ {value} }}.into()")).collect(),
                _ => default(),
            };
            values.into_iter().take(MOST).collect()
        }
        _ => Vec::new(),
    }
}
