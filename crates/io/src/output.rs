//! Files and folders that are replaced whole: a reader always finds the old one or the new one.
//!
//! A temporary file or folder is written beside its destination, and removed unless it is put
//! there. A killed writer leaves it behind, and the next writer, which sees that no lock is held,
//! removes it. An output keeps the permissions of the file that it replaces; a new file gets the
//! user's default permissions.

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
/// The most links followed from a path; systems follow at most 40.
const MAX_LINKS: usize = 40;

/// A file that is written beside the file that it replaces.
#[derive(Debug)]
pub struct NewFile {
    file: NamedTempFile,
    path: PathBuf,
}

impl NewFile {
    /// Begins a file that replaces the file at `path`, or the target of a link there.
    ///
    /// # Errors
    /// When there is something other than a regular file, the file is read-only, or its folder is
    /// not writable.
    pub fn beside(path: &Path) -> io::Result<Self> {
        Self::begin(resolve(path, Kind::File)?)
    }

    /// Begins a file like [`beside`](Self::beside), but follows no link: in a folder that others
    /// may have filled, a link may lead anywhere.
    ///
    /// # Errors
    /// The errors of `beside`, and when `path` is a link.
    pub fn beside_nofollow(path: &Path) -> io::Result<Self> {
        Self::begin(path.to_owned())
    }

    fn begin(path: PathBuf) -> io::Result<Self> {
        let old = replaceable(&path, Kind::File)?;
        let folder = folder_of(&path);
        remove_stale(folder);
        let mode = if old.is_some() { 0o600 } else { 0o666 };
        let file = temporary(mode).tempfile_in(folder).map_err(bare)?;
        // Without locks no temporary file is ever removed.
        let _ = file.as_file().lock();
        if let Some(old) = old {
            keep_permissions(&old, file.path())?;
        }
        Ok(Self { file, path })
    }

    /// The file to write.
    pub fn file_mut(&mut self) -> &mut File {
        self.file.as_file_mut()
    }

    /// Puts the file in its place once it is on the disk.
    ///
    /// # Errors
    /// When the file cannot be written or renamed; the old file is then left.
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

/// Replaces a file by `bytes`.
///
/// # Errors
/// The errors of [`NewFile`].
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    let mut file = NewFile::beside(path)?;
    file.write_all(bytes.as_ref())?;
    file.put()
}

/// A folder that is filled beside the folder that it replaces.
#[derive(Debug)]
pub struct NewFolder {
    folder: TempDir,
    path: PathBuf,
    _lock: io::Result<File>,
}

impl NewFolder {
    /// Begins a folder that replaces the folder at `path`, or the target of a link there.
    ///
    /// # Errors
    /// When there is something other than a folder, the folder is read-only, or its parent is not
    /// writable.
    pub fn beside(path: &Path) -> io::Result<Self> {
        let path = resolve(path, Kind::Folder)?;
        let old = replaceable(&path, Kind::Folder)?;
        remove_stale(folder_of(&path));
        let mode = if old.is_some() { 0o700 } else { 0o777 };
        let folder = temporary(mode).tempdir_in(folder_of(&path));
        let folder = folder.map_err(bare)?;
        let lock = File::open(folder.path()).inspect(|folder| drop(folder.lock()));
        Ok(Self { folder, path, _lock: lock })
    }

    /// The folder to fill.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Puts the folder in its place. The old folder may hold only files and folders that the new
    /// folder replaces.
    ///
    /// # Errors
    /// When something would be lost, also if it is written in the meantime, or the folder cannot be
    /// renamed; the old folder is then left.
    pub fn put(self) -> io::Result<()> {
        self.put_after(|| ())
    }

    /// Puts the folder in its place, and calls `last` between the check of the old folder and its
    /// replacement.
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
        // Others may have written to the old folder after the check.
        if let Err(error) = entries(folder.path()).and_then(|old| check_nothing_lost(&old, &new)) {
            if let Err(failed) = exchange(folder.path(), &path) {
                let aside = folder.keep();
                let text = format!("{error}; what was there is at {}: {failed}", aside.display());
                return Err(io::Error::new(failed.kind(), text));
            }
            return Err(error);
        }
        sync_folder(folder_of(&path))
    }
}

/// Whether a name is of a temporary file or folder, of any writer.
fn is_temporary(name: &OsStr) -> bool {
    let random = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
    random.is_some_and(|it| it.len() == RANDOM && it.bytes().all(|b| b.is_ascii_alphanumeric()))
}

/// The folder that contains a path; for a bare name the working folder.
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
    /// Checks that what is there can be replaced.
    fn check(self, meta: &Metadata) -> io::Result<()> {
        let (is, expected) = match self {
            Self::File => (meta.is_file(), "a file"),
            Self::Folder => (meta.is_dir(), "a folder"),
        };
        if is { Ok(()) } else { Err(refused(expected, kind(meta.file_type()))) }
    }
}

/// The metadata of the file or folder at `path`, if it exists and may be replaced.
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

/// The path with links followed: a link's target is replaced, even if it does not exist yet, and
/// never the link.
fn resolve(path: &Path, kind: Kind) -> io::Result<PathBuf> {
    // Checked first: `/dev/stdout` may lead to a pipe, which has no path.
    if let Ok(meta) = fs::metadata(path) {
        kind.check(&meta)?;
    }
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        match path.canonicalize() {
            Ok(real) => return Ok(real),
            // Systems without this function report `Unsupported`.
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

/// All entries below a folder, by relative path; links are not followed.
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

/// Checks that the new folder replaces all of the old one: files and links by files, folders by
/// folders.
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
    Err(refused("a folder that holds only files which are replaced", &got))
}

/// Puts `new` in the place of `old`; the old entry is then at `new`.
fn exchange(new: &Path, old: &Path) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        // Atomically, where the file system supports it.
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

/// Removes the temporary files of killed writers from a folder; live writers hold locks.
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
            // A file that cannot be removed stays.
            let _ = if meta.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        }
    }
}

/// Copies permissions, and the owner where allowed, from the replaced file to the new file.
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

/// Flushes a folder to the disk, and with it the renames in it.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// A builder of temporary files or folders with these permissions, reduced by the umask.
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

/// The error of `tempfile` without the path that it adds.
fn bare(error: io::Error) -> io::Error {
    match error.to_string().split_once(" at path ") {
        Some((inner, _)) => io::Error::new(error.kind(), inner),
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
