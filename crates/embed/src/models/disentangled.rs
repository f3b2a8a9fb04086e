//! The scores between contents and relative positions, as in DeBERTa: queries also meet the vectors of
//! the distances to keys, and keys those of the distances to queries.

use std::ops::{Range, RangeInclusive};

use candle_core::{Device, Result, Tensor};
use candle_dynquant::{Quantizable, nn};
use candle_nn::Module;

use super::projections::{Heads, Inputs};

/// The vectors of distances, and the products that make keys and queries of them.
#[derive(Clone, Quantizable)]
pub(crate) struct Disentangled {
    /// A row for each distance, `[2 * span, hidden]`, the same in all layers.
    #[quantizable(skip)]
    pub table: Tensor,
    #[quantizable(skip)]
    pub distances: Distances,
    pub keys: Option<nn::Linear>,
    pub queries: Option<nn::Linear>,
    /// Whether the products of contents take the place of both.
    pub is_shared: bool,
    /// Whether queries meet distances, and whether keys do.
    #[quantizable(skip)]
    pub meets: [bool; 2],
}

/// The rows of distances, a query's position minus a key's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Distances {
    /// Half of the rows.
    pub span: usize,
    /// The distance from which on all have the last row, if far distances share rows.
    pub furthest: Option<usize>,
}

impl Distances {
    /// The row of a distance: a separate one for near distances, those further away share rows
    /// logarithmically. The numbers are f32 as in transformers, since they are rounded up.
    fn row(self, distance: i64) -> usize {
        let far = distance.unsigned_abs() as usize;
        let middle = self.span / 2;
        let place = match self.furthest {
            Some(furthest) if far > middle => {
                let share = |distance: usize| (distance as f32 / middle as f32).ln();
                let share = share(far) / share(furthest - 1);
                (share * (middle - 1) as f32).ceil() as usize + middle
            }
            _ => far,
        };
        let signed = self.span as i64 + distance.signum() * place.min(self.span) as i64;
        (signed.max(0) as usize).min(2 * self.span - 1)
    }

    /// The rows of all distances in a text.
    fn rows(self, tokens: usize) -> RangeInclusive<usize> {
        let most = tokens as i64 - 1;
        self.row(-most)..=self.row(most)
    }
}

impl Disentangled {
    /// The vectors of the distances in texts of up to `longest` tokens.
    pub fn project(
        &self,
        inputs: &Inputs,
        heads: Heads,
        longest: usize,
    ) -> Result<PositionVectors> {
        let rows = self.distances.rows(longest);
        let table = self.table.narrow(0, *rows.start(), rows.clone().count())?;
        let shared = match inputs {
            Inputs::Each(each) if self.is_shared => Some([&each[1], &each[0]]),
            _ => None,
        };
        let vectors = |index: usize, linear: &Option<nn::Linear>| {
            let linear = shared.map(|shared| shared[index]).or(linear.as_ref());
            let linear = linear.filter(|_| self.meets[index]);
            let vectors = linear.map(|linear| {
                let vectors = linear.forward(&table)?;
                let vectors = vectors.reshape(((), heads.queries, heads.dim))?;
                vectors.transpose(0, 1)?.contiguous()
            });
            vectors.transpose()
        };
        Ok(PositionVectors {
            distances: self.distances,
            first: *rows.start(),
            keys: vectors(0, &self.keys)?,
            queries: vectors(1, &self.queries)?,
        })
    }
}

/// The vectors of the distances in the texts of a call, `[heads, rows, dim]`.
pub(crate) struct PositionVectors {
    distances: Distances,
    /// The first row.
    first: usize,
    keys: Option<Tensor>,
    queries: Option<Tensor>,
}

impl PositionVectors {
    /// The terms of a text with these queries and keys, `[1, heads, tokens, dim]`.
    pub fn terms(&self, q: &Tensor, k: &Tensor, scale: f64) -> Result<ContentTerms> {
        let (_, heads, tokens, _) = q.dims4()?;
        // Exactly the text's rows, so that no other text changes the order of a sum.
        let rows = self.distances.rows(tokens);
        let (start, width) = (*rows.start(), rows.count());
        let products = |contents: &Tensor, vectors: &Option<Tensor>| {
            let Some(vectors) = vectors else {
                return Ok(vec![0.; heads * tokens * width]);
            };
            let vectors = vectors.narrow(1, start - self.first, width)?;
            let products = contents.squeeze(0)?.contiguous()?.matmul(&vectors.t()?)?;
            (products * scale)?.flatten_all()?.to_vec1()
        };
        let most = tokens as i64 - 1;
        let columns = (-most..=most).map(|distance| self.distances.row(distance) - start);
        Ok(ContentTerms {
            heads,
            tokens,
            width,
            columns: columns.collect(),
            of_queries: products(q, &self.keys)?,
            of_keys: products(k, &self.queries)?,
        })
    }
}

/// The terms of a text's scores.
pub(crate) struct ContentTerms {
    heads: usize,
    tokens: usize,
    width: usize,
    /// The column of each distance, from the smallest on.
    columns: Vec<usize>,
    /// The products of queries, and those of keys, `[heads, tokens, width]`.
    of_queries: Vec<f32>,
    of_keys: Vec<f32>,
}

impl ContentTerms {
    /// The terms of some queries with all keys, `[1, heads, queries, keys]`.
    pub fn block(&self, queries: Range<usize>) -> Result<Tensor> {
        let (tokens, width) = (self.tokens, self.width);
        let mut terms = Vec::with_capacity(self.heads * queries.len() * tokens);
        for head in 0..self.heads {
            for query in queries.clone() {
                let of_query = &self.of_queries[(head * tokens + query) * width..][..width];
                let of_keys = self.of_keys[head * tokens * width..].chunks_exact(width);
                // From the distance to the first key downwards.
                let columns = self.columns[query..query + tokens].iter().rev();
                terms.extend(columns.zip(of_keys).map(|(&at, of_key)| of_query[at] + of_key[at]));
            }
        }
        let shape = (1, self.heads, queries.len(), tokens);
        Tensor::from_vec(terms, shape, &Device::Cpu)
    }
}

#[cfg(test)]
mod tests {
    use super::Distances;

    /// The sums of rows times places, from `make_log_bucket_position` of transformers.
    #[test]
    fn rows_are_those_of_transformers() {
        for (span, furthest, expected) in
            [(256, 512, 756_101_717), (8, 40, 22_568_313), (32, 100, 94_684_697), (2, 9, 5_007_002)]
        {
            let distances = Distances { span, furthest: Some(furthest) };
            let places = (-1000i64..=1000).zip(1..);
            let sum: usize = places.map(|(it, place)| distances.row(it) * place).sum();
            assert_eq!(sum, expected, "{span} {furthest}");
        }
    }
}
