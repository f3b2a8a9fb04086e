//! Models named on the Hugging Face hub, in the cache that Hugging Face's programs fill and read.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use candle_dynquant_decoder::hub as decoders;
pub use candle_dynquant_io::hub::Progress;
use candle_dynquant_io::hub::{self, Files, Reads, is_plain};

use crate::files::{self, ADAPTER, text};
use crate::lexical;
use crate::modules::{MODULES, Modules};
use crate::sentence;

/// The files that a model may lack.
const OPTIONAL: [&str; 6] = [
    files::ARTIFACT,
    files::TOKENIZER_CONFIG,
    ADAPTER,
    "config_sentence_transformers.json",
    "chat_template.jinja",
    // The settings of a decoder.
    "generation_config.json",
];

/// The folder of a model named on the Hugging Face hub, `OWNER/MODEL` or `OWNER/MODEL@REVISION`: a
/// branch, a tag or a commit; or a decoder's file, `OWNER/MODEL/FILE.gguf`.
///
/// Files in the cache are used without the network; otherwise the files that this crate reads are
/// downloaded into the cache. The environment variables of Hugging Face's programs apply:
/// `HF_HOME`, `HF_HUB_CACHE`, `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_ENDPOINT`, `HF_HUB_OFFLINE` and
/// `HF_HUB_DOWNLOAD_TIMEOUT`.
///
/// ```no_run
/// use dynquant_embed::{Embedder, hub};
///
/// let folder = hub::fetch("sentence-transformers/all-MiniLM-L6-v2")?;
/// let embedder = Embedder::open(folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// When `name` is malformed, the hub has no such model or does not answer, a file arrives
/// incomplete, the model has no weights in safetensors, or the cache cannot be written.
pub fn fetch(name: &str) -> Result<PathBuf> {
    fetch_with(name, |_| ())
}

/// Fetches a model as [`fetch`] does, and reports the progress of each download.
///
/// # Errors
/// The errors of [`fetch`].
pub fn fetch_with(name: &str, progress: impl FnMut(Progress<'_>)) -> Result<PathBuf> {
    if decoders::is_file(name) {
        return decoders::fetch_with(name, progress);
    }
    let reads = Reads { visit: &visit, certain: MODULES };
    hub::fetch(name, &reads, progress)
}

/// Asks for every file of a model.
fn visit(files: &mut Files<'_>) -> Result<()> {
    let folder = files.folder().to_owned();
    let config = text(&files.require(files::CONFIG)?)?;
    let has_tokenizer = files.get(files::TOKENIZER)?.is_some();
    let has = |key: &str| config.contains(&format!("\"{key}\""));
    let is_of_pictures = has("vision_config") || has("image_size") || !has_tokenizer;
    let mut steps = false;
    for file in files::PROCESSORS.iter().filter(|_| is_of_pictures) {
        steps |= files.get(file)?.is_some();
    }
    ensure!(has_tokenizer || steps, "it has no {}", files::TOKENIZER);
    for file in
        sentence::FILES.into_iter().chain(OPTIONAL).chain(files::TOKENS).chain(lexical::FILES)
    {
        files.get(file)?;
    }
    files.get(MODULES)?;
    let modules = Modules::read(&folder)?;
    let within = |path: &Path| -> Result<String> {
        let parts = path.strip_prefix(&folder).unwrap_or(path).components();
        let parts: Option<Vec<&str>> = parts.map(|part| part.as_os_str().to_str()).collect();
        let parts = parts.filter(|parts| parts.iter().all(|part| is_plain(part)));
        let parts = parts.with_context(|| {
            format!("{}: expected a name of letters, digits, `-`, `_` and `.`", path.display())
        })?;
        Ok(parts.join("/"))
    };
    let needs = |file: &str, found: &Option<PathBuf>| {
        ensure!(found.is_some(), "it has no {file}, which {MODULES} needs");
        Ok(())
    };
    let file = within(&modules.pooling)?;
    let found = files.get(&file)?;
    if modules.lists_pooling {
        needs(&file, &found)?;
    }
    for (kind, path) in &modules.others {
        let file = within(&path.join(files::CONFIG))?;
        let found = files.get(&file)?;
        if kind.has_weights() {
            needs(&file, &found)?;
            files.weights(&format!("{}/", within(path)?))?;
        }
    }
    if let Some(path) = &modules.logit_score {
        let file = within(&path.join(files::CONFIG))?;
        needs(&file, &files.get(&file)?)?;
    }
    files.weights("")
}
