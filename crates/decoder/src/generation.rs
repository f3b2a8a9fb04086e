//! Texts token by token, several tokens a step where the text repeats itself.

use std::collections::VecDeque;
use std::iter;

use anyhow::{Error, Result, ensure};
use candle_core::{Device, Tensor};

use crate::cache::Cache;
use crate::drafts::{DraftModel, Drafts, Draws};
use crate::folder::{Folder, Texts};
use crate::model::Decoder;
use crate::sampling::{LogProbs, Random, Sampling, are_numbers};

/// A model with everything needed to continue texts.
pub struct Generator<'a> {
    decoder: &'a Decoder,
    pub(crate) texts: &'a Texts,
    ends: &'a [u32],
    /// The most tokens of a text.
    positions: usize,
    /// Whether tokens have the same bits read together and one by one.
    has_independent_rows: bool,
    draft: Option<&'a DraftModel>,
}

/// The parameters of a text.
#[derive(Clone, Copy, Debug)]
pub struct GenerationConfig {
    /// The most tokens to generate.
    pub max_tokens: usize,
    /// The way tokens are drawn.
    pub sampling: Sampling,
    /// The seed of the draws.
    pub seed: u64,
    /// The number of most likely tokens whose log probabilities a [`Piece`] has beside the drawn
    /// token's; none by default.
    pub log_probs: Option<usize>,
    /// The most tokens that are guessed, and checked in one step. The text is the same for every
    /// number: only tokens that would be drawn are kept.
    pub drafts: usize,
}

impl Default for GenerationConfig {
    fn default() -> Self {
        Self {
            max_tokens: 256,
            sampling: Sampling::default(),
            seed: 0,
            log_probs: None,
            drafts: 16,
        }
    }
}

/// A generated token.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The token.
    pub token: u32,
    /// The text that is certain with the token: empty within a character of several tokens.
    pub text: String,
    /// Log probabilities, if the configuration asks for them.
    pub log_probs: Option<LogProbs>,
}

/// The reason why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model drew a token that ends texts.
    Stop,
    /// The text has the most tokens.
    Length,
}

/// Tokens that were read, with their keys and values.
#[derive(Clone)]
pub(crate) struct Past {
    pub(crate) tokens: Vec<u32>,
    pub(crate) cache: Cache,
    /// The cache of the model that guesses.
    draft: Option<Cache>,
}

impl Past {
    fn truncate(&mut self, length: usize) {
        let caches = iter::once(&mut self.cache).chain(&mut self.draft);
        caches.for_each(|cache| cache.truncate(length));
    }
}

/// The tokens that follow a prompt: an iterator that computes a step when it has no token left.
/// Generation ends when it is dropped.
pub struct Generation<'a> {
    generator: &'a Generator<'a>,
    config: GenerationConfig,
    random: Random,
    prompt: usize,
    /// The prompt and the generated tokens; the cache has a beginning of them.
    past: Past,
    drafts: Drafts,
    decoding: Decoding,
    ready: VecDeque<Piece>,
    finish: Option<FinishReason>,
    /// The error that ended the text, behind the tokens before it.
    error: Option<Error>,
    has_failed: bool,
    guessed: [usize; 2],
}

/// The conversion of successive tokens to text.
#[derive(Default)]
pub struct Decoding {
    /// The last tokens with text, and the tokens behind them.
    ids: Vec<u32>,
    /// The number of tokens whose text was returned, and this text.
    shown: usize,
    text: String,
}

/// The most tokens that wait for the rest of a character.
const MAX_WAITING: usize = 64;

impl Decoding {
    /// Adds a token; returns the text that is certain with it.
    ///
    /// # Errors
    /// When the tokenizer cannot decode the tokens.
    pub fn step(&mut self, texts: &Texts, token: u32) -> Result<String> {
        let decode = |ids: &[u32]| {
            let text = texts.tokenizer.decode(ids, true);
            text.map_err(|e| anyhow::anyhow!("tokenizer: {e}"))
        };
        self.ids.push(token);
        let all = decode(&self.ids)?;
        if all.ends_with('\u{fffd}') && self.ids.len() - self.shown < MAX_WAITING {
            return Ok(String::new());
        }
        let new = match all.strip_prefix(&self.text) {
            Some(new) => new.to_owned(),
            // A byte that begins no character makes others of the bytes before it.
            None => decode(&self.ids[self.shown..])?,
        };
        if new.is_empty() {
            return Ok(new);
        }
        // The first token of a text may have no space before it.
        self.ids.drain(..self.shown);
        self.shown = self.ids.len();
        self.text = decode(&self.ids)?;
        Ok(new)
    }
}

impl<'a> Generator<'a> {
    /// A generator of texts by the decoder, with the tokenizer and the tokens that end a text of its
    /// folder.
    ///
    /// # Errors
    /// When the decoder fails on a few tokens.
    pub fn new(decoder: &'a Decoder, folder: &'a Folder) -> Result<Self> {
        let positions = folder.config.max_position_embeddings;
        Ok(Self {
            decoder,
            texts: &folder.texts,
            ends: &folder.ends,
            positions: positions.min(decoder.most_tokens()),
            has_independent_rows: decoder.has_independent_rows()?,
            draft: None,
        })
    }

    /// The generator with a model that guesses the next tokens, in place of those that followed
    /// before.
    pub fn with_draft(self, draft: &'a DraftModel) -> Self {
        let draft = Some(draft);
        Self { draft, ..self }
    }

    fn empty_past(&self) -> Past {
        Past {
            tokens: Vec::new(),
            cache: self.decoder.cache(),
            draft: self.draft.map(|draft| draft.decoder().cache()),
        }
    }

    /// Whether guesses are checked, and a chat's tokens are read once: with quantized layers that
    /// give a token the same bits beside any others.
    pub fn has_independent_rows(&self) -> bool {
        self.has_independent_rows
    }

    /// The tokens that follow a prompt.
    ///
    /// # Errors
    /// When the prompt has no token, or as many as the model has positions.
    pub fn generate(&'a self, prompt: &[u32], config: &GenerationConfig) -> Result<Generation<'a>> {
        self.resume(self.empty_past(), prompt, config)
    }

    /// The tokens that follow a prompt, of which the past is not read again.
    pub(crate) fn resume(
        &'a self,
        mut past: Past,
        prompt: &[u32],
        config: &GenerationConfig,
    ) -> Result<Generation<'a>> {
        let room = self.positions.saturating_sub(prompt.len());
        ensure!(
            room > 0 && !prompt.is_empty(),
            "prompt: expected 1 to {} tokens, got {}",
            self.positions.saturating_sub(1),
            prompt.len(),
        );
        let pairs = past.tokens.iter().zip(prompt);
        let common = pairs.take_while(|(before, now)| before == now).count();
        // The scores of the last token are needed.
        past.truncate(common.min(prompt.len() - 1));
        past.tokens = prompt.to_vec();
        let drafts = if self.has_independent_rows { config.drafts } else { 0 };
        Ok(Generation {
            generator: self,
            config: GenerationConfig { max_tokens: config.max_tokens.min(room), ..*config },
            random: Random::new(config.seed),
            prompt: prompt.len(),
            past,
            drafts: Drafts::new(drafts),
            decoding: Decoding::default(),
            ready: VecDeque::new(),
            finish: (config.max_tokens == 0).then_some(FinishReason::Length),
            error: None,
            has_failed: false,
            guessed: [0; 2],
        })
    }
}

impl Generation<'_> {
    /// The reason why the text ended; none before its end.
    pub fn finish(&self) -> Option<FinishReason> {
        self.finish.filter(|_| self.ready.is_empty())
    }

    /// The number of tokens of the prompt.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt
    }

    pub(crate) fn cached(&self) -> usize {
        self.past.cache.len()
    }

    /// The bytes of keys and values.
    pub fn cache_bytes(&self) -> usize {
        self.past.cache.bytes()
    }

    /// The number of guessed tokens, and of those that were right.
    pub fn guessed(&self) -> [usize; 2] {
        self.guessed
    }

    pub(crate) fn take_past(&mut self) -> Past {
        let empty = self.generator.empty_past();
        let mut past = std::mem::replace(&mut self.past, empty);
        past.tokens.truncate(past.cache.len());
        past
    }

    fn guess(&mut self) -> Result<Vec<u32>> {
        let Past { tokens, draft, .. } = &mut self.past;
        let written = tokens.len() - self.prompt;
        if written == 0 {
            return Ok(Vec::new());
        }
        let room = self.config.max_tokens - written - 1;
        let Some((model, cache)) = self.generator.draft.zip(draft.as_mut()) else {
            return Ok(self.drafts.guess(tokens, room));
        };
        let count = self.drafts.length(room);
        let draws = Draws {
            sampling: &self.config.sampling,
            random: self.random.clone(),
            ends: self.generator.ends,
        };
        model.guess(cache, tokens.split_at(self.prompt).into(), count, draws)
    }

    /// Reads the tokens not read yet, with guesses of those that follow, and draws the tokens behind
    /// them until one differs from its guess.
    fn step(&mut self) -> Result<()> {
        let guess = self.guess()?;
        let Past { tokens, cache, .. } = &mut self.past;
        let unread = [&tokens[cache.len()..], &guess].concat();
        let certain = tokens.len();
        let unread = Tensor::new(unread, &Device::Cpu)?.unsqueeze(0)?;
        let scores = if guess.is_empty() {
            self.generator.decoder.next(&unread, cache)?
        } else {
            self.generator.decoder.all(&unread, cache)?.squeeze(0)?
        };
        let mut right = 0;
        for (row, mut scores) in scores.to_vec2::<f32>()?.into_iter().enumerate() {
            if let Err(error) = self.draw(&mut scores) {
                self.error = Some(error);
                break;
            }
            let drawn = &self.past.tokens[certain..];
            if drawn.get(row).is_none() || drawn.get(row) != guess.get(row) {
                break;
            }
            right += 1;
            if self.finish.is_some() {
                break;
            }
        }
        self.past.truncate(certain + right);
        self.drafts.checked(guess.len(), right);
        self.guessed = [self.guessed[0] + guess.len(), self.guessed[1] + right];
        Ok(())
    }

    /// Draws a token by the scores, and adds it to the text unless it ends the text.
    fn draw(&mut self, scores: &mut [f32]) -> Result<()> {
        let _span = tracing::trace_span!(target: "candle_dynquant::forward", "sampling").entered();
        let (prompt, written) = self.past.tokens.split_at(self.prompt);
        ensure!(
            are_numbers(scores),
            "scores after {} tokens: expected numbers, got NaN or infinite ones: the weights or their sizes are wrong",
            self.past.tokens.len()
        );
        let raw = self.config.log_probs.map(|top| (scores.to_vec(), top));
        let sampling = &self.config.sampling;
        let token = sampling.draw(scores, prompt, written, &mut self.random);
        if self.generator.ends.contains(&token) {
            self.finish = Some(FinishReason::Stop);
            return Ok(());
        }
        self.past.tokens.push(token);
        self.ready.push_back(Piece {
            token,
            text: self.decoding.step(self.generator.texts, token)?,
            log_probs: raw.map(|(raw, top)| LogProbs::new(&raw, token, top)),
        });
        if self.past.tokens.len() - self.prompt == self.config.max_tokens {
            self.finish = Some(FinishReason::Length);
        }
        Ok(())
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Self::Item> {
        let is_over = self.finish.is_some() || self.has_failed;
        if self.ready.is_empty() && !is_over {
            let stepped = self.step();
            self.error = stepped.err().or(self.error.take());
            self.has_failed = self.error.is_some();
        }
        let ready = self.ready.pop_front().map(Ok);
        ready.or_else(|| self.error.take().map(Err))
    }
}
