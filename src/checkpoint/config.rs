//! The entry `quantization_config` of a `config.json`, as compressed-tensors has it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::header::parse;
use super::layouts::libraries;
use crate::error::{Error, Result};
use crate::name_regex::{NameRegex, RegexTotals};
use crate::qconfig::{ActivationConfig, Granularity};
use crate::qparams::QScheme;
use crate::stored::Format;
use crate::words::brief;

/// The maximum length of a `config.json`.
pub(super) const MAX_CONFIG: u64 = 4 << 20;
pub(super) const ENTRY: &str = "quantization_config";
const METHOD: &str = "compressed-tensors";
const FORMATS: [&str; 3] = ["int-quantized", "naive-quantized", "dense"];

/// How a folder that others wrote is quantized.
#[derive(Debug, Default)]
pub(super) struct Quantization {
    groups: Vec<Group>,
    /// The configuration of modules, by the tensors that they have.
    modules: BTreeMap<String, Option<ActivationConfig>>,
    /// The entry of another library, by its name.
    pub foreign: Option<(String, Value)>,
}

#[derive(Debug)]
struct Group {
    targets: Vec<Target>,
    activation: Option<ActivationConfig>,
}

#[derive(Debug)]
enum Target {
    /// Of a class of modules, or a module.
    Name(String),
    Regex(regex::Regex),
}

#[derive(Deserialize)]
struct Config {
    quantization_config: Option<Box<RawValue>>,
    /// Of older files.
    compression_config: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Method {
    quant_method: Option<String>,
}

#[derive(Deserialize)]
struct RawQuantization {
    format: Option<String>,
    #[serde(default)]
    config_groups: BTreeMap<String, RawGroup>,
}

#[derive(Deserialize)]
struct RawGroup {
    #[serde(default)]
    targets: Vec<String>,
    format: Option<String>,
    input_activations: Option<RawActivations>,
}

#[derive(Deserialize)]
struct RawActivations {
    num_bits: Option<u64>,
    #[serde(rename = "type")]
    type_: Option<String>,
    strategy: Option<String>,
    #[serde(default)]
    dynamic: Value,
}

impl Quantization {
    /// Of the text of a `config.json`; empty if it has no such entry.
    pub fn read(json: &[u8]) -> Result<Self> {
        let malformed = |got: String| Error::MalformedCheckpoint {
            what: "config.json",
            expected: "an object, with `quantization_config` as compressed-tensors writes it"
                .into(),
            got,
        };
        let config: Config = parse(json).map_err(malformed)?;
        let Some(entry) = config.quantization_config.or(config.compression_config) else {
            return Ok(Self::default());
        };
        if entry.get() == "null" {
            return Ok(Self::default());
        }
        let Method { quant_method } = parse(entry.get().as_bytes()).map_err(malformed)?;
        let method = quant_method.as_deref().unwrap_or(METHOD);
        if libraries().any(|library| library == method) {
            let entry = parse(entry.get().as_bytes()).map_err(malformed)?;
            return Ok(Self {
                foreign: Some((method.to_owned(), entry)),
                ..Self::default()
            });
        }
        if method != METHOD {
            let known: Vec<_> = std::iter::once(METHOD).chain(libraries()).collect();
            return Err(unsupported("quant_method", &known.join(", "), method));
        }
        let raw: RawQuantization = parse(entry.get().as_bytes()).map_err(malformed)?;
        let formats = raw.config_groups.values().map(|group| &group.format);
        for format in std::iter::once(&raw.format).chain(formats).flatten() {
            if !FORMATS.contains(&format.as_str()) {
                return Err(unsupported("format", &FORMATS.join(", "), format));
            }
        }
        let mut regexes = RegexTotals::default();
        let groups = raw.config_groups.into_values();
        let groups = groups.map(|group| Group::read(group, &mut regexes));
        Ok(Self {
            groups: groups.collect::<Result<_>>()?,
            ..Self::default()
        })
    }

    /// Adds what a layout's own tensors say of the activations of a weight.
    pub fn describe(&mut self, weight: &str, activation: Option<ActivationConfig>) {
        self.modules.insert(module(weight).to_owned(), activation);
    }

    /// The treatment of activations beside an int8 weight: dynamic and per row where the file does
    /// not say it, `None` where they stay float.
    pub fn activation(&self, weight: &str) -> Option<ActivationConfig> {
        let module = module(weight);
        if let Some(activation) = self.modules.get(module) {
            return *activation;
        }
        let is = |target: &Target| match target {
            Target::Name(name) => name == module,
            Target::Regex(regex) => regex.is_match(module),
        };
        let named = self.groups.iter().find(|g| g.targets.iter().any(is));
        // Names of classes, which the tensors do not tell.
        let classes = |target: &Target| matches!(target, Target::Name(_));
        let of_class = || self.groups.iter().find(|g| g.targets.iter().any(classes));
        match named.or_else(of_class) {
            Some(group) => group.activation,
            None => Some(ActivationConfig::dynamic(Granularity::PerRow, false)),
        }
    }
}

/// The module of a weight.
fn module(weight: &str) -> &str {
    weight.strip_suffix(".weight").unwrap_or(weight)
}

impl Group {
    fn read(raw: RawGroup, regexes: &mut RegexTotals) -> Result<Self> {
        let target = |target: String| match target.strip_prefix("re:") {
            None => Ok(Target::Name(target)),
            Some(pattern) => {
                let regex = NameRegex::start(pattern);
                regexes.add(&regex);
                regexes.check()?;
                Ok(Target::Regex(regex.compiled()?.clone()))
            }
        };
        let targets = raw.targets.into_iter().map(target);
        let activation = raw.input_activations.map(|a| a.read()).transpose()?;
        Ok(Self {
            targets: targets.collect::<Result<_>>()?,
            activation,
        })
    }
}

impl RawActivations {
    fn read(&self) -> Result<ActivationConfig> {
        let kind = self.type_.as_deref().unwrap_or("int");
        if (self.num_bits.unwrap_or(8), kind) != (8, "int") {
            let got = format!("{} bits, {}", self.num_bits.unwrap_or(8), brief(kind, 60));
            return Err(unsupported("input_activations", "8 bits, int", &got));
        }
        if self.dynamic != Value::Bool(true) {
            let got = brief(&self.dynamic.to_string(), 60);
            return Err(unsupported("input_activations", "dynamic: true", &got));
        }
        let granularity = match self.strategy.as_deref() {
            Some("token") | None => Granularity::PerRow,
            Some("tensor") => Granularity::PerTensor,
            Some(got) => return Err(unsupported("input_activations", "token or tensor", got)),
        };
        Ok(ActivationConfig::dynamic(granularity, false))
    }
}

fn unsupported(what: &'static str, expected: &str, got: &str) -> Error {
    Error::UnsupportedCheckpoint {
        what,
        expected: expected.to_owned(),
        got: brief(got, 100),
    }
}

/// A module whose weight is quantized, for the config of a folder.
#[derive(Clone, Debug)]
pub(super) struct Module {
    pub name: String,
    pub format: Format,
}

/// The entry for Linears and Embeddings with int8 weights; `ignore` lists Linears that stay float.
/// `None` where no weight is int8.
pub(super) fn entry(linears: &[Module], embeddings: &[Module], ignore: &[String]) -> Option<Value> {
    let mut groups = serde_json::Map::new();
    let mut add = |modules: &[Module], class: &str| {
        let mut formats: Vec<Format> = Vec::new();
        for module in modules.iter().filter(|m| m.format.codes.is_some()) {
            if !formats.contains(&module.format) {
                formats.push(module.format);
            }
        }
        for format in &formats {
            // The class where all are alike; else the modules by name.
            let targets: Vec<&str> = match formats.len() {
                1 => vec![class],
                _ => (modules.iter().filter(|m| m.format == *format))
                    .map(|m| m.name.as_str())
                    .collect(),
            };
            groups.insert(format!("group_{}", groups.len()), group(&targets, *format));
        }
    };
    add(linears, "Linear");
    add(embeddings, "Embedding");
    (!groups.is_empty()).then(|| {
        json!({
            "config_groups": groups,
            "format": "int-quantized",
            "global_compression_ratio": null,
            "ignore": ignore,
            "kv_cache_scheme": null,
            "quant_method": METHOD,
            "quantization_status": "compressed",
        })
    })
}

fn group(targets: &[&str], format: Format) -> Value {
    let args = |dynamic: bool, strategy: &str, symmetric: bool, observer: Value| {
        json!({
            "actorder": null, "block_structure": null, "dynamic": dynamic, "group_size": null,
            "num_bits": 8, "observer": observer, "observer_kwargs": {}, "strategy": strategy,
            "symmetric": symmetric, "type": "int",
        })
    };
    let activations = match format.activation {
        Some(ActivationConfig::Dynamic(config)) => {
            let strategy = match config.granularity {
                Granularity::PerRow => "token",
                Granularity::PerTensor => "tensor",
            };
            args(true, strategy, false, Value::Null)
        }
        _ => Value::Null,
    };
    let qscheme = format.codes.map(|codes| codes.qscheme);
    let strategy = match qscheme.is_some_and(QScheme::is_per_channel) {
        true => "channel",
        false => "tensor",
    };
    let symmetric = qscheme.is_some_and(QScheme::is_symmetric);
    let mut weights = args(false, strategy, symmetric, "minmax".into());
    if qscheme == Some(QScheme::PerChannelAffineFloatQParams) {
        weights["zp_dtype"] = "torch.float32".into();
    }
    json!({
        // Of each group, because newer readers take weights without activations for packed ones.
        "format": "int-quantized",
        "input_activations": activations,
        "output_activations": null,
        "targets": targets,
        "weights": weights,
    })
}
