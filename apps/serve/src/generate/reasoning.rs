//! The reasoning of an answer, between `<think>` and `</think>`, apart from the answer.

use super::marks::take_before;

const BEGIN: &str = "<think>";
const END: &str = "</think>";

/// The marks, for tokenizers in which these are special tokens.
pub const MARKS: [&str; 2] = [BEGIN, END];

pub struct Reasoning {
    state: State,
    /// The text that may become a mark, or space at the end of the reasoning.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No mark yet.
    Begin,
    /// The first mark, and space behind it.
    Opened,
    Inside,
    /// The second mark, and space behind it.
    Closed,
    Behind,
}

impl Reasoning {
    /// A text after a prompt whose end is `prompt`, which may have opened the reasoning.
    pub fn after(prompt: &str) -> Self {
        let is_open = prompt.trim_end().ends_with(BEGIN);
        Self { state: if is_open { State::Opened } else { State::Begin }, held: String::new() }
    }

    /// Adds text; returns the certain reasoning and answer, without marks and the space around them.
    pub fn push(&mut self, text: &str, is_end: bool) -> [String; 2] {
        let mut held = std::mem::take(&mut self.held) + text;
        let [mut reasoning, mut answer] = [const { String::new() }; 2];
        loop {
            match self.state {
                State::Begin => {
                    let begun = held.trim_start();
                    if let Some(rest) = begun.strip_prefix(BEGIN) {
                        (self.state, held) = (State::Opened, rest.to_owned());
                        continue;
                    }
                    if is_end || !BEGIN.starts_with(begun) {
                        self.state = State::Behind;
                        continue;
                    }
                    break;
                }
                State::Opened | State::Closed => {
                    held = held.trim_start().to_owned();
                    if held.is_empty() {
                        break;
                    }
                    self.state = match self.state {
                        State::Opened => State::Inside,
                        _ => State::Behind,
                    };
                }
                State::Inside => {
                    let (before, end) = take_before(&mut held, END, is_end);
                    reasoning += &before;
                    if end.is_none() {
                        break;
                    }
                    self.state = State::Closed;
                }
                State::Behind => {
                    answer += &std::mem::take(&mut held);
                    break;
                }
            }
        }
        self.held = held;
        [reasoning, answer]
    }
}

#[cfg(test)]
mod tests {
    use super::super::marks::in_pieces;
    use super::*;

    /// The parts of a text that arrives in pieces of so many characters.
    fn parts(prompt: &str, text: &str, size: usize) -> [String; 2] {
        let mut reasoning = Reasoning::after(prompt);
        let mut all = [const { String::new() }; 2];
        in_pieces(text, size, |piece, is_end| {
            for (all, part) in all.iter_mut().zip(reasoning.push(piece, is_end)) {
                *all += &part;
            }
        });
        all
    }

    #[test]
    fn reasoning_is_apart_however_the_text_arrives() {
        for (prompt, text, expected) in [
            ("", "plain <think>text</think>", ["", "plain <think>text</think>"]),
            ("", "<think>\na é\n\nb\n</think>\n\nThe answer.", ["a é\n\nb", "The answer."]),
            ("", "\n<think>only", ["only", ""]),
            ("", "<thin", ["", "<thin"]),
            ("", " <thinking", ["", " <thinking"]),
            ("x <think>\n", "a < b </thin </think>c</think>", ["a < b </thin", "c</think>"]),
            ("<think>\n\n</think>\n\n", "The answer", ["", "The answer"]),
            ("<think>", "</think>\n1", ["", "1"]),
            ("<think>", "never ends \n </th", ["never ends \n </th", ""]),
            ("", "", ["", ""]),
        ] {
            for size in [1, 2, 3, 7, 100] {
                assert_eq!(parts(prompt, text, size), expected, "{prompt:?} {text:?} {size}");
            }
        }
    }
}
