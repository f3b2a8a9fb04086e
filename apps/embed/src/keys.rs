//! `config.json`, read strictly: every fault names the file, the key, what was expected and what
//! came.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use candle_dynquant::FusedActivation;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::json;

/// The keys of the file, with its path for error messages.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    path: String,
    map: Map<String, Value>,
}

impl Keys {
    pub fn parse(path: &str, text: &str) -> Result<Self> {
        let map = json::parse(text).with_context(|| format!("{path}: expected a JSON object"))?;
        let path = path.to_owned();
        Ok(Self { path, map })
    }

    /// The value of a key; none is as good as `null`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub fn fault(&self, key: &str, expected: &str) -> anyhow::Error {
        let got = match self.map.get(key) {
            Some(value) => value.to_string(),
            None => "no such key".to_owned(),
        };
        anyhow::anyhow!("{}: key {key:?}: expected {expected}, got {got}", self.path)
    }

    /// Any type, where the key is there.
    pub fn optional<T: DeserializeOwned>(&self, key: &str, expected: &str) -> Result<Option<T>> {
        let value = self.get(key).map(|value| T::deserialize(value));
        value.transpose().map_err(|_| self.fault(key, expected))
    }

    /// A positive integer.
    pub fn size(&self, key: &str) -> Result<usize> {
        let size = self.optional_size(key)?;
        size.ok_or_else(|| self.fault(key, SIZE))
    }

    pub fn size_or(&self, key: &str, default: usize) -> Result<usize> {
        Ok(self.optional_size(key)?.unwrap_or(default))
    }

    /// As [`size`](Self::size), or 0.
    pub fn count_or(&self, key: &str, default: usize) -> Result<usize> {
        match self.get(key).and_then(Value::as_u64) {
            Some(0) => Ok(0),
            _ => self.size_or(key, default),
        }
    }

    fn optional_size(&self, key: &str) -> Result<Option<usize>> {
        match self.get(key).map(Value::as_u64) {
            None => Ok(None),
            // No real model comes near the limit, and products of two sizes stay in a usize.
            Some(Some(size @ 1..=0x7fff_ffff)) => Ok(Some(size as usize)),
            _ => Err(self.fault(key, SIZE)),
        }
    }

    /// A positive number.
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
        let flag = self.optional(key, "true or false")?;
        Ok(flag.unwrap_or(default))
    }

    pub fn word(&self, key: &str) -> Result<Option<String>> {
        self.optional(key, "a word")
    }

    /// Refuses what no model here computes; a key that is missing has the first of the values.
    pub fn must_be(&self, key: &str, values: &[&str]) -> Result<()> {
        match self.word(key)? {
            Some(got) if !values.contains(&&*got) => {
                Err(self.fault(key, &format!("{:?}", values.join(" or "))))
            }
            _ => Ok(()),
        }
    }

    /// As [`must_be`](Self::must_be), of a flag.
    pub fn must_be_flag(&self, key: &str, value: bool, default: bool) -> Result<()> {
        let got = self.flag(key, default)?;
        (got == value)
            .then_some(())
            .ok_or_else(|| self.fault(key, &value.to_string()))
    }

    pub fn activation(&self, key: &str, default: FusedActivation) -> Result<FusedActivation> {
        match self.word(key)?.as_deref() {
            None => Ok(default),
            Some("gelu") => Ok(FusedActivation::Gelu),
            Some("gelu_new" | "gelu_pytorch_tanh") => Ok(FusedActivation::GeluTanh),
            Some("relu") => Ok(FusedActivation::Relu),
            Some("silu" | "swish") => Ok(FusedActivation::Silu),
            Some(_) => Err(self.fault(key, "gelu, gelu_new, gelu_pytorch_tanh, relu or silu")),
        }
    }

    /// A token's id.
    pub fn token(&self, key: &str, default: u32) -> Result<u32> {
        let id = self.optional(key, "a token id")?;
        Ok(id.unwrap_or(default))
    }

    /// `id2label`, which must count from 0 without gaps; without it there are two nameless classes.
    pub fn labels(&self) -> Result<Vec<String>> {
        let key = "id2label";
        let expected = "an object that names the classes \"0\", \"1\", .. without gaps";
        let map: BTreeMap<String, String> = match self.optional(key, expected)? {
            None => return Ok(vec!["LABEL_0".into(), "LABEL_1".into()]),
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

    /// Whether `architectures` has a name that ends so.
    pub fn is_architecture(&self, ending: &str) -> bool {
        let names = self.get("architectures").and_then(Value::as_array);
        let mut names = names.into_iter().flatten().filter_map(Value::as_str);
        names.any(|name| name.ends_with(ending))
    }

    /// Which layers see near tokens only: by `layer_types`, else by a pattern.
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

    /// Checks that one size is a multiple of another.
    pub fn divides(&self, key: &str, divisor: usize, of: &str, size: usize) -> Result<()> {
        ensure!(
            size.is_multiple_of(divisor),
            "{}: key {key:?}: expected a divisor of {of} {size}, got {divisor}",
            self.path,
        );
        Ok(())
    }
}

const SIZE: &str = "a positive integer below 2^31";
