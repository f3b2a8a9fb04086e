//! Files, child processes and pipes, for the library, the command and the applications.
//!
//! | module | what it promises |
//! |---|---|
//! | [`input`] | a regular file, read within a limit |
//! | [`output`] | a file or a folder that is replaced whole |
//! | `child` | a child process that ends within a limit and with its parent (feature `child`) |
//! | [`print`](mod@print) | text for a terminal or a pipe, which may be closed |
//! | [`format`](mod@format) | the format of a file in place of the expected one |
//! | `hub` | models by name: downloaded once, into the cache of Hugging Face's programs (feature `hub`) |
//! | [`json`] | JSON as Python writes it, for a strict parser |
//! | [`keys`] | tables of the keys of a format: used, harmless or refused |
#![forbid(unsafe_code)]

use std::fs::FileType;
use std::io::{self, ErrorKind};
use std::{error, fmt};

#[cfg(all(feature = "child", not(target_family = "wasm")))]
pub mod child;
pub mod format;
#[cfg(feature = "hub")]
pub mod hub;
pub mod input;
pub mod json;
pub mod keys;
pub mod output;
pub mod print;

/// The mismatch behind an [`io::Error`] with the same text: a path names something else than is
/// needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unexpected {
    /// The kind or size of file that is needed.
    pub expected: String,
    /// The kind or size that was found.
    pub got: String,
}

impl Unexpected {
    /// The mismatch behind an error, if there is one.
    pub fn behind(error: &io::Error) -> Option<&Self> {
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
fn kind(file_type: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let special = [
            (file_type.is_fifo(), "a fifo"),
            (file_type.is_socket(), "a socket"),
            (file_type.is_char_device(), "a character device"),
            (file_type.is_block_device(), "a block device"),
        ];
        if let Some((_, name)) = special.into_iter().find(|(is, _)| *is) {
            return name;
        }
    }
    if file_type.is_dir() {
        "a folder"
    } else if file_type.is_symlink() {
        "a symbolic link"
    } else if file_type.is_file() {
        "a file"
    } else {
        "something else"
    }
}
