//! Models of transformers' architectures, by their tensors and the modules of their classes: the
//! layers that a folder's `config.json` calls quantized match its tensors, whichever class reads
//! it. `scripts/check_transformers.py` checks with transformers itself.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;
use serde::Deserialize;

use crate::kit::*;

#[derive(Deserialize)]
struct Model {
    name: String,
    config: Value,
    tensors: BTreeMap<String, Vec<usize>>,
    /// The modules of each class that reads the model.
    classes: BTreeMap<String, Modules>,
}

/// The names of modules.
#[derive(Deserialize)]
struct Modules {
    linears: Vec<String>,
    embeddings: Vec<String>,
}

/// Targets and ignored names, matched as compressed-tensors matches them.
struct Matches {
    names: BTreeSet<String>,
    regexes: Vec<Regex>,
}

impl Matches {
    fn new<'a>(values: impl IntoIterator<Item = &'a Value>) -> Result<Self> {
        let (mut names, mut regexes) = (BTreeSet::new(), Vec::new());
        for value in values {
            let value = value.as_str().context("a name")?;
            match value.strip_prefix("re:") {
                // A regex matches from the start of a name, to anywhere.
                Some(regex) => regexes.push(Regex::new(&format!("^(?:{regex})"))?),
                None => drop(names.insert(value.to_owned())),
            }
        }
        Ok(Self { names, regexes })
    }

    fn has(&self, name: &str) -> bool {
        self.names.contains(name) || self.regexes.iter().any(|regex| regex.is_match(name))
    }
}

/// The module of a class that a tensor's module is, with or without the prefix of a model with a
/// head.
fn is_same(module: &str, of_tensor: &str) -> bool {
    let ends = |long: &str, short: &str| {
        long == short || long.strip_suffix(short).is_some_and(|rest| rest.ends_with('.'))
    };
    // transformers 5 gives GPT-NeoX's head another name than files have.
    let of_tensor = if of_tensor == "embed_out" { "lm_head" } else { of_tensor };
    ends(module, of_tensor) || ends(of_tensor, module)
}

fn write(model: &Model, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join("config.json"), model.config.to_string())?;
    let tensor = |(name, shape): (&String, &Vec<usize>)| {
        let count = shape.iter().product::<usize>();
        let values = (0..count).map(|i| (i * 7 % 11) as f32 - 5.);
        let tensor = Tensor::from_vec(values.collect(), &shape[..], &Device::Cpu)?;
        Ok((name.clone(), tensor))
    };
    let tensors = model.tensors.iter().map(tensor);
    let tensors = tensors.collect::<Result<std::collections::HashMap<_, _>>>()?;
    Ok(candle_core::safetensors::save(&tensors, folder.join("model.safetensors"))?)
}

/// A model with a head tied to a quantized table, which docs/checkpoints.md lists as an error.
const HEADLESS: (&str, &str) = ("bloom", "AutoModelForCausalLM");

/// Checks a quantized folder against each class; returns how many modules are quantized.
fn check(model: &Model, folder: &Path) -> Result<usize> {
    let config = read_json(folder.join("config.json"))?;
    let quantization = &config["quantization_config"];
    let groups = quantization["config_groups"].as_object();
    let targets = groups.into_iter().flat_map(|groups| groups.values());
    let targets =
        Matches::new(targets.flat_map(|group| group["targets"].as_array().into_iter().flatten()))?;
    let ignored = Matches::new(quantization["ignore"].as_array().into_iter().flatten())?;
    let tensors = Checkpoint::open(folder)?;
    let names: BTreeSet<String> = tensors.tensors().map(|tensor| tensor.name).collect();
    let scaled: Vec<_> =
        names.iter().filter_map(|name| name.strip_suffix(".weight_scale")).collect();
    let by_class = targets.names.contains("Linear");
    for (class, Modules { linears, embeddings }) in &model.classes {
        let quantized = |name: &&String| {
            !ignored.has(name) && (targets.has(name) || by_class && linears.contains(name))
        };
        let modules: Vec<_> = linears.iter().chain(embeddings).filter(quantized).collect();
        for module in &modules {
            // Some vision models have other names in files; their number is checked.
            let held = scaled.iter().any(|name| is_same(module, name));
            assert!(held || by_class, "{} as {class}: {module} has no scale", model.name);
        }
        let in_class =
            |name: &&&str| linears.iter().chain(embeddings).any(|module| is_same(module, name));
        let expected = if by_class && *class == saved_as(model) {
            scaled.len()
        } else {
            scaled.iter().filter(in_class).count()
        };
        let is_known = (&*model.name, &**class) == HEADLESS;
        if !is_known && (!by_class || *class == saved_as(model)) {
            assert_eq!(modules.len(), expected, "{} as {class}: {modules:?}", model.name);
        }
    }
    Ok(scaled.len())
}

/// The class with the most modules, to which the tensors belong.
fn saved_as(model: &Model) -> String {
    let most = model
        .classes
        .iter()
        .max_by_key(|(_, modules)| modules.linears.len() + modules.embeddings.len());
    most.map_or(String::new(), |(class, _)| class.clone())
}

#[test]
fn what_config_json_names_has_scales_in_every_class() -> Result<()> {
    let path = repository().join("assets/reference/transformers.json");
    let models: Vec<Model> = serde_json::from_slice(&fs::read(path)?)?;
    let (_dir, [float, out]) = paths(["float", "out"]);
    let mut quantized = 0;
    for model in &models {
        write(model, &float)?;
        let source = Checkpoint::open(&float)?;
        for spec in [
            QConfigSpec::int8(),
            QConfigSpec::int8().embeddings(),
            QConfigSpec::pytorch(),
            QConfigSpec::float16(),
        ] {
            let plan = match Plan::new(&source, &spec, &[], &[]) {
                Ok(plan) => plan,
                Err(error) => {
                    // All its matrices are Conv1Ds.
                    assert!(model.name == "gpt2", "{}: {error}", model.name);
                    continue;
                }
            };
            plan.write(&source, &out, |_| {})?;
            let modules = check(model, &out)?;
            assert_eq!(modules == 0, spec == QConfigSpec::float16(), "{}", model.name);
            quantized += modules;
        }
        fs::remove_dir_all(&float)?;
    }
    assert!(models.len() >= 46 && quantized > 1_000, "{quantized}");
    Ok(())
}
