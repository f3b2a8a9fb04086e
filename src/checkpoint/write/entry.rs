//! The entry `quantization_config` of a `config.json`, as it is written.

use std::collections::{BTreeMap, BTreeSet};

use candle_dynquant_io::json;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::checkpoint::read::{ENTRY, METHOD, OLD_ENTRY, Opened};
use crate::error::{Error, Result};
use crate::name_regex::NameRegexes;
use crate::qconfig::{Granularity, GroupScheme, IntType};
use crate::qparams::QScheme;
use crate::weight::Format;
use crate::words::brief;

/// A module whose weight is quantized, for the config of a folder.
#[derive(Clone, Debug)]
pub struct Module {
    pub name: String,
    /// Else it is an Embedding.
    pub is_linear: bool,
    pub format: Format,
}

/// The entry for Linears and Embeddings with int8 weights; `ignore` lists modules that stay float
/// and may be taken for Linears. `None` where no weight is int8.
///
/// Their names are the targets. A model without a vocabulary has its class: transformers 5 renames
/// the modules of vision models when it loads them, but not the names in here, and without a
/// vocabulary no head is tied to a table. With a Linear that stays float within a block, that has
/// to be ignored by name, too.
pub fn entry(modules: &[Module], ignore: &[String], source: &Opened) -> Option<Value> {
    let mut formats: Vec<(bool, Format)> = Vec::new();
    let mut groups: Vec<BTreeSet<&str>> = Vec::new();
    for is_linear in [true, false] {
        let of_kind = modules.iter().filter(|module| module.is_linear == is_linear);
        for module in of_kind.filter(|module| module.format.half().is_none()) {
            let key = (is_linear, module.format);
            let number = formats.iter().position(|format| *format == key).unwrap_or_else(|| {
                formats.push(key);
                groups.push(BTreeSet::new());
                groups.len() - 1
            });
            groups[number].insert(&module.name);
        }
    }
    let ignore: BTreeSet<&str> = ignore.iter().map(String::as_str).collect();
    let mut floats: BTreeSet<&str> =
        source.files.tensors().filter_map(|(name, ..)| Some(name.rsplit_once('.')?.0)).collect();
    floats.extend(&ignore);
    floats.retain(|name| !groups.iter().any(|group| group.contains(name)));
    let (mut targets, mut ignored) = targets(&groups, &floats, |name| ignore.contains(name));
    let linears = formats.iter().filter(|(is_linear, _)| *is_linear).count();
    if !source.config.has_vocabulary
        && linears == 1
        && !ignore.iter().any(|name| name.contains('.'))
    {
        targets[0] = BTreeSet::from(["Linear".to_owned()]);
        ignored = ignore.into_iter().map(str::to_owned).collect();
    }
    let mut names: Vec<_> = formats.iter().map(|(_, format)| stored_as(*format)).collect();
    names.dedup();
    let format = match names[..] {
        [one] => one,
        _ => "mixed-precision",
    };
    let groups = formats.iter().zip(&targets).enumerate();
    let groups: serde_json::Map<_, _> = groups
        .map(|(i, ((_, format), targets))| (format!("group_{i}"), group(targets, *format)))
        .collect();
    (!groups.is_empty()).then(|| {
        json!({
            "config_groups": groups,
            "format": format,
            "global_compression_ratio": null,
            "ignore": ignored,
            "kv_cache_scheme": null,
            "quant_method": METHOD,
            "quantization_status": "compressed",
        })
    })
}

/// The text of a `config.json` with another entry for its quantization, or none. All other values
/// keep the bytes of the text, also where they are not JSON or an f64 cannot hold them.
pub fn with_entry(text: &[u8], entry: Option<&Value>) -> Result<Vec<u8>> {
    let strict = json::strict(text.to_owned());
    let values: BTreeMap<String, &RawValue> = serde_json::from_slice(&strict)
        .map_err(|e| Error::malformed("config.json", "an object", brief(&e.to_string(), 300)))?;
    let bytes = |value: &RawValue| {
        let start = value.get().as_ptr() as usize - strict.as_ptr() as usize;
        let (value, bytes) = (value.get(), &text[start..start + value.get().len()]);
        // A configuration within may have an entry, too.
        let is_within = [ENTRY, OLD_ENTRY].iter().any(|name| value.contains(name));
        if is_within && value.starts_with('{') {
            return with_entry(bytes, None);
        }
        Ok(bytes.to_owned())
    };
    let values = values.into_iter().map(|(key, value)| Ok((key, bytes(value)?)));
    let mut values: BTreeMap<String, Vec<u8>> = values.collect::<Result<_>>()?;
    for name in [ENTRY, OLD_ENTRY] {
        values.remove(name);
    }
    if let Some(entry) = entry {
        values.insert(ENTRY.into(), format!("{entry:#}").replace('\n', "\n  ").into());
    }
    let mut new = b"{".to_vec();
    for (i, (key, value)) in values.into_iter().enumerate() {
        let comma = if i > 0 { "," } else { "" };
        new.extend(format!("{comma}\n  {}: ", Value::String(key)).into_bytes());
        new.extend(value);
    }
    new.extend(b"\n}\n");
    Ok(new)
}

/// compressed-tensors' name for how a weight is stored.
fn stored_as(format: Format) -> &'static str {
    match format.groups() {
        Some(groups) if groups.dtype == IntType::Int4 => "pack-quantized",
        _ => "int-quantized",
    }
}

fn group(targets: &BTreeSet<String>, format: Format) -> Value {
    let args = |dynamic: bool, strategy: &str, symmetric: bool, observer: Value| {
        json!({
            "actorder": null, "block_structure": null, "dynamic": dynamic, "group_size": null,
            "num_bits": 8, "observer": observer, "observer_kwargs": {}, "strategy": strategy,
            "symmetric": symmetric, "type": "int",
        })
    };
    let activations = format.dynamic().map_or(Value::Null, |config| {
        let strategy = match config.granularity {
            Granularity::PerRow => "token",
            Granularity::PerTensor => "tensor",
        };
        args(true, strategy, false, Value::Null)
    });
    let qscheme = format.codes().map(|codes| codes.qscheme);
    let strategy = if qscheme.is_some_and(QScheme::is_per_channel) { "channel" } else { "tensor" };
    let symmetric = qscheme.is_some_and(QScheme::is_symmetric);
    let mut weights = args(false, strategy, symmetric, "minmax".into());
    if qscheme == Some(QScheme::PerChannelAffineFloatQParams) {
        weights["zp_dtype"] = "torch.float32".into();
    }
    if let Some(groups) = format.groups() {
        let strategy = groups.group_size.map_or("channel", |_| "group");
        let symmetric = groups.scheme == GroupScheme::Symmetric;
        weights = args(false, strategy, symmetric, "minmax".into());
        weights["group_size"] = groups.group_size.into();
        if groups.dtype == IntType::Int4 {
            weights["num_bits"] = 4.into();
        }
    }
    json!({
        // In each group, because newer readers take weights without activations for packed ones.
        "format": stored_as(format),
        "input_activations": activations,
        "output_activations": null,
        "targets": targets,
        "weights": weights,
    })
}

/// The targets of each group of modules, and the modules of `floats` that are ignored: modules that
/// are `listed`, and modules that a target matches too.
///
/// Names, not classes: a reader makes every module of a class a quantized one, also one without a
/// tensor of its own, such as a tied head.
pub fn targets(
    groups: &[BTreeSet<&str>],
    floats: &BTreeSet<&str>,
    listed: impl Fn(&str) -> bool,
) -> (Vec<BTreeSet<String>>, BTreeSet<String>) {
    let mut forms: BTreeMap<String, usize> = BTreeMap::new();
    for (number, group) in groups.iter().enumerate() {
        for name in group.iter().filter(|name| name.contains('.')) {
            forms.entry(pattern(name, true)).or_insert(number);
        }
    }
    let (patterns, owners): (Vec<String>, Vec<usize>) = forms.clone().into_iter().unzip();
    // A reader refuses too many: then names.
    let regexes = NameRegexes::start(&patterns).ok();
    let matched = |name: &str| regexes.as_ref().map_or_else(Vec::new, |all| all.all(name));
    // A form that two groups have in common tells neither.
    let mut shared = BTreeSet::new();
    for (number, group) in groups.iter().enumerate() {
        let of_others = |i: &usize| owners[*i] != number;
        shared.extend(group.iter().flat_map(|name| matched(name)).filter(of_others));
    }
    let is_target = |i: &usize| !shared.contains(i);
    let target = |name: &&str| match matched(name).into_iter().find(is_target) {
        Some(i) => format!("re:{}", patterns[i]),
        None => (*name).to_owned(),
    };
    let mut targets: Vec<BTreeSet<String>> =
        groups.iter().map(|group| group.iter().map(target).collect()).collect();
    // The head of GPT-NeoX, which transformers 5 renames.
    for target in targets.iter_mut().filter(|target| target.contains("embed_out")) {
        target.insert("lm_head".to_owned());
    }
    let ignored = floats.iter().filter_map(|name| {
        if matched(name).iter().any(is_target) {
            Some(format!("re:{}", pattern(name, false)))
        } else {
            listed(name).then(|| (*name).to_owned())
        }
    });
    (targets, ignored.collect())
}

pub fn last_name(module: &str) -> &str {
    module.rsplit('.').next().unwrap_or(module)
}

/// A regex that matches a module whatever stands before its name: `bert.encoder.x` is `encoder.x`
/// in a model without a head, and the other way round. With `any_number`, it matches other layers,
/// too.
fn pattern(name: &str, any_number: bool) -> String {
    let part = |part: &str| match part.parse::<u32>() {
        Ok(_) if any_number => r"\d+".to_owned(),
        _ => regex::escape(part),
    };
    let escaped = |name: &str| name.split('.').map(part).collect::<Vec<_>>().join(r"\.");
    match name.split_once('.') {
        None => format!("^{}$", regex::escape(name)),
        // A last part alone, with anything before it, would match many modules.
        Some((first, rest)) if rest == last_name(name) => {
            format!(r"^((.*\.)?{}\.)?{}$", escaped(first), escaped(rest))
        }
        Some((_, rest)) => format!(r"^(.*\.)?{}$", escaped(rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set<'a>(names: &[&'a str]) -> BTreeSet<&'a str> {
        names.iter().copied().collect()
    }

    fn check(groups: &[&[&str]], floats: &[&str], expected: &[&[&str]], ignored: &[&str]) {
        let sets: Vec<_> = groups.iter().map(|group| set(group)).collect();
        let (targets, ignore) = targets(&sets, &set(floats), |name| name == "head");
        let strings = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let expected: Vec<BTreeSet<String>> = expected.iter().map(|names| strings(names)).collect();
        assert_eq!(targets, expected, "{groups:?}");
        assert_eq!(ignore, strings(ignored), "{groups:?}");
    }

    #[test]
    fn modules_of_all_layers_are_one_regex() {
        check(
            &[&["m.a.0.q", "m.a.1.q", "head"]],
            &["m.a.0.norm"],
            &[&[r"re:^(.*\.)?a\.\d+\.q$", "head"]],
            &[],
        );
        check(&[&["pool.x-y"]], &["head"], &[&[r"re:^((.*\.)?pool\.)?x\-y$"]], &["head"]);
    }

    #[test]
    fn what_stays_float_among_them_is_ignored() {
        check(
            &[&["m.a.0.q", "m.a.2.q"]],
            &["m.a.1.q"],
            &[&[r"re:^(.*\.)?a\.\d+\.q$"]],
            &[r"re:^(.*\.)?a\.1\.q$"],
        );
    }

    #[test]
    fn groups_that_share_a_form_have_names() {
        check(
            &[&["m.a.0.q", "m.a.0.k"], &["m.a.1.q"]],
            &[],
            &[&["m.a.0.q", r"re:^(.*\.)?a\.\d+\.k$"], &["m.a.1.q"]],
            &[],
        );
    }

    #[test]
    fn more_forms_than_a_reader_takes_are_names() {
        let names: Vec<String> = (0..300).map(|i| format!("a{i}.b{i}.c")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        check(&[&names], &[], &[&names], &[]);
    }
}
