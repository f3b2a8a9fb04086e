//! Regular files, read within a limit.
//!
//! A path may name anything: opening a fifo without a writer would block forever, and reading a
//! device such as `/dev/zero` would not end. The type is therefore checked first, and no more than
//! the limit is read, whatever length the system states.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use crate::{kind, unexpected};

/// Opens a regular file for reading.
///
/// # Errors
/// When the file cannot be opened, or is a folder, fifo, socket or device; none of these blocks.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(path, OpenOptions::new().read(true))
}

/// Opens a regular file with `options`, which must not truncate it.
///
/// # Errors
/// The errors of [`open`].
pub fn open_with(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    match fs::metadata(path) {
        // Opening some devices has side effects.
        Ok(meta) => check_regular(&meta)?,
        // The file may be created by the call.
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let file = without_waiting(options, false).open(path)?;
    // The path may lead elsewhere by now.
    check_regular(&file.metadata()?)?;
    Ok(file)
}

/// Options that never wait for a fifo and never acquire a controlling terminal; `nofollow`
/// makes a link an error.
pub(crate) fn without_waiting(options: &mut OpenOptions, nofollow: bool) -> &mut OpenOptions {
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt;
        let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        flags.set(OFlags::NOFOLLOW, nofollow);
        options.custom_flags(flags.bits().cast_signed());
    }
    #[cfg(not(unix))]
    let _ = nofollow;
    options
}

fn check_regular(meta: &Metadata) -> io::Result<()> {
    if meta.is_file() {
        return Ok(());
    }
    let got = kind(meta.file_type());
    Err(unexpected(ErrorKind::InvalidInput, "a regular file", got))
}

/// Reads a regular file of at most `max` bytes.
///
/// # Errors
/// The errors of [`open`], and [`ErrorKind::FileTooLarge`] for a longer file.
pub fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let mut bytes = Vec::new();
    let length = file.metadata()?.len().min(max);
    bytes.try_reserve_exact(usize::try_from(length).unwrap_or(usize::MAX))?;
    append(file, max, &mut bytes)?;
    Ok(bytes)
}

/// Reads a regular file of at most `max` bytes of UTF-8.
///
/// # Errors
/// The errors of [`read`], and [`ErrorKind::InvalidData`] if the file is not UTF-8.
pub fn read_text(path: &Path, max: u64) -> io::Result<String> {
    text(read(path, max)?)
}

/// Reads at most `max` bytes of UTF-8 from whatever `path` names. A fifo, such as `<(command)` of a
/// shell, and a terminal are waited for.
///
/// # Errors
/// When the text cannot be read, is longer ([`ErrorKind::FileTooLarge`]), or is not UTF-8
/// ([`ErrorKind::InvalidData`]).
pub fn read_stream(path: &Path, max: u64) -> io::Result<String> {
    text(within(File::open(path)?, max)?)
}

/// Reads the rest of a reader, at most `max` bytes.
///
/// # Errors
/// When the rest cannot be read, or is longer ([`ErrorKind::FileTooLarge`]).
pub fn within(from: impl Read, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    append(from, max, &mut bytes)?;
    Ok(bytes)
}

fn append(mut from: impl Read, max: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
    (&mut from).take(max).read_to_end(bytes)?;
    // The next byte is read but not kept: at most `max` bytes are in memory.
    if bytes.len() as u64 == max && (&mut from).take(1).read_to_end(&mut Vec::new())? > 0 {
        let expected = format!("at most {max} bytes");
        return Err(unexpected(ErrorKind::FileTooLarge, expected, "more"));
    }
    Ok(())
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
        let got = format!("other bytes in line {line}");
        unexpected(ErrorKind::InvalidData, "UTF-8", got)
    })
}

/// Copies a regular file, with its permissions, to a free path, and waits until the copy is on the
/// disk.
///
/// # Errors
/// The errors of [`open`], and when the path is taken or cannot be written.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut from = open(from)?;
    let mut to = File::create_new(to)?;
    io::copy(&mut from, &mut to)?;
    // WASI has no permissions.
    if cfg!(not(target_family = "wasm")) {
        to.set_permissions(from.metadata()?.permissions())?;
    }
    to.sync_all()
}
