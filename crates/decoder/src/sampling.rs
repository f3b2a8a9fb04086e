//! Sampling from scores, reproducible for a seed.

use std::cmp::Ordering;
use std::collections::BTreeMap;

/// The index of the highest score, the first among equals.
pub fn highest(scores: &[f32]) -> usize {
    (0..scores.len()).fold(0, |best, i| if scores[i] > scores[best] { i } else { best })
}

/// Whether a token can be drawn by the scores: none is NaN, and not all are infinite.
pub fn are_numbers(scores: &[f32]) -> bool {
    let highest = scores.iter().fold(f32::NEG_INFINITY, |max, score| max.max(*score));
    highest.is_finite() && !scores.iter().any(|score| score.is_nan())
}

/// Random numbers that depend only on a seed: the generator splitmix64.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number from 0, inclusive, to 1, exclusive.
    pub fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The parameters of sampling; the default takes the most likely token.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// The divisor of the scores; 0 takes the highest score.
    pub temperature: f64,
    /// The number of most likely tokens to draw from; 0 for all.
    pub top_k: usize,
    /// The total probability of the most likely tokens to draw from.
    pub top_p: f64,
    /// The least probability of a token, as a share of the greatest.
    pub min_p: f64,
    /// The divisor of positive scores, and factor of negative scores, of tokens that already occur.
    pub repetition_penalty: f64,
    /// The amount by which the scores of generated tokens are lowered.
    pub presence_penalty: f64,
    /// The amount for each occurrence of a generated token.
    pub frequency_penalty: f64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.,
            top_k: 0,
            top_p: 1.,
            min_p: 0.,
            repetition_penalty: 1.,
            presence_penalty: 0.,
            frequency_penalty: 0.,
        }
    }
}

impl Sampling {
    /// Draws the next token by the scores of all tokens, after a prompt and the generated tokens.
    pub fn draw(
        &self,
        scores: &mut [f32],
        prompt: &[u32],
        written: &[u32],
        random: &mut Random,
    ) -> u32 {
        self.penalize(scores, prompt, written);
        let best = highest(scores);
        if self.temperature == 0. {
            return best as u32;
        }
        let top = scores[best];
        let share = |token: usize| (f64::from(scores[token] - top) / self.temperature).exp();
        let mut ranked = Ranked::new(scores);
        let (limit, all) = match self.top_k {
            0 => (scores.len(), (0..scores.len()).map(share).sum()),
            k => {
                let limit = k.min(scores.len());
                (limit, (0..limit).map(|rank| share(ranked.at(rank))).sum())
            }
        };
        let (mut kept, mut sum) = (limit, all);
        if self.min_p > 0. || self.top_p < 1. {
            (kept, sum) = (0, 0.);
            while kept < limit {
                let share = share(ranked.at(kept));
                // The greatest share is 1.
                if kept > 0 && (share < self.min_p || sum >= self.top_p * all) {
                    break;
                }
                sum += share;
                kept += 1;
            }
        }
        let mut left = random.uniform() * sum;
        for rank in 0..kept {
            let token = ranked.at(rank);
            left -= share(token);
            if left < 0. {
                return token as u32;
            }
        }
        // Reached only for the remainder that rounding loses.
        best as u32
    }

    fn penalize(&self, scores: &mut [f32], prompt: &[u32], written: &[u32]) {
        let penalty = self.repetition_penalty as f32;
        if penalty != 1. {
            for token in counted(prompt.iter().chain(written)).into_keys() {
                if let Some(score) = scores.get_mut(token as usize) {
                    *score = if *score > 0. { *score / penalty } else { *score * penalty };
                }
            }
        }
        if self.presence_penalty == 0. && self.frequency_penalty == 0. {
            return;
        }
        for (token, count) in counted(written.iter()) {
            if let Some(score) = scores.get_mut(token as usize) {
                let penalty = self.presence_penalty + self.frequency_penalty * f64::from(count);
                *score -= penalty as f32;
            }
        }
    }
}

fn counted<'a>(tokens: impl Iterator<Item = &'a u32>) -> BTreeMap<u32, u32> {
    let mut counts = BTreeMap::new();
    for token in tokens {
        *counts.entry(*token).or_default() += 1;
    }
    counts
}

/// Tokens by falling score, sorted only as far as needed: few of a vocabulary are drawn.
struct Ranked<'a> {
    scores: &'a [f32],
    tokens: Vec<usize>,
    sorted: usize,
}

impl<'a> Ranked<'a> {
    fn new(scores: &'a [f32]) -> Self {
        Self { scores, tokens: (0..scores.len()).collect(), sorted: 0 }
    }

    /// The token at a rank below the vocabulary's size.
    fn at(&mut self, rank: usize) -> usize {
        let scores = self.scores;
        // Equal scores are ordered by token.
        let order =
            |a: &usize, b: &usize| -> Ordering { scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)) };
        while rank >= self.sorted {
            let rest = &mut self.tokens[self.sorted..];
            let more = (8 * self.sorted).max(64).min(rest.len());
            if more < rest.len() {
                rest.select_nth_unstable_by(more, order);
            }
            rest[..more].sort_unstable_by(order);
            self.sorted += more;
        }
        self.tokens[rank]
    }
}

/// The log probabilities of a token and of the most likely tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbs {
    /// The log probability of the drawn token.
    pub of_token: f64,
    /// The most likely tokens by falling probability.
    pub top: Vec<(u32, f64)>,
}

impl LogProbs {
    /// The log probabilities, by these scores, of the drawn `token` and of the `count` most likely
    /// tokens.
    pub fn new(scores: &[f32], token: u32, count: usize) -> Self {
        let top = f64::from(scores[highest(scores)]);
        let sum: f64 = scores.iter().map(|x| (f64::from(*x) - top).exp()).sum();
        let log = |token: usize| f64::from(scores[token]) - top - sum.ln();
        let mut ranked = Ranked::new(scores);
        let best = (0..count.min(scores.len())).map(|rank| ranked.at(rank));
        Self {
            of_token: log(token as usize),
            top: best.map(|token| (token as u32, log(token))).collect(),
        }
    }
}
