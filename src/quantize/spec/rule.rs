//! A rule of a spec, and how specific its match is.

use std::fmt;

use crate::module::LayerKind;
use crate::name_regex::NameRegex;
use crate::qconfig::QConfig;
use crate::quantize::survey::FoundLayer;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rule {
    pub pattern: Pattern,
    /// `None` keeps float.
    pub qconfig: Option<QConfig>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Pattern {
    Kind(LayerKind),
    Name(String),
    Regex(NameRegex),
}

/// How specific a match is; the maximum wins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    Kind,
    /// The number of bytes of the name that are covered.
    Ancestor(usize),
    Regex,
    Exact,
}

impl Pattern {
    /// How specific its match with a layer is, if it is one; a regex that is malformed matches none.
    pub fn rank(&self, layer: &FoundLayer) -> Option<Rank> {
        match self {
            Self::Kind(kind) => (*kind == layer.kind).then_some(Rank::Kind),
            Self::Regex(regex) => {
                let regex = regex.compiled().ok()?;
                layer.names().any(|name| regex.is_match(name)).then_some(Rank::Regex)
            }
            Self::Name(rule) => {
                let rank = |name: &str| match name.strip_prefix(&**rule)? {
                    "" => Some(Rank::Exact),
                    rest if rule.is_empty() || rest.starts_with('.') => {
                        Some(Rank::Ancestor(rule.len()))
                    }
                    _ => None,
                };
                layer.names().filter_map(rank).max()
            }
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => write!(f, "kind {kind}"),
            Self::Name(name) => write!(f, "name {name:?}"),
            Self::Regex(regex) => write!(f, "regex {:?}", regex.pattern()),
        }
    }
}
