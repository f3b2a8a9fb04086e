//! The vectors of the passages, each of which is compared with a query.
//!
//! At the size of a folder a graph of neighbours would be no faster, miss some of the nearest, and
//! find others when it has grown in another order.

use std::collections::{BTreeSet, HashMap};

use anyhow::{Context, Result, ensure};
use rayon::prelude::*;

/// Sums of a product that are computed side by side.
const LANES: usize = 16;
/// Vectors that a thread compares at a time.
const COMPARED_TOGETHER: usize = 512;

/// Vectors of length 1, by key.
pub struct Vectors {
    dimensions: usize,
    keys: Vec<u64>,
    /// `[keys, dimensions]`.
    rows: Vec<f32>,
    /// The numbers of the rows.
    places: HashMap<u64, usize>,
}

/// A vector found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Near {
    /// The key of the vector.
    pub key: u64,
    /// The cosine of the angle between it and the one that was searched for.
    pub cosine: f32,
}

impl Vectors {
    /// No vectors yet, of `dimensions` numbers.
    pub fn new(dimensions: usize) -> Self {
        Self {
            dimensions,
            keys: Vec::new(),
            rows: Vec::new(),
            places: HashMap::new(),
        }
    }

    /// Reads what [`write`](Self::write) wrote.
    ///
    /// # Errors
    /// When they are not the bytes of vectors of `dimensions` numbers, or a key is there twice.
    pub fn read(bytes: &[u8], dimensions: usize) -> Result<Self> {
        let row = (dimensions.checked_mul(4)).and_then(|bytes| bytes.checked_add(8));
        let count = row.filter(|row| bytes.len().is_multiple_of(*row));
        let count = count.map(|row| bytes.len() / row).with_context(|| {
            let bytes = bytes.len();
            format!("the vectors: expected rows of {dimensions} numbers, got {bytes} bytes")
        })?;
        let (keys, rows) = bytes.split_at(count * 8);
        let keys = keys.as_chunks().0.iter().copied().map(u64::from_le_bytes);
        let keys: Vec<u64> = keys.collect();
        let rows = rows.as_chunks().0.iter().copied().map(f32::from_le_bytes);
        let places: HashMap<u64, usize> = keys.iter().copied().zip(0..).collect();
        ensure!(
            places.len() == count,
            "the vectors: expected {count} keys, got one of them again"
        );
        Ok(Self {
            dimensions,
            keys,
            rows: rows.collect(),
            places,
        })
    }

    /// The keys, then the rows, little-endian.
    pub fn write(&self) -> Vec<u8> {
        let keys = self.keys.iter().flat_map(|key| key.to_le_bytes());
        let rows = self.rows.iter().flat_map(|number| number.to_le_bytes());
        keys.chain(rows).collect()
    }

    /// Adds a vector, unless there is one of that key.
    ///
    /// # Errors
    /// When it has another length.
    pub fn add(&mut self, key: u64, vector: &[f32]) -> Result<()> {
        self.check(vector)?;
        if !self.contains(key) {
            self.places.insert(key, self.keys.len());
            self.keys.push(key);
            self.rows.extend_from_slice(vector);
        }
        Ok(())
    }

    /// The vectors of `keys` among these.
    pub fn only(&self, keys: &BTreeSet<u64>) -> Self {
        let mut only = Self::new(self.dimensions);
        for (&key, row) in self.keys.iter().zip(self.rows.chunks(self.dimensions)) {
            if keys.contains(&key) {
                only.places.insert(key, only.keys.len());
                only.keys.push(key);
                only.rows.extend_from_slice(row);
            }
        }
        only
    }

    /// The `count` vectors nearest to `vector` among those that `keep` admits, the nearest first; of
    /// equals, the lower key is first.
    ///
    /// # Errors
    /// When `vector` has another length.
    pub fn search(
        &self,
        vector: &[f32],
        count: usize,
        keep: impl Fn(u64) -> bool + Sync,
    ) -> Result<Vec<Near>> {
        self.check(vector)?;
        let rows = (self.rows).par_chunks((COMPARED_TOGETHER * self.dimensions).max(1));
        let parts = rows.zip(self.keys.par_chunks(COMPARED_TOGETHER));
        let near = parts.flat_map_iter(|(rows, keys)| {
            let rows = rows.chunks(self.dimensions).zip(keys);
            rows.filter(|&(_, &key)| keep(key)).map(|(row, &key)| Near {
                key,
                cosine: product(row, vector),
            })
        });
        let mut near: Vec<Near> = near.collect();
        let order = |a: &Near, b: &Near| b.cosine.total_cmp(&a.cosine).then(a.key.cmp(&b.key));
        if count < near.len() {
            near.select_nth_unstable_by(count, order);
            near.truncate(count);
        }
        near.sort_unstable_by(order);
        Ok(near)
    }

    /// The cosine of the angle between `vector` and the vector of a key.
    ///
    /// # Errors
    /// When `vector` has another length, or there is no vector of that key.
    pub fn cosine(&self, key: u64, vector: &[f32]) -> Result<f32> {
        self.check(vector)?;
        let place = self.places.get(&key);
        let place = place.context("expected the vector of a passage, got none")?;
        let row = &self.rows[place * self.dimensions..][..self.dimensions];
        Ok(product(row, vector))
    }

    /// Whether there is a vector of that key.
    pub fn contains(&self, key: u64) -> bool {
        self.places.contains_key(&key)
    }

    /// The number of vectors.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is no vector.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    fn check(&self, vector: &[f32]) -> Result<()> {
        ensure!(
            vector.len() == self.dimensions,
            "expected a vector of {} numbers, got {}",
            self.dimensions,
            vector.len()
        );
        Ok(())
    }
}

fn product(a: &[f32], b: &[f32]) -> f32 {
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    let mut sums = [0f32; LANES];
    for (a, b) in a.iter().zip(b) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    let rest = a_rest.iter().zip(b_rest).map(|(a, b)| a * b);
    sums.into_iter().chain(rest).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Near, Vectors};

    const DIMENSIONS: usize = 50;

    /// A direction that looks random.
    fn vector(number: u64) -> Vec<f32> {
        let mut state = number + 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 23) as f32 - 1.
        };
        (0..8).for_each(|_| _ = next());
        let vector: Vec<f32> = (0..DIMENSIONS).map(|_| next()).collect();
        let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
        vector.iter().map(|x| x / norm).collect()
    }

    fn vectors(keys: impl Iterator<Item = u64>) -> anyhow::Result<Vectors> {
        let mut vectors = Vectors::new(DIMENSIONS);
        for key in keys {
            vectors.add(key, &vector(key))?;
        }
        Ok(vectors)
    }

    /// The order in which they were added depends on updates, and on runs that were killed.
    #[test]
    fn the_nearest_are_found_whatever_the_order() -> anyhow::Result<()> {
        let keep = |key: u64| key.is_multiple_of(3);
        let found = |vectors: &Vectors| -> anyhow::Result<Vec<Vec<Near>>> {
            let queries = 9000..9010;
            let found = queries.map(|query| vectors.search(&vector(query), 100, keep));
            found.collect()
        };
        let first = vectors(0..2000)?;
        let expected = found(&first)?;
        assert_eq!(found(&vectors((0..2000).rev())?)?, expected);
        let kept: BTreeSet<u64> = (0..2000).filter(|&key| keep(key)).collect();
        assert_eq!(found(&first.only(&kept))?, expected);
        for (query, found) in (9000..).zip(&expected) {
            let query = vector(query);
            let cosine = |key| -> f64 {
                let products = query.iter().zip(vector(key));
                products.map(|(a, b)| f64::from(*a) * f64::from(b)).sum()
            };
            let mut nearest: Vec<u64> = kept.iter().copied().collect();
            nearest.sort_by(|a, b| cosine(*b).total_cmp(&cosine(*a)));
            let found_keys: Vec<u64> = found.iter().map(|near| near.key).collect();
            assert_eq!(found_keys, nearest[..100]);
            for near in found {
                assert_eq!(first.cosine(near.key, &query)?, near.cosine);
                assert!((cosine(near.key) - f64::from(near.cosine)).abs() < 1e-6);
            }
        }
        Ok(())
    }

    #[test]
    fn bytes_that_lie_are_an_error() -> anyhow::Result<()> {
        let bytes = vectors(0..3)?.write();
        let read = Vectors::read(&bytes, DIMENSIONS)?;
        assert_eq!((read.len(), read.write()), (3, bytes.clone()));
        for (bytes, dimensions) in [
            (&bytes[..bytes.len() - 1], DIMENSIONS),
            (&bytes[..], DIMENSIONS + 1),
            (&bytes[..], usize::MAX),
            (&bytes[..], usize::MAX / 4),
        ] {
            assert!(Vectors::read(bytes, dimensions).is_err(), "{dimensions}");
        }
        let mut twice = bytes;
        twice.copy_within(..8, 8);
        assert!(Vectors::read(&twice, DIMENSIONS).is_err());
        assert!(Vectors::new(DIMENSIONS).add(0, &[1.]).is_err());
        assert!(read.search(&[1.], 1, |_| true).is_err());
        assert!(read.cosine(7, &vector(7)).is_err());
        assert!(Vectors::read(&[], 0)?.search(&[], 1, |_| true)?.is_empty());
        Ok(())
    }
}
