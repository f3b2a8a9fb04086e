//! Guesses of the next tokens, which a model checks in one step.

use std::collections::HashMap;

/// Tokens that have to occur again.
const NGRAM: usize = 3;

/// The most tokens of a guess, whatever is asked for: each is a row of scores in memory.
const MAX_LENGTH: usize = 64;

/// The most steps without guesses after guesses that were wrong.
const MAX_PAUSE: usize = 64;

/// Guesses of the next tokens of a text: those that followed the last three where these occurred
/// before, as in "Prompt Lookup Decoding" (Saxena 2023).
pub struct Drafts {
    /// The most tokens of a guess.
    most: usize,
    /// The position behind the last occurrence of each n-gram.
    behind: HashMap<[u32; NGRAM], usize>,
    /// The n-grams that `behind` has, counted from the start of the text.
    indexed: usize,
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
            behind: HashMap::new(),
            indexed: 0,
            length: most.div_ceil(2),
            pause: 1,
            left: 0,
        }
    }

    /// Guesses the tokens behind `text`, at most `room`. Each call continues the text of the call
    /// before.
    pub fn guess(&mut self, text: &[u32], room: usize) -> Vec<u32> {
        let count = self.length.min(room);
        if self.most == 0 {
            return Vec::new();
        }
        // All n-grams but the last, behind which nothing follows yet.
        while self.indexed + NGRAM < text.len()
            && let Some(ngram) = text[self.indexed..].first_chunk()
        {
            self.behind.insert(*ngram, self.indexed + NGRAM);
            self.indexed += 1;
        }
        if self.left > 0 {
            self.left -= 1;
            return Vec::new();
        }
        let start = text.last_chunk().and_then(|last| self.behind.get(last));
        let following = start.and_then(|start| text.get(*start..));
        // What follows is repeated where it reaches the end of the text.
        let repeated = following.unwrap_or_default().iter().cycle();
        repeated.take(count).copied().collect()
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
        self.length = if right == guessed {
            2 * self.length
        } else {
            right + 1
        };
        self.length = self.length.min(self.most);
    }
}
