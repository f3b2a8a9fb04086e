//! Fetches a model's files from the Hugging Face Hub into its ordinary cache.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use hf_hub::api::sync::{ApiBuilder, ApiRepo};

const INDEX: &str = "model.safetensors.index.json";

/// The folder in the cache that holds the files of the model `id`, say `owner/name`.
///
/// What the cache has is not fetched again. `HF_HOME` and `HF_ENDPOINT` are honoured.
pub fn fetch(id: &str, progress: bool) -> Result<PathBuf> {
    let is_word = |word: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !word.is_empty() && !word.starts_with('.') && word.chars().all(allowed)
    };
    ensure!(
        id.split('/').count() <= 2 && id.split('/').all(is_word),
        "--hub: expected the id of a model, say owner/name, got {id:?}",
    );
    let api = ApiBuilder::from_env().with_progress(progress).build()?;
    let repo = api.model(id.to_owned());
    let config = get(&repo, id, "config.json")?;
    get(&repo, id, "tokenizer.json")?;
    if let Err(no_single_file) = get(&repo, id, "model.safetensors") {
        let Ok(index) = get(&repo, id, INDEX) else {
            return Err(no_single_file);
        };
        for shard in crate::checkpoint::shards(&index)?.keys() {
            get(&repo, id, shard)?;
        }
    }
    Ok(config.parent().map(PathBuf::from).unwrap_or_default())
}

fn get(repo: &ApiRepo, id: &str, file: &str) -> Result<PathBuf> {
    repo.get(file)
        .with_context(|| format!("--hub {id}: expected {file} in the cache or on the hub"))
}
