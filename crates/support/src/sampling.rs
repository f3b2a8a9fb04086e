//! Drawing from scores, the same for the same seed.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::random;

/// Index of the highest score, the first of several.
pub fn highest(scores: &[f32]) -> usize {
    (0..scores.len()).fold(0, |best, i| if scores[i] > scores[best] { i } else { best })
}

/// Numbers that depend on nothing but a seed.
pub struct Random(random::Random);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(random::Random(seed))
    }

    /// From 0, inclusive, to 1, exclusive.
    pub fn uniform(&mut self) -> f64 {
        (self.0.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// How tokens are drawn; the default takes the most likely one.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// The divisor of the scores; 0 takes the highest score.
    pub temperature: f64,
    /// Only the most likely tokens, so many; 0 for all.
    pub top_k: usize,
    /// Only the most likely tokens that have this probability together.
    pub top_p: f64,
    /// Only tokens of this share of the greatest probability.
    pub min_p: f64,
    /// The divisor of positive scores, and factor of others, of tokens that there are already.
    pub repetition_penalty: f64,
    /// The amount by which the scores of tokens that were written are lowered.
    pub presence_penalty: f64,
    /// The amount for each time that they were written.
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
    /// Draws the next token, by the scores of all, after a prompt and the tokens written since.
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
        // Only the rest that rounding loses comes here.
        best as u32
    }

    fn penalize(&self, scores: &mut [f32], prompt: &[u32], written: &[u32]) {
        let penalty = self.repetition_penalty as f32;
        if penalty != 1. {
            for token in counted(prompt.iter().chain(written)).into_keys() {
                if let Some(score) = scores.get_mut(token as usize) {
                    *score = if *score > 0. {
                        *score / penalty
                    } else {
                        *score * penalty
                    };
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

/// Each token, and how often it occurs.
fn counted<'a>(tokens: impl Iterator<Item = &'a u32>) -> BTreeMap<u32, u32> {
    let mut counts = BTreeMap::new();
    for token in tokens {
        *counts.entry(*token).or_default() += 1;
    }
    counts
}

/// Tokens by falling score, sorted only as far as they are asked for: few of a vocabulary are drawn.
struct Ranked<'a> {
    scores: &'a [f32],
    tokens: Vec<usize>,
    sorted: usize,
}

impl<'a> Ranked<'a> {
    fn new(scores: &'a [f32]) -> Self {
        Self {
            scores,
            tokens: (0..scores.len()).collect(),
            sorted: 0,
        }
    }

    /// The token of a rank, which is less than their number.
    fn at(&mut self, rank: usize) -> usize {
        let scores = self.scores;
        // Equal scores in the order of their tokens.
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

/// Log probabilities: of a token, and of the most likely ones.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbs {
    pub of_token: f64,
    /// Tokens by falling probability.
    pub top: Vec<(u32, f64)>,
}

impl LogProbs {
    /// Of a token that was drawn by these scores, and of the `count` most likely ones.
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
