//! The positions in attention: which tokens a token attends to, the terms added to their scores,
//! and the angles by which queries and keys are rotated.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, Result, Tensor};
use candle_dynquant::Quantizable;
use candle_dynquant::ops::Mask;

use super::rows::Rows;

/// The number of queries computed together if scores have terms, so that these take little memory.
const BLOCK: usize = 128;

/// The positions in some layers.
#[derive(Clone, Quantizable)]
pub(crate) struct View {
    #[quantizable(skip)]
    pub sees: Sees,
    /// The angles by which one position rotates each pair of a head's numbers.
    pub frequencies: Option<Vec<f32>>,
}

/// The tokens that a token attends to.
#[derive(Clone)]
pub(crate) enum Sees {
    All,
    /// The token itself and those before it.
    Causal,
    /// The tokens within this distance.
    Within(usize),
    /// All tokens, with a term by distance added to each score.
    Biased(Bias),
}

/// A term of each head's scores by distance, the key's position minus the query's.
#[derive(Clone)]
pub(crate) struct Bias {
    pub heads: usize,
    pub term: Arc<dyn Fn(usize, i64) -> f32 + Send + Sync>,
}

impl View {
    pub fn plain(sees: Sees) -> Self {
        let frequencies = None;
        Self { sees, frequencies }
    }

    pub fn rotary(sees: Sees, frequencies: Vec<f32>) -> Self {
        let frequencies = Some(frequencies);
        Self { sees, frequencies }
    }

    /// The view for the texts of a call.
    pub fn for_rows(&self, rows: &Rows) -> Result<Viewed> {
        let scores = match &self.sees {
            Sees::All => Scores::Equal(Mask::All),
            Sees::Causal => Scores::Equal(Mask::Causal),
            Sees::Within(reach) => Scores::Terms(Terms {
                is_flat: true,
                ..Terms::new(1, rows.longest, *reach, |_, _| 0.)
            }),
            Sees::Biased(Bias { heads, term }) => {
                let all = rows.longest;
                Scores::Terms(Terms::new(*heads, rows.longest, all, &**term))
            }
        };
        let angles = self.frequencies.as_deref();
        let angles = angles.map(|frequencies| angles_of(rows, frequencies));
        let angles = angles.transpose()?;
        Ok(Viewed { scores, angles })
    }
}

/// A view for the texts of a call.
pub(crate) struct Viewed {
    pub scores: Scores,
    /// The cosines and sines of each row, `[tokens, head_dim / 2]`.
    pub angles: Option<(Tensor, Tensor)>,
}

fn angles_of(rows: &Rows, frequencies: &[f32]) -> Result<(Tensor, Tensor)> {
    let table = |function: fn(f32) -> f32| {
        let angles = (0..rows.longest).flat_map(|p| frequencies.iter().map(move |f| p as f32 * f));
        let shape = (rows.longest, frequencies.len());
        Tensor::from_iter(angles.map(function), &Device::Cpu)?.reshape(shape)
    };
    let positions = Tensor::new(rows.positions.as_slice(), &Device::Cpu)?;
    let of_rows = |table: Tensor| table.index_select(&positions, 0);
    Ok((of_rows(table(f32::cos)?)?, of_rows(table(f32::sin)?)?))
}

/// The scores of queries and keys.
pub(crate) enum Scores {
    Equal(Mask<'static>),
    Terms(Terms),
}

/// The terms of scores by distance.
pub(crate) struct Terms {
    heads: usize,
    longest: usize,
    /// The distance beyond which a key is hidden.
    pub reach: usize,
    /// The terms of each head, from the distance `1 - longest` on.
    by_distance: Vec<f32>,
    /// Whether the terms are 0 within the reach.
    is_flat: bool,
}

impl Terms {
    fn new(heads: usize, longest: usize, reach: usize, term: impl Fn(usize, i64) -> f32) -> Self {
        let end = longest as i64;
        let term_at = |head, distance: i64| {
            if distance.unsigned_abs() as usize > reach {
                return f32::NEG_INFINITY;
            }
            term(head, distance)
        };
        let by_distance = (0..heads).flat_map(|head| (1 - end..end).map(move |d| (head, d)));
        Self {
            heads,
            longest,
            reach,
            is_flat: false,
            by_distance: by_distance.map(|(head, distance)| term_at(head, distance)).collect(),
        }
    }

    /// Whether the terms change nothing in a text of `tokens` tokens.
    pub fn is_needless(&self, tokens: usize) -> bool {
        self.is_flat && tokens <= self.reach.saturating_add(1)
    }

    /// The terms of a block, `[1, heads, queries, keys]`.
    pub fn block(&self, queries: Range<usize>, keys: Range<usize>) -> Result<Tensor> {
        let mut terms = Vec::with_capacity(self.heads * queries.len() * keys.len());
        for of_head in self.by_distance.chunks_exact(2 * self.longest - 1) {
            for query in queries.clone() {
                let first = keys.start + self.longest - 1 - query;
                terms.extend_from_slice(&of_head[first..first + keys.len()]);
            }
        }
        let shape = (1, self.heads, queries.len(), keys.len());
        Tensor::from_vec(terms, shape, &Device::Cpu)
    }
}

/// The queries of a text that are computed together, with the keys that they attend to.
pub(crate) fn blocks(
    tokens: usize,
    reach: usize,
) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    (0..tokens).step_by(BLOCK).map(move |start| {
        let end = (start + BLOCK).min(tokens);
        let last = end.saturating_add(reach).min(tokens);
        (start..end, start.saturating_sub(reach)..last)
    })
}
