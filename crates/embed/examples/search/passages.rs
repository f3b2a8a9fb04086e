//! Cuts files into passages at the borders of paragraphs, lines and words.

use anyhow::Result;
use dynquant_embed::Encoder;
use serde::Serialize;

/// The most tokens of a passage, including special tokens, if the model takes as many.
const MAX_TOKENS: usize = 128;
/// The longest passage in bytes: a tokenizer may make one token of a long word.
const MAX_BYTES: usize = 2048;

/// A part of a file, whose lines count from 1.
#[derive(Serialize)]
pub struct Passage {
    pub file: String,
    pub first_line: usize,
    pub last_line: usize,
    pub text: String,
}

/// The passages of a file in order; every word is in a passage.
pub fn cut(encoder: &Encoder, file: &str, text: &str) -> Result<Vec<Passage>> {
    let tokenizer = &encoder.tokenizer;
    let around = tokenizer.tokens(encoder.prompts.document(), true)?.len();
    let limit = tokenizer.max_tokens().min(MAX_TOKENS).saturating_sub(around);
    let starts = tokenizer.spans(text)?.into_iter();
    let starts: Vec<usize> = starts.map(|it| text.floor_char_boundary(it.start)).collect();
    let newlines = |text: &str| text.matches('\n').count();
    let mut passages = Vec::new();
    let (mut next, mut start, mut line) = (0, 0, 1);
    while next < starts.len() {
        next = border(text, &starts, next, limit.max(1));
        let end = starts.get(next).copied().unwrap_or(text.len());
        let (part, content) = (&text[start..end], text[start..end].trim());
        let first_line = line + newlines(&part[..part.len() - part.trim_start().len()]);
        if !content.is_empty() {
            passages.push(Passage {
                file: file.to_owned(),
                first_line,
                last_line: first_line + newlines(content),
                text: content.to_owned(),
            });
        }
        line += newlines(part);
        start = end;
    }
    Ok(passages)
}

/// The token before which the passage from token `first` on ends: the end if all tokens fit, else
/// the last start of a paragraph, line or word in the second half of the tokens that fit.
fn border(text: &str, starts: &[usize], first: usize, limit: usize) -> usize {
    let fits = |&next: &usize| {
        let end = starts.get(next).copied().unwrap_or(text.len());
        next - first <= limit && end - starts[first] <= MAX_BYTES
    };
    let fitting = (first + 1..=starts.len()).take_while(fits).last();
    let last = fitting.unwrap_or(first + 1);
    if last == starts.len() {
        return last;
    }
    let begins = |&next: &usize| {
        let (before, after) = text.split_at(starts[next]);
        let blank = before.len() - before.trim_end().len();
        let blank = starts[next] - blank..starts[next] + after.len() - after.trim_start().len();
        let newlines = text[blank.clone()].matches('\n').count();
        (newlines.min(2), !blank.is_empty(), next)
    };
    let half = first + (last - first).div_ceil(2);
    (half..=last).max_by_key(begins).unwrap_or(last)
}
