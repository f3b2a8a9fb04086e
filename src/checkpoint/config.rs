//! The entry `quantization_config` of a `config.json`, as compressed-tensors has it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use candle_dynquant_io::json;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::Opened;
use super::header::{parse, parse_file};
use super::layouts::libraries;
use super::targets::targets;
use crate::error::{Error, Result};
use crate::name_regex::NameRegexes;
use crate::qconfig::{DynamicConfig, Granularity};
use crate::qparams::QScheme;
use crate::stored::Format;
use crate::words::brief;

/// The maximum length of a `config.json`.
pub(super) const MAX_CONFIG: u64 = 4 << 20;
const ENTRY: &str = "quantization_config";
/// In older files.
const OLD_ENTRY: &str = "compression_config";
const METHOD: &str = "compressed-tensors";
/// The ends of the names of architectures with a head of words.
const WITH_HEADS: [&str; 6] = [
    "ForCausalLM",
    "ForConditionalGeneration",
    "ForMaskedLM",
    "ForPreTraining",
    "LMHeadModel",
    "MTModel",
];
/// Models of images alone that have a `vocab_size`.
const IMAGE_CODES: [&str; 2] = ["beit", "data2vec-vision"];
const FORMATS: [&str; 3] = ["int-quantized", "naive-quantized", "dense"];

/// How a folder that others wrote is quantized.
#[derive(Debug, Default)]
pub(super) struct Quantization {
    /// The treatment of activations in each group.
    groups: Vec<Option<DynamicConfig>>,
    /// The first group that has a module, or a class of modules, as a target.
    names: HashMap<String, usize>,
    /// The first group that has any.
    of_class: Option<usize>,
    /// The targets that are regexes, and the group of each, in order.
    regexes: NameRegexes,
    of_regexes: Vec<usize>,
    /// The configuration of modules, by the tensors that they have.
    modules: BTreeMap<String, Option<DynamicConfig>>,
    /// The entry of another library, by its name.
    pub foreign: Option<(String, Value)>,
    /// Whether the model has a vocabulary, and so maybe a tied head.
    pub has_vocabulary: bool,
    /// Whether it is one with a head of words that may be tied to its table.
    pub has_tied_head: bool,
}

#[derive(Deserialize)]
struct Config {
    quantization_config: Option<Box<RawValue>>,
    /// In older files.
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
    /// Reads the text of a `config.json`; empty if it has no such entry.
    pub fn read(json: Vec<u8>) -> Result<Self> {
        // A text that is no JSON is an error below.
        let config = parse_file(json.clone()).unwrap_or_default();
        Ok(Self {
            has_vocabulary: has_vocabulary(&config),
            has_tied_head: has_tied_head(&config),
            ..Self::read_entry(json)?
        })
    }

    fn read_entry(json: Vec<u8>) -> Result<Self> {
        let malformed = |got: String| Error::MalformedCheckpoint {
            what: "config.json",
            expected: "an object, with `quantization_config` as compressed-tensors writes it"
                .into(),
            got,
        };
        let config: Config = parse_file(json).map_err(malformed)?;
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
        let mut read = Self::default();
        let mut patterns = Vec::new();
        for (number, group) in raw.config_groups.into_values().enumerate() {
            let activation = group.input_activations.map(|a| a.read());
            read.groups.push(activation.transpose()?);
            for target in group.targets {
                if let Some(pattern) = target.strip_prefix("re:") {
                    patterns.push(pattern.to_owned());
                    read.of_regexes.push(number);
                } else {
                    // The modules of a class are not known.
                    read.of_class.get_or_insert(number);
                    read.names.entry(target).or_insert(number);
                }
            }
        }
        read.regexes = NameRegexes::start(&patterns)?;
        Ok(read)
    }

    /// Adds what a layout's own tensors say of the activations of a weight.
    pub fn describe(&mut self, weight: &str, activation: Option<DynamicConfig>) {
        self.modules.insert(module(weight).to_owned(), activation);
    }

    /// The treatment of activations beside an int8 weight: dynamic and per row where the file does
    /// not say it, `None` where they stay float.
    pub fn activation(&self, weight: &str) -> Option<DynamicConfig> {
        let module = module(weight);
        if let Some(activation) = self.modules.get(module) {
            return *activation;
        }
        let named = self.names.get(module).copied();
        let matched = self.regexes.first(module).map(|i| self.of_regexes[i]);
        match named.into_iter().chain(matched).min().or(self.of_class) {
            Some(group) => self.groups[group],
            None => Some(DynamicConfig::default()),
        }
    }
}

/// The module of a weight.
fn module(weight: &str) -> &str {
    weight.strip_suffix(".weight").unwrap_or(weight)
}

impl RawActivations {
    fn read(&self) -> Result<DynamicConfig> {
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
        Ok(DynamicConfig::new(granularity, false))
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

/// The entry for Linears and Embeddings with int8 weights; `ignore` lists modules that stay float
/// and may be taken for Linears. `None` where no weight is int8.
///
/// Their names are the targets. A model without a vocabulary has its class: transformers 5 renames
/// the modules of vision models when it loads them, but not the names in here, and without a
/// vocabulary no head is tied to a table. With a Linear that stays float within a block, that has
/// to be ignored by name, too.
pub(super) fn entry(
    linears: &[Module],
    embeddings: &[Module],
    ignore: &[String],
    source: &Opened,
) -> Option<Value> {
    let mut formats: Vec<(bool, Format)> = Vec::new();
    let mut groups: Vec<BTreeSet<&str>> = Vec::new();
    for (modules, is_linear) in [(linears, true), (embeddings, false)] {
        for module in modules.iter().filter(|m| m.format.codes().is_some()) {
            let key = (is_linear, module.format);
            let number = formats.iter().position(|format| *format == key);
            let number = number.unwrap_or_else(|| {
                formats.push(key);
                groups.push(BTreeSet::new());
                groups.len() - 1
            });
            groups[number].insert(&module.name);
        }
    }
    let ignore: BTreeSet<&str> = ignore.iter().map(String::as_str).collect();
    let of_file = source.files.tensors();
    let mut floats: BTreeSet<&str> = of_file
        .filter_map(|(name, ..)| Some(name.rsplit_once('.')?.0))
        .collect();
    floats.extend(&ignore);
    floats.retain(|name| !groups.iter().any(|group| group.contains(name)));
    let (mut targets, mut ignored) = targets(&groups, &floats, |name| ignore.contains(name));
    let linears = formats.iter().filter(|(is_linear, _)| *is_linear).count();
    if !source.has_vocabulary && linears == 1 && !ignore.iter().any(|name| name.contains('.')) {
        targets[0] = BTreeSet::from(["Linear".to_owned()]);
        ignored = ignore.into_iter().map(str::to_owned).collect();
    }
    let groups = formats.iter().zip(&targets).enumerate();
    let groups: serde_json::Map<_, _> = groups
        .map(|(i, ((_, format), targets))| (format!("group_{i}"), group(targets, *format)))
        .collect();
    (!groups.is_empty()).then(|| {
        json!({
            "config_groups": groups,
            "format": "int-quantized",
            "global_compression_ratio": null,
            "ignore": ignored,
            "kv_cache_scheme": null,
            "quant_method": METHOD,
            "quantization_status": "compressed",
        })
    })
}

/// Whether a configuration, or one in it, as of the texts of a model of images and texts, has a
/// vocabulary.
fn has_vocabulary(config: &Value) -> bool {
    let Value::Object(entries) = config else {
        return false;
    };
    let kind = entries.get("model_type").and_then(Value::as_str);
    kind.is_none_or(|kind| !IMAGE_CODES.contains(&kind))
        && (entries.contains_key("vocab_size") || entries.values().any(has_vocabulary))
}

/// Whether a configuration is of a model with a head of words, and does not say that it is not
/// tied.
fn has_tied_head(config: &Value) -> bool {
    let architectures = config["architectures"].as_array().into_iter().flatten();
    let mut names = architectures.filter_map(Value::as_str);
    names.any(|name| WITH_HEADS.iter().any(|end| name.ends_with(end)))
        && config["tie_word_embeddings"] != Value::Bool(false)
}

/// The text of a `config.json` with another entry for its quantization, or none. All other values
/// keep the bytes of the text, also where they are no JSON or numbers that are no f64.
pub(super) fn with_entry(text: &[u8], entry: Option<Value>) -> Result<Vec<u8>> {
    let strict = json::strict(text.to_owned());
    let values: BTreeMap<String, &RawValue> =
        serde_json::from_slice(&strict).map_err(|e| Error::MalformedCheckpoint {
            what: "config.json",
            expected: "an object".into(),
            got: brief(&e.to_string(), 300),
        })?;
    let own = |value: &RawValue| {
        let start = value.get().as_ptr() as usize - strict.as_ptr() as usize;
        text[start..start + value.get().len()].to_owned()
    };
    let values = values.into_iter().map(|(key, value)| (key, own(value)));
    let mut values: BTreeMap<String, Vec<u8>> = values.collect();
    for name in [ENTRY, OLD_ENTRY] {
        values.remove(name);
    }
    if let Some(entry) = entry {
        let entry = format!("{entry:#}").replace('\n', "\n  ");
        values.insert(ENTRY.into(), entry.into());
    }
    let mut new = b"{".to_vec();
    for (i, (key, value)) in values.into_iter().enumerate() {
        let comma = if i > 0 { "," } else { "" };
        let start = format!("{comma}\n  {}: ", Value::String(key));
        new.extend(start.into_bytes());
        new.extend(value);
    }
    new.extend(b"\n}\n");
    Ok(new)
}

fn group(targets: &BTreeSet<String>, format: Format) -> Value {
    let args = |dynamic: bool, strategy: &str, symmetric: bool, observer: Value| {
        json!({
            "actorder": null, "block_structure": null, "dynamic": dynamic, "group_size": null,
            "num_bits": 8, "observer": observer, "observer_kwargs": {}, "strategy": strategy,
            "symmetric": symmetric, "type": "int",
        })
    };
    let activations = format.activation().map_or(Value::Null, |config| {
        let strategy = match config.granularity {
            Granularity::PerRow => "token",
            Granularity::PerTensor => "tensor",
        };
        args(true, strategy, false, Value::Null)
    });
    let qscheme = format.codes().map(|codes| codes.qscheme);
    let strategy = if qscheme.is_some_and(QScheme::is_per_channel) {
        "channel"
    } else {
        "tensor"
    };
    let symmetric = qscheme.is_some_and(QScheme::is_symmetric);
    let mut weights = args(false, strategy, symmetric, "minmax".into());
    if qscheme == Some(QScheme::PerChannelAffineFloatQParams) {
        weights["zp_dtype"] = "torch.float32".into();
    }
    json!({
        // In each group, because newer readers take weights without activations for packed ones.
        "format": "int-quantized",
        "input_activations": activations,
        "output_activations": null,
        "targets": targets,
        "weights": weights,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_group_that_names_a_module_is_its_own() {
        let activations = |strategy: &str| json!({"num_bits": 8, "type": "int", "dynamic": true, "strategy": strategy});
        let (token, tensor) = (activations("token"), activations("tensor"));
        let groups = json!({
            "a": {"targets": ["re:.*key", "re:x"], "input_activations": tensor},
            "b": {"targets": ["m.query", "m.key", "Linear"], "input_activations": null},
            "c": {"targets": ["re:m\\.", "m.query", "re:.*key"], "input_activations": token},
        });
        let config = json!({"quantization_config": {"config_groups": groups}});
        let config = Quantization::read(config.to_string().into()).expect("a configuration");
        let dynamic = |granularity| Some(DynamicConfig::new(granularity, false));
        let cases = [
            // A regex before a name, a name before a regex, and a regex alone.
            ("m.key.weight", dynamic(Granularity::PerTensor)),
            ("m.query.weight", None),
            ("m.value.weight", dynamic(Granularity::PerRow)),
            // By the beginning of a name only; then by the first group with a class.
            ("a.m.value.weight", None),
            ("xm.weight_ih_l0", dynamic(Granularity::PerTensor)),
        ];
        for (weight, expected) in cases {
            assert_eq!(config.activation(weight), expected, "{weight}");
        }
        let others = Quantization::default().activation("a.weight");
        assert_eq!(others, dynamic(Granularity::PerRow));
    }
}
