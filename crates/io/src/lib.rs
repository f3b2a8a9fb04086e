//! Files, child processes and pipes, and what comes in them, as the library, the command and the
//! applications use them.
//!
//! | module | what it promises |
//! |---|---|
//! | [`input`] | a regular file, read within a limit |
//! | [`output`] | a file or a folder that is replaced whole |
//! | `child` | a child process that ends: within a limit, and with its parent (feature `child`) |
//! | [`print`](mod@print) | text for a terminal or a pipe, which may be closed |
//! | [`format`](mod@format) | which format a file has that is given as another |
//! | [`json`] | JSON as Python writes it, for a strict parser |
//! | [`keys`] | tables of the keys of a format: used, harmless or refused |
#![forbid(unsafe_code)]

use std::fs::FileType;
use std::io::{self, ErrorKind};
use std::{error, fmt};

#[cfg(all(feature = "child", not(target_family = "wasm")))]
pub mod child;
pub mod format;
pub mod input;
pub mod json;
pub mod keys;
pub mod output;
pub mod print;

/// A path names something else than is needed: the cause of an [`io::Error`], which says the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unexpected {
    /// The kind of file, or the size, that is needed.
    pub expected: String,
    /// The one that is there.
    pub got: String,
}

impl Unexpected {
    /// The cause of an error, if it is one of these.
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl fmt::Display for Unexpected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}, got {}", self.expected, self.got)
    }
}

impl error::Error for Unexpected {}

fn unexpected(kind: ErrorKind, expected: impl Into<String>, got: impl Into<String>) -> io::Error {
    let (expected, got) = (expected.into(), got.into());
    io::Error::new(kind, Unexpected { expected, got })
}

/// The type of a file, in words.
fn kind(of: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let special = [
            (of.is_fifo(), "a fifo"),
            (of.is_socket(), "a socket"),
            (of.is_char_device(), "a character device"),
            (of.is_block_device(), "a block device"),
        ];
        if let Some((_, name)) = special.into_iter().find(|(is, _)| *is) {
            return name;
        }
    }
    if of.is_dir() {
        "a folder"
    } else if of.is_symlink() {
        "a symbolic link"
    } else if of.is_file() {
        "a file"
    } else {
        "something else"
    }
}
