//! Converts texts to token ids, within the limits of a model.

use std::ops::Range;

use anyhow::{Context, Result, ensure};
use candle_dynquant_io::json::strict;
use tokenizers::models::ModelWrapper;
use tokenizers::normalizers::{Lowercase, NormalizerWrapper, Sequence};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;
use tokenizers::processors::PostProcessorWrapper;
use tokenizers::{Encoding, PostProcessor, TruncationDirection};

use crate::config::{Config, NamedToken, TokenizerConfig};
use crate::late::LateSettings;
use crate::pairs::PairTemplate;
use crate::tokens::{Direction, Input, Prompt, Token, Tokens, TokensError};

/// The tokenizer of a model, with the model's limits.
pub struct Tokenizer {
    whole: tokenizers::Tokenizer,
    vocab_size: usize,
    max_tokens: usize,
    takes_pairs: bool,
    /// Whether the model is given token types.
    gives_types: bool,
    /// The token that texts are padded with to the most tokens.
    pad: Option<u32>,
    /// The chat template of a model that takes pairs as one text.
    chat: Option<Chat>,
    /// The prompt before the first text of pairs.
    pair_prompt: Prompt,
    /// The settings of queries and documents in late interaction.
    late: Option<LateSettings>,
}

struct Chat {
    template: PairTemplate,
    /// The last tokens of any pair, which are kept when it is cut.
    ending: Vec<u32>,
}

/// The bytes of a token in a text; none of a special token.
pub(crate) type Span = Option<Range<usize>>;

enum First<'a> {
    Alone { text: Box<Encoding>, length: usize, room: usize },
    Chat(&'a Chat, String),
}

impl Tokenizer {
    /// Reads a `tokenizer.json`; `path` is for error messages. The truncation and padding in the
    /// file are ignored: both depend on the request.
    pub(crate) fn parse(path: &str, json: &[u8], config: &Config) -> Result<Self> {
        let fault = |e: tokenizers::Error| anyhow::anyhow!("{path}: expected a tokenizer, got {e}");
        let mut whole = tokenizers::Tokenizer::from_bytes(strict(json.to_vec())).map_err(fault)?;
        let mut most = config.max_tokens;
        if config.tokenizer.is_bare {
            let cut = whole.get_truncation();
            let is_right = cut.is_none_or(|cut| cut.direction == TruncationDirection::Right);
            ensure!(is_right, "{path}: expected truncation on the right, got the left");
            most = cut.map_or(most, |cut| most.min(cut.max_length));
            whole.with_post_processor(None::<PostProcessorWrapper>);
        }
        whole.with_truncation(None).map_err(fault)?;
        whole.with_padding(None);
        let model = match whole.get_model() {
            ModelWrapper::WordPiece(_) => "WordPiece",
            ModelWrapper::BPE(_) => "BPE",
            ModelWrapper::Unigram(_) => "Unigram",
            ModelWrapper::WordLevel(_) => "WordLevel",
        };
        if let Some((class, expected)) = &config.tokenizer.model {
            ensure!(
                model == *expected,
                "{path}: expected {expected}, the model of tokenizer_class {class:?} \
                 (tokenizer_config.json), got {model}"
            );
        }
        check_parts(&whole, path, &config.tokenizer)?;
        set_normalizer(&mut whole, config).map_err(fault)?;
        add_tokens(&mut whole, path, &config.tokenizer)?;
        // Tokens outside the vocabulary, such as Gemma's for images, may lack a row.
        let largest = whole.get_vocab(false).into_values().max();
        let largest = largest.with_context(|| format!("{path}: expected tokens, got none"))?;
        ensure!(
            (largest as usize) < config.vocab_size,
            "{path}: expected token ids below vocab_size {} of config.json, got {largest}",
            config.vocab_size,
        );
        let pad = config.tower.is_some_and(|tower| tower.is_padded);
        let pad = pad.then(|| padding(&whole, path, &config.tokenizer)).transpose()?;
        let mut tokenizer = Self {
            pad,
            whole,
            vocab_size: config.vocab_size,
            max_tokens: 0,
            takes_pairs: config.sizes.takes_pairs || !config.tokenizer.gives_types,
            gives_types: config.tokenizer.gives_types,
            chat: None,
            pair_prompt: Prompt::default(),
            late: None,
        };
        let limited = tokenizer.limit(most);
        limited.with_context(|| config.limited.clone())?;
        Ok(tokenizer)
    }

    pub(crate) fn begin_pairs(&mut self, prompt: &str) -> Result<()> {
        self.pair_prompt = self.prompt(prompt)?;
        Ok(())
    }

    /// Sets the settings of late interaction, and tests them.
    pub(crate) fn set_late(&mut self, settings: LateSettings) -> Result<()> {
        self.late = Some(settings);
        for is_query in [true, false] {
            let prompt = Prompt::default().of_queries(is_query);
            self.encode_behind(&prompt, "", Some(Direction::Right))?;
        }
        Ok(())
    }

    /// Sets the template that turns pairs into a text.
    pub(crate) fn write_pairs(&mut self, template: PairTemplate) -> Result<()> {
        let ids = |text| -> Result<Vec<u32>> {
            Ok(self.alone(&template.text(text, text)?)?.get_ids().to_vec())
        };
        // The method of sentence-transformers, with the same two texts.
        let [mut one, other] = [ids("0")?, ids("1 2 3 4")?];
        let pairs = one.iter().rev().zip(other.iter().rev());
        let same = pairs.take_while(|(a, b)| a == b).count();
        let is_known = same < one.len().min(other.len());
        let ending = one.split_off(one.len() - if is_known { same } else { 0 });
        self.chat = Some(Chat { template, ending });
        Ok(())
    }

    /// Reduces the most tokens of a text.
    ///
    /// # Errors
    /// When only special tokens would fit.
    pub fn limit(&mut self, max_tokens: usize) -> Result<()> {
        let special = self.whole.encode_fast("", true).map_err(anyhow::Error::msg)?;
        // A pair has one more special token.
        ensure!(
            max_tokens > special.len() + 1,
            "tokens of a text: expected a limit of {} or more, got {max_tokens}",
            special.len() + 2,
        );
        self.max_tokens = max_tokens;
        Ok(())
    }

    /// The most tokens of a text, including special tokens.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// The bytes of each token of a text, in order, without special tokens, which have no bytes.
    ///
    /// # Errors
    /// When the tokenizer fails.
    pub fn spans(&self, text: &str) -> Result<Vec<Range<usize>>, TokensError> {
        let encoding = self.whole.encode(text, false).map_err(failed)?;
        let spans = encoding.get_offsets().iter();
        Ok(spans.map(|&(start, end)| start..end).collect())
    }

    /// All tokens of a text, of any number, with or without special tokens.
    ///
    /// # Errors
    /// When the tokenizer fails.
    pub fn tokens(&self, text: &str, special: bool) -> Result<Vec<Token>, TokensError> {
        let encoding = self.whole.encode(text, special).map_err(failed)?;
        let spans = encoding.get_offsets().iter();
        let masks = encoding.get_special_tokens_mask().iter();
        let tokens = encoding.get_ids().iter().zip(encoding.get_tokens());
        let token = |(((&id, name), &(start, end)), &is_special): (((&u32, &String), _), &u32)| {
            if is_special == 1 {
                let (text, span) = (name.clone(), None);
                return Token { id, text, span };
            }
            // Byte-level tokens may divide a character.
            let bytes = text.as_bytes().get(start..end).unwrap_or_default();
            let (text, span) = (String::from_utf8_lossy(bytes).into_owned(), start..end);
            let span = Some(span);
            Token { id, text, span }
        };
        Ok(tokens.zip(spans).zip(masks).map(token).collect())
    }

    /// The ids of the tokens under these keys of files.
    pub(crate) fn ids(&self, named: &[NamedToken], keys: &[&str]) -> Vec<u32> {
        let named = named.iter().filter(|it| keys.contains(&&*it.key));
        let ids = named.filter_map(|it| self.whole.token_to_id(&it.token.content));
        ids.collect()
    }

    /// The text of token ids, with or without special tokens.
    ///
    /// # Errors
    /// When an id is not in the vocabulary, or the tokenizer fails.
    pub fn decode(&self, ids: &[u32], special: bool) -> Result<String, TokensError> {
        self.check_ids(ids)?;
        self.whole.decode(ids, !special).map_err(failed)
    }

    /// A prompt for [`encode_behind`](Self::encode_behind).
    ///
    /// # Errors
    /// When the tokenizer fails.
    pub fn prompt(&self, text: &str) -> Result<Prompt, TokensError> {
        let encoding = self.whole.encode_fast(text, true).map_err(failed)?;
        let ending = usize::from(encoding.get_special_tokens_mask().last() == Some(&1));
        let tokens = if text.is_empty() { 0 } else { encoding.len() - ending };
        let text = text.to_owned();
        Ok(Prompt { text, tokens, ending, is_query: false })
    }

    /// Encodes a text after a prompt, as [`encode`](Self::encode) does, and records the prompt's
    /// length, which some poolings skip.
    ///
    /// ```
    /// use dynquant_embed::{Direction, Encoder, Input};
    ///
    /// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/reference/encoders/bert");
    /// let encoder = Encoder::open(folder.as_ref(), None)?;
    /// let tokenizer = &encoder.tokenizer;
    /// let prompt = tokenizer.prompt(encoder.prompts.query())?;
    /// let tokens = tokenizer.encode_behind(&prompt, "river", Some(Direction::Right))?;
    /// let whole = tokenizer.encode(Input::Text("query the river"), None)?;
    /// assert_eq!(tokens.ids(), whole.ids());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`encode`](Self::encode).
    pub fn encode_behind(
        &self,
        prompt: &Prompt,
        text: &str,
        cut: Option<Direction>,
    ) -> Result<Tokens, TokensError> {
        let most = self.max_tokens;
        if let Some(late) = &self.late {
            let side = if prompt.is_query { &late.query } else { &late.document };
            let text = format!("{}{text}", prompt.text);
            let tokens = self.text(&text, 0, side.room(most), cut)?;
            let tokens = side.finish(tokens, most, |word| self.whole.token_to_id(word))?;
            self.check_ids(&tokens.ids)?;
            return Ok(tokens);
        }
        if prompt.text.is_empty() {
            return self.text(text, 0, most, cut);
        }
        let tokens = match cut {
            Some(Direction::Left) => prompt.tokens,
            // A prompt that is cut still has its special tokens.
            _ => prompt.tokens.min(most - prompt.ending),
        };
        self.text(&format!("{}{text}", prompt.text), tokens, most, cut)
    }

    /// Encodes pairs with the same first text, which is tokenized once, as [`encode`](Self::encode)
    /// does.
    ///
    /// ```
    /// use dynquant_embed::{Encoder, Input, Preset};
    ///
    /// let tokenizer = Encoder::embedded(Preset::default())?.tokenizer;
    /// let pair = tokenizer.pairs("a text", None)?;
    /// let expected = tokenizer.encode(Input::Pair("a text", "an editor"), None)?;
    /// assert_eq!(pair("an editor")?, expected);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the model cannot distinguish a second text, or the tokenizer fails.
    pub fn pairs(
        &self,
        first: &str,
        cut: Option<Direction>,
    ) -> Result<impl Fn(&str) -> Result<Tokens, TokensError>, TokensError> {
        if !self.takes_pairs {
            return Err(TokensError::Pair);
        }
        let first = match &self.chat {
            Some(chat) => First::Chat(chat, self.reachable(first, cut)?),
            None => {
                let first = format!("{}{first}", self.pair_prompt.text);
                let (room, mut text) = (self.room(self.max_tokens, true), self.alone(&first)?);
                let length = text.len();
                // The most tokens that can be left beside any second text.
                truncate(&mut text, room, cut);
                let text = Box::new(text);
                First::Alone { text, length, room }
            }
        };
        Ok(move |second: &str| match &first {
            First::Chat(chat, first) => self.chat(chat, first, second, cut),
            &First::Alone { ref text, length, room } => {
                let (mut first, mut second) = (Encoding::clone(text), self.alone(second)?);
                second.set_type_ids(vec![1; second.len()]);
                let [of_first, of_second] = shares([length, second.len()], room);
                truncate(&mut first, of_first, cut);
                truncate(&mut second, of_second, cut);
                let tokens = self.completed(first, Some(second), self.pair_prompt.tokens)?;
                self.checked(tokens, self.max_tokens)
            }
        })
    }

    /// The part of a query that can remain after cutting, so that a long query is not tokenized
    /// whole with each text.
    fn reachable(&self, query: &str, cut: Option<Direction>) -> Result<String, TokensError> {
        /// The number of further tokens that are kept, since a token may change the tokens before
        /// it.
        const MARGIN: usize = 64;
        let Some(direction) = cut else {
            return Ok(query.to_owned());
        };
        let encoding = self.whole.encode(query, false).map_err(failed)?;
        let (spans, kept) = (encoding.get_offsets(), self.max_tokens + MARGIN);
        let excess = spans.len().saturating_sub(kept);
        let part = match direction {
            _ if excess == 0 => query,
            Direction::Right => &query[..query.floor_char_boundary(spans[kept].0)],
            Direction::Left => &query[query.floor_char_boundary(spans[excess].0)..],
        };
        Ok(part.to_owned())
    }

    /// The tokens of a pair as one text, which contains its special tokens.
    fn chat(
        &self,
        chat: &Chat,
        first: &str,
        second: &str,
        cut: Option<Direction>,
    ) -> Result<Tokens, TokensError> {
        let text = chat.template.text(first, second);
        let text = text.map_err(|error| TokensError::Failed(format!("{error:#}")))?;
        let mut ids = self.alone(&text)?.get_ids().to_vec();
        if cut == Some(Direction::Right) && ids.len() > self.max_tokens {
            ids.truncate(self.max_tokens);
            let kept = chat.ending.len().min(ids.len());
            let (start, ending) = (ids.len() - kept, &chat.ending);
            ids[start..].copy_from_slice(&ending[ending.len() - kept..]);
        }
        self.take(&ids, cut)
    }

    /// The tokens of `input`, cut in the direction `cut` if it is too long.
    ///
    /// # Errors
    /// When the input is too long and `cut` is `None`, has no tokens, or has an unknown id.
    pub fn encode(&self, input: Input<'_>, cut: Option<Direction>) -> Result<Tokens, TokensError> {
        match input {
            Input::Text(text) => self.text(text, 0, self.max_tokens, cut),
            Input::Pair(first, second) => self.pairs(first, cut)?(second),
            Input::Ids(ids) => self.take(ids, cut),
        }
    }

    /// The tokens of a text, at most `most`, the first `prompt` of which belong to a prompt. The
    /// tokenizer's truncation would require a copy of it for each direction.
    fn text(
        &self,
        text: &str,
        prompt: usize,
        most: usize,
        cut: Option<Direction>,
    ) -> Result<Tokens, TokensError> {
        let (room, mut encoding) = (self.room(most, false), self.alone(text)?);
        let excess = match cut {
            Some(Direction::Left) => encoding.len().saturating_sub(room),
            Some(Direction::Right) | None => 0,
        };
        truncate(&mut encoding, room, cut);
        let tokens = self.completed(encoding, None, prompt.saturating_sub(excess))?;
        self.checked(tokens, most)
    }

    /// The tokens of a text, which is cut at its end, and the bytes of each in the text, whole
    /// characters; none of special tokens.
    pub(crate) fn located(&self, text: &str) -> Result<(Tokens, Vec<Span>), TokensError> {
        let mut encoding = self.whole.encode(text, false).map_err(failed)?;
        let room = self.room(self.max_tokens, false);
        truncate(&mut encoding, room, Some(Direction::Right));
        let encoding = self.whole.post_process(encoding, None, true);
        let encoding = encoding.map_err(failed)?;
        let masks = encoding.get_special_tokens_mask().iter();
        let spans = masks.zip(encoding.get_offsets()).map(|(mask, &(start, end))| {
            let span = text.floor_char_boundary(start)..text.ceil_char_boundary(end);
            Some(span).filter(|_| *mask == 0)
        });
        let spans = spans.collect();
        let tokens = self.of_encoding(&encoding, 0);
        Ok((self.checked(tokens, self.max_tokens)?, spans))
    }

    /// The tokens of a text without special tokens.
    fn alone(&self, text: &str) -> Result<Encoding, TokensError> {
        self.whole.encode_fast(text, false).map_err(failed)
    }

    /// The tokens of a text or a pair without special tokens, if it has `most` with these.
    fn room(&self, most: usize, is_pair: bool) -> usize {
        let processor = self.whole.get_post_processor();
        let special = processor.map_or(0, |it| it.added_tokens(is_pair));
        most.saturating_sub(special)
    }

    fn completed(
        &self,
        first: Encoding,
        second: Option<Encoding>,
        prompt: usize,
    ) -> Result<Tokens, TokensError> {
        let encoding = self.whole.post_process(first, second, true);
        Ok(self.of_encoding(&encoding.map_err(failed)?, prompt))
    }

    fn of_encoding(&self, encoding: &Encoding, prompt: usize) -> Tokens {
        let ids = encoding.get_ids().to_vec();
        let types =
            if self.gives_types { encoding.get_type_ids().to_vec() } else { vec![0; ids.len()] };
        Tokens::new(ids, types, prompt)
    }

    fn take(&self, ids: &[u32], cut: Option<Direction>) -> Result<Tokens, TokensError> {
        let excess = ids.len().saturating_sub(self.max_tokens);
        let ids = match cut {
            None => ids,
            Some(Direction::Left) => &ids[excess..],
            Some(Direction::Right) => &ids[..ids.len() - excess],
        };
        let tokens = Tokens::new(ids.to_vec(), vec![0; ids.len()], 0);
        self.checked(tokens, self.max_tokens)
    }

    fn checked(&self, mut tokens: Tokens, limit: usize) -> Result<Tokens, TokensError> {
        self.check_ids(&tokens.ids)?;
        if let Some(pad) = self.pad.filter(|_| tokens.len() > 0) {
            let length = tokens.len().max(self.max_tokens);
            tokens.ids.resize(length, pad);
            tokens.types.resize(length, 0);
        }
        let got = tokens.len();
        match got {
            0 => Err(TokensError::Empty),
            _ if got > limit => Err(TokensError::TooLong { limit, got }),
            _ => Ok(tokens),
        }
    }

    fn check_ids(&self, ids: &[u32]) -> Result<(), TokensError> {
        let vocab_size = self.vocab_size;
        match ids.iter().find(|id| **id as usize >= vocab_size) {
            Some(&got) => Err(TokensError::UnknownId { vocab_size, got }),
            None => Ok(()),
        }
    }
}

/// The tokens of each text; an error names the text at fault.
pub(crate) fn each<T, U>(
    texts: &[T],
    encode: impl Fn(&T) -> Result<U, TokensError>,
) -> Result<Vec<U>> {
    let tokens = texts.iter().enumerate();
    let tokens = tokens.map(|(index, text)| encode(text).with_context(|| format!("text {index}")));
    tokens.collect()
}

fn failed(error: tokenizers::Error) -> TokensError {
    TokensError::Failed(error.to_string())
}

/// Sets the normalizer of transformers and sentence-transformers, as the other files determine it.
fn set_normalizer(whole: &mut tokenizers::Tokenizer, config: &Config) -> tokenizers::Result<()> {
    let mut normalizer = whole.get_normalizer().cloned();
    if let Some(NormalizerWrapper::BertNormalizer(bert)) = &mut normalizer
        && let Some((chinese, accents, lower_case)) = config.tokenizer.bert
    {
        bert.handle_chinese_chars = chinese;
        bert.strip_accents = accents;
        bert.lowercase = lower_case;
    }
    let mut parts: Vec<NormalizerWrapper> = match normalizer {
        Some(NormalizerWrapper::Sequence(parts)) => parts.into_iter().collect(),
        single => single.into_iter().collect(),
    };
    let is_lower = |part: &NormalizerWrapper| matches!(part, NormalizerWrapper::Lowercase(_));
    if config.lower_case && !parts.iter().any(is_lower) {
        parts.insert(0, Lowercase.into());
    }
    if let [one] = parts.as_slice() {
        whole.with_normalizer(Some(one.clone()))?;
    } else if !parts.is_empty() {
        whole.with_normalizer(Some(Sequence::new(parts)))?;
    }
    Ok(())
}

/// Adds the tokens that other files name, as transformers does, and checks what else these say.
fn add_tokens(
    whole: &mut tokenizers::Tokenizer,
    path: &str,
    files: &TokenizerConfig,
) -> Result<()> {
    for NamedToken { place, token, is_described, .. } in &files.named {
        let content = &token.content;
        ensure!(
            whole.token_to_id(content).is_some(),
            "{place}: expected a token of {path}, got {content:?}"
        );
        let added = whole.get_added_tokens_decoder();
        if *is_described || added.values().all(|added| added.content != *content) {
            let added = whole.add_tokens([token.clone()]);
            added.map_err(|e| anyhow::anyhow!("{place}: expected tokens, got {e}"))?;
        }
    }
    let empty = whole.encode_fast("", true).map_err(anyhow::Error::msg)?;
    let [first, last] = files.ends.unwrap_or_default();
    let unknown = match whole.get_model() {
        ModelWrapper::WordPiece(words) if files.bert.is_some() => Some(&words.unk_token),
        _ => None,
    };
    for NamedToken { place, key, token, .. } in &files.named {
        let expected = match &**key {
            key if key == first => empty.get_tokens().first(),
            key if key == last => empty.get_tokens().last(),
            "unk_token" => unknown,
            _ => None,
        };
        let (expected, got) = (expected.unwrap_or(&token.content), &token.content);
        ensure!(expected == got, "{place}: expected {expected:?}, as in {path}, got {got:?}");
    }
    if let (Some(space), Some(expected)) = (files.prefix_space, prefix_space(whole)) {
        ensure!(
            space == expected,
            "tokenizer_config.json: key \"add_prefix_space\": expected {expected}, as in {path}, \
             got {space}"
        );
    }
    Ok(())
}

fn padding(whole: &tokenizers::Tokenizer, path: &str, files: &TokenizerConfig) -> Result<u32> {
    let named = files.named.iter().find(|it| it.key == "pad_token");
    let named =
        named.context("tokenizer_config.json: key \"pad_token\": expected a token, got none")?;
    let id = whole.token_to_id(&named.token.content);
    id.with_context(|| format!("{path}: expected the pad_token {:?}", named.token.content))
}

/// Checks that the tokenizer has the parts that its class makes, and no others of these.
fn check_parts(whole: &tokenizers::Tokenizer, path: &str, files: &TokenizerConfig) -> Result<()> {
    let normalizer = serde_json::to_string(&whole.get_normalizer())?;
    let all = normalizer + &serde_json::to_string(&whole.get_pre_tokenizer())?;
    for (key, part, is_made) in &files.parts {
        let has = all.contains(&format!("{{\"type\":\"{part}\""));
        let word = |has| if has { part } else { "none" };
        ensure!(
            has == *is_made,
            "tokenizer_config.json: key {key:?}: expected {}, as in {path}, got {}",
            word(has),
            word(*is_made),
        );
    }
    Ok(())
}

fn prefix_space(whole: &tokenizers::Tokenizer) -> Option<bool> {
    let parts: Vec<&PreTokenizerWrapper> = match whole.get_pre_tokenizer()? {
        PreTokenizerWrapper::Sequence(parts) => parts.as_ref().iter().collect(),
        one => vec![one],
    };
    parts.into_iter().find_map(|part| match part {
        PreTokenizerWrapper::ByteLevel(bytes) => Some(bytes.add_prefix_space),
        PreTokenizerWrapper::Metaspace(spaces) => {
            Some(spaces.prepend_scheme != PrependScheme::Never)
        }
        _ => None,
    })
}

/// Keeps `room` tokens if texts are cut.
fn truncate(encoding: &mut Encoding, room: usize, cut: Option<Direction>) {
    if let Some(direction) = cut {
        encoding.truncate(room, 0, direction.into());
        // The overflow would be copied along.
        encoding.take_overflowing();
    }
}

/// The number of tokens kept of each text of a pair: the longer text is cut first.
fn shares([first, second]: [usize; 2], room: usize) -> [usize; 2] {
    let short = first.min(second).min(room / 2);
    let long = first.max(second).min(room - short);
    if first > second { [long, short] } else { [short, long] }
}

#[cfg(test)]
mod tests {
    use tokenizers::utils::truncation::truncate_encodings;
    use tokenizers::{Encoding, TruncationParams};

    use super::shares;

    #[test]
    fn shares_are_those_of_the_tokenizers_crate() -> tokenizers::Result<()> {
        let encoding = |length: usize| {
            let token =
                || Encoding::from_tokens(vec![tokenizers::Token::new(7, "a".into(), (0, 1))], 0);
            Encoding::merge(std::iter::repeat_with(token).take(length), false)
        };
        for (first, second, max_length) in (0..13 * 13 * 13).map(|i| (i % 13, i / 13 % 13, i / 169))
        {
            let params = TruncationParams { max_length, ..Default::default() };
            let (one, two) = (encoding(first), Some(encoding(second)));
            let (one, two) = truncate_encodings(one, two, &params)?;
            let expected = [one.len(), two.map_or(0, |two| two.len())];
            assert_eq!(shares([first, second], max_length), expected, "{first} {second}");
        }
        Ok(())
    }
}
