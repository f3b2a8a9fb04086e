//! Text for a terminal or a pipe, which may be closed.
//!
//! A reader of stdout that stops early, such as `head`, is not an error: [`ended`] then returns the
//! status 0, which satisfies `set -o pipefail`. Any other failure, such as a full device, is an
//! error. Notes on stderr cannot fail: a program continues without them.
//!
//! Names and texts may come from anywhere, so characters that a terminal would obey are escaped by
//! all functions but [`data`] and [`progress`].

use std::borrow::Cow;
use std::error::Error;
use std::fmt::{self, Display};
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

/// Prints one or more lines on stdout, for people.
///
/// # Errors
/// When stdout is closed ([`is_closed`]) or cannot be written.
pub fn line(text: impl Display) -> io::Result<()> {
    data(escaped(&text.to_string()))
}

/// Prints a part of a line on stdout, for people, and flushes it.
///
/// # Errors
/// When stdout is closed ([`is_closed`]) or cannot be written.
pub fn part(text: impl Display) -> io::Result<()> {
    write(escaped(&text.to_string()).as_bytes())
}

/// Prints a line unescaped, for programs, files and colours: text from elsewhere must be quoted, as
/// in JSON.
///
/// # Errors
/// When stdout is closed ([`is_closed`]) or cannot be written.
pub fn data(text: impl Display) -> io::Result<()> {
    write(format!("{text}\n").as_bytes())
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(bytes);
    // Text that is still buffered at the end of the process would be lost silently.
    let written = written.and_then(|()| stdout.flush());
    written.map_err(|error| io::Error::new(error.kind(), Stdout(error)))
}

/// Prints a line on stderr if possible.
pub fn note(text: impl Display) {
    progress(format_args!("{}\n", escaped(&text.to_string())));
}

/// Prints unescaped text on stderr if possible, such as `\r` and the deletion of a line.
pub fn progress(text: impl Display) {
    // One call keeps the lines of several threads or processes whole.
    let _ = io::stderr().write_all(text.to_string().as_bytes());
}

/// Prints an error, with its causes, on one line of stderr.
pub fn fault(error: &(dyn Error + 'static)) {
    let mut line = "error".to_owned();
    for error in chain(error) {
        line += &format!(": {error}");
    }
    note(on_one_line(&line));
}

/// The exit status of a program; prints its error. A closed stdout is not an error.
pub fn ended<E: AsRef<dyn Error>>(done: Result<ExitCode, E>) -> ExitCode {
    match done {
        Ok(status) => status,
        Err(error) if is_closed(error.as_ref()) => ExitCode::SUCCESS,
        Err(error) => {
            fault(error.as_ref());
            ExitCode::FAILURE
        }
    }
}

/// Prints the message of an argument parser and returns the status: 0 for help, on stdout, or
/// `mistake`, on stderr.
pub fn usage(text: impl Display, mistake: Option<u8>) -> ExitCode {
    let text = text.to_string();
    let text = text.trim_end();
    match mistake {
        Some(status) => {
            note(text);
            ExitCode::from(status)
        }
        None => ended(line(text).map(|()| ExitCode::SUCCESS).map_err(Box::<dyn Error>::from)),
    }
}

/// Whether an error or one of its causes is a closed stdout.
pub fn is_closed(error: &(dyn Error + 'static)) -> bool {
    chain(error).any(|error| {
        let error = error.downcast_ref::<io::Error>();
        error.is_some_and(|error| {
            // Other pipes break too, such as a child's.
            let of_stdout = error.get_ref().is_some_and(|inner| inner.is::<Stdout>());
            error.kind() == ErrorKind::BrokenPipe && of_stdout
        })
    })
}

fn chain<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error)
    })
}

/// An error of stdout.
#[derive(Debug)]
struct Stdout(io::Error);

impl Display for Stdout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stdout: {}", self.0)
    }
}

impl Error for Stdout {}

/// The text with escapes such as `\u{1b}` for characters that a terminal would obey, or that
/// reorder the text. Newlines and tabs stay.
pub fn escaped(text: &str) -> Cow<'_, str> {
    escape(text, |c| is_obeyed(c) && !matches!(c, '\n' | '\t'))
}

/// The text of [`escaped`] with newlines and tabs escaped too, for names and messages.
pub fn on_one_line(text: &str) -> Cow<'_, str> {
    escape(text, is_obeyed)
}

fn is_obeyed(c: char) -> bool {
    // Direction marks, embeddings, overrides and isolates, and line separators.
    let directs = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}');
    c.is_control() || directs || matches!(c, '\u{2066}'..='\u{2069}')
}

fn escape(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_escaped(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_escaped_and_nothing_else() {
        let cases = [
            ("encoder.layer.0 größe 層 👩‍💻\t\n\\", None),
            ("\u{1b}[2J", Some("\\u{1b}[2J")),
            ("a\rb\u{8}\0", Some("a\\rb\\u{8}\\u{0}")),
            ("\u{9b}31m\u{7f}", Some("\\u{9b}31m\\u{7f}")),
            ("a\u{202e}b\u{2066}c\u{200f}", Some("a\\u{202e}b\\u{2066}c\\u{200f}")),
            ("a\u{2028}b", Some("a\\u{2028}b")),
        ];
        for (text, expected) in cases {
            assert_eq!(escaped(text), expected.unwrap_or(text), "{text:?}");
        }
        assert_eq!(on_one_line("a\n\tb"), "a\\n\\tb");
    }

    #[test]
    fn only_a_stdout_that_is_closed_is_no_fault() {
        let of_stdout = |kind: ErrorKind| io::Error::new(kind, Stdout(kind.into()));
        assert!(is_closed(&of_stdout(ErrorKind::BrokenPipe)));
        assert!(!is_closed(&of_stdout(ErrorKind::StorageFull)));
        assert!(!is_closed(&io::Error::from(ErrorKind::BrokenPipe)));
        assert!(!is_closed(&io::Error::new(ErrorKind::BrokenPipe, "a child's")));

        #[derive(Debug)]
        struct Context(io::Error);
        impl Display for Context {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the report")
            }
        }
        impl Error for Context {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.0)
            }
        }
        let error = Context(of_stdout(ErrorKind::BrokenPipe));
        assert!(is_closed(&error));
        let boxed: Box<dyn Error> = Box::new(error);
        assert_eq!(ended(Err(boxed)), ExitCode::SUCCESS);
    }
}
