//! Files and folders that are replaced whole: at any time the old one is there, or the new one.
//!
//! A temporary file or folder is written beside its place, and removed if it is not put there. A
//! killed writer leaves it: the next one removes it, by the lock that a living writer holds.
//! An output keeps the permissions of the file that it replaces; otherwise it has the permissions
//! that the user gives to new files.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::{Builder, NamedTempFile, TempDir};

use crate::input::without_waiting;
use crate::{kind, unexpected};

/// The beginning of the names of temporary files and folders.
const PREFIX: &str = ".dynquant-";
/// The length of the random rest of these names.
const RANDOM: usize = 16;
/// The age from which a temporary file without a lock is stale: its writer locks it long before.
const GRACE: Duration = Duration::from_secs(60);
/// Links that lead to one another; systems follow at most 40.
const MAX_LINKS: usize = 40;

/// A file that is being written beside the one that it replaces.
#[derive(Debug)]
pub struct NewFile {
    file: NamedTempFile,
    path: PathBuf,
}

impl NewFile {
    /// Begins a file that replaces the one at `path`, or the one that a link there leads to.
    ///
    /// # Errors
    /// When there is something else than a regular file, or a read-only one, or its folder cannot
    /// be written to.
    pub fn beside(path: &Path) -> io::Result<Self> {
        Self::begin(resolve(path, Kind::File)?)
    }

    /// As [`beside`](Self::beside), for a path in a folder that others may have filled, where a
    /// link may lead anywhere.
    ///
    /// # Errors
    /// As `beside`, and when there is a link.
    pub fn beside_nofollow(path: &Path) -> io::Result<Self> {
        Self::begin(path.to_owned())
    }

    fn begin(path: PathBuf) -> io::Result<Self> {
        let old = replaceable(&path, Kind::File)?;
        let folder = folder_of(&path);
        remove_stale(folder);
        let mode = if old.is_some() { 0o600 } else { 0o666 };
        let file = temporary(mode).tempfile_in(folder).map_err(bare)?;
        // Where files cannot be locked, none is removed.
        let _ = file.as_file().lock();
        if let Some(old) = old {
            keep_permissions(&old, file.path())?;
        }
        Ok(Self { file, path })
    }

    /// The file.
    pub fn file_mut(&mut self) -> &mut File {
        self.file.as_file_mut()
    }

    /// Puts the file in its place, when it is on the disk.
    ///
    /// # Errors
    /// When it cannot be written or renamed; then what was there is left.
    pub fn put(self) -> io::Result<()> {
        self.file.as_file().sync_all()?;
        self.file.persist(&self.path).map_err(|error| error.error)?;
        sync_folder(folder_of(&self.path))
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file_mut().flush()
    }
}

impl Seek for NewFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file_mut().seek(to)
    }
}

/// Replaces a file by these bytes.
///
/// # Errors
/// As [`NewFile`].
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    let mut file = NewFile::beside(path)?;
    file.write_all(bytes.as_ref())?;
    file.put()
}

/// A folder that is being filled beside the one that it replaces.
#[derive(Debug)]
pub struct NewFolder {
    folder: TempDir,
    path: PathBuf,
    _lock: io::Result<File>,
}

impl NewFolder {
    /// Begins a folder that replaces the one at `path`, or the one that a link there leads to.
    ///
    /// # Errors
    /// When there is something else than a folder, or a read-only one, or the folder around it
    /// cannot be written to.
    pub fn beside(path: &Path) -> io::Result<Self> {
        let path = resolve(path, Kind::Folder)?;
        let old = replaceable(&path, Kind::Folder)?;
        remove_stale(folder_of(&path));
        let mode = if old.is_some() { 0o700 } else { 0o777 };
        let folder = temporary(mode).tempdir_in(folder_of(&path));
        let folder = folder.map_err(bare)?;
        let lock = File::open(folder.path()).inspect(|folder| drop(folder.lock()));
        Ok(Self {
            folder,
            path,
            _lock: lock,
        })
    }

    /// The folder to fill.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Puts the folder in its place. The old folder may hold files and folders of the same names,
    /// and nothing else.
    ///
    /// # Errors
    /// When something would be lost, also if it is written meanwhile, or the folder cannot be
    /// renamed; then what was there is left.
    pub fn put(self) -> io::Result<()> {
        self.put_after(|| ())
    }

    /// Calls `last` when the old folder has been looked at, and is not yet replaced.
    fn put_after(self, last: impl FnOnce()) -> io::Result<()> {
        let Self { folder, path, .. } = self;
        sync_folder(folder.path())?;
        if replaceable(&path, Kind::Folder)?.is_none() {
            fs::rename(folder.path(), &path)?;
            let _ = folder.keep();
            return sync_folder(folder_of(&path));
        }
        let new = entries(folder.path())?;
        let old = entries(&path)?;
        check_nothing_lost(&old, &new)?;
        for (name, old) in &old {
            if !old.is_symlink() {
                keep_permissions(old, &folder.path().join(name))?;
            }
        }
        last();
        exchange(folder.path(), &path)?;
        // Others may have written to the old one after it was looked at.
        if let Err(error) = entries(folder.path()).and_then(|old| check_nothing_lost(&old, &new)) {
            if let Err(failed) = exchange(folder.path(), &path) {
                let aside = folder.keep();
                let text = format!(
                    "{error}; what was there is at {}: {failed}",
                    aside.display()
                );
                return Err(io::Error::new(failed.kind(), text));
            }
            return Err(error);
        }
        sync_folder(folder_of(&path))
    }
}

/// Whether a temporary file or folder has this name, here or of another writer.
fn is_temporary(name: &OsStr) -> bool {
    let random = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
    random.is_some_and(|it| it.len() == RANDOM && it.bytes().all(|b| b.is_ascii_alphanumeric()))
}

/// The folder that a path is in: of a bare name the working folder.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Folder,
}

impl Kind {
    /// Looks at what would be replaced.
    fn check(self, meta: &Metadata) -> io::Result<()> {
        let (is, expected) = match self {
            Self::File => (meta.is_file(), "a file"),
            Self::Folder => (meta.is_dir(), "a folder"),
        };
        if is {
            Ok(())
        } else {
            Err(refused(expected, kind(meta.file_type())))
        }
    }
}

/// The file or folder at `path` that may be replaced, if one is there.
fn replaceable(path: &Path, kind: Kind) -> io::Result<Option<Metadata>> {
    let meta = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        meta => meta?,
    };
    kind.check(&meta)?;
    // WASI states no permissions.
    if cfg!(not(target_family = "wasm")) && meta.permissions().readonly() {
        let (expected, got) = ("one that may be written", "a read-only one");
        return Err(unexpected(ErrorKind::PermissionDenied, expected, got));
    }
    Ok(Some(meta))
}

/// The path without links: what a link leads to is replaced, also if it is not there yet, and not
/// the link.
fn resolve(path: &Path, kind: Kind) -> io::Result<PathBuf> {
    // Before anything else: `/dev/stdout` may lead to a pipe, which has no path.
    if let Ok(meta) = fs::metadata(path) {
        kind.check(&meta)?;
    }
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        match path.canonicalize() {
            Ok(real) => return Ok(real),
            // The second where the system has no such function.
            Err(error) if [ErrorKind::NotFound, ErrorKind::Unsupported].contains(&error.kind()) => {
            }
            Err(error) => return Err(error),
        }
        match fs::read_link(&path) {
            Ok(target) => path = folder_of(&path).join(target),
            Err(_) => return Ok(path),
        }
    }
    Err(refused("a path", "links without an end"))
}

/// All entries below a folder, by their paths in it; links are not followed.
fn entries(folder: &Path) -> io::Result<BTreeMap<PathBuf, Metadata>> {
    let mut all = BTreeMap::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(below) = folders.pop() {
        for entry in fs::read_dir(folder.join(&below))? {
            let entry = entry?;
            let name = below.join(entry.file_name());
            let meta = entry.metadata()?;
            if meta.is_dir() {
                folders.push(name.clone());
            }
            all.insert(name, meta);
        }
    }
    Ok(all)
}

/// That all of the old folder is replaced: files and links by files, folders by folders.
fn check_nothing_lost(
    old: &BTreeMap<PathBuf, Metadata>,
    new: &BTreeMap<PathBuf, Metadata>,
) -> io::Result<()> {
    let is_replaced = |(name, old): &(&PathBuf, &Metadata)| {
        new.get(*name).is_some_and(|new| {
            let is_file = old.is_file() || old.is_symlink();
            (old.is_dir() && new.is_dir()) || (is_file && new.is_file())
        })
    };
    let Some((name, meta)) = old.iter().find(|entry| !is_replaced(entry)) else {
        return Ok(());
    };
    let got = match kind(meta.file_type()) {
        "a file" => format!("one with {}", name.display()),
        other => format!("one with {}, {other}", name.display()),
    };
    Err(refused(
        "a folder that holds only files which are replaced",
        &got,
    ))
}

/// Puts `new` in the place of `old`; what was there is then at `new`.
fn exchange(new: &Path, old: &Path) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        // At once, if the file system can.
        if renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE).is_ok() {
            return Ok(());
        }
    }
    let aside = new.with_extension("old");
    fs::rename(old, &aside)?;
    if let Err(error) = fs::rename(new, old) {
        fs::rename(&aside, old)?;
        return Err(error);
    }
    fs::rename(&aside, new)
}

/// Removes the temporary files of killed writers from a folder: writers that live hold locks.
fn remove_stale(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| is_temporary(&entry.file_name())) {
        let Ok(meta) = entry.metadata() else {
            continue;
        };
        let age = meta.modified().ok().and_then(|at| at.elapsed().ok());
        if !(meta.is_file() || meta.is_dir()) || age.is_none_or(|age| age < GRACE) {
            continue;
        }
        let path = entry.path();
        let file = without_waiting(OpenOptions::new().read(true), true).open(&path);
        if file.is_ok_and(|file| file.try_lock().is_ok()) {
            // If it cannot be removed, it stays as it would have.
            let _ = if meta.is_dir() {
                fs::remove_dir_all(&path)
            } else {
                fs::remove_file(&path)
            };
        }
    }
}

/// Copies permissions from the replaced file to the new one, and the owner, where that is allowed.
fn keep_permissions(old: &Metadata, new: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::{MetadataExt, chown};
        let now = fs::symlink_metadata(new)?;
        if (now.uid(), now.gid()) != (old.uid(), old.gid()) {
            let _ = chown(new, Some(old.uid()), Some(old.gid()));
        }
        fs::set_permissions(new, old.permissions())?;
    }
    #[cfg(not(unix))]
    let _ = (old, new);
    Ok(())
}

/// A rename is on the disk when its folder is.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// Temporary files or folders, with these permissions as far as the user gives them to new files.
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

/// An error of `tempfile` without the path that it adds.
fn bare(error: io::Error) -> io::Error {
    match error.to_string().split_once(" at path ") {
        Some((own, _)) => io::Error::new(error.kind(), own),
        None => error,
    }
}

fn refused(expected: &str, got: &str) -> io::Error {
    unexpected(ErrorKind::InvalidInput, expected, got)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_meanwhile_is_not_lost() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        fs::create_dir(&out).unwrap();
        fs::write(out.join("a"), "old").unwrap();
        let new = NewFolder::beside(&out).unwrap();
        fs::write(new.path().join("a"), "new").unwrap();
        let written = || fs::write(out.join("thesis.txt"), "years of work").unwrap();
        let error = new.put_after(written).unwrap_err().to_string();
        assert!(error.ends_with("got one with thesis.txt"), "{error}");
        assert_eq!(fs::read(out.join("thesis.txt")).unwrap(), b"years of work");
        assert_eq!(fs::read(out.join("a")).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
