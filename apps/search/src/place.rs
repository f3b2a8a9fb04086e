//! Where an index is: its file, and beside it the lock and the file that is being written.
//!
//! The folder that is indexed may come from anywhere, so nothing is written through a link in it.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use candle_dynquant_io::output::{self, NewFile};

/// The folder in an indexed one that holds its index.
pub const FOLDER: &str = ".dynquant-search";
const FILE: &str = "index";

/// The file of an index.
#[derive(Clone, Debug)]
pub struct Place {
    file: PathBuf,
    /// Whether it is in the folder that it is of, and may be moved with it.
    inside: bool,
}

/// The right to write an index; it ends when this is dropped, or with the process.
pub struct Lock {
    _file: File,
}

impl Place {
    /// The file in the indexed folder `dir`.
    pub fn inside(dir: &Path) -> Self {
        Self {
            file: dir.join(FOLDER).join(FILE),
            inside: true,
        }
    }

    /// A file anywhere; of a link, what it leads to.
    pub fn at(file: &Path) -> Self {
        let real = file.is_symlink().then(|| file.canonicalize().ok());
        Self {
            file: real.flatten().unwrap_or_else(|| file.to_owned()),
            inside: false,
        }
    }

    /// An index by its file, or by the folder that it is in.
    pub fn named(path: &Path) -> Self {
        let is = |path: &Path, name: &str| path.file_name().is_some_and(|it| it == name);
        let in_folder = |path: &Path| path.parent().is_some_and(|parent| is(parent, FOLDER));
        if !path.is_dir() {
            Self {
                file: path.to_owned(),
                inside: is(path, FILE) && in_folder(path),
            }
        } else if is(path, FOLDER) {
            Self::named(&path.join(FILE))
        } else {
            Self::inside(path)
        }
    }

    /// The index of the working folder, or of the next one above it that has one.
    ///
    /// # Errors
    /// When there is none.
    pub fn find() -> Result<Self> {
        let working = std::env::current_dir().context("the working folder")?;
        let mut dir = PathBuf::new();
        for _ in working.ancestors() {
            let place = Self::inside(&dir);
            if place.file.is_file() {
                return Ok(place);
            }
            dir.push("..");
        }
        bail!(
            "expected an index in {} or a folder above it, got none; `dynquant-search index DIR` makes one, \
             --index names one that is elsewhere",
            working.display()
        )
    }

    /// The file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The indexed folder, if the index is in it.
    pub fn root(&self) -> Option<&Path> {
        self.inside.then(|| self.file.parent()?.parent())?
    }

    /// The index that a run which is not at its end leaves beside this one.
    pub fn partial(&self) -> Self {
        Self {
            file: self.beside("partial"),
            inside: false,
        }
    }

    /// Whether `path` is one of the files of the index.
    pub fn owns(&self, path: &Path) -> bool {
        let names = ["lock", "partial"].map(|it| self.beside(it));
        let same = |a: &Path, b: &Path| {
            a.file_name() == b.file_name()
                && matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
        };
        same(&self.file, path)
            || names.iter().any(|name| same(name, path))
            || path.file_name().is_some_and(output::is_temporary)
    }

    /// Makes the folder of the file, and keeps others from writing it.
    ///
    /// # Errors
    /// When another process writes it, or it cannot be written; when its folder in an indexed one,
    /// or one of its files, is a link.
    pub fn lock(&self) -> Result<Lock> {
        if self.inside
            && let Some(folder) = self.file.parent()
        {
            output::create_folder_nofollow(folder).with_context(|| writing(folder))?;
        }
        // Before anything is computed for them.
        for file in [&self.file, &self.beside("partial")] {
            NewFile::beside_nofollow(file).with_context(|| writing(file))?;
        }
        let path = self.beside("lock");
        let file = output::open_lock_nofollow(&path).with_context(|| writing(&path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!(
                "{}: another process is writing this index; try again when it has ended",
                self.file.display()
            ),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("{}: expected a lock", path.display()));
            }
        }
        // As caches do it: version control leaves out the folder.
        let ignored = path.with_file_name(".gitignore");
        if self.inside && ignored.symlink_metadata().is_err() {
            replace(&ignored, |file| file.write_all(b"*\n"))?;
        }
        Ok(Lock { _file: file })
    }

    /// Replaces the file by what `write` writes; it is the old one or the new one at any time.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn replace(&self, _: &Lock, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
        replace(&self.file, write)
    }

    fn beside(&self, extension: &str) -> PathBuf {
        let mut name = self.file.as_os_str().to_owned();
        name.push(".");
        name.push(extension);
        name.into()
    }
}

/// Writes beside `path`, and renames.
fn replace(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
    let written = || -> io::Result<()> {
        let mut new = NewFile::beside_nofollow(path)?;
        write(new.file_mut())?;
        new.put()
    };
    written().with_context(|| writing(path))
}

fn writing(path: &Path) -> String {
    format!("{}: expected a place to write to", path.display())
}
