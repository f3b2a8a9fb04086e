//! Decoders named on the Hugging Face hub, in the cache that Hugging Face's programs fill and read.

use std::path::PathBuf;

use anyhow::{Result, ensure};
pub use candle_dynquant_io::hub::Progress;
use candle_dynquant_io::hub::{self, Files, Reads, is_plain};

/// The files that a model may lack.
const OPTIONAL: [&str; 4] = [
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];

/// The folder of a model named on the Hugging Face hub, `OWNER/MODEL` or `OWNER/MODEL@REVISION`; or a
/// GGUF file, `OWNER/MODEL/FILE.gguf` or `OWNER/MODEL/FILE.gguf@REVISION`, with its other parts if the
/// name counts them.
///
/// Files in the cache are used without the network; otherwise the files that this crate reads are
/// downloaded into the cache. The environment variables of Hugging Face's programs apply:
/// `HF_HOME`, `HF_HUB_CACHE`, `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_ENDPOINT`, `HF_HUB_OFFLINE` and
/// `HF_HUB_DOWNLOAD_TIMEOUT`.
///
/// ```no_run
/// use candle_dynquant_decoder::{Folder, hub};
///
/// let path = hub::fetch("HuggingFaceTB/SmolLM2-135M-Instruct")?;
/// let folder = Folder::open(&path, None)?;
/// # Ok::<(), anyhow::Error>(())
/// ```
///
/// # Errors
/// When `name` is malformed, the hub has no such model or does not answer, a file arrives
/// incomplete, the model has neither weights in safetensors nor this file, or the cache cannot be
/// written.
pub fn fetch(name: &str) -> Result<PathBuf> {
    fetch_with(name, |_| ())
}

/// Fetches a model as [`fetch`] does, and reports the progress of each download.
///
/// # Errors
/// The errors of [`fetch`].
pub fn fetch_with(name: &str, progress: impl FnMut(Progress<'_>)) -> Result<PathBuf> {
    let Some((model, file)) = file(name) else {
        return fetched(name, &folder, progress);
    };
    let parts = |files: &mut Files<'_>| {
        let mut parts = parts(&file).into_iter();
        parts.try_for_each(|part| files.require(&part).map(drop))
    };
    Ok(fetched(&model, &parts, progress)?.join(&file))
}

fn fetched(
    name: &str,
    visit: &dyn Fn(&mut Files<'_>) -> Result<()>,
    progress: impl FnMut(Progress<'_>),
) -> Result<PathBuf> {
    let certain = "";
    hub::fetch(name, &Reads { visit, certain }, progress)
}

fn folder(files: &mut Files<'_>) -> Result<()> {
    for file in ["config.json", "tokenizer.json"] {
        ensure!(
            files.get(file)?.is_some(),
            "it has no {file}; of a repository of GGUF files, name one: OWNER/MODEL/FILE.gguf"
        );
    }
    for file in OPTIONAL {
        files.get(file)?;
    }
    files.weights("")
}

/// Whether `text` has the form of the name of a GGUF file.
pub fn is_file(text: &str) -> bool {
    file(text).is_some()
}

/// The model, with its revision, and the file of a name of a GGUF file.
fn file(text: &str) -> Option<(String, String)> {
    let (path, revision) = match text.split_once('@') {
        Some((path, revision)) => (path, Some(revision)),
        None => (text, None),
    };
    let (owner, rest) = path.split_once('/')?;
    let (model, file) = rest.split_once('/')?;
    let model = format!("{owner}/{model}");
    let model = revision.map_or(model.clone(), |revision| format!("{model}@{revision}"));
    let is_known = file.ends_with(".gguf") && file.split('/').all(is_plain);
    (is_known && hub::is_name(&model)).then(|| (model, file.to_owned()))
}

/// All parts of a file by the name of the first, `NAME-00001-of-00003.gguf`.
fn parts(file: &str) -> Vec<String> {
    let count = || {
        let (name, count) = file.strip_suffix(".gguf")?.rsplit_once("-00001-of-")?;
        let number = count.parse::<u32>().ok().filter(|_| count.len() == 5)?;
        Some((1..=number).map(move |part| format!("{name}-{part:05}-of-{count}.gguf")))
    };
    count().map_or_else(|| vec![file.to_owned()], Iterator::collect)
}
