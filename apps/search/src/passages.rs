//! Texts to passages: the parts of a file that are embedded, cut at the borders of paragraphs and
//! lines.

use std::ops::Range;

use anyhow::{Context, Result};
use dynquant_embed::{Direction, Input, Tokenizer, TokensError};
use serde::{Deserialize, Serialize};

use crate::markdown;

/// The most tokens of a passage, special ones included, where the model takes them.
const MAX_TOKENS: usize = 128;
/// The most bytes of a passage. A tokenizer makes one token of a word that is too long for it, so
/// the number of tokens alone would not limit it.
const MAX_BYTES: usize = 2048;

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Row", into = "Row")]
pub struct Passage {
    /// The hash of its embedded text: see [`key`].
    pub key: u64,
    /// All of it, as the file has it.
    pub source: u64,
    /// Its bytes in the file.
    pub bytes: Range<usize>,
    /// The number of its first line, from 1.
    pub first_line: usize,
    /// The number of its last line.
    pub last_line: usize,
}

/// A passage in a file: short, because there are many.
type Row = (u64, u64, usize, usize, usize, usize);

impl From<Row> for Passage {
    fn from((key, source, start, end, first_line, last_line): Row) -> Self {
        Self {
            key,
            source,
            bytes: start..end,
            first_line,
            last_line,
        }
    }
}

impl From<Passage> for Row {
    fn from(it: Passage) -> Self {
        let Range { start, end } = it.bytes;
        (it.key, it.source, start, end, it.first_line, it.last_line)
    }
}

/// The number that stands for a text: the first 8 bytes of its BLAKE3 hash.
pub fn key(text: &[u8]) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *blake3::hash(text).as_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// Cuts texts by the tokens of a model.
pub struct Splitter<'a> {
    tokenizer: &'a Tokenizer,
    /// The prompt before a passage.
    prompt: &'a str,
    /// The most tokens of a passage, without the prompt's and special ones.
    limit: usize,
}

/// A text to be cut.
#[derive(Clone, Copy)]
struct Texts<'t> {
    source: &'t str,
    /// The embedded text, with blanks in place of all else.
    read: &'t str,
}

/// A line, or a part of one that is too long.
struct Piece {
    bytes: Range<usize>,
    line: usize,
    tokens: usize,
    after_blank_line: bool,
}

impl<'a> Splitter<'a> {
    /// For the model that `tokenizer` is of, and passages behind `prompt`.
    ///
    /// # Errors
    /// When the tokenizer fails, or the prompt is too long.
    pub fn new(tokenizer: &'a Tokenizer, prompt: &'a str) -> Result<Self> {
        let special = match tokenizer.encode(Input::Text(prompt), None) {
            Ok(tokens) => tokens.len(),
            Err(TokensError::Empty) => 0,
            Err(error) => return Err(error).context("the prompt of documents"),
        };
        let limit = max_tokens(tokenizer).saturating_sub(special).max(1);
        Ok(Self {
            tokenizer,
            prompt,
            limit,
        })
    }

    /// The passages of a text in their order, with what is embedded of each. Every line that is not
    /// blank is in one; a line is in several if it is too long for one.
    ///
    /// # Errors
    /// When the tokenizer fails.
    pub fn split(&self, text: &str) -> Result<Vec<(Passage, String)>> {
        self.split_texts(Texts {
            source: text,
            read: text,
        })
    }

    /// As [`split`](Self::split), of Markdown: lines without text are blank ones.
    ///
    /// # Errors
    /// When the tokenizer fails.
    pub fn split_markdown(&self, source: &str) -> Result<Vec<(Passage, String)>> {
        let read = &markdown::text(source);
        self.split_texts(Texts { source, read })
    }

    fn split_texts(&self, texts: Texts<'_>) -> Result<Vec<(Passage, String)>> {
        let pieces = self.pieces(texts)?;
        let mut passages = Vec::new();
        for group in self.groups(&pieces) {
            self.push(texts, &pieces[group], &mut passages)?;
        }
        Ok(passages)
    }

    fn pieces(&self, texts: Texts<'_>) -> Result<Vec<Piece>, TokensError> {
        let mut pieces = Vec::new();
        let mut start = 0;
        let mut after_blank_line = false;
        for (index, line) in texts.read.split_inclusive('\n').enumerate() {
            let content = line.trim_end();
            if content.is_empty() {
                after_blank_line = true;
            }
            let mut rest = content;
            while !rest.is_empty() {
                let (part, tokens) = self.head(rest)?;
                // The first part keeps its indentation.
                let blank = if rest.len() == content.len() {
                    0
                } else {
                    part.len() - part.trim_start().len()
                };
                let from = start + content.len() - rest.len();
                let end = if part.len() == rest.len() {
                    // All of the line is shown, also what is not embedded.
                    start + texts.source[start..start + line.len()].trim_end().len()
                } else {
                    from + part.trim_end().len()
                };
                if !part.trim().is_empty() {
                    pieces.push(Piece {
                        bytes: from + blank..end,
                        line: index + 1,
                        tokens,
                        after_blank_line,
                    });
                    after_blank_line = false;
                }
                rest = &rest[part.len()..];
            }
            start += line.len();
        }
        Ok(pieces)
    }

    /// All of `line`, or a part that a passage takes, with its tokens; cut between words where they
    /// are not too long.
    fn head<'t>(&self, line: &'t str) -> Result<(&'t str, usize), TokensError> {
        let mut head = &line[..line.floor_char_boundary(MAX_BYTES)];
        if head.len() < line.len()
            && let Some(border) = head.rfind(char::is_whitespace)
            && border > MAX_BYTES / 2
        {
            head = &head[..border];
        }
        let spans = self.tokenizer.spans(head)?;
        if spans.len() <= self.limit {
            return Ok((head, spans.len()));
        }
        // Parts of about one length: a short rest would say little.
        let parts = spans.len().div_ceil(self.limit);
        let aim = spans.len().div_ceil(parts);
        let starts_word = |&at: &usize| spans[at - 1].end < spans[at].start;
        let most = self.limit.min(aim + aim / 8);
        let count = (aim / 2 + 1..=most).rev().find(starts_word);
        let count = count.unwrap_or(self.limit);
        let end = head.floor_char_boundary(spans[count].start);
        let first = head.chars().next().map_or(0, char::len_utf8);
        Ok((&head[..end.max(first)], count))
    }

    /// The pieces of each passage: all that fit, without the pieces behind its last blank line if
    /// the rest fills half of a passage.
    fn groups(&self, pieces: &[Piece]) -> Vec<Range<usize>> {
        let mut groups = Vec::new();
        let mut first = 0;
        for next in 0..pieces.len() {
            while first < next && !self.fits(&pieces[first..=next]) {
                let end = first + self.border(&pieces[first..next]);
                groups.push(first..end);
                first = end;
            }
        }
        if first < pieces.len() {
            groups.push(first..pieces.len());
        }
        groups
    }

    fn fits(&self, pieces: &[Piece]) -> bool {
        let bytes = match (pieces.first(), pieces.last()) {
            (Some(first), Some(last)) => last.bytes.end - first.bytes.start,
            _ => 0,
        };
        tokens(pieces) <= self.limit && bytes <= MAX_BYTES
    }

    fn border(&self, pieces: &[Piece]) -> usize {
        let is_border = |&at: &usize| {
            pieces[at].after_blank_line && tokens(&pieces[..at]) >= self.limit.div_ceil(2)
        };
        (1..pieces.len())
            .rev()
            .find(is_border)
            .unwrap_or(pieces.len())
    }

    /// Appends the passage that `pieces` are, or two where they have more tokens together than one
    /// by one.
    fn push(
        &self,
        texts: Texts<'_>,
        pieces: &[Piece],
        passages: &mut Vec<(Passage, String)>,
    ) -> Result<()> {
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else {
            return Ok(());
        };
        let bytes = first.bytes.start..last.bytes.end;
        let content = texts.embedded(bytes.clone());
        let cut = (pieces.len() == 1).then_some(Direction::Right);
        let behind = format!("{}{content}", self.prompt);
        match self.tokenizer.encode(Input::Text(&behind), cut) {
            Ok(_) => {}
            Err(TokensError::TooLong { .. }) => {
                let (left, right) = pieces.split_at(pieces.len() / 2);
                self.push(texts, left, passages)?;
                return self.push(texts, right, passages);
            }
            // Characters that no token stands for.
            Err(TokensError::Empty) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let passage = Passage {
            key: key(content.as_bytes()),
            source: key(&texts.source.as_bytes()[bytes.clone()]),
            bytes,
            first_line: first.line,
            last_line: last.line,
        };
        passages.push((passage, content));
        Ok(())
    }
}

impl Texts<'_> {
    /// The embedded text of a part. Blanks in place of markup are one, as between words.
    fn embedded(&self, bytes: Range<usize>) -> String {
        let text = &self.read[bytes.clone()];
        if text == &self.source[bytes] {
            return text.to_owned();
        }
        let lines = text.lines().map(|line| {
            let indentation = line.len() - line.trim_start().len();
            let words: Vec<&str> = line.split_whitespace().collect();
            format!("{}{}", &line[..indentation], words.join(" "))
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// The most tokens of a passage, special ones included.
pub fn max_tokens(tokenizer: &Tokenizer) -> usize {
    tokenizer.max_tokens().min(MAX_TOKENS)
}

fn tokens(pieces: &[Piece]) -> usize {
    pieces.iter().map(|piece| piece.tokens).sum()
}
