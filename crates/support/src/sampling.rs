//! Drawing from scores, the same for the same seed.

/// Index of the highest score, the first of several.
pub fn highest(scores: &[f32]) -> usize {
    (0..scores.len()).fold(0, |best, i| if scores[i] > scores[best] { i } else { best })
}

/// The generator splitmix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// From 0, inclusive, to 1, exclusive.
    pub fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        (bits >> 11) as f64 / (1u64 << 53) as f64
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
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.,
            top_k: 0,
            top_p: 1.,
            min_p: 0.,
            repetition_penalty: 1.,
        }
    }
}

impl Sampling {
    /// Draws the next token, by the scores of all and those that there are.
    pub fn draw(&self, scores: &mut [f32], there: &[u32], random: &mut Random) -> u32 {
        self.penalize(scores, there);
        if self.temperature == 0. {
            return highest(scores) as u32;
        }
        let mut order: Vec<usize> = (0..scores.len()).collect();
        // Equal scores in the order of their tokens.
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
        if self.top_k > 0 {
            order.truncate(self.top_k);
        }
        let top = scores[order[0]];
        let share = |token: &usize| (f64::from(scores[*token] - top) / self.temperature).exp();
        let shares: Vec<f64> = order.iter().map(share).collect();
        let all: f64 = shares.iter().sum();
        let mut kept = 0;
        let mut sum = 0.;
        for share in &shares {
            // The greatest share is 1.
            if kept > 0 && (*share < self.min_p || sum >= self.top_p * all) {
                break;
            }
            sum += share;
            kept += 1;
        }
        let mut left = random.uniform() * sum;
        for (token, share) in order[..kept].iter().zip(&shares) {
            left -= share;
            if left < 0. {
                return *token as u32;
            }
        }
        // Only the rest that rounding loses comes here.
        order[0] as u32
    }

    fn penalize(&self, scores: &mut [f32], there: &[u32]) {
        if self.repetition_penalty == 1. {
            return;
        }
        let mut there = there.to_vec();
        there.sort_unstable();
        there.dedup();
        for token in there {
            if let Some(score) = scores.get_mut(token as usize) {
                let penalty = self.repetition_penalty as f32;
                *score = if *score > 0. {
                    *score / penalty
                } else {
                    *score * penalty
                };
            }
        }
    }
}
