//! The part of the cache for one model.
//!
//! | in `models--OWNER--MODEL` | |
//! |---|---|
//! | `refs/REVISION` | the commit of a branch or tag |
//! | `snapshots/COMMIT/FILE` | a link to a blob |
//! | `blobs/ETAG` | a file |
//! | `.no_exist/COMMIT/FILE` | empty: the commit lacks the file |

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::path::{Path, PathBuf};

use crate::{input, output};
use anyhow::{Context, Result};

use super::name::{Name, is_commit};

/// The most bytes of a file with a commit.
const MAX_REF: u64 = 1 << 10;

pub struct Repo {
    root: PathBuf,
}

impl Repo {
    pub fn new(cache: &Path, name: &Name) -> Self {
        let folder = format!("models--{}", name.model.replace('/', "--"));
        Self { root: cache.join(folder) }
    }

    /// The commit of a revision, if it is known.
    pub fn commit(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let commit = input::read_text(&self.root.join("refs").join(revision), MAX_REF).ok()?;
        Some(commit.trim().to_owned()).filter(|it| is_commit(it))
    }

    pub fn set_commit(&self, revision: &str, commit: &str) -> Result<()> {
        if is_commit(revision) {
            return Ok(());
        }
        write(&self.root.join("refs").join(revision), commit.as_bytes())
    }

    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.root.join("snapshots").join(commit)
    }

    /// Whether the commit is known to lack the file.
    pub fn lacks(&self, commit: &str, file: &str) -> bool {
        self.absent(commit, file).exists()
    }

    pub fn set_lacks(&self, commit: &str, file: &str) -> Result<()> {
        write(&self.absent(commit, file), b"")
    }

    fn absent(&self, commit: &str, file: &str) -> PathBuf {
        self.root.join(".no_exist").join(commit).join(file)
    }

    /// The path of a blob, in an existing folder.
    pub fn blob(&self, etag: &str) -> Result<PathBuf> {
        let blob = self.root.join("blobs").join(etag);
        make_folder_of(&blob)?;
        Ok(blob)
    }

    /// Links a blob as a file of a commit.
    pub fn link(&self, commit: &str, file: &str, blob: &Path) -> Result<PathBuf> {
        let path = self.snapshot(commit).join(file);
        make_folder_of(&path)?;
        // Another process may put its link there, or read it, at any time.
        let random = RandomState::new().build_hasher().finish();
        let new = path.with_file_name(format!(".dynquant-{random:016x}"));
        let done = link(file, blob, &new).and_then(|()| fs::rename(&new, &path));
        done.inspect_err(|_| drop(fs::remove_file(&new))).with_context(|| writing(&path))?;
        Ok(path)
    }
}

#[cfg(unix)]
fn link(file: &str, blob: &Path, path: &Path) -> io::Result<()> {
    // A relative link, so that the cache may be moved.
    let up = "../".repeat(2 + file.matches('/').count());
    let etag = blob.file_name().unwrap_or_default();
    std::os::unix::fs::symlink(Path::new(&up).join("blobs").join(etag), path)
}

/// Copies the blob on systems where links require a privilege.
#[cfg(not(unix))]
fn link(_: &str, blob: &Path, path: &Path) -> io::Result<()> {
    fs::copy(blob, path).map(|_| ())
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    make_folder_of(path)?;
    output::write(path, bytes).with_context(|| writing(path))
}

fn make_folder_of(path: &Path) -> Result<()> {
    let folder = output::folder_of(path);
    fs::create_dir_all(folder).with_context(|| writing(folder))
}

fn writing(path: &Path) -> String {
    format!("{}: expected a place to write to", path.display())
}
