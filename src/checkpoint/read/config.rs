//! The entry `quantization_config` of a `config.json`, as compressed-tensors has it.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use candle_dynquant_io::json;
use serde::Deserialize;
use serde::de::MapAccess;
use serde_json::Value;
use serde_json::value::RawValue;

use super::files::read_small;
use super::header::{Keyed, UniqueMap, parse, parse_file};
use super::keys;
use crate::error::{Error, Result};
use crate::name_regex::NameRegexes;
use crate::qconfig::{DynamicConfig, Granularity};
use crate::words::brief;

pub const MAX_CONFIG: u64 = 4 << 20;
/// Values within each other.
const MAX_DEPTH: usize = 128;
pub const ENTRY: &str = "quantization_config";
pub const OLD_ENTRY: &str = "compression_config";
pub const METHOD: &str = "compressed-tensors";
/// The file of NVIDIA's Model Optimizer that says how a folder is quantized.
const MODELOPT: &str = "hf_quant_config.json";
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
const FORMATS: [&str; 5] =
    ["int-quantized", "naive-quantized", "pack-quantized", "mixed-precision", "dense"];

#[derive(Debug, Default)]
pub struct Quantization {
    /// The treatment of activations in each group.
    groups: Vec<Option<DynamicConfig>>,
    /// The bits of weights in each group, where the group says it.
    bits: Vec<Option<u64>>,
    /// The first group that has a module, or a class of modules, as a target.
    names: HashMap<String, usize>,
    /// The first group of Linears, or the first group that has any.
    of_class: Option<usize>,
    /// The targets that are regexes, and the group of each, in order.
    regexes: NameRegexes,
    of_regexes: Vec<usize>,
    /// The configuration of modules, by the tensors that they have.
    modules: BTreeMap<String, Option<DynamicConfig>>,
    /// The entry of another method than compressed-tensors, by its name.
    pub foreign: Option<(String, Value)>,
    is_dense: bool,
    /// The differences from what the files say.
    pub notes: Vec<String>,
    /// Whether a part of the model has a vocabulary, and so maybe a tied head.
    pub has_vocabulary: bool,
    /// Whether the model has a head of words, which is tied to its table if the files have none.
    pub has_tied_head: bool,
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
    #[serde(default)]
    weights: Value,
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
    /// Whether it describes quantized weights, and not the dense ones that were made of these.
    pub fn has_weights(&self) -> bool {
        !self.groups.is_empty() && !self.is_dense
    }

    /// Reads a `config.json`; empty if there is none.
    pub fn open(path: &Path) -> Result<Self> {
        let beside = path.with_file_name(MODELOPT);
        if beside.exists() {
            return Err(unsupported("quant_method", METHOD, "modelopt").in_file(&beside));
        }
        if !path.exists() {
            return Ok(Self::default());
        }
        read_small(path, MAX_CONFIG).and_then(Self::read).map_err(|e| e.in_file(path))
    }

    /// Reads the text of a `config.json`; empty if it has no such entry.
    fn read(text: Vec<u8>) -> Result<Self> {
        let malformed = |got: String| {
            Error::malformed(
                "config.json",
                "an object, with `quantization_config` as compressed-tensors writes it",
                got,
            )
        };
        let top: UniqueMap<ValueText> = parse_file(text.clone()).map_err(malformed)?;
        let text = json::strict(text);
        unique(&text, 0).map_err(malformed)?;
        let mut found = Vec::new();
        entries(top, "", &mut found).map_err(malformed)?;
        let read = match &found[..] {
            [(first, entry), others @ ..] => {
                if let Some((other, _)) = others.iter().find(|(_, other)| other != entry) {
                    let (expected, got) = ("one, or equal ones", format!("{first} and {other}"));
                    return Err(unsupported("entries quantization_config", expected, &got));
                }
                Self::from_entry(entry.clone(), malformed)?
            }
            [] => Self::default(),
        };
        // Python's numbers may be none of JSON's.
        let config = parse(&text).unwrap_or_default();
        let (has_vocabulary, has_tied_head) = (has_vocabulary(&config), has_tied_head(&config));
        Ok(Self { has_vocabulary, has_tied_head, ..read })
    }

    fn from_entry(entry: Value, malformed: impl Fn(String) -> Error) -> Result<Self> {
        let method = match &entry["quant_method"] {
            // As older versions of transformers write it.
            Value::Null if !entry["load_in_8bit"].is_null() => "bitsandbytes",
            Value::Null => METHOD,
            Value::String(method) => method.strip_prefix("intel/").unwrap_or(method),
            got => {
                return Err(malformed(format!("quant_method {}", brief(&got.to_string(), 60))));
            }
        };
        if method != METHOD {
            return Ok(Self { foreign: Some((method.to_owned(), entry)), ..Self::default() });
        }
        let raw = RawQuantization::deserialize(&entry);
        let raw = raw.map_err(|error| malformed(brief(&error.to_string(), 300)))?;
        let formats = raw.config_groups.values().map(|group| &group.format);
        for format in std::iter::once(&raw.format).chain(formats).flatten() {
            if !FORMATS.contains(&format.as_str()) {
                return Err(unsupported("format", &FORMATS.join(", "), format));
            }
        }
        let mut read = Self { is_dense: raw.format.as_deref() == Some("dense"), ..Self::default() };
        let (mut patterns, mut linears) = (Vec::new(), None);
        for (number, group) in raw.config_groups.into_values().enumerate() {
            read.groups.push(group.input_activations.map(|a| a.read()).transpose()?);
            read.bits.push(group.weights["num_bits"].as_u64());
            for target in group.targets {
                if let Some(pattern) = target.strip_prefix("re:") {
                    patterns.push(pattern.to_owned());
                    read.of_regexes.push(number);
                } else {
                    // The modules of a class are not known; most are Linears.
                    if target == "Linear" {
                        linears.get_or_insert(number);
                    }
                    read.of_class.get_or_insert(number);
                    read.names.entry(target).or_insert(number);
                }
            }
        }
        read.of_class = linears.or(read.of_class);
        read.regexes = NameRegexes::start(&patterns)?;
        keys::check(&keys::COMPRESSED_TENSORS, &entry)?;
        Ok(read)
    }

    /// Adds what a layout's own tensors say of the activations of a weight.
    pub fn describe(&mut self, weight: &str, activation: Option<DynamicConfig>) {
        self.modules.insert(module(weight).to_owned(), activation);
    }

    /// The treatment of activations beside an int8 weight: dynamic and per row where the file does
    /// not say it, `None` where they stay float.
    pub fn activation(&self, weight: &str) -> Option<DynamicConfig> {
        self.said(weight).unwrap_or_else(|| Some(DynamicConfig::default()))
    }

    /// Whether activations beside a weight are said to be dynamic, with one scale a row.
    pub fn is_per_row(&self, weight: &str) -> bool {
        let said = self.said(weight).flatten();
        said.is_some_and(|said| said.granularity == Granularity::PerRow)
    }

    /// The activations beside a weight, if the file says something of them.
    fn said(&self, weight: &str) -> Option<Option<DynamicConfig>> {
        if let Some(activation) = self.modules.get(module(weight)) {
            return Some(*activation);
        }
        Some(self.groups[self.group(weight)?])
    }

    pub fn bits(&self, weight: &str) -> Option<u64> {
        self.bits[self.group(weight)?]
    }

    fn group(&self, weight: &str) -> Option<usize> {
        let module = module(weight);
        let named = self.names.get(module).copied();
        let matched = self.regexes.first(module).map(|i| self.of_regexes[i]);
        named.into_iter().chain(matched).min().or(self.of_class)
    }
}

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
        let granularity = match self.strategy.as_deref() {
            Some("tensor") if self.dynamic == Value::Bool(true) => Granularity::PerTensor,
            // A static scale is not used: see `layouts::translate`.
            Some("token" | "tensor") | None => Granularity::PerRow,
            Some(got) => return Err(unsupported("input_activations", "token or tensor", got)),
        };
        Ok(DynamicConfig::new(granularity, false))
    }
}

struct ValueText(Box<RawValue>);

impl Keyed for ValueText {
    const MAP: &'static str = "an object";

    fn read<'de, A: MapAccess<'de>>(_: &str, from: &mut A) -> Result<Self, A::Error> {
        from.next_value().map(Self)
    }
}

/// The entries of a configuration and of the configurations in it, as of the texts of a model of
/// images and texts, each with its place.
fn entries(
    map: UniqueMap<ValueText>,
    place: &str,
    found: &mut Vec<(String, Value)>,
) -> Result<(), String> {
    for (key, ValueText(value)) in map.0 {
        let (text, at) = (value.get(), format!("{place}{key}"));
        if [ENTRY, OLD_ENTRY].contains(&&*key) {
            let entry: Value = parse(text.as_bytes())?;
            if !entry.is_null() {
                found.push((at, entry));
            }
        } else if text.starts_with('{') {
            entries(parse(text.as_bytes())?, &format!("{at}."), found)?;
        }
    }
    Ok(())
}

/// Checks that no object of a value has a key twice: readers differ in which value they take.
fn unique(json: &[u8], depth: usize) -> Result<(), String> {
    let values = match json.trim_ascii_start().first() {
        Some(b'{' | b'[') if depth == MAX_DEPTH => {
            return Err(format!("values in more than {MAX_DEPTH} others"));
        }
        Some(b'{') => {
            parse::<UniqueMap<ValueText>>(json)?.0.into_iter().map(|(_, value)| value.0).collect()
        }
        Some(b'[') => parse::<Vec<Box<RawValue>>>(json)?,
        _ => Vec::new(),
    };
    let mut values = values.iter().map(|value| value.get().as_bytes());
    values.try_for_each(|value| unique(value, depth + 1))
}

fn unsupported(what: &'static str, expected: &str, got: &str) -> Error {
    Error::unsupported(what, expected, brief(got, 100))
}

/// Whether a configuration, or a configuration in it, as of the texts of a model of images and
/// texts, has a vocabulary.
fn has_vocabulary(config: &Value) -> bool {
    let Value::Object(entries) = config else { return false };
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_first_group_that_names_a_module_is_its_own() {
        let activations = |strategy: &str| json!({"num_bits": 8, "type": "int", "dynamic": true, "strategy": strategy});
        let (token, tensor) = (activations("token"), activations("tensor"));
        let config = json!({"quantization_config": {"config_groups": json!({
            "a": {"targets": ["re:.*key", "re:x"], "input_activations": tensor},
            "b": {"targets": ["m.query", "m.key", "Linear"], "input_activations": null},
            "c": {"targets": ["re:m\\.", "m.query", "re:.*key"], "input_activations": token},
        })}});
        let config = Quantization::read(config.to_string().into()).expect("a configuration");
        let dynamic = |granularity| Some(DynamicConfig::new(granularity, false));
        for (weight, expected) in [
            // A regex before a name, a name before a regex, and a regex alone.
            ("m.key.weight", dynamic(Granularity::PerTensor)),
            ("m.query.weight", None),
            ("m.value.weight", dynamic(Granularity::PerRow)),
            // By the beginning of a name only; then by the first group with a class.
            ("a.m.value.weight", None),
            ("xm.weight_ih_l0", dynamic(Granularity::PerTensor)),
        ] {
            assert_eq!(config.activation(weight), expected, "{weight}");
        }
        assert_eq!(Quantization::default().activation("a.weight"), dynamic(Granularity::PerRow));
    }
}
