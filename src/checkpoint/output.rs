//! Files and folders that are replaced whole: at any time the old one is there, or the new one.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::Builder;

use super::writer::writing;
use crate::error::{Error, Result};

/// The beginning of the names of temporary files and folders.
const PREFIX: &str = ".dynquant-";
/// The length of the random rest of these names.
const RANDOM: usize = 16;
/// The age from which a temporary file without a lock is stale: its writer locks it long before.
const GRACE: Duration = Duration::from_secs(60);

/// Writes a file beside `path` and renames it.
///
/// # Errors
/// Those of `write`, and when the folder of `path` cannot be written to; then nothing is changed.
pub(super) fn replace_file(path: &Path, write: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    let replace = || {
        if path.is_dir() {
            return Err(not_replaced("a file", "a folder"));
        }
        // What a link leads to is replaced, not the link.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let folder = folder_of(&path);
        remove_stale(folder);
        let mut file = temporary(0o666).tempfile_in(folder).map_err(writing)?;
        // Where files cannot be locked, none is removed.
        let _ = file.as_file().lock();
        write(file.as_file_mut())?;
        file.as_file().sync_all().map_err(writing)?;
        file.persist(&path).map_err(|e| writing(e.error))?;
        sync_folder(folder)
    };
    replace().map_err(|e| e.in_file(path))
}

/// Fills a folder beside `path` and puts it in the place of `path`, which may hold files that are
/// replaced, and no others.
///
/// # Errors
/// Those of `fill`, and when a file would be lost or cannot be written; then nothing is changed.
pub(super) fn replace_folder(path: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let replace = || {
        if path.exists() && !path.is_dir() {
            return Err(not_replaced("a folder", "a file"));
        }
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        remove_stale(folder_of(&path));
        let new = temporary(0o777);
        let new = new.tempdir_in(folder_of(&path)).map_err(writing)?;
        let _lock = File::open(new.path()).inspect(|folder| drop(folder.lock()));
        fill(new.path())?;
        sync_folder(new.path())?;
        let old = entries(&path)?;
        let kept = entries(new.path())?;
        if let Some(name) = old.difference(&kept).next() {
            let got = format!("one with {}", Path::new(name).display());
            return Err(not_replaced(
                "a folder that holds only files which are replaced",
                &got,
            ));
        }
        exchange(new.path(), &path)?;
        sync_folder(folder_of(&path))
    };
    replace().map_err(|e| e.in_file(path))
}

/// Removes the temporary files of killed writers from a folder: writers that live hold locks.
fn remove_stale(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let random = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let is_random = |random: &str| random.bytes().all(|b| b.is_ascii_alphanumeric());
        let Some(_) = random.filter(|random| random.len() == RANDOM && is_random(random)) else {
            continue;
        };
        let Ok(meta) = entry.metadata() else {
            continue;
        };
        let age = meta.modified().ok().and_then(|at| at.elapsed().ok());
        if !(meta.is_file() || meta.is_dir()) || age.is_none_or(|age| age < GRACE) {
            continue;
        }
        let path = entry.path();
        let unlocked = File::open(&path).is_ok_and(|file| file.try_lock().is_ok());
        // If it cannot be removed, it stays as it would have.
        let _ = match unlocked {
            true if meta.is_dir() => fs::remove_dir_all(&path),
            true => fs::remove_file(&path),
            false => Ok(()),
        };
    }
}

/// Puts `new` in the place of `old`; what was there is then at `new`, which is removed later.
fn exchange(new: &Path, old: &Path) -> Result<()> {
    if !old.exists() {
        return fs::rename(new, old).map_err(writing);
    }
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        // At once, if the file system can.
        if renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE).is_ok() {
            return Ok(());
        }
    }
    let aside = new.with_extension("old");
    fs::rename(old, &aside).map_err(writing)?;
    if let Err(error) = fs::rename(new, old) {
        fs::rename(&aside, old).map_err(writing)?;
        return Err(writing(error));
    }
    fs::rename(&aside, new).map_err(writing)
}

/// The names of what is below a folder; none if there is no such folder.
fn entries(folder: &Path) -> Result<BTreeSet<OsString>> {
    fn add(folder: &Path, below: &Path, names: &mut BTreeSet<OsString>) -> std::io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let below = below.join(entry.file_name());
            match entry.file_type()?.is_dir() {
                true => add(&entry.path(), &below, names)?,
                false => {
                    names.insert(below.into_os_string());
                }
            }
        }
        Ok(())
    }
    let mut names = BTreeSet::new();
    if folder.exists() {
        add(folder, &PathBuf::new(), &mut names).map_err(writing)?;
    }
    Ok(names)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// A rename is on the disk when its folder is.
fn sync_folder(folder: &Path) -> Result<()> {
    match cfg!(unix) {
        true => File::open(folder)
            .and_then(|f| f.sync_all())
            .map_err(writing),
        false => Ok(()),
    }
}

/// Temporary files or folders, with the permissions that one of the user's own would have.
fn temporary(mode: u32) -> Builder<'static, 'static> {
    let mut builder = Builder::new();
    builder.prefix(PREFIX).rand_bytes(RANDOM);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(mode));
    }
    #[cfg(not(unix))]
    let _ = mode;
    builder
}

fn not_replaced(expected: &str, got: &str) -> Error {
    Error::InvalidArgument {
        what: "output",
        expected: expected.to_owned(),
        got: got.to_owned(),
    }
}
