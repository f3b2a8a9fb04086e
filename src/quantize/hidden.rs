//! Fields that a walk did not visit and that may hold layers, judged by the names of their types.

use std::fmt;

use serde::Serialize;

/// The effect of a `VarBuilder` in a model, and advice.
pub(super) const BUILDER_ADVICE: &str = "may keep all tensors that it loads: do not hold it";

/// A field that is not a module tree: a walk does not see into it.
///
/// `Display` says what it is and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct OpaqueField {
    /// Path in the model.
    pub path: String,
    /// The Rust type of the field.
    pub type_name: String,
    /// If it may hold layers, which then stayed float: the change after which a walk sees them.
    pub advice: Option<String>,
}

impl OpaqueField {
    /// A `Copy` type owns no layer, but its name may tell that it refers to one.
    pub(super) fn new(path: &str, type_name: &str, is_copy: bool) -> Self {
        let may_hold = !is_copy || type_name.contains(['&', '*']);
        let reason = may_hold.then(|| reason(type_name)).flatten();
        Self {
            path: path.to_owned(),
            type_name: type_name.to_owned(),
            advice: reason.map(|reason| reason.advice(type_name)),
        }
    }
}

impl fmt::Display for OpaqueField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is a {}", self.path, self.type_name)?;
        match &self.advice {
            Some(advice) => write!(f, "; {advice}"),
            None => Ok(()),
        }
    }
}

/// Why a walk does not see into a field.
#[derive(Debug, PartialEq)]
enum HiddenReason {
    /// A layer, of this type, that has a namesake in [`nn`](crate::nn).
    Namesake {
        held: String,
    },
    Dynamic {
        held: String,
    },
    /// A reference, or a shared lock: what it holds cannot be exchanged.
    Borrowed,
    /// A type that does not derive [`Quantizable`](crate::Quantizable).
    NotDerived {
        held: String,
    },
}

impl HiddenReason {
    /// The change after which a walk sees the layers of a field of that type.
    fn advice(&self, type_name: &str) -> String {
        match self {
            HiddenReason::Namesake { held } => {
                let name = held.rsplit("::").next().unwrap_or_default();
                format!("use candle_dynquant::nn::{name}")
            }
            HiddenReason::Dynamic { held } => format!(
                "hold the type itself or an enum in place of {held}, or make Quantizable a supertrait"
            ),
            HiddenReason::Borrowed => {
                "store it by value, in a Box, or in an Arc<T> with T: Clone".into()
            }
            HiddenReason::NotDerived { held } => {
                let shared = ["Arc<", "Rc<"].iter().any(|p| type_name.contains(p));
                let is_generic = type_name.contains(&format!("{held}<"));
                let container = container_advice(type_name);
                let whole = *held == type_name;
                let derive = if whole && container.is_some() {
                    String::new()
                } else if !shared {
                    format!("derive Quantizable for {held}")
                } else if whole {
                    // A parameter that is a layer: no type remains to derive for.
                    BOUND.to_owned()
                } else if is_generic {
                    format!("derive Quantizable and Clone for {held}; if it does, {BOUND}")
                } else {
                    format!("derive Quantizable and Clone for {held}")
                };
                let all = [Some(derive).filter(|d| !d.is_empty()), container];
                let all: Vec<_> = all.into_iter().flatten().collect();
                format!("{}, or mark the field #[quantizable(skip)]", all.join("; "))
            }
        }
    }
}

/// The derive cannot know of a parameter that an `Arc` or `Rc` of it can be exchanged.
const BOUND: &str = "bound the type parameters behind Arc and Rc by Clone + 'static";

/// Layers of candle's that `nn` has too.
const NAMESAKES: [&str; 5] = ["Linear", "LSTM", "GRU", "Embedding", "Sequential"];

const MAPS: [&str; 3] = ["HashMap", "BTreeMap", "IndexMap"];

/// Generic types of the standard library that a walk enters, or that hold nothing.
const WALKED: [&str; 19] = [
    "Option",
    "Box",
    "Arc",
    "Rc",
    "Vec",
    "VecDeque",
    "Cell",
    "RefCell",
    "Mutex",
    "RwLock",
    "OnceCell",
    "OnceLock",
    "PhantomData",
    "HashSet",
    "BTreeSet",
    "Weak",
    "NonZero",
    "Range",
    "BuildHasherDefault",
];

/// The type of a `VarBuilder`, which holds tensors and no layer.
const BUILDER: &str = "candle_nn::var_builder::VarBuilderArgs";

/// Crates whose types hold no layers but in their type arguments.
const WITHOUT_LAYERS: [&str; 22] = [
    "core",
    "alloc",
    "std",
    "ahash",
    "half",
    "hashbrown",
    "indexmap",
    "lock_api",
    "memmap2",
    "ndarray",
    "once_cell",
    "parking_lot",
    "rand",
    "rand_core",
    "regex",
    "safetensors",
    "serde_json",
    "serde_yaml",
    "smallvec",
    "tokenizers",
    "tracing",
    "tracing_core",
];

/// Types of candle_transformers that wrap no layer of [`NAMESAKES`].
const WRAPPERS: [&str; 4] = ["LayerNorm", "RmsNorm", "Conv2d", "QMatMul"];

/// Why a type that is not a module tree may hold layers, by the first type in its name that may.
fn reason(type_name: &str) -> Option<HiddenReason> {
    let mut borrowed = false;
    let mut shared = false;
    let mut ours = false;
    let mut tokens = tokens(type_name).into_iter();
    while let Some(token) = tokens.next() {
        match token {
            "&" | "*" => borrowed = true,
            "dyn" => {
                let held = tokens.find(|token| token.contains("::")).unwrap_or_default();
                return Some(HiddenReason::Dynamic { held: format!("dyn {held}") });
            }
            "fn" | BUILDER => drop(take_type(&mut tokens)),
            path => {
                let Some((krate, _)) = path.split_once("::") else { continue };
                let name = path.rsplit("::").next().unwrap_or_default();
                shared |= matches!(name, "Arc" | "Rc");
                borrowed |= name == "Weak" || shared && matches!(name, "Mutex" | "RwLock");
                match holds(path, krate, name) {
                    Holds::Nothing => {}
                    Holds::Ours => ours = true,
                    Holds::Layer(HiddenReason::NotDerived { .. }) if borrowed => ours = true,
                    Holds::Layer(reason) => return Some(reason),
                }
                if MAPS.contains(&name) {
                    // It holds no layer: none can be hashed or put in order.
                    take_argument(&mut tokens);
                }
            }
        }
    }
    let whole = || HiddenReason::NotDerived { held: type_name.to_owned() };
    match (ours, borrowed) {
        (true, true) => Some(HiddenReason::Borrowed),
        (true, false) => Some(whole()),
        (false, _) => None,
    }
}

/// The possible content of a named type, its type arguments aside.
enum Holds {
    Nothing,
    /// A type of this crate, or a type that may well be a tree.
    Ours,
    Layer(HiddenReason),
}

fn holds(path: &str, krate: &str, name: &str) -> Holds {
    let held = path.to_owned();
    match krate {
        env!("CARGO_CRATE_NAME") => Holds::Ours,
        _ if WITHOUT_LAYERS.contains(&krate) => Holds::Nothing,
        "candle_nn" | "candle_transformers" if NAMESAKES.contains(&name) => {
            Holds::Layer(HiddenReason::Namesake { held })
        }
        "candle_nn" if matches!(name, "Func" | "FuncT") => {
            Holds::Layer(HiddenReason::Dynamic { held })
        }
        "candle_core" | "candle_nn" => Holds::Nothing,
        // Its configurations are sizes and choices; other configurations may be anything.
        "candle_transformers" if WRAPPERS.contains(&name) || name.ends_with("Config") => {
            Holds::Nothing
        }
        // It stands before `{{closure}}`.
        _ if name.is_empty() => Holds::Layer(HiddenReason::Dynamic {
            held: format!("the closure in {}", path.trim_end_matches(':')),
        }),
        _ => Holds::Layer(HiddenReason::NotDerived { held }),
    }
}

/// Paths, words and arrows as a whole, all else character by character.
fn tokens(type_name: &str) -> Vec<&str> {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let mut tokens = Vec::new();
    let mut rest = type_name;
    while let Some(first) = rest.chars().next() {
        let len = match first {
            first if is_path(first) => rest.find(|c| !is_path(c)).unwrap_or(rest.len()),
            '-' if rest.starts_with("->") => 2,
            _ => first.len_utf8(),
        };
        let (token, after) = rest.split_at(len);
        tokens.push(token);
        rest = after;
    }
    tokens
}

/// A note on the tensors that a value of the type may hold.
pub(super) fn note(type_name: &str) -> Option<&'static str> {
    if tokens(type_name).contains(&BUILDER) {
        Some(BUILDER_ADVICE)
    } else {
        holds_tensors(type_name).then_some("its tensors are not counted")
    }
}

/// Whether a value of the type may hold tensors or convolutions.
fn holds_tensors(type_name: &str) -> bool {
    let mut tokens = tokens(type_name).into_iter();
    while let Some(token) = tokens.next() {
        if token == "fn" {
            take_type(&mut tokens);
        }
        let name = token.rsplit("::").next().unwrap_or_default();
        let convolution = name.starts_with("Conv") && name.ends_with('d');
        let tensor = ["Tensor", "Var", "QMatMul", "QTensor"].contains(&name);
        if token.starts_with("candle_") && (convolution || tensor) {
            return true;
        }
    }
    false
}

/// The change after which a walk sees into the containers of a type, if there is one that it passes
/// by.
fn container_advice(type_name: &str) -> Option<String> {
    let mut tokens = tokens(type_name).into_iter();
    while let Some(token) = tokens.next() {
        if token == "fn" {
            take_type(&mut tokens);
        }
        let Some((krate, _)) = token.split_once("::") else { continue };
        let name = token.rsplit("::").next().unwrap_or_default();
        let generic = tokens.as_slice().first() == Some(&"<");
        if !generic || !WITHOUT_LAYERS.contains(&krate) {
            continue;
        }
        let std = matches!(krate, "core" | "alloc" | "std");
        match name {
            "Result" if std => return Some("hold the value itself in place of the Result".into()),
            "HashMap" | "BTreeMap" if std => {
                let key = take_argument(&mut tokens);
                if !has_text(&key) {
                    return Some(format!(
                        "use keys that implement Display, such as String, in place of {key}"
                    ));
                }
            }
            _ if std && WALKED.contains(&name) => {}
            _ => {
                return Some(format!("hold a Vec, a Box or a field in place of the {token}"));
            }
        }
    }
    let is_tuple = type_name.starts_with('(');
    is_tuple.then(|| "derive Quantizable for a struct in place of the tuple".into())
}

/// Whether a type of the standard library implements `Display`; unknown for others.
fn has_text(type_name: &str) -> bool {
    let name = type_name.trim_start_matches('&').trim();
    let last = name.rsplit("::").next().unwrap_or_default();
    let is_word = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric());
    is_word || name.starts_with("alloc::string") && last == "String"
}

/// Passes the first type argument of a type, and returns it.
fn take_argument(tokens: &mut std::vec::IntoIter<&str>) -> String {
    match tokens.as_slice().first() {
        Some(&"<") => {
            tokens.next();
            take_type(tokens)
        }
        _ => String::new(),
    }
}

/// Passes what is left of a type, to the end of the list or brackets that it is in, and returns it.
/// A function pointer holds none of its arguments, nor what it returns.
fn take_type(tokens: &mut std::vec::IntoIter<&str>) -> String {
    let mut taken = String::new();
    let mut depth = 0;
    while let Some(token) = tokens.as_slice().first() {
        match *token {
            "," | ";" | ")" | "]" | ">" if depth == 0 => break,
            "(" | "[" | "<" => depth += 1,
            ")" | "]" | ">" => depth -= 1,
            _ => {}
        }
        taken.push_str(tokens.next().unwrap_or_default());
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types, each with what is expected of it on the next line.
    fn pairs(cases: &str) -> Vec<[&str; 2]> {
        let lines: Vec<&str> = cases.trim().lines().map(str::trim).collect();
        lines.chunks(2).map(|pair| [pair[0], pair[1]]).collect()
    }

    #[test]
    fn types_that_hold_no_layers_have_none() {
        for name in [
            "alloc::sync::Arc<str>",
            "core::option::Option<tracing::span::Span>",
            "std::collections::hash::map::HashMap<m::Kind<(m::A, m::B)>, usize>",
            "fn(&'_ my_model::Attention) -> candle_core::tensor::Tensor",
            "&[candle_core::tensor::Tensor]",
            "candle_transformers::models::with_tracing::LayerNorm",
            "(usize, candle_nn::conv::Conv1d)",
            "fn((m::A, m::B), m::C) -> usize",
            "fn(&m::A) -> core::result::Result<m::B, m::C>",
            "core::option::Option<fn(&m::A) -> fn(usize) -> (m::B, [m::C; 2])>",
            "candle_transformers::models::llama::Config",
            "core::option::Option<candle_transformers::models::clip::ClipConfig>",
            "hashbrown::map::HashMap<alloc::string::String, usize, ahash::RandomState>",
            "lock_api::mutex::Mutex<parking_lot::raw_mutex::RawMutex, usize>",
            "(candle_nn::var_builder::VarBuilderArgs<alloc::boxed::Box<dyn candle_nn::var_builder::SimpleBackend>>, usize)",
        ] {
            assert_eq!(reason(name), None, "{name}");
        }
    }

    #[test]
    fn types_that_may_hold_layers_have_a_reason() {
        let cases = r#"
            core::option::Option<(m::Attention, candle_nn::layer_norm::LayerNorm)>
                NotDerived { held: "m::Attention" }
            alloc::vec::Vec<candle_nn::linear::Linear>
                Namesake { held: "candle_nn::linear::Linear" }
            candle_nn::sequential::Sequential
                Namesake { held: "candle_nn::sequential::Sequential" }
            alloc::boxed::Box<dyn for<'a> candle_core::Module>
                Dynamic { held: "dyn candle_core::Module" }
            candle_nn::func::Func
                Dynamic { held: "candle_nn::func::Func" }
            m::load::{{closure}}
                Dynamic { held: "the closure in m::load" }
            candle_transformers::models::bert::BertModel
                NotDerived { held: "candle_transformers::models::bert::BertModel" }
            std::sync::poison::mutex::Mutex<m::Attention>
                NotDerived { held: "m::Attention" }
            core::option::Option<m::LayerConfig>
                NotDerived { held: "m::LayerConfig" }
            &m::Toy
                Borrowed
            *const m::Toy
                Borrowed
            alloc::sync::Weak<m::Toy>
                Borrowed
            &alloc::sync::Weak<m::Toy>
                Borrowed
            alloc::sync::Arc<alloc::rc::Rc<std::sync::rwlock::RwLock<m::Toy>>>
                Borrowed
            (candle_nn::var_builder::VarBuilderArgs<alloc::boxed::Box<dyn m::A>>, m::B)
                NotDerived { held: "m::B" }
            (fn((m::A, usize)) -> usize, m::B)
                NotDerived { held: "m::B" }
            alloc::vec::Vec<candle_dynquant::nn::linear::Linear>
                NotDerived { held: "alloc::vec::Vec<candle_dynquant::nn::linear::Linear>" }
            alloc::sync::Arc<std::sync::mutex::Mutex<candle_dynquant::nn::linear::Linear>>
                Borrowed
            alloc::sync::Arc<m::Block<candle_dynquant::nn::linear::Linear>>
                NotDerived { held: "m::Block" }
        "#;
        for [name, expected] in pairs(cases) {
            let got = reason(name).expect("a reason");
            assert_eq!(format!("{got:?}"), expected, "{name}");
        }
    }

    #[test]
    fn types_that_may_hold_tensors_are_told_from_others() {
        for name in [
            "std::collections::hash::map::HashMap<(usize, usize), candle_core::tensor::Tensor>",
            "alloc::sync::Arc<std::sync::poison::mutex::Mutex<candle_core::variable::Var>>",
            "candle_transformers::models::with_tracing::Conv2d",
            "(fn(usize) -> core::option::Option<usize>, candle_core::tensor::Tensor)",
            "alloc::sync::Arc<candle_core::quantized::QTensor>",
            "core::option::Option<(fn(), candle_core::tensor::Tensor)>",
        ] {
            assert!(holds_tensors(name), "{name}");
        }
        for name in [
            "fn(&candle_core::tensor::Tensor) -> candle_core::tensor::Tensor",
            "fn(&candle_core::tensor::Tensor) -> core::result::Result<candle_core::tensor::Tensor, m::E>",
            "core::option::Option<fn(m::A) -> (candle_core::tensor::Tensor, candle_core::tensor::Tensor)>",
            "candle_nn::conv::Conv2dConfig",
            "m::Tensor",
        ] {
            assert!(!holds_tensors(name), "{name}");
        }
    }

    #[test]
    fn advice_is_for_the_type_at_fault() {
        let cases = "
            candle_nn::linear::Linear
                use candle_dynquant::nn::Linear
            alloc::boxed::Box<dyn candle_core::Module>
                hold the type itself or an enum in place of dyn candle_core::Module, or make Quantizable a supertrait
            &m::Toy
                store it by value, in a Box, or in an Arc<T> with T: Clone
            m::Toy
                derive Quantizable for m::Toy, or mark the field #[quantizable(skip)]
            alloc::rc::Rc<m::Toy>
                derive Quantizable and Clone for m::Toy, or mark the field #[quantizable(skip)]
            alloc::sync::Arc<m::Expert<candle_dynquant::nn::linear::Linear>>
                derive Quantizable and Clone for m::Expert; if it does, bound the type parameters behind Arc and Rc by Clone + 'static, or mark the field #[quantizable(skip)]
            std::collections::hash::map::HashMap<m::Kind, candle_dynquant::nn::linear::Linear>
                use keys that implement Display, such as String, in place of m::Kind, or mark the field #[quantizable(skip)]
            alloc::vec::Vec<alloc::collections::btree::map::BTreeMap<(usize, usize), m::Toy>>
                derive Quantizable for m::Toy; use keys that implement Display, such as String, in place of (usize, usize), or mark the field #[quantizable(skip)]
            std::collections::hash::map::HashMap<alloc::string::String, m::Toy>
                derive Quantizable for m::Toy, or mark the field #[quantizable(skip)]
            core::result::Result<candle_dynquant::nn::linear::Linear, alloc::string::String>
                hold the value itself in place of the Result, or mark the field #[quantizable(skip)]
            alloc::collections::linked_list::LinkedList<candle_dynquant::nn::linear::Linear>
                hold a Vec, a Box or a field in place of the alloc::collections::linked_list::LinkedList, or mark the field #[quantizable(skip)]
            two::Linear
                derive Quantizable for two::Linear, or mark the field #[quantizable(skip)]
            candle_transformers::models::with_tracing::Linear
                use candle_dynquant::nn::Linear
            alloc::sync::Arc<candle_dynquant::nn::linear::Linear>
                bound the type parameters behind Arc and Rc by Clone + 'static, or mark the field #[quantizable(skip)]
        ";
        let field = |type_name: &str| OpaqueField::new("a.b", type_name, false);
        for [type_name, advice] in pairs(cases) {
            assert_eq!(field(type_name).to_string(), format!("a.b is a {type_name}; {advice}"));
        }
        assert_eq!(field("usize").advice, None);
    }
}
