//! Texts to token ids, within the limits of a model.

use std::ops::Range;

use anyhow::{Context, Result, ensure};
use candle_dynquant_io::json::strict;
use tokenizers::utils::truncation::truncate_encodings;
use tokenizers::{Encoding, PostProcessor, TruncationDirection, TruncationParams};

/// An input of the tokenizer.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A text.
    Text(&'a str),
    /// Two texts, told apart by token types.
    Pair(&'a str, &'a str),
    /// Token ids of this model, special ones included, which are taken as they are.
    Ids(&'a [u32]),
}

/// Where a text is cut that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// At its start.
    Left,
    /// At its end.
    Right,
}

/// The tokens of a text: at least one, and no more than the model takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    pub(crate) ids: Vec<u32>,
    /// 1 for the second text of a pair, else 0.
    pub(crate) types: Vec<u32>,
    /// How many of the first are a prompt's, special ones included.
    pub(crate) prompt: usize,
}

impl Tokens {
    /// Their number; never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Their ids.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }
}

/// Why a text has no tokens that the model could answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokensError {
    /// It has too many.
    #[error("expected at most {limit} tokens, got {got}")]
    TooLong {
        /// The most that are taken.
        limit: usize,
        /// The number that it has.
        got: usize,
    },
    /// It has none.
    #[error("expected at least 1 token, got 0")]
    Empty,
    /// An id is not in the vocabulary.
    #[error("expected token ids below {vocab_size}, got {got}")]
    UnknownId {
        /// Size of the vocabulary.
        vocab_size: usize,
        /// The first id that is not in it.
        got: u32,
    },
    /// The model knows no second text.
    #[error("expected a single text, got a pair: the model has one token type only")]
    Pair,
    /// The tokenizer failed.
    #[error("the tokenizer failed: {0}")]
    Failed(String),
}

/// The tokenizer of a model, with the model's limits.
pub struct Tokenizer {
    whole: tokenizers::Tokenizer,
    vocab_size: usize,
    max_tokens: usize,
    takes_pairs: bool,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`; `path` is for error messages. Truncation and padding that the file
    /// asks for are left out: both depend on the request.
    pub(crate) fn parse(path: &str, json: &[u8], config: &crate::Config) -> Result<Self> {
        let fault = |e: tokenizers::Error| anyhow::anyhow!("{path}: expected a tokenizer, got {e}");
        let mut whole = tokenizers::Tokenizer::from_bytes(strict(json.to_vec())).map_err(fault)?;
        whole.with_truncation(None).map_err(fault)?;
        whole.with_padding(None);
        // Tokens beside the vocabulary, such as Gemma's for images, may have no row.
        let largest = whole.get_vocab(false).into_values().max();
        let largest = largest.with_context(|| format!("{path}: expected tokens, got none"))?;
        ensure!(
            (largest as usize) < config.vocab_size,
            "{path}: expected token ids below vocab_size {} of config.json, got {largest}",
            config.vocab_size,
        );
        let mut tokenizer = Self {
            whole,
            vocab_size: config.vocab_size,
            max_tokens: 0,
            takes_pairs: config.sizes.takes_pairs,
        };
        tokenizer.limit(config.max_tokens)?;
        Ok(tokenizer)
    }

    /// Takes fewer tokens a text than the model could.
    ///
    /// # Errors
    /// When that leaves no room beside the special tokens.
    pub fn limit(&mut self, max_tokens: usize) -> Result<()> {
        let special = self
            .whole
            .encode_fast("", true)
            .map_err(anyhow::Error::msg)?;
        // A pair has one special token more.
        ensure!(
            max_tokens > special.len() + 1,
            "tokens of a text: expected a limit of {} or more, got {max_tokens}",
            special.len() + 2,
        );
        self.max_tokens = max_tokens;
        Ok(())
    }

    /// The most tokens of a text, special ones included.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// The bytes of each token of a text, in its order; special tokens, which have none, are left
    /// out.
    ///
    /// # Errors
    /// When the tokenizer fails.
    pub fn spans(&self, text: &str) -> Result<Vec<Range<usize>>, TokensError> {
        let encoding = self.whole.encode(text, false);
        let encoding = encoding.map_err(|e| TokensError::Failed(e.to_string()))?;
        let spans = encoding.get_offsets().iter();
        Ok(spans.map(|&(start, end)| start..end).collect())
    }

    /// How many tokens a prompt before a text has, with the special ones before it.
    pub(crate) fn prompt_tokens(&self, prompt: &str) -> Result<usize, TokensError> {
        let encoding = self.whole.encode_fast(prompt, true);
        let encoding = encoding.map_err(|e| TokensError::Failed(e.to_string()))?;
        let special = encoding.get_special_tokens_mask().last() == Some(&1);
        Ok(encoding.len() - usize::from(special))
    }

    /// The tokens of `input`, cut there if it is too long.
    ///
    /// # Errors
    /// When it is too long and `cut` is `None`, or has no tokens, or names ones that there are not.
    pub fn encode(&self, input: Input<'_>, cut: Option<Direction>) -> Result<Tokens, TokensError> {
        let encoding = match input {
            Input::Text(text) => self.encoding(text, None, cut),
            Input::Pair(..) if !self.takes_pairs => return Err(TokensError::Pair),
            Input::Pair(first, second) => self.encoding(first, Some(second), cut),
            Input::Ids(ids) => return self.take(ids, cut),
        };
        let encoding = encoding.map_err(|e| TokensError::Failed(e.to_string()))?;
        self.checked(Tokens {
            ids: encoding.get_ids().to_vec(),
            types: encoding.get_type_ids().to_vec(),
            prompt: 0,
        })
    }

    /// What the tokenizer makes of one text or two, cut before special tokens are added. Truncation
    /// of the tokenizer's own would need a copy of it for each direction.
    fn encoding(
        &self,
        first: &str,
        second: Option<&str>,
        cut: Option<Direction>,
    ) -> tokenizers::Result<Encoding> {
        let direction = match (cut, second) {
            (None, None) => return self.whole.encode_fast(first, true),
            (None, Some(second)) => return self.whole.encode_fast((first, second), true),
            (Some(Direction::Left), _) => TruncationDirection::Left,
            (Some(Direction::Right), _) => TruncationDirection::Right,
        };
        let alone = |text| self.whole.encode_fast(text, false);
        let (first, mut second) = (alone(first)?, second.map(alone).transpose()?);
        if let Some(second) = &mut second {
            second.set_type_ids(vec![1; second.len()]);
        }
        let processor = self.whole.get_post_processor();
        let added = processor.map_or(0, |it| it.added_tokens(second.is_some()));
        let params = TruncationParams {
            max_length: self.max_tokens.saturating_sub(added),
            direction,
            ..Default::default()
        };
        let (first, second) = truncate_encodings(first, second, &params)?;
        self.whole.post_process(first, second, true)
    }

    fn take(&self, ids: &[u32], cut: Option<Direction>) -> Result<Tokens, TokensError> {
        let excess = ids.len().saturating_sub(self.max_tokens);
        let ids = match cut {
            None => ids,
            Some(Direction::Left) => &ids[excess..],
            Some(Direction::Right) => &ids[..ids.len() - excess],
        };
        self.checked(Tokens {
            ids: ids.to_vec(),
            types: vec![0; ids.len()],
            prompt: 0,
        })
    }

    fn checked(&self, tokens: Tokens) -> Result<Tokens, TokensError> {
        let vocab_size = self.vocab_size;
        if let Some(&got) = tokens.ids.iter().find(|id| **id as usize >= vocab_size) {
            return Err(TokensError::UnknownId { vocab_size, got });
        }
        let (limit, got) = (self.max_tokens, tokens.len());
        match got {
            0 => Err(TokensError::Empty),
            _ if got > limit => Err(TokensError::TooLong { limit, got }),
            _ => Ok(tokens),
        }
    }
}
