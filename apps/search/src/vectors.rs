//! The vectors of the passages, each of which is compared with a query.
//!
//! At the size of a folder a graph of neighbours would be no faster, miss some of the nearest, and
//! find others when it has grown in another order. Of many vectors, a product in int8 tells which
//! ones can be among the nearest: it reads a quarter of the bytes.

use std::collections::{BTreeSet, HashMap};
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Module, Tensor};
use candle_dynquant::QConfig;
use candle_dynquant::nn::Projection;
use rayon::prelude::*;

/// Sums of a product that are computed side by side.
const LANES: usize = 16;
/// Vectors that a thread compares at a time.
const COMPARED_TOGETHER: usize = 512;
/// Vectors that are all compared in f32, as codes for them would gain nothing.
const FEW: usize = 4096;

/// Vectors of length 1, by key.
pub struct Vectors {
    dimensions: usize,
    keys: Vec<u64>,
    /// `[keys, dimensions]`.
    rows: Vec<f32>,
    /// The numbers of the rows.
    places: HashMap<u64, usize>,
    /// The rows in int8, once they were needed; `None` if they cannot be quantized.
    codes: OnceLock<Option<Codes>>,
}

struct Codes {
    rows: Projection,
    /// The largest magnitude of a number in the rows.
    largest: f32,
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
            codes: OnceLock::new(),
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
            codes: OnceLock::new(),
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
            self.push(key, vector);
            self.codes = OnceLock::new();
        }
        Ok(())
    }

    fn push(&mut self, key: u64, row: &[f32]) {
        self.places.insert(key, self.keys.len());
        self.keys.push(key);
        self.rows.extend_from_slice(row);
    }

    /// The vectors of `keys` among these.
    pub fn only(&self, keys: &BTreeSet<u64>) -> Self {
        let mut only = Self::new(self.dimensions);
        for (place, &key) in self.keys.iter().enumerate() {
            if keys.contains(&key) {
                only.push(key, self.row(place));
            }
        }
        only
    }

    /// The `count` vectors nearest to `vector`, the nearest first; of equals, the lower key is first.
    ///
    /// # Errors
    /// When `vector` has another length.
    pub fn search(&self, vector: &[f32], count: usize) -> Result<Vec<Near>> {
        self.check(vector)?;
        let near = |place: usize, row: &[f32]| Near {
            key: self.keys[place],
            cosine: product(row, vector),
        };
        let mut near: Vec<Near> = if let Some(places) = self.candidates(vector, count) {
            let places = places.into_iter();
            places.map(|place| near(place, self.row(place))).collect()
        } else {
            let rows = self.rows.par_chunks(self.dimensions.max(1)).enumerate();
            let rows = rows.with_min_len(COMPARED_TOGETHER);
            rows.map(|(place, row)| near(place, row)).collect()
        };
        let order = |a: &Near, b: &Near| b.cosine.total_cmp(&a.cosine).then(a.key.cmp(&b.key));
        if count < near.len() {
            near.select_nth_unstable_by(count, order);
            near.truncate(count);
        }
        near.sort_unstable_by(order);
        Ok(near)
    }

    /// The places of all rows that can be among the `count` nearest, if codes can tell.
    fn candidates(&self, vector: &[f32], count: usize) -> Option<Vec<usize>> {
        if self.len() <= FEW.max(count) || count == 0 {
            return None;
        }
        let codes = self.codes.get_or_init(|| self.codes().ok()).as_ref()?;
        let query = Tensor::new(vector, &Device::Cpu).and_then(|it| it.unsqueeze(0));
        let cosines = codes.rows.forward(&query.ok()?).ok()?;
        let cosines: Vec<f32> = cosines.squeeze(0).and_then(|it| it.to_vec1()).ok()?;
        let mut order = cosines.clone();
        let least = order
            .select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a))
            .1;
        // By Cauchy and Schwarz: both vectors have the length 1, and their numbers are off by half
        // a step of their codes, which are -127 to 127 and 0 to 255.
        let half_steps = (codes.largest + largest(vector)) / 254.;
        let error = half_steps * (self.dimensions as f32).sqrt() + 1e-5;
        let least = *least - 2. * error;
        let places = (0..).zip(cosines).filter(|(_, cosine)| *cosine >= least);
        Some(places.map(|(place, _)| place).collect())
    }

    fn codes(&self) -> Result<Codes> {
        let shape = (self.len(), self.dimensions);
        let rows = Tensor::from_slice(&self.rows, shape, &Device::Cpu)?;
        Ok(Codes {
            rows: Projection::new(rows, None).quantize(&QConfig::int8())?,
            largest: largest(&self.rows),
        })
    }

    fn row(&self, place: usize) -> &[f32] {
        &self.rows[place * self.dimensions..][..self.dimensions]
    }

    /// The cosine of the angle between `vector` and the vector of a key.
    ///
    /// # Errors
    /// When `vector` has another length, or there is no vector of that key.
    pub fn cosine(&self, key: u64, vector: &[f32]) -> Result<f32> {
        self.check(vector)?;
        let place = self.places.get(&key);
        let place = place.context("expected the vector of a passage, got none")?;
        Ok(product(self.row(*place), vector))
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

fn largest(numbers: &[f32]) -> f32 {
    numbers.iter().fold(0., |largest, it| it.abs().max(largest))
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

    use super::{FEW, Near, Vectors};

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
        let found = |vectors: &Vectors| -> anyhow::Result<Vec<Vec<Near>>> {
            let queries = 9000..9010;
            let found = queries.map(|query| vectors.search(&vector(query), 100));
            found.collect()
        };
        let count = 3 * (FEW as u64 / 2);
        let first = vectors(0..count)?;
        let expected = found(&first)?;
        assert!(first.codes.get().is_some_and(Option::is_some));
        assert_eq!(found(&vectors((0..count).rev())?)?, expected);
        let few: BTreeSet<u64> = expected.iter().flatten().map(|near| near.key).collect();
        assert_eq!(found(&first.only(&few))?, expected);
        for (query, found) in (9000..).zip(&expected) {
            let query = vector(query);
            let cosine = |key| -> f64 {
                let products = query.iter().zip(vector(key));
                products.map(|(a, b)| f64::from(*a) * f64::from(b)).sum()
            };
            let mut nearest: Vec<u64> = (0..count).collect();
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
        assert!(read.search(&[1.], 1).is_err());
        assert!(read.cosine(7, &vector(7)).is_err());
        let without_numbers = Vectors::read(&[1; 8], 0)?;
        assert_eq!(without_numbers.only(&BTreeSet::new()).len(), 0);
        assert!(without_numbers.search(&[], 1)?.is_empty());
        assert!(Vectors::read(&[], 0)?.search(&[], 1)?.is_empty());
        Ok(())
    }
}
