//! JSON files of a model, read strictly: every error names the file, the key, the expected and the
//! found value.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use candle_dynquant::FusedActivation;
use candle_dynquant_decoder::json::unique;
use candle_dynquant_io::json::strict;
use candle_dynquant_io::keys::Table;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::files::{CONFIG, optional_text};
use crate::tables;

/// The keys of the file, with its path for error messages.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    path: String,
    map: Map<String, Value>,
    /// The largest size of a part of the model: 2^31 - 1, or the bytes of its weights.
    most: u64,
}

impl Keys {
    pub fn parse(path: &str, text: &str) -> Result<Self> {
        Ok(Self::new(path, parse(path, text, "a JSON object")?))
    }

    pub fn new(path: &str, map: Map<String, Value>) -> Self {
        Self { path: path.to_owned(), map, most: MOST }
    }

    /// The keys of a file's text, as in [`flat`](Self::flat); `expected` describes it in errors.
    pub fn flat_text(path: &str, text: &str, expected: &str, table: &Table) -> Result<Self> {
        Self::flat(path, parse(path, text, expected)?, table)
    }

    /// The keys of a file, nested keys by path such as `a.b`; an error if a key has no row.
    pub fn flat(path: &str, map: Map<String, Value>, table: &Table) -> Result<Self> {
        let (keys, unknown) = Self::flat_with(path, map, table)?;
        match unknown.first() {
            Some(key) => Err(keys.fault(key, "no such key, which may change answers")),
            None => Ok(keys),
        }
    }

    /// The keys of a file, as in [`flat`](Self::flat), and the keys without a row.
    pub fn flat_with(
        path: &str,
        map: Map<String, Value>,
        table: &Table,
    ) -> Result<(Self, Vec<String>)> {
        let mut flat = Map::new();
        flatten("", map, &mut flat);
        let keys = Self::new(path, flat);
        let unknown = keys.check(&[table])?;
        Ok((keys, unknown))
    }

    /// The keys of a nested object, as in [`flat`](Self::flat).
    pub fn part(&self, key: &str, object: &Map<String, Value>, table: &Table) -> Result<Self> {
        Self::flat(&format!("{}: {key}", self.path), object.clone(), table)
    }

    /// Checks the keys by the first table that has a row for each; returns those without a row.
    pub fn check(&self, tables: &[&Table]) -> Result<Vec<String>> {
        let mut unknown = Vec::new();
        for (key, value) in self.map.iter().filter(|(_, value)| !value.is_null()) {
            let Some(table) = tables.iter().find(|it| it.treatment(key).is_some()) else {
                unknown.push(key.clone());
                continue;
            };
            let checked = table.check([(&**key, value.to_string())]);
            checked.map_err(|refused| anyhow::anyhow!("{}: {refused}", self.path))?;
        }
        Ok(unknown)
    }

    /// A note for each key that nothing reads.
    pub fn notes(&self, tables: &[&Table]) -> Result<impl Iterator<Item = String> + use<>> {
        let (path, unread) = (self.path.clone(), self.check(tables)?);
        let note = move |key| format!("{path}: key {key:?} is not read");
        Ok(unread.into_iter().map(note))
    }

    /// The keys of a tower over transformers' defaults: those of a nested object, of which the
    /// other keys are checked here, or of a whole file.
    pub fn tower(&self, part: &str, defaults: &str, notes: &mut Vec<String>) -> Result<Self> {
        let mut all: Map<String, Value> = serde_json::from_str(defaults)?;
        let mut path = self.path.clone();
        let mut given = self.map.clone();
        if let Some("clip" | "siglip") = self.word("model_type")?.as_deref() {
            notes.extend(self.notes(&[&tables::PAIR, &tables::COMMON])?);
            // Releases before 4.23 wrote such an object, which replaces the other.
            let dict = format!("{part}_dict");
            let name = self.get(&dict).map_or(part, |_| &dict);
            path = format!("{path}: {name}");
            given = self.optional(name, "an object")?.unwrap_or_default();
            for key in ["model_type", "projection_dim"] {
                given.insert(key.to_owned(), self.get(key).cloned().unwrap_or_default());
            }
        }
        all.extend(given.into_iter().filter(|(_, value)| !value.is_null()));
        let most = self.most;
        Ok(Self { path, map: all, most })
    }

    /// Limits every size to the bytes of the weights.
    pub fn limit(&mut self, bytes: u64) {
        self.most = self.most.min(bytes);
    }

    /// The value of a key; `None` also for `null`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub fn fault(&self, key: &str, expected: &str) -> anyhow::Error {
        let got = match self.map.get(key) {
            Some(value) => brief(&value.to_string()),
            None => "no such key".to_owned(),
        };
        let key = brief(key);
        anyhow::anyhow!("{}: key {key:?}: expected {expected}, got {got}", self.path)
    }

    pub fn optional<T: DeserializeOwned>(&self, key: &str, expected: &str) -> Result<Option<T>> {
        let value = self.get(key).map(|value| T::deserialize(value));
        value.transpose().map_err(|_| self.fault(key, expected))
    }

    /// A positive integer: the size of a part of the model.
    pub fn size(&self, key: &str) -> Result<usize> {
        self.optional_size(key)?.ok_or_else(|| self.fault(key, SIZE))
    }

    /// A positive integer that is not limited by the weights.
    pub fn number(&self, key: &str) -> Result<Option<usize>> {
        match self.get(key).map(Value::as_u64) {
            None => Ok(None),
            // No real model comes near the limit, and products of two sizes fit a usize.
            Some(Some(number @ 1..=MOST)) => Ok(Some(number as usize)),
            _ => Err(self.fault(key, SIZE)),
        }
    }

    pub fn positions(&self, key: &str) -> Result<usize> {
        self.number(key)?.ok_or_else(|| self.fault(key, SIZE))
    }

    /// A size under one of two names, or the same under both.
    pub fn size_as(&self, key: &str, alias: &str) -> Result<usize> {
        let size = self.size(key)?;
        if self.size_or(alias, size)? != size {
            return Err(self.fault(alias, &format!("{size}, as {key:?} says")));
        }
        Ok(size)
    }

    pub fn size_or(&self, key: &str, default: usize) -> Result<usize> {
        Ok(self.optional_size(key)?.unwrap_or(default))
    }

    /// A size like [`size`](Self::size), or 0.
    pub fn count_or(&self, key: &str, default: usize) -> Result<usize> {
        match self.get(key).and_then(Value::as_u64) {
            Some(0) => Ok(0),
            _ => self.size_or(key, default),
        }
    }

    fn optional_size(&self, key: &str) -> Result<Option<usize>> {
        let size = self.number(key)?;
        if size.is_some_and(|size| size as u64 > self.most) {
            let expected = format!("at most {}, the bytes of the weights", self.most);
            return Err(self.fault(key, &expected));
        }
        Ok(size)
    }

    pub fn positive(&self, key: &str) -> Result<Option<f64>> {
        match self.get(key).map(Value::as_f64) {
            None => Ok(None),
            Some(Some(number)) if number > 0. => Ok(Some(number)),
            _ => Err(self.fault(key, "a number above 0")),
        }
    }

    /// The number that norms add to the variance.
    pub fn epsilon(&self, key: &str, default: f64) -> Result<f64> {
        match self.get(key).map(Value::as_f64) {
            None => Ok(default),
            Some(Some(eps)) if eps >= 0. => Ok(eps),
            _ => Err(self.fault(key, "a number, 0 or more")),
        }
    }

    pub fn flag(&self, key: &str, default: bool) -> Result<bool> {
        Ok(self.optional(key, "true or false")?.unwrap_or(default))
    }

    pub fn word(&self, key: &str) -> Result<Option<String>> {
        self.optional(key, "a word")
    }

    pub fn activation(&self, key: &str, default: FusedActivation) -> Result<FusedActivation> {
        match self.word(key)? {
            None => Ok(default),
            Some(name) => self.named_activation(key, &name),
        }
    }

    pub fn named_activation(&self, key: &str, name: &str) -> Result<FusedActivation> {
        match name {
            "gelu" => Ok(FusedActivation::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" => Ok(FusedActivation::GeluTanh),
            "quick_gelu" => Ok(FusedActivation::QuickGelu),
            "relu" => Ok(FusedActivation::Relu),
            "silu" | "swish" => Ok(FusedActivation::Silu),
            _ => {
                Err(self.fault(key, "gelu, gelu_new, gelu_pytorch_tanh, quick_gelu, relu or silu"))
            }
        }
    }

    pub fn token(&self, key: &str, default: u32) -> Result<u32> {
        Ok(self.optional(key, "a token id")?.unwrap_or(default))
    }

    /// `id2label`, which must count from 0 without gaps; without it the classes are nameless,
    /// `num_labels` or else two.
    pub fn labels(&self) -> Result<Vec<String>> {
        let key = "id2label";
        let expected = "an object that names the classes \"0\", \"1\", .. without gaps";
        let map: BTreeMap<String, String> = match self.optional(key, expected)? {
            None => {
                let count = self.size_or("num_labels", 2)?;
                return Ok((0..count).map(|i| format!("LABEL_{i}")).collect());
            }
            Some(map) => map,
        };
        let mut labels = BTreeMap::new();
        for (id, name) in &map {
            let number = id.parse().ok().filter(|number| *number < map.len());
            let new = number.is_some_and(|n: usize| labels.insert(n, name.clone()).is_none());
            ensure!(
                new,
                "{}: key {key:?}: expected each of the numbers 0 to {} once, got {id:?}",
                self.path,
                map.len() - 1,
            );
        }
        Ok(labels.into_values().collect())
    }

    /// Whether `architectures` contains a name with this ending.
    pub fn is_architecture(&self, ending: &str) -> bool {
        let names = self.get("architectures").and_then(Value::as_array);
        let mut names = names.into_iter().flatten().filter_map(Value::as_str);
        names.any(|name| name.ends_with(ending))
    }

    /// Which layers attend to near tokens only: by `layer_types`, else by a pattern.
    pub fn local_layers(
        &self,
        layers: usize,
        pattern: impl Fn(usize) -> bool,
    ) -> Result<Vec<bool>> {
        let key = "layer_types";
        let expected = format!("full_attention or sliding_attention for each of {layers} layers");
        let Some(kinds) = self.optional::<Vec<String>>(key, &expected)? else {
            return Ok((0..layers).map(pattern).collect());
        };
        let local = kinds.iter().map(|kind| match kind.as_str() {
            "full_attention" => Some(false),
            "sliding_attention" => Some(true),
            _ => None,
        });
        let local: Option<Vec<bool>> = local.collect();
        let local = local.filter(|local| local.len() == layers);
        local.ok_or_else(|| self.fault(key, &expected))
    }

    /// Checks that `size`, named `what`, is a multiple of `divisor`.
    pub fn divides(&self, key: &str, divisor: usize, what: &str, size: usize) -> Result<()> {
        ensure!(
            size.is_multiple_of(divisor),
            "{}: key {key:?}: expected a divisor of {what} {size}, got {divisor}",
            self.path,
        );
        Ok(())
    }
}

/// Whether `architectures` in the `config.json` of a folder, if it has one, contains a name with this
/// ending.
pub(crate) fn is_architecture(dir: &Path, ending: &str) -> Result<bool> {
    let path = dir.join(CONFIG);
    let text = optional_text(&path)?;
    let keys = text.map(|text| Keys::parse(&path.display().to_string(), &text)).transpose()?;
    Ok(keys.is_some_and(|keys| keys.is_architecture(ending)))
}

/// Parses the text of the file `path`, JSON without duplicate keys as Python or an editor may write it;
/// `expected` describes it in errors.
pub(crate) fn parse<T: DeserializeOwned>(path: &str, text: &str, expected: &str) -> Result<T> {
    unique(&strict(text.into())).with_context(|| format!("{path}: expected {expected}"))
}

const SIZE: &str = "a positive integer below 2^31";
pub(crate) const MOST: u64 = 0x7fff_ffff;

/// The beginning of a text, which may be long.
fn brief(text: &str) -> String {
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}..", &text[..end]),
        None => text.to_owned(),
    }
}

fn flatten(path: &str, map: Map<String, Value>, to: &mut Map<String, Value>) {
    for (key, value) in map {
        let key = format!("{path}{key}");
        match value {
            Value::Object(inner) if !inner.is_empty() => flatten(&format!("{key}."), inner, to),
            value => {
                to.insert(key, value);
            }
        }
    }
}
