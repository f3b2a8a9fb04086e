//! Tests that every key which other programs know has a row.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use candle_dynquant_io::keys::Table;

use super::*;
use crate::keys::Keys;
use crate::models::Architecture;

/// Lists of keys by model type, and by file or module.
#[derive(serde::Deserialize)]
struct Known {
    #[serde(rename = "config.json")]
    configs: BTreeMap<String, Vec<String>>,
    #[serde(flatten)]
    files: BTreeMap<String, Vec<String>>,
}

fn check(what: &str, tables: &[&Table], keys: &[String]) -> Result<()> {
    let has_row = |key: &&String| tables.iter().any(|it| it.treatment(key).is_some());
    let without = keys.iter().find(|key| !has_row(key));
    ensure!(without.is_none(), "{what}: {without:?}");
    Ok(())
}

#[cfg(feature = "images")]
#[test]
fn every_key_of_models_of_pictures_has_a_row() -> Result<()> {
    let text = include_str!("../../../../assets/reference/images/keys.json");
    let known: BTreeMap<String, Vec<String>> = serde_json::from_str(text)?;
    check("towers", &[&TOWER, &COMMON], &known["towers"])?;
    check("pairs", &[&PAIR, &COMMON], &known["pairs"])?;
    check("processors", &[&PROCESSOR], &known["processors"])
}

#[test]
fn every_key_that_other_programs_know_has_a_row() -> Result<()> {
    let text = include_str!("../../../../assets/reference/encoder_keys.json");
    let Known { configs, mut files } = serde_json::from_str(text)?;
    ensure!(configs.len() == 17, "{} model types", configs.len());
    for (name, known) in configs {
        let keys = Keys::parse(&name, &format!("{{\"model_type\": {name:?}}}"))?;
        check(&name, Architecture::find(&keys)?.tables, &known)?;
    }
    for (name, table) in [
        ("sentence_bert_config.json", &SENTENCE),
        ("config_sentence_transformers.json", &PROMPTS),
        ("modules.json", &MODULES),
        ("tokenizer_config.json", &TOKENIZER_CONFIG),
        ("Pooling", &POOLING),
        ("SpladePooling", &SPLADE_POOLING),
        ("Dense", &DENSE),
        ("LayerNorm", &LAYER_NORM),
        ("Normalize", &NORMALIZE),
        ("LogitScore", &LOGIT_SCORE),
        ("MultiVectorMask", &MULTI_VECTOR_MASK),
    ] {
        check(name, &[table], &files.remove(name).unwrap_or_default())?;
    }
    ensure!(files.is_empty(), "{files:?}");
    Ok(())
}
