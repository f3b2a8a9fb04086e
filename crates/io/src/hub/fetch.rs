//! Fetches the files of a model from the cache or from the hub.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::cache::Repo;
use super::client::{Client, Listing};
use super::name::{Name, is_commit, is_plain};
use super::settings::Settings;
use crate::input;
use crate::output::NewFile;

/// The name of a file of weights, or the end of the name of a shard.
const WEIGHTS: &str = "model.safetensors";
const SHARDS: &str = "model.safetensors.index.json";
/// The largest file of weights, in bytes; larger models are in shards.
const MAX_WEIGHTS: u64 = 64 << 30;
/// The largest other file, in bytes; Gemma's `tokenizer.json` has 33 MB.
const MAX_OTHER: u64 = 64 << 20;
/// The largest index of shards, in bytes.
const MAX_INDEX: u64 = 4 << 20;

/// The files of a model, each in the cache after it was asked for.
pub struct Files<'a> {
    folder: &'a Path,
    get: &'a mut dyn FnMut(&str) -> Result<Option<PathBuf>>,
}

/// A list of the files that a program reads of a model.
pub struct Reads<'a> {
    /// Asks for each file, for weights last, since they complete a folder.
    pub visit: &'a dyn Fn(&mut Files<'_>) -> Result<()>,
    /// A file whose absence has to be known offline, too: other programs leave the absence of others
    /// unrecorded.
    pub certain: &'a str,
}

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
/// Files in the cache are used without the network; the others that are read are downloaded into the
/// cache. The environment variables of Hugging Face's programs apply: `HF_HOME`, `HF_HUB_CACHE`,
/// `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_ENDPOINT`, `HF_HUB_OFFLINE` and `HF_HUB_DOWNLOAD_TIMEOUT`.
///
/// # Errors
/// When `name` is malformed, the hub has no such model or does not answer, a file arrives
/// incomplete, or the cache cannot be written; the errors of `reads`.
pub fn fetch(
    name: &str,
    reads: &Reads<'_>,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<PathBuf> {
    let name = Name::parse(name)?;
    let settings = Settings::of_environment()?;
    let repo = Repo::new(&settings.cache, &name);
    let missing = match cached(&repo, &name, reads, settings.offline) {
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
    downloaded(&client, &repo, &name, reads, &mut progress).with_context(|| {
        format!(
            "{name}: expected it in the cache {cache}, or from {} (HF_ENDPOINT)",
            settings.endpoint
        )
    })
}

/// The folder, if all files are in the cache. The absence of a file changes the answers: it must be
/// recorded, except offline, where other programs may have left it unrecorded.
fn cached(repo: &Repo, name: &Name, reads: &Reads<'_>, offline: bool) -> Result<PathBuf> {
    let commit = repo.commit(&name.revision);
    let commit = commit.with_context(|| format!("it knows no revision {:?}", name.revision))?;
    let snapshot = repo.snapshot(&commit);
    let mut get = |file: &str| {
        let path = snapshot.join(file);
        if path.exists() {
            return Ok(Some(path));
        }
        let is_lost = path.is_symlink();
        let is_known = repo.lacks(&commit, file) || offline && file != reads.certain;
        ensure!(is_known && !is_lost, "it has no {file}, and does not know whether there is one");
        Ok(None)
    };
    (reads.visit)(&mut Files::new(&snapshot, &mut get))?;
    Ok(snapshot)
}

/// Downloads the missing files; returns the folder.
fn downloaded(
    client: &Client<'_>,
    repo: &Repo,
    name: &Name,
    reads: &Reads<'_>,
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
    let mut get = |file: &str| {
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
    };
    (reads.visit)(&mut Files::new(&snapshot, &mut get))?;
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
    let has_weights = [".safetensors", ".gguf"].iter().any(|end| file.ends_with(end));
    let limit = if has_weights { MAX_WEIGHTS } else { MAX_OTHER };
    let download = client.download(name, commit, file, limit)?;
    let blob = repo.blob(&download.blob(file))?;
    if !blob.exists() {
        let writing = || format!("{}: expected a place to write to", blob.display());
        let mut new = NewFile::beside_nofollow(&blob).with_context(writing)?;
        let total = download.bytes;
        let is_json = file.ends_with(".json");
        download
            .write(&mut new, is_json, &mut |bytes| progress(Progress { file, bytes, of: total }))?;
        new.put().with_context(writing)?;
    }
    repo.link(commit, file, &blob)
}

impl<'a> Files<'a> {
    fn new(folder: &'a Path, get: &'a mut dyn FnMut(&str) -> Result<Option<PathBuf>>) -> Self {
        Self { folder, get }
    }

    /// The folder that the files are in.
    pub fn folder(&self) -> &Path {
        self.folder
    }

    /// The path of a file, or `None` if the model lacks it.
    ///
    /// # Errors
    /// When the file cannot be had, or this is not known.
    pub fn get(&mut self, file: &str) -> Result<Option<PathBuf>> {
        (self.get)(file)
    }

    /// The path of a file that each model has.
    ///
    /// # Errors
    /// Also when the model lacks the file.
    pub fn require(&mut self, file: &str) -> Result<PathBuf> {
        let found = self.get(file)?;
        found.with_context(|| format!("it has no {file}"))
    }

    /// Asks for the single file of weights below a prefix, or the shards in the index.
    ///
    /// # Errors
    /// When there are no weights in safetensors, or a shard is missing.
    pub fn weights(&mut self, prefix: &str) -> Result<()> {
        #[derive(Deserialize)]
        struct Index {
            weight_map: std::collections::BTreeMap<String, String>,
        }
        if self.get(&format!("{prefix}{WEIGHTS}"))?.is_some() {
            return Ok(());
        }
        let index = self.get(&format!("{prefix}{SHARDS}"))?;
        let index = index.with_context(|| {
            format!(
                "it has no weights in safetensors: neither {prefix}{WEIGHTS} nor {prefix}{SHARDS}"
            )
        })?;
        let path = index.display();
        let text = input::read_text(&index, MAX_INDEX).with_context(|| path.to_string())?;
        let index: Index = serde_json::from_str(&text)
            .with_context(|| format!("{path}: expected the index of a checkpoint"))?;
        let shards: std::collections::BTreeSet<String> = index.weight_map.into_values().collect();
        for shard in shards {
            ensure!(is_plain(&shard), "{path}: expected the name of a file, got {shard:?}");
            let found = self.get(&format!("{prefix}{shard}"))?;
            ensure!(found.is_some(), "it has no {prefix}{shard}, which {path} names");
        }
        Ok(())
    }
}
