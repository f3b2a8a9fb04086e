//! A spec as YAML or JSON.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::QConfigSpec;
use super::rule::{Pattern, Rule};
use crate::document::{Node, Read, Value, deserialize_by_read};
use crate::error::{Error, Result};
use crate::module::LayerKind;
use crate::name_regex::NameRegex;
use crate::qconfig::QConfig;

impl QConfigSpec {
    /// Reads a spec from YAML.
    ///
    /// ```
    /// use candle_dynquant::{LayerKind, QConfig, QConfigSpec};
    ///
    /// let spec = QConfigSpec::from_yaml(r"
    /// preset: int8                       # optional, as all keys are
    /// embeddings: true
    /// attention: true
    /// min_params: 1000
    /// exclude: [classifier, encoder.layer.0]
    /// rules:                             # a later one wins among equals
    ///   - kind: LSTM
    ///     qconfig: pytorch       # a QConfig by its name
    ///   - name: encoder.layer.1
    ///     qconfig: null                  # keep float
    ///   - regex: '\.output\.dense$'
    ///     qconfig:
    ///       weight: {observer: HistogramObserver, dtype: qint8, bins: 1024}
    ///       activation: {granularity: per_row}
    ///   - kind: RNNCell
    ///     qconfig: {weight: {dtype: float16}}
    /// ")?;
    /// assert_eq!(QConfigSpec::from_yaml(&spec.to_yaml()?)?, spec);
    ///
    /// let typo = QConfigSpec::from_yaml("preset: int8\nrules:\n- kind: LSMT\n  qconfig: null");
    /// let message = "line 3, column 9, rules[0].kind: unknown kind: expected one of Linear, LSTM";
    /// assert!(typo.unwrap_err().to_string().starts_with(message));
    /// # Ok::<(), candle_dynquant::Error>(())
    /// ```
    ///
    /// A kind of your own is `Custom(name)`. `kinds: {Linear: int8}` is a preset of
    /// your own: unlike rules, it may name kinds that the model lacks. Missing keys
    /// of a `qconfig` are as in PyTorch's `default_weight_observer` and its per-channel and quint8
    /// counterparts; `activation` follows from the weight: `float` beside float16 and
    /// embeddings, `bfloat16` beside bfloat16, else PyTorch's 7 bits per tensor.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig), with line, column and key,
    /// where the text is not YAML, or a key, a word or a value in it means nothing.
    pub fn from_yaml(text: &str) -> Result<Self> {
        Self::read(&Node::from_yaml(text)?)
    }

    /// Reads a spec from JSON: the same keys as in [YAML](Self::from_yaml).
    ///
    /// # Errors
    /// As from YAML.
    pub fn from_json(text: &str) -> Result<Self> {
        Self::read(&Node::from_json(text)?)
    }

    /// Reads a spec from a file that ends in `.yaml`, `.yml` or `.json`.
    ///
    /// # Errors
    /// As from YAML, and when the file cannot be read; [`Error::file`] says which file.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let spec = Node::from_file(path).and_then(|node| Self::read(&node));
        spec.map_err(|error| error.in_file(path))
    }

    /// The spec as YAML, which [`from_yaml`](Self::from_yaml) reads back to an equal one.
    ///
    /// # Errors
    /// A custom observer is code and cannot be written.
    pub fn to_yaml(&self) -> Result<String> {
        let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
        serde_saphyr::to_string_with_options(self, options).map_err(|e| unwritable(&e))
    }

    /// The spec as JSON, which [`from_json`](Self::from_json) reads back to an equal one.
    ///
    /// # Errors
    /// A custom observer is code and cannot be written.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string_pretty(self).map_err(|e| unwritable(&e))
    }
}

fn unwritable(error: &dyn std::error::Error) -> Error {
    Error::argument("spec", "one that can be written", error)
}

deserialize_by_read!(QConfigSpec);

impl Read for QConfigSpec {
    fn read(node: &Node) -> Result<Self> {
        let keys = "preset, kinds, embeddings, attention, head, min_params, exclude, rules";
        let map = node.map("a spec", keys)?;
        let preset = map.read("preset", |n| n.word("a preset's name", Self::preset))?;
        let mut spec = preset.unwrap_or_else(Self::new);
        if map.read("embeddings", Node::bool)? == Some(true) {
            spec = spec.embeddings();
        }
        if map.read("attention", Node::bool)? == Some(true) {
            spec = spec.attention();
        }
        if let Some(kinds) = map.get("kinds") {
            for (kind, qconfig) in kinds.entries("a map from kinds to qconfigs")? {
                spec = spec.presets([kind.word("a kind", str::parse)?], &QConfig::read(qconfig)?);
            }
        }
        if let Some(head) = map.get("head") {
            spec = spec.head(match head.value {
                Value::Null => None,
                _ => Some(QConfig::read(head)?),
            });
        }
        let whole = "a whole number, 0 or more";
        if let Some(elements) = map.read("min_params", |n| n.integer(whole, |_| true))? {
            spec = spec.min_params(elements);
        }
        if let Some(names) = map.get("exclude") {
            for name in names.list("a list of names")? {
                spec = spec.exclude([name.text("a name")?]);
                spec.check_counts().map_err(|e| name.fault(e.to_string()))?;
            }
        }
        if let Some(rules) = map.get("rules") {
            for rule in rules.list("a list of rules")? {
                spec.push(Rule::read(rule)?);
                spec.check_counts().map_err(|e| rule.fault(e.to_string()))?;
            }
        }
        Ok(spec)
    }
}

impl Read for Rule {
    fn read(node: &Node) -> Result<Self> {
        let map = node.map("a rule", "kind, name, regex, qconfig")?;
        let kind = map.read("kind", |n| n.word("a kind", str::parse))?;
        let name = map.read("name", |n| n.text("a name").map(str::to_owned))?;
        let regex = map.read("regex", |n| {
            n.word("a regex", |pattern| {
                let regex = NameRegex::new(pattern);
                regex.compiled()?;
                Ok(regex)
            })
        })?;
        let pattern = match (kind, name, regex) {
            (Some(kind), None, None) => Pattern::Kind(kind),
            (None, Some(name), None) => Pattern::Name(name),
            (None, None, Some(regex)) => Pattern::Regex(regex),
            _ => return Err(node.fault("expected one of the keys kind, name, regex in a rule")),
        };
        let qconfig = map.require("qconfig", "null keeps float")?;
        let qconfig = match qconfig.value {
            Value::Null => None,
            _ => Some(QConfig::read(qconfig)?),
        };
        Ok(Self { pattern, qconfig })
    }
}

impl Serialize for QConfigSpec {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        SpecFile::from(self).serialize(to)
    }
}

#[derive(Serialize)]
struct SpecFile<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    preset: Option<&'static str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    kinds: BTreeMap<&'a LayerKind, Brief<'a>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    embeddings: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    attention: bool,
    /// The configuration of the head, where it differs from the preset's.
    #[serde(skip_serializing_if = "Option::is_none")]
    head: Option<Option<Brief<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_params: Option<usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    exclude: Vec<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    rules: &'a [Rule],
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(2))?;
        match &self.pattern {
            Pattern::Kind(kind) => map.serialize_entry("kind", kind)?,
            Pattern::Name(name) => map.serialize_entry("name", name)?,
            Pattern::Regex(regex) => map.serialize_entry("regex", regex.pattern())?,
        }
        map.serialize_entry("qconfig", &self.qconfig.as_ref().map(Brief::from))?;
        map.end()
    }
}

/// A configuration, by name where it has one.
#[derive(Serialize)]
#[serde(untagged)]
enum Brief<'a> {
    Preset(&'static str),
    Whole(&'a QConfig),
}

impl<'a> From<&'a QConfig> for Brief<'a> {
    fn from(qconfig: &'a QConfig) -> Self {
        qconfig.preset_name().map_or(Self::Whole(qconfig), Self::Preset)
    }
}

impl<'a> From<&'a QConfigSpec> for SpecFile<'a> {
    fn from(spec: &'a QConfigSpec) -> Self {
        // The shortest form that names allow.
        let mut kinds: BTreeMap<_, _> = spec.presets.iter().collect();
        let mut presets = QConfigSpec::NAMED.into_iter().map(|(name, preset)| (name, preset()));
        let (preset, base) = presets
            .find(|(_, named)| {
                let mut entries = named.presets.iter();
                entries.all(|(kind, qconfig)| kinds.get(kind) == Some(&qconfig))
            })
            .unzip();
        let base = base.unwrap_or_else(QConfigSpec::new);
        kinds.retain(|kind, _| !base.presets.contains_key(kind));
        let mut takes = |kind, qconfig| {
            let is_so = kinds.get(&kind) == Some(&&qconfig);
            if is_so {
                kinds.remove(&kind);
            }
            is_so
        };
        let embeddings = takes(LayerKind::Embedding, QConfigSpec::tables());
        let attention = takes(LayerKind::Attention, base.of_attention());
        // Rules at the head that only exclude read better as a list.
        let excluded = |rule: &'a Rule| match (&rule.pattern, &rule.qconfig) {
            (Pattern::Name(name), None) => Some(name.as_str()),
            _ => None,
        };
        let exclude: Vec<_> = spec.rules.iter().map_while(excluded).collect();
        Self {
            preset,
            embeddings,
            attention,
            head: (spec.head != base.head).then(|| spec.head.as_ref().map(Brief::from)),
            min_params: (spec.min_params != base.min_params).then_some(spec.min_params),
            kinds: kinds.into_iter().map(|(k, q)| (k, q.into())).collect(),
            rules: &spec.rules[exclude.len()..],
            exclude,
        }
    }
}
