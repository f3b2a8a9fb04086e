//! Texts of different lengths without padding: all tokens of a call are rows of one matrix. Only
//! attention separates texts, and takes adjacent texts of one length together.

use crate::tokens::Tokens;

/// Adjacent texts of one length among the rows of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub texts: usize,
    pub tokens: usize,
    /// The number of last tokens of each text that no token attends to.
    pub hidden: usize,
}

/// All tokens of a call, and their texts.
#[derive(Default)]
pub(crate) struct Rows {
    pub ids: Vec<u32>,
    pub types: Vec<u32>,
    /// The positions in the texts, from 0.
    pub positions: Vec<u32>,
    pub runs: Vec<Run>,
    /// The number of tokens of the longest text.
    pub longest: usize,
}

impl Rows {
    pub fn new<'a>(texts: impl Iterator<Item = &'a Tokens>) -> Self {
        let mut rows = Self::default();
        texts.for_each(|text| rows.add(text));
        rows
    }

    /// The rows of texts of one length, for layers, which read nothing else of them.
    #[cfg(feature = "images")]
    pub fn of_one_length(texts: usize, tokens: usize) -> Self {
        let runs = vec![Run { texts, tokens, hidden: 0 }];
        Self { runs, longest: tokens, ..Self::default() }
    }

    /// The positions behind that of `pad`, where the others are counted.
    pub fn positions_without(&self, pad: u32) -> Vec<u32> {
        let mut last = pad;
        let tokens = self.ids.iter().zip(&self.positions);
        let position = |(&id, &position): (&u32, &u32)| {
            if position == 0 {
                last = pad;
            }
            if id == pad {
                return pad;
            }
            last += 1;
            last
        };
        tokens.map(position).collect()
    }

    fn add(&mut self, text: &Tokens) {
        let tokens = text.len();
        self.ids.extend_from_slice(&text.ids);
        self.types.extend_from_slice(&text.types);
        self.positions.extend(0..tokens as u32);
        self.longest = self.longest.max(tokens);
        let hidden = text.hidden;
        match self.runs.last_mut() {
            Some(run) if (run.tokens, run.hidden) == (tokens, hidden) => run.texts += 1,
            _ => self.runs.push(Run { texts: 1, tokens, hidden }),
        }
    }
}
