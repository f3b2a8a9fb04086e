//! Fetches the files of a model from the cache or from the hub.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use candle_dynquant_io::output::NewFile;
use serde::Deserialize;

use super::cache::Repo;
use super::client::{Client, Listing};
use super::name::{Name, is_commit, is_plain};
use super::settings::Settings;
use crate::files::{self, ADAPTER, MAX_TEXT, MAX_TOKENIZER, text};
use crate::json;
use crate::modules::{MODULES, Modules};
use crate::sentence;

const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
const WEIGHTS: &str = "model.safetensors";
const SHARDS: &str = "model.safetensors.index.json";
/// The largest file of weights, in bytes; larger models are in shards.
const MAX_WEIGHTS: u64 = 64 << 30;
/// The files that a model may lack.
const OPTIONAL: [&str; 4] = [
    files::TOKENIZER_CONFIG,
    ADAPTER,
    "config_sentence_transformers.json",
    "chat_template.jinja",
];

/// The progress of a download.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The name of the file in its folder.
    pub file: &'a str,
    /// The number of bytes received.
    pub bytes: u64,
    /// The size of the file, if the hub states it.
    pub of: Option<u64>,
}

/// The folder of a model named on the Hugging Face hub, `OWNER/MODEL` or `OWNER/MODEL@REVISION`: a
/// branch, a tag or a commit.
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
pub fn fetch_with(name: &str, mut progress: impl FnMut(Progress<'_>)) -> Result<PathBuf> {
    let name = Name::parse(name)?;
    let settings = Settings::of_environment()?;
    let repo = Repo::new(&settings.cache, &name);
    let missing = match cached(&repo, &name, settings.offline) {
        Ok(folder) => return Ok(folder),
        Err(missing) => missing,
    };
    let cache = settings.cache.display();
    if settings.offline {
        bail!(
            "{name}: expected it in the cache {cache}, because HF_HUB_OFFLINE is set; {missing}. \
             Without that variable it is downloaded; a folder may be given in place of a name"
        );
    }
    let client = Client::new(&settings);
    downloaded(&client, &repo, &name, &mut progress).with_context(|| {
        format!(
            "{name}: expected it in the cache {cache}, or from {} (HF_ENDPOINT)",
            settings.endpoint
        )
    })
}

/// The folder, if all files are in the cache. The absence of a file changes the answers: it must be
/// recorded, except offline, where other programs may have left it unrecorded.
fn cached(repo: &Repo, name: &Name, offline: bool) -> Result<PathBuf> {
    let commit = repo.commit(&name.revision);
    let commit = commit.with_context(|| format!("it knows no revision {:?}", name.revision))?;
    let snapshot = repo.snapshot(&commit);
    visit(&snapshot, &mut |file| {
        let path = snapshot.join(file);
        if path.exists() {
            return Ok(Some(path));
        }
        let is_lost = path.is_symlink();
        let is_known = repo.lacks(&commit, file) || offline && file != MODULES;
        ensure!(
            is_known && !is_lost,
            "it has no {file}, and does not know whether there is one"
        );
        Ok(None)
    })?;
    Ok(snapshot)
}

/// Downloads the missing files; returns the folder.
fn downloaded(
    client: &Client<'_>,
    repo: &Repo,
    name: &Name,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf> {
    let listing = client.list(name)?;
    let commit = &listing.commit;
    ensure!(
        !is_commit(&name.revision) || *commit == name.revision,
        "expected the commit {}, got {commit}",
        name.revision
    );
    let snapshot = repo.snapshot(commit);
    visit(&snapshot, &mut |file| {
        if !listing.has(file) {
            repo.set_lacks(commit, file)?;
            return Ok(None);
        }
        let path = snapshot.join(file);
        if path.exists() {
            return Ok(Some(path));
        }
        let path = download(client, repo, name, &listing, file, progress);
        path.map(Some).with_context(|| file.to_owned())
    })?;
    repo.set_commit(&name.revision, commit)?;
    Ok(snapshot)
}

fn download(
    client: &Client<'_>,
    repo: &Repo,
    name: &Name,
    Listing { commit, .. }: &Listing,
    file: &str,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf> {
    let limit = match file {
        TOKENIZER => MAX_TOKENIZER,
        _ if file.ends_with(".safetensors") => MAX_WEIGHTS,
        _ => MAX_TEXT,
    };
    let download = client.download(name, commit, file, limit)?;
    let blob = repo.blob(&download.blob(file))?;
    if !blob.exists() {
        let writing = || format!("{}: expected a place to write to", blob.display());
        let mut new = NewFile::beside_nofollow(&blob).with_context(writing)?;
        let total = download.bytes;
        let is_json = file.ends_with(".json");
        download.write(&mut new, is_json, &mut |bytes| {
            progress(Progress {
                file,
                bytes,
                of: total,
            })
        })?;
        new.put().with_context(writing)?;
    }
    repo.link(commit, file, &blob)
}

/// Calls `get` for every file of a model; it returns the path, or `None` if the model lacks the
/// file. The weights come last, since they complete a folder.
fn visit(folder: &Path, get: &mut dyn FnMut(&str) -> Result<Option<PathBuf>>) -> Result<()> {
    let config = get(CONFIG)?;
    let config = config.with_context(|| format!("it has no {CONFIG}"))?;
    let has_tokenizer = get(TOKENIZER)?.is_some();
    let config = text(&config)?;
    let has = |key: &str| config.contains(&format!("\"{key}\""));
    let is_of_pictures = has("vision_config") || has("image_size") || !has_tokenizer;
    let mut steps = false;
    for file in files::PROCESSORS.iter().filter(|_| is_of_pictures) {
        steps |= get(file)?.is_some();
    }
    ensure!(has_tokenizer || steps, "it has no {TOKENIZER}");
    for file in sentence::FILES
        .into_iter()
        .chain(OPTIONAL)
        .chain(files::TOKENS)
    {
        get(file)?;
    }
    get(MODULES)?;
    let modules = Modules::read(folder)?;
    let within = |path: &Path| -> Result<String> {
        let parts = path.strip_prefix(folder).unwrap_or(path).components();
        let parts: Option<Vec<&str>> = parts.map(|part| part.as_os_str().to_str()).collect();
        let parts = parts.filter(|parts| parts.iter().all(|part| is_plain(part)));
        let parts = parts.with_context(|| {
            format!(
                "{}: expected a name of letters, digits, `-`, `_` and `.`",
                path.display()
            )
        })?;
        Ok(parts.join("/"))
    };
    let needs = |file: &str, found: &Option<PathBuf>| {
        ensure!(found.is_some(), "it has no {file}, which {MODULES} needs");
        Ok(())
    };
    let file = within(&modules.pooling)?;
    let found = get(&file)?;
    if modules.lists_pooling {
        needs(&file, &found)?;
    }
    for (kind, path) in &modules.others {
        let file = within(&path.join(CONFIG))?;
        let found = get(&file)?;
        if kind.has_weights() {
            needs(&file, &found)?;
            weights(&format!("{}/", within(path)?), get)?;
        }
    }
    if let Some(path) = &modules.logit_score {
        let file = within(&path.join(CONFIG))?;
        needs(&file, &get(&file)?)?;
    }
    weights("", get)
}

/// Visits the single file of weights, or the shards in the index.
fn weights(prefix: &str, get: &mut dyn FnMut(&str) -> Result<Option<PathBuf>>) -> Result<()> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    if get(&format!("{prefix}{WEIGHTS}"))?.is_some() {
        return Ok(());
    }
    let index = get(&format!("{prefix}{SHARDS}"))?;
    let index = index.with_context(|| {
        format!("it has no weights in safetensors: neither {prefix}{WEIGHTS} nor {prefix}{SHARDS}")
    })?;
    let path = index.display();
    let index: Index = json::parse(&text(&index)?)
        .with_context(|| format!("{path}: expected the index of a checkpoint"))?;
    let shards: std::collections::BTreeSet<String> = index.weight_map.into_values().collect();
    for shard in shards {
        ensure!(
            is_plain(&shard),
            "{path}: expected the name of a file, got {shard:?}"
        );
        let found = get(&format!("{prefix}{shard}"))?;
        ensure!(
            found.is_some(),
            "it has no {prefix}{shard}, which {path} names"
        );
    }
    Ok(())
}
