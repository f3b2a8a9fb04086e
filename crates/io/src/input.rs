//! Regular files, read within a limit.
//!
//! A path may name anything: a fifo without a writer would be waited for without end, a device such
//! as `/dev/zero` be read without end. So its type comes first, and then no more is read than the
//! limit, whatever length the system states.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use crate::{kind, unexpected};

/// Opens a regular file to be read.
///
/// # Errors
/// When it cannot be opened, or is a folder, fifo, socket or device; none of them is waited for.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(path, OpenOptions::new().read(true))
}

/// Opens a regular file by these options, which must not cut it.
///
/// # Errors
/// As [`open`].
pub fn open_with(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    match fs::metadata(path) {
        // To open some devices does something.
        Ok(meta) => check_regular(&meta)?,
        // Such as one that is to be created.
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let file = without_waiting(options, false).open(path)?;
    // There may be something else by now.
    check_regular(&file.metadata()?)?;
    Ok(file)
}

/// Options by which no fifo is waited for, no terminal comes to control the process, and a link is
/// followed or is an error.
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

/// A regular file of at most `max` bytes.
///
/// # Errors
/// As [`open`], and when there are more bytes ([`ErrorKind::FileTooLarge`]).
pub fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let mut bytes = Vec::new();
    let length = file.metadata()?.len().min(max);
    bytes.try_reserve_exact(usize::try_from(length).unwrap_or(usize::MAX))?;
    append(file, max, &mut bytes)?;
    Ok(bytes)
}

/// A regular file of at most `max` bytes, in UTF-8.
///
/// # Errors
/// As [`read`], and when it is not UTF-8 ([`ErrorKind::InvalidData`]).
pub fn read_text(path: &Path, max: u64) -> io::Result<String> {
    text(read(path, max)?)
}

/// A text in UTF-8 of at most `max` bytes from whatever `path` names: also from a fifo, such as
/// `<(command)` of a shell, or a terminal, which are waited for.
///
/// # Errors
/// When it cannot be read, has more bytes ([`ErrorKind::FileTooLarge`]), or is not UTF-8
/// ([`ErrorKind::InvalidData`]).
pub fn read_stream(path: &Path, max: u64) -> io::Result<String> {
    text(within(File::open(path)?, max)?)
}

/// The rest of what a reader has, at most `max` bytes.
///
/// # Errors
/// When it cannot be read, or has more bytes ([`ErrorKind::FileTooLarge`]).
pub fn within(from: impl Read, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    append(from, max, &mut bytes)?;
    Ok(bytes)
}

fn append(mut from: impl Read, max: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
    (&mut from).take(max).read_to_end(bytes)?;
    // By a byte that is not kept: at most `max` are in memory.
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

/// Copies a regular file, with its permissions, to a path where nothing is, and waits until it is
/// on the disk.
///
/// # Errors
/// As [`open`], and when there is something, or it cannot be written.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut from = open(from)?;
    let mut to = File::create_new(to)?;
    io::copy(&mut from, &mut to)?;
    // WASI has none.
    if cfg!(not(target_family = "wasm")) {
        to.set_permissions(from.metadata()?.permissions())?;
    }
    to.sync_all()
}
