//! Which layers get which `QConfig`: rules and their precedence.

use std::fmt;

use regex::Regex;

use super::survey::{Found, Survey};
use super::{LeftReason, OpaqueField};
use crate::error::{Error, Result};
use crate::module::LayerKind;
use crate::qconfig::QConfig;

/// Which layers of a model are quantized, and how; PyTorch's `qconfig_spec`.
///
/// A rule gives a [`QConfig`], or `None` to keep float, to the layers of a kind, to a dotted
/// name and all that is below it, or to the names that a regex finds. Where several rules
/// match a layer, the most particular wins: exact name, then regex (a later one wins), then
/// the nearest name above, then kind. Names are paths in the model or the checkpoint names
/// that layers were loaded under; the name `""` covers the whole model.
///
/// ```
/// use candle_dynquant::{LayerKind, QConfig, QConfigSpec};
///
/// let spec = QConfigSpec::int8()
///     .name("encoder.layer.0", None)                        // keep this block float
///     .regex(r"\.output\.dense$", QConfig::per_channel_dynamic())
///     .kind(LayerKind::LSTM, QConfig::default_dynamic());
/// assert_eq!(spec.to_string().lines().count(), 10);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct QConfigSpec {
    /// What a preset gives to whole kinds; these may match nothing.
    presets: Vec<(LayerKind, QConfig)>,
    rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq)]
struct Rule {
    pattern: Pattern,
    qconfig: Option<QConfig>,
}

#[derive(Clone, Debug, PartialEq)]
enum Pattern {
    Kind(LayerKind),
    Name(String),
    Regex(String),
}

/// What happens to one layer.
pub(super) enum Decision {
    Swap(QConfig),
    Leave(LeftReason),
}

impl QConfigSpec {
    /// The presets by the names that [`preset`](Self::preset) knows.
    pub const PRESETS: [&'static str; 3] = ["int8", "default", "per_channel"];

    /// No rules: add them with [`kind`](Self::kind), [`name`](Self::name) and
    /// [`regex`](Self::regex).
    pub fn new() -> Self {
        Self {
            presets: Vec::new(),
            rules: Vec::new(),
        }
    }

    /// What we recommend: [`QConfig::per_row_dynamic`] for every kind that multiplies, also
    /// [`RNN`](LayerKind::RNN), which PyTorch leaves out.
    pub fn int8() -> Self {
        let qconfig = QConfig::per_row_dynamic();
        let mut spec = Self::default_kinds(qconfig.clone());
        spec.presets.push((LayerKind::RNN, qconfig));
        spec
    }

    /// PyTorch's six default kinds, all with `qconfig`.
    pub fn default_kinds(qconfig: QConfig) -> Self {
        Self {
            presets: LayerKind::DEFAULT
                .map(|kind| (kind, qconfig.clone()))
                .into(),
            rules: Vec::new(),
        }
    }

    /// The preset of that name: `int8`, `default` or `per_channel`.
    ///
    /// # Errors
    /// [`Error::UnknownName`] for any other name.
    pub fn preset(name: &str) -> Result<Self> {
        match name {
            "int8" => Ok(Self::int8()),
            "default" => Ok(Self::default()),
            "per_channel" => Ok(Self::default_kinds(QConfig::per_channel_dynamic())),
            _ => Err(Error::UnknownName {
                what: "preset",
                expected: Self::PRESETS.join(", "),
                got: name.to_owned(),
            }),
        }
    }

    /// Adds a rule for all layers of a kind; `None` keeps them float.
    #[must_use]
    pub fn kind(self, kind: LayerKind, qconfig: impl Into<Option<QConfig>>) -> Self {
        self.rule(Pattern::Kind(kind), qconfig.into())
    }

    /// Adds a rule for a name and all that is below it; `None` keeps it float.
    #[must_use]
    pub fn name(self, name: impl Into<String>, qconfig: impl Into<Option<QConfig>>) -> Self {
        self.rule(Pattern::Name(name.into()), qconfig.into())
    }

    /// Adds a rule for the names in which a [regex](https://docs.rs/regex) finds a match,
    /// anywhere unless it is anchored; `None` keeps them float.
    #[must_use]
    pub fn regex(self, pattern: impl Into<String>, qconfig: impl Into<Option<QConfig>>) -> Self {
        self.rule(Pattern::Regex(pattern.into()), qconfig.into())
    }

    fn rule(mut self, pattern: Pattern, qconfig: Option<QConfig>) -> Self {
        self.rules.push(Rule { pattern, qconfig });
        self
    }

    /// Decides for every layer, or says which rule is at fault.
    pub(super) fn resolve(&self, survey: &Survey) -> Result<Vec<Decision>> {
        let matchers = self
            .rules
            .iter()
            .map(Matcher::compile)
            .collect::<Result<Vec<_>>>()?;
        for (rule, matcher) in self.rules.iter().zip(&matchers) {
            if !survey.layers.iter().any(|l| matcher.rank(l).is_some()) {
                return Err(Error::UnmatchedRule {
                    rule: rule.pattern.to_string(),
                    hint: rule.pattern.hint(survey),
                });
            }
        }
        let decisions: Vec<_> = survey
            .layers
            .iter()
            .map(|layer| self.decide(&matchers, layer))
            .collect();
        let matched = |d: &Decision| match d {
            Decision::Swap(_) | Decision::Leave(LeftReason::AlreadyQuantized) => true,
            Decision::Leave(_) => false,
        };
        match decisions.iter().any(matched) {
            true => Ok(decisions),
            false => Err(Error::NothingMatched {
                hint: nothing_matched(survey),
            }),
        }
    }

    fn decide(&self, matchers: &[Matcher<'_>], layer: &Found) -> Decision {
        // `max_by_key` keeps the last of equals: a later rule of the same rank wins.
        let best = self
            .rules
            .iter()
            .zip(matchers)
            .filter_map(|(rule, matcher)| Some((rule, matcher.rank(layer)?)))
            .max_by_key(|(_, rank)| *rank);
        let preset = self.presets.iter().find(|(kind, _)| *kind == layer.kind);
        match (best, preset) {
            (Some((rule, _)), _) if rule.qconfig.is_none() => {
                let rule = rule.pattern.to_string();
                Decision::Leave(LeftReason::KeptFloat { rule })
            }
            (None, None) => Decision::Leave(LeftReason::NoRule),
            _ if layer.is_quantized() => Decision::Leave(LeftReason::AlreadyQuantized),
            (
                Some((
                    Rule {
                        qconfig: Some(qconfig),
                        ..
                    },
                    _,
                )),
                _,
            )
            | (_, Some((_, qconfig))) => Decision::Swap(qconfig.clone()),
            _ => Decision::Leave(LeftReason::NoRule),
        }
    }
}

/// PyTorch's `qconfig_spec=None`: six kinds with `default_dynamic_qconfig`.
impl Default for QConfigSpec {
    fn default() -> Self {
        Self::default_kinds(QConfig::default_dynamic())
    }
}

/// How particular a match is; the greatest wins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Kind,
    /// By how many bytes of the name are covered.
    Ancestor(usize),
    Regex,
    Exact,
}

enum Matcher<'a> {
    Kind(&'a LayerKind),
    Name(&'a str),
    Regex(Regex),
}

impl<'a> Matcher<'a> {
    fn compile(rule: &'a Rule) -> Result<Self> {
        Ok(match &rule.pattern {
            Pattern::Kind(kind) => Self::Kind(kind),
            Pattern::Name(name) => Self::Name(name),
            Pattern::Regex(pattern) => {
                Self::Regex(Regex::new(pattern).map_err(|e| Error::InvalidRegex {
                    pattern: pattern.clone(),
                    message: e.to_string(),
                })?)
            }
        })
    }

    fn rank(&self, layer: &Found) -> Option<Rank> {
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

impl Pattern {
    /// What a user who wrote this may have meant.
    fn hint(&self, survey: &Survey) -> String {
        if survey.layers.is_empty() {
            return nothing_matched(survey);
        }
        match self {
            Self::Kind(_) => {
                let mut kinds: Vec<_> = survey.layers.iter().map(|l| &l.kind).collect();
                kinds.sort();
                kinds.dedup();
                let kinds: Vec<_> = kinds.iter().map(|k| k.to_string()).collect();
                format!("the model has layers of kind {}", kinds.join(", "))
            }
            Self::Name(name) => {
                let holds = |f: &&OpaqueField| {
                    let rest = name.strip_prefix(&f.path);
                    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
                };
                if let Some(field) = survey.opaque.iter().find(holds) {
                    return format!(
                        "{} is a {}, which is no module tree",
                        field.path, field.type_name
                    );
                }
                // Names above layers are as good as the layers' own.
                let ancestors = |name: &str| -> Vec<String> {
                    let dots = name.match_indices('.').map(|(at, _)| name[..at].to_owned());
                    dots.chain([name.to_owned()]).collect()
                };
                let nearest = survey
                    .layers
                    .iter()
                    .flat_map(|l| l.names().flat_map(ancestors).collect::<Vec<_>>())
                    .max_by(|a, b| {
                        strsim::jaro_winkler(a, name).total_cmp(&strsim::jaro_winkler(b, name))
                    });
                format!("the nearest name is {:?}", nearest.unwrap_or_default())
            }
            Self::Regex(_) => {
                let some: Vec<_> = survey
                    .layers
                    .iter()
                    .take(3)
                    .map(|l| l.path.as_str())
                    .collect();
                format!("the model has layers such as {}", some.join(", "))
            }
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => write!(f, "kind {kind}"),
            Self::Name(name) => write!(f, "name {name:?}"),
            Self::Regex(pattern) => write!(f, "regex {pattern:?}"),
        }
    }
}

/// One rule a line.
impl fmt::Display for QConfigSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (kind, qconfig) in &self.presets {
            writeln!(f, "kind {kind}: {qconfig}")?;
        }
        for rule in &self.rules {
            match &rule.qconfig {
                Some(qconfig) => writeln!(f, "{}: {qconfig}", rule.pattern)?,
                None => writeln!(f, "{}: keep float", rule.pattern)?,
            }
        }
        Ok(())
    }
}

fn nothing_matched(survey: &Survey) -> String {
    if let Some(layer) = survey.layers.first() {
        return format!(
            "no rule gives a qconfig to any of the model's {} layers, such as {} ({})",
            survey.layers.len(),
            layer.path,
            layer.kind
        );
    }
    let foreign = survey.opaque.iter().find_map(|field| {
        let layer = foreign_layer(&field.type_name)?;
        Some(format!(
            "the model shows no layers, but {} is a {}; use candle_dynquant::nn::{layer} instead",
            field.path, field.type_name
        ))
    });
    foreign.unwrap_or_else(|| {
        "the model shows no layers; use candle_dynquant::nn's and derive Quantizable".into()
    })
}

/// The layer that a type is or has in it, if it has a namesake in `nn`.
fn foreign_layer(type_name: &str) -> Option<&'static str> {
    let mut paths = type_name.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
    paths.find_map(|path| {
        let (krate, _) = path.split_once("::")?;
        let name = path.rsplit("::").next()?;
        let namesake = ["Linear", "LSTM", "GRU"].into_iter().find(|l| *l == name);
        namesake.filter(|_| krate != env!("CARGO_CRATE_NAME"))
    })
}
