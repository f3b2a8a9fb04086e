//! Inputs of a tokenizer, and the tokens of a text.

use std::ops::Range;

use tokenizers::TruncationDirection;

/// An input of the tokenizer.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A text.
    Text(&'a str),
    /// Two texts, distinguished by token types.
    Pair(&'a str, &'a str),
    /// Token ids of this model, including special tokens, which are used unchanged.
    Ids(&'a [u32]),
}

/// The end at which a text is cut if it is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Cuts at the start.
    Left,
    /// Cuts at the end.
    Right,
}

impl From<Direction> for TruncationDirection {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::Left => Self::Left,
            Direction::Right => Self::Right,
        }
    }
}

/// A prompt before texts, made by [`Tokenizer::prompt`](crate::Tokenizer::prompt).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    pub(crate) text: String,
    /// The number of tokens of the prompt and the special tokens before it.
    pub(crate) tokens: usize,
    /// The number of special tokens behind it.
    pub(crate) ending: usize,
    /// Whether queries stand behind it, in a model of late interaction.
    pub(crate) is_query: bool,
}

impl Prompt {
    /// The text of the prompt; empty for no prompt.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The prompt of queries or of documents, which a model of late interaction tells apart;
    /// at first of documents.
    #[must_use]
    pub fn of_queries(self, is_query: bool) -> Self {
        Self { is_query, ..self }
    }
}

/// A token as the tokenizer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The id of the token.
    pub id: u32,
    /// The part of the text; the name of a special token.
    pub text: String,
    /// The bytes in the text; `None` for a special token.
    pub span: Option<Range<usize>>,
}

/// The tokens of a text: at least one, and no more than the model takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    pub(crate) ids: Vec<u32>,
    /// 1 for the second text of a pair, else 0.
    pub(crate) types: Vec<u32>,
    /// The number of leading tokens that belong to a prompt, including special tokens.
    pub(crate) prompt: usize,
    /// The number of last tokens that no token attends to.
    pub(crate) hidden: usize,
    /// The places of tokens without a vector in late interaction.
    pub(crate) skipped: Vec<usize>,
}

impl Tokens {
    pub(crate) fn new(ids: Vec<u32>, types: Vec<u32>, prompt: usize) -> Self {
        Self { ids, types, prompt, hidden: 0, skipped: Vec::new() }
    }

    /// The number of tokens; never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// The ids of the tokens.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }
}

/// The reason why a text has no tokens that the model could answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokensError {
    /// The text has too many tokens.
    #[error("expected at most {limit} tokens, got {got}")]
    TooLong {
        /// The most tokens of a text.
        limit: usize,
        /// The number of tokens of the text.
        got: usize,
    },
    /// The text has no tokens.
    #[error("expected at least 1 token, got 0")]
    Empty,
    /// An id is not in the vocabulary.
    #[error("expected token ids below {vocab_size}, got {got}")]
    UnknownId {
        /// The size of the vocabulary.
        vocab_size: usize,
        /// The first id that is not in the vocabulary.
        got: u32,
    },
    /// The model cannot distinguish a second text.
    #[error("expected a single text, got a pair: the model has one token type only")]
    Pair,
    /// The tokenizer failed.
    #[error("the tokenizer failed: {0}")]
    Failed(String),
}
