//! Guesses of the next tokens, which a model checks in one step.

use std::collections::HashMap;

use anyhow::{Result, ensure};
use candle_core::{Device, Tensor};

use crate::cache::Cache;
use crate::folder::Folder;
use crate::model::Decoder;
use crate::sampling::{Random, Sampling, are_numbers};

/// The most and the fewest tokens that have to occur again: the longer occurrence is the likelier.
const LONG: usize = 5;
const SHORT: usize = 2;

/// The most tokens of a guess, whatever is asked for: each is a row of scores in memory.
const MAX_LENGTH: usize = 64;

/// The most steps without guesses after guesses that were wrong.
const MAX_PAUSE: usize = 64;

#[derive(Default)]
struct Ngrams<const N: usize> {
    /// The position behind the last occurrence of each.
    behind: HashMap<[u32; N], usize>,
    /// The number of n-grams that `behind` has, from the start of the text.
    indexed: usize,
}

impl<const N: usize> Ngrams<N> {
    /// The tokens that followed the last `N` of a text where these occurred before.
    fn following<'a>(&mut self, text: &'a [u32]) -> Option<&'a [u32]> {
        // All n-grams but the last, behind which nothing follows yet.
        while self.indexed + N < text.len()
            && let Some(ngram) = text[self.indexed..].first_chunk()
        {
            self.behind.insert(*ngram, self.indexed + N);
            self.indexed += 1;
        }
        let start = self.behind.get(text.last_chunk()?)?;
        text.get(*start..)
    }
}

/// Guesses of the next tokens of a text: those that followed the last five, or two, where these
/// occurred before, as in "Prompt Lookup Decoding" (Saxena 2023).
pub struct Drafts {
    /// The most tokens of a guess.
    most: usize,
    long: Ngrams<LONG>,
    short: Ngrams<SHORT>,
    /// The number of tokens of the next guess.
    length: usize,
    /// The number of steps without guesses after the next wrong guess, and those left of them.
    pause: usize,
    left: usize,
}

impl Drafts {
    /// Guesses of at most `most` tokens, and of 64.
    pub fn new(most: usize) -> Self {
        let most = most.min(MAX_LENGTH);
        Self {
            most,
            long: Ngrams::default(),
            short: Ngrams::default(),
            length: most.div_ceil(2),
            pause: 1,
            left: 0,
        }
    }

    /// Guesses the tokens behind `text`, at most `room`. Each call continues the text of the call
    /// before.
    pub fn guess(&mut self, text: &[u32], room: usize) -> Vec<u32> {
        if self.most == 0 {
            return Vec::new();
        }
        let [long, short] = [self.long.following(text), self.short.following(text)];
        let count = self.length(room);
        // What follows is repeated where it reaches the end of the text.
        let repeated = long.or(short).unwrap_or_default().iter().cycle();
        repeated.take(count).copied().collect()
    }

    /// The number of tokens of the next guess, at most `room`; none after guesses that were wrong.
    pub fn length(&mut self, room: usize) -> usize {
        if self.left > 0 {
            self.left -= 1;
            return 0;
        }
        self.length.min(room)
    }

    /// Takes the number of right tokens of a guess into account: a right guess makes the next one
    /// longer, a wrong one makes it shorter or puts it off.
    pub fn checked(&mut self, guessed: usize, right: usize) {
        if guessed == 0 {
            return;
        }
        if right == 0 {
            self.left = self.pause;
            self.pause = (2 * self.pause).min(MAX_PAUSE);
            self.length = 1;
            return;
        }
        self.pause = 1;
        self.length = if right == guessed { 2 * self.length } else { right + 1 };
        self.length = self.length.min(self.most);
    }
}

/// A smaller model with the same tokens, which guesses those that follow.
pub struct DraftModel {
    decoder: Decoder,
    /// The most tokens of a text.
    positions: usize,
}

/// The way in which a text is drawn.
pub struct Draws<'a> {
    /// The parameters.
    pub sampling: &'a Sampling,
    /// The numbers that the next draws use.
    pub random: Random,
    /// The tokens that end the text.
    pub ends: &'a [u32],
}

impl DraftModel {
    /// The decoder of `folder`, to guess the texts of the model in `target`.
    ///
    /// # Errors
    /// When the models have other tokens.
    pub fn new(decoder: Decoder, folder: &Folder, target: &Folder) -> Result<Self> {
        let places = [folder, target].map(|folder| folder.path.display());
        let sizes = [folder, target].map(|folder| folder.config.vocab_size);
        let [draft, model] = [folder, target].map(|folder| folder.texts.tokenizer.get_vocab(true));
        let other = model.iter().find(|(token, id)| draft.get(*token) != Some(*id));
        let [place, other_place] = places;
        ensure!(
            sizes[0] == sizes[1],
            "{place}: expected a draft model with vocab_size {}, as {other_place} has, got {}",
            sizes[1],
            sizes[0],
        );
        ensure!(
            other.is_none() && draft.len() == model.len(),
            "{place}: expected a draft model with the tokens of {other_place}, got {}",
            other.map_or("more".to_owned(), |(token, id)| format!(
                "{:?} for {token:?}, which is {id}",
                draft.get(token)
            )),
        );
        let positions = folder.config.max_position_embeddings;
        Ok(Self { positions: positions.min(decoder.most_tokens()), decoder })
    }

    /// The decoder.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// Guesses at most `count` tokens behind a prompt and what was written, of which the cache has a
    /// beginning: those that this model would draw.
    ///
    /// # Errors
    /// When the model fails.
    pub fn guess(
        &self,
        cache: &mut Cache,
        [prompt, written]: [&[u32]; 2],
        count: usize,
        draws: Draws<'_>,
    ) -> Result<Vec<u32>> {
        let Draws { sampling, mut random, ends } = draws;
        let mut text = written.to_vec();
        let length = prompt.len() + written.len();
        let mut unread = [prompt, written].concat().split_off(cache.len());
        for _ in 0..count.min(self.positions.saturating_sub(length)) {
            let tokens = Tensor::new(unread, &Device::Cpu)?.unsqueeze(0)?;
            let scores = self.decoder.next(&tokens, cache)?;
            let mut scores = scores.flatten_all()?.to_vec1::<f32>()?;
            if !are_numbers(&scores) {
                break;
            }
            let token = sampling.draw(&mut scores, prompt, &text, &mut random);
            if ends.contains(&token) {
                break;
            }
            text.push(token);
            unread = vec![token];
        }
        Ok(text.split_off(written.len()))
    }
}
