//! How a `QConfig` is written in YAML, JSON and whatever else serde knows, and read from it.
//!
//! ```yaml
//! weight: {observer: HistogramObserver, dtype: qint8, qscheme: per_tensor_symmetric, bins: 2048}
//! activation: {granularity: per_row, reduce_range: false, arithmetic: pytorch}
//! ```
//! A `QConfig` may be the name of a preset, `weight` may be `{dtype: float16}`, `{dtype: bfloat16}`
//! or `{dtype: int4, group_size: 128, scheme: affine}`, and `activation` accordingly `float`,
//! `bfloat16`, `per_group` or `per_row`. Missing keys are as in PyTorch's default observers for
//! weights: signed codes are symmetric and unsigned ones affine, and activations follow from the
//! weight.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde::ser::{Error as _, SerializeMap, Serializer};

use super::groups::BLOCK;
use super::{Arithmetic, DynamicConfig, Granularity, GroupConfig, HalfType, IntType, QConfig};
use crate::document::{Map, Node, Read, Value, deserialize_by_read};
use crate::error::Result;
use crate::observer::{ObserverConfig, ObserverKind};
use crate::qparams::{QDType, QScheme};
use crate::words::lookup;

/// PyTorch's default share of the newest in a moving average.
const AVERAGING_CONSTANT: f32 = 0.01;
/// PyTorch's default bins of a histogram, and the most that make sense.
const BINS: usize = 2048;
const MAX_BINS: usize = 1 << 20;

const OBSERVER: &str = "observer, dtype, qscheme, ch_axis, reduce_range, quant_range, eps, \
                        averaging_constant, bins";
/// Arguments that some observers take and others do not.
const SINGLE_ARGUMENTS: [&str; 2] = ["averaging_constant", "bins"];
/// Keys of weights in groups beside their dtype.
const GROUPS: &str = "group_size, scheme";

deserialize_by_read!(QConfig, ObserverConfig, DynamicConfig, GroupConfig, Activations);

/// Activations as they are written beside a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Activations {
    Dynamic(DynamicConfig),
    /// The word of a [`HalfType`]'s [`activations`](crate::halves::HalfFacts), or of groups.
    Word(&'static str),
}

impl Activations {
    pub const FLOAT: Self = Self::Word(HalfType::Float16.facts().activations);
    const BFLOAT16: Self = Self::Word(HalfType::BFloat16.facts().activations);
    pub const PER_GROUP: Self = Self::Word("per_group");
    pub const PER_ROW: Self = Self::Word("per_row");

    pub const fn of_groups(groups: GroupConfig) -> Self {
        if groups.per_row { Self::PER_ROW } else { Self::PER_GROUP }
    }

    /// The word; empty of dynamic activations.
    fn word(self) -> &'static str {
        match self {
            Self::Word(word) => word,
            Self::Dynamic(_) => "",
        }
    }
}

impl QConfig {
    pub(crate) fn activations(&self) -> Activations {
        match self {
            Self::Int8 { activation, .. } => Activations::Dynamic(*activation),
            Self::Half(half) => Activations::Word(half.facts().activations),
            Self::Groups(groups) => Activations::of_groups(*groups),
            Self::Table(_) => Activations::FLOAT,
        }
    }

    /// This weight beside other activations; an error says which it can have.
    fn beside(self, activations: Activations) -> Result<Self, String> {
        if activations == self.activations() {
            return Ok(self);
        }
        let expected = match (self, activations) {
            (Self::Int8 { weight, .. }, Activations::Dynamic(activation)) => {
                return Ok(Self::Int8 { weight, activation });
            }
            (Self::Int8 { weight, .. }, Activations::FLOAT) => return Ok(Self::Table(weight)),
            (Self::Groups(groups), Activations::PER_ROW) => {
                return Ok(Self::Groups(GroupConfig { per_row: true, ..groups }));
            }
            (Self::Int8 { .. }, _) => "dynamic or float activations for codes",
            (Self::Groups(_), _) => "per_group or per_row activations for weights in groups",
            (Self::Table(_), _) => "float activations for a table",
            (Self::Half(half), _) => {
                let word = half.facts().activations;
                return Err(format!("{word} activations for {half}"));
            }
        };
        Err(expected.to_owned())
    }
}

impl Read for QConfig {
    fn read(node: &Node) -> Result<Self> {
        if let Value::Text(_) = node.value {
            return node.word("a qconfig", Self::preset);
        }
        let map = node.map("a preset's name or a qconfig", "weight, activation")?;
        let weight = map.read("weight", weight)?.unwrap_or(Self::pytorch());
        let Some(got) = map.read("activation", Activations::read)? else { return Ok(weight) };
        weight.beside(got).map_err(|expected| {
            map.get("activation").unwrap_or(node).fault(format!("expected {expected}, got {got}"))
        })
    }
}

impl Read for Activations {
    fn read(node: &Node) -> Result<Self> {
        match &node.value {
            Value::Text(_) => node.word("an activation", |word| {
                let words = [Self::FLOAT, Self::BFLOAT16, Self::PER_GROUP, Self::PER_ROW];
                lookup(
                    "activation",
                    word,
                    words.map(|activations| (activations.word(), activations)),
                )
            }),
            _ => DynamicConfig::read(node).map(Self::Dynamic),
        }
    }
}

impl Read for DynamicConfig {
    fn read(node: &Node) -> Result<Self> {
        let map = node.map("float or an activation", "granularity, reduce_range, arithmetic")?;
        let granularity = map.read("granularity", |n| n.word("a granularity", str::parse))?;
        let arithmetic = map.read("arithmetic", |n| n.word("an arithmetic", str::parse))?;
        let granularity = granularity.unwrap_or(Granularity::PerTensor);
        let arithmetic = arithmetic.unwrap_or(Arithmetic::PyTorch);
        // PyTorch itself takes 7 bits; other engines need not.
        let as_pytorch = (granularity, arithmetic) == (Granularity::PerTensor, Arithmetic::PyTorch);
        Ok(Self {
            granularity,
            reduce_range: map.read("reduce_range", Node::bool)?.unwrap_or(as_pytorch),
            arithmetic,
        })
    }
}

/// Reads a weight, with the activations that PyTorch has beside it.
fn weight(node: &Node) -> Result<QConfig> {
    let map = node.map("a weight", &format!("{OBSERVER}, {GROUPS}"))?;
    let other = |word: &str| {
        let word = word.strip_prefix("torch.").unwrap_or(word);
        let words = [
            ("qint8", None),
            ("quint8", None),
            ("float16", Some((QConfig::float16(), "dtype float16"))),
            ("bfloat16", Some((QConfig::bfloat16(), "dtype bfloat16"))),
            ("int4", Some((QConfig::int4(), "dtype int4"))),
            ("int8", Some((QConfig::int8_groups(), "dtype int8"))),
        ];
        lookup("dtype", word, words)
    };
    let dtype = map.read("dtype", |n| n.word("a dtype", other))?;
    let Some((weight, what)) = dtype.flatten() else {
        let weight = ObserverConfig::read(node)?;
        if weight.qscheme == QScheme::PerChannelAffineFloatQParams {
            return Ok(QConfig::Table(weight));
        }
        let activation = DynamicConfig::new(Granularity::PerTensor, true);
        return Ok(QConfig::Int8 { weight, activation });
    };
    let in_groups = matches!(weight, QConfig::Groups(_));
    let is_of_groups = |key: &str| in_groups && GROUPS.split(", ").any(|known| known == key);
    map.refuse(what, |key| key != "dtype" && !is_of_groups(key))?;
    if in_groups { GroupConfig::read(node).map(QConfig::Groups) } else { Ok(weight) }
}

impl Read for GroupConfig {
    fn read(node: &Node) -> Result<Self> {
        let map = node.map("groups", &format!("dtype, {GROUPS}"))?;
        let mut groups = Self::INT4;
        let dtype = map.read("dtype", |n| n.word("a dtype", str::parse))?;
        groups.dtype = dtype.unwrap_or(groups.dtype);
        if let Some(node) = map.get("group_size") {
            let expected = format!("channel or a multiple of {BLOCK}");
            groups.group_size = match &node.value {
                Value::Text(word) if word == "channel" => None,
                _ => {
                    let valid = |size: &usize| *size > 0 && size.is_multiple_of(BLOCK);
                    Some(node.integer(&expected, valid)?)
                }
            };
        }
        // Others call qint8 so.
        if groups.dtype == IntType::Int8 && map.get("group_size").is_none() {
            return Err(node.fault("expected group_size beside dtype int8, or dtype qint8"));
        }
        if let Some(node) = map.get("scheme") {
            groups.scheme = node.word("a scheme", str::parse)?;
            groups.blocks().map_err(|e| node.fault(e.to_string()))?;
        }
        Ok(groups)
    }
}

impl Read for ObserverConfig {
    fn read(node: &Node) -> Result<Self> {
        let map = node.map("an observer", OBSERVER)?;
        let qscheme = map.read("qscheme", |n| n.word("a qscheme", str::parse::<QScheme>))?;
        let dtype = map.read("dtype", |n| n.word("a dtype", str::parse::<QDType>))?;
        let kind = map.read("observer", |n| n.word("an observer", observer))?;

        let per_row = qscheme == Some(QScheme::PerChannelAffineFloatQParams);
        let dtype = dtype.unwrap_or(if per_row { QDType::QUInt8 } else { QDType::QInt8 });
        let mut kind = kind.unwrap_or(match qscheme {
            Some(qscheme) if qscheme.is_per_channel() => ObserverKind::PerChannelMinMax,
            _ => ObserverKind::MinMax,
        });
        let default = QScheme::integer(kind.per_channel() == Some(true), dtype == QDType::QInt8);
        let qscheme = qscheme.unwrap_or(default);
        let name = kind.name();
        if kind.per_channel().is_some_and(|needed| needed != qscheme.is_per_channel()) {
            let at = map.get("qscheme").unwrap_or(node);
            return Err(at.fault(format!("{name} cannot be {qscheme}")));
        }
        if per_row && (dtype != QDType::QUInt8 || kind.per_channel() != Some(true)) {
            return Err(node.fault(format!(
                "{qscheme} needs PerChannelMinMaxObserver and quint8, got {name} and {dtype}"
            )));
        }
        single_arguments(&map, &mut kind)?;

        let mut config = Self::new(kind, dtype, qscheme);
        let any = |_: &isize| true;
        let axis = map.read("ch_axis", |n| n.integer("the number of an axis", any))?;
        config.ch_axis = axis.unwrap_or(config.ch_axis);
        config.reduce_range = map.read("reduce_range", Node::bool)?.unwrap_or(false);
        config.quant_range = map.read("quant_range", |n| quant_range(n, dtype))?;
        let valid = |eps: &f32| eps.is_normal() && *eps > 0.;
        let expected = "a number greater than 0, not subnormal";
        config.eps = map.read("eps", |n| n.float(expected, valid))?.unwrap_or(config.eps);
        Ok(config)
    }
}

fn single_arguments(map: &Map<'_>, kind: &mut ObserverKind) -> Result<()> {
    let taken = match kind {
        ObserverKind::MovingAverageMinMax { averaging_constant }
        | ObserverKind::MovingAveragePerChannelMinMax { averaging_constant } => {
            let valid = |share: &f32| *share > 0. && *share <= 1.;
            let expected = "a number greater than 0, at most 1";
            let share = map.read("averaging_constant", |n| n.float(expected, valid))?;
            *averaging_constant = share.unwrap_or(*averaging_constant);
            "averaging_constant"
        }
        ObserverKind::Histogram { bins } => {
            let expected = format!("a whole number from 1 to {MAX_BINS}");
            let valid = |bins: &usize| (1..=MAX_BINS).contains(bins);
            *bins = map.read("bins", |n| n.integer(expected, valid))?.unwrap_or(*bins);
            "bins"
        }
        ObserverKind::OnnxRuntime => {
            map.refuse(kind.name(), |key| key == "quant_range" || key == "eps")?;
            ""
        }
        _ => "",
    };
    map.refuse(kind.name(), |key| SINGLE_ARGUMENTS.contains(&key) && key != taken)
}

fn quant_range(node: &Node, dtype: QDType) -> Result<[i32; 2]> {
    let [min, max] = dtype.codes();
    let expected = format!("[min, max] within {min} to {max}, with 0 in it, for {dtype}");
    let code = |node: &Node| node.integer(&expected, |c| (min..=max).contains(c));
    match node.list(&expected)? {
        [from, to] => match [code(from)?, code(to)?] {
            [from, to] if from <= 0 && to >= 0 && from < to => Ok([from, to]),
            [from, to] => Err(node.fault(format!("expected {expected}, got [{from}, {to}]"))),
        },
        items => Err(node.fault(format!("expected {expected}, got {} items", items.len()))),
    }
}

/// The observer of a PyTorch name, with PyTorch's defaults.
fn observer(name: &str) -> Result<ObserverKind> {
    let averaging_constant = AVERAGING_CONSTANT;
    let kinds = [
        ObserverKind::MinMax,
        ObserverKind::PerChannelMinMax,
        ObserverKind::MovingAverageMinMax { averaging_constant },
        ObserverKind::MovingAveragePerChannelMinMax { averaging_constant },
        ObserverKind::Histogram { bins: BINS },
        ObserverKind::OnnxRuntime,
        ObserverKind::Placeholder,
    ];
    lookup("observer", name, kinds.map(|kind| (kind.name(), kind)))
}

impl fmt::Display for Activations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dynamic(config) => config.fmt(f),
            Self::Word(word) => f.write_str(word),
        }
    }
}

/// `float`, `bfloat16`, or what a [`DynamicConfig`] is.
impl Serialize for Activations {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Dynamic(config) => config.serialize(to),
            Self::Word(word) => to.serialize_str(word),
        }
    }
}

impl Serialize for GroupConfig {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("dtype", &self.dtype)?;
        match self.group_size {
            Some(size) => map.serialize_entry("group_size", &size)?,
            None => map.serialize_entry("group_size", "channel")?,
        }
        map.serialize_entry("scheme", &self.scheme)?;
        map.end()
    }
}

/// An error for a custom observer: nothing could read it back.
impl Serialize for QConfig {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        serialize(self, |observer| observer, to)
    }
}

/// Writes a configuration, with its observer as `weight` makes it.
fn serialize<'a, W: Serialize + 'a, S: Serializer>(
    qconfig: &'a QConfig,
    weight: impl FnOnce(&'a ObserverConfig) -> W,
    to: S,
) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(Some(2))?;
    map.serialize_entry("activation", &qconfig.activations())?;
    match qconfig {
        QConfig::Int8 { weight: config, .. } | QConfig::Table(config) => {
            map.serialize_entry("weight", &weight(config))?;
        }
        QConfig::Half(half) => {
            map.serialize_entry("weight", &BTreeMap::from([("dtype", half)]))?;
        }
        QConfig::Groups(groups) => map.serialize_entry("weight", groups)?,
    }
    map.end()
}

/// An error for a custom observer: nothing could read it back.
impl Serialize for ObserverConfig {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if let ObserverKind::Custom(custom) = &self.kind {
            return Err(S::Error::custom(format_args!(
                "a custom observer is code and cannot be written: {}",
                custom.name()
            )));
        }
        Named(self).serialize(to)
    }
}

/// An observer of which the name is enough.
struct Named<'a>(&'a ObserverConfig);

impl Serialize for Named<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let config = self.0;
        let mut map = to.serialize_map(None)?;
        match &config.kind {
            ObserverKind::Custom(custom) => {
                map.serialize_entry("observer", &format_args!("Custom({})", custom.name()))?;
            }
            kind => map.serialize_entry("observer", kind.name())?,
        }
        map.serialize_entry("dtype", &config.dtype)?;
        map.serialize_entry("qscheme", &config.qscheme)?;
        if config.ch_axis != 0 {
            map.serialize_entry("ch_axis", &config.ch_axis)?;
        }
        map.serialize_entry("reduce_range", &config.reduce_range)?;
        if let Some(range) = &config.quant_range {
            map.serialize_entry("quant_range", range)?;
        }
        // ONNX Runtime has no such argument.
        if config.kind != ObserverKind::OnnxRuntime || config.eps != f32::EPSILON {
            map.serialize_entry("eps", &config.eps)?;
        }
        match &config.kind {
            ObserverKind::MovingAverageMinMax { averaging_constant }
            | ObserverKind::MovingAveragePerChannelMinMax { averaging_constant } => {
                map.serialize_entry("averaging_constant", averaging_constant)?;
            }
            ObserverKind::Histogram { bins } => map.serialize_entry("bins", bins)?,
            _ => {}
        }
        map.end()
    }
}

/// Writes a configuration for reports, which are never read back: a custom observer is given by its
/// name.
pub(crate) fn serialize_named<S: Serializer>(qconfig: &QConfig, to: S) -> Result<S::Ok, S::Error> {
    serialize(qconfig, Named, to)
}
