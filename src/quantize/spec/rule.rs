//! One rule of a spec, and how specific its match is.

use std::fmt;

use regex::Regex;

use crate::error::Result;
use crate::module::LayerKind;
use crate::name_regex::NameRegex;
use crate::qconfig::QConfig;
use crate::quantize::survey::Found;

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
    /// By the number of bytes of the name that are covered.
    Ancestor(usize),
    Regex,
    Exact,
}

pub(super) enum Matcher<'a> {
    Kind(&'a LayerKind),
    Name(&'a str),
    Regex(&'a Regex),
}

impl<'a> Matcher<'a> {
    pub fn of(rule: &'a Rule) -> Result<Self> {
        Ok(match &rule.pattern {
            Pattern::Kind(kind) => Self::Kind(kind),
            Pattern::Name(name) => Self::Name(name),
            Pattern::Regex(regex) => Self::Regex(regex.compiled()?),
        })
    }

    pub fn rank(&self, layer: &Found) -> Option<Rank> {
        match self {
            Self::Kind(kind) => (**kind == layer.kind).then_some(Rank::Kind),
            Self::Regex(regex) => layer
                .names()
                .any(|name| regex.is_match(name))
                .then_some(Rank::Regex),
            Self::Name(rule) => layer
                .names()
                .filter_map(|name| match name.strip_prefix(rule) {
                    Some("") => Some(Rank::Exact),
                    Some(rest) if rule.is_empty() || rest.starts_with('.') => {
                        Some(Rank::Ancestor(rule.len()))
                    }
                    _ => None,
                })
                .max(),
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
