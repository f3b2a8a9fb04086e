//! The vectors of the passages, in usearch's HNSW graph.
//!
//! The graph grows only. A vector whose passage is gone stays until the graph is built anew, and a
//! search passes it over: deleting from an HNSW graph costs recall, and a text that comes back has
//! its vector.

use std::num::NonZero;
use std::thread;

use anyhow::{Context, Result, ensure};
use usearch::{Index, IndexOptions, MetricKind, ScalarKind};

/// The candidates that a search keeps: benches/run.sh measures the recall.
const CANDIDATES: usize = 320;

/// The candidates that are kept while a vector's neighbours are chosen. With usearch's 128, a
/// search needs 1.5 times the candidates for the same recall; this takes a tenth of the time that
/// embeddings take.
const CANDIDATES_OF_NEIGHBOURS: usize = 512;

/// Vectors of length 1 by key, and the graph that finds those near another one.
pub struct Graph {
    index: Index,
    dimensions: usize,
}

/// A vector found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Near {
    /// The key of the vector.
    pub key: u64,
    /// The cosine of the angle between it and the one that was searched for.
    pub cosine: f32,
}

impl Graph {
    /// An empty graph for vectors of `dimensions` numbers.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn new(dimensions: usize) -> Result<Self> {
        let index = Index::new(&IndexOptions {
            dimensions,
            // The cosine of vectors of length 1 is their product.
            metric: MetricKind::IP,
            quantization: ScalarKind::F32,
            expansion_add: CANDIDATES_OF_NEIGHBOURS,
            expansion_search: CANDIDATES,
            ..Default::default()
        });
        let index = index.context("the graph of vectors")?;
        Ok(Self { index, dimensions })
    }

    /// Reads what [`write`](Self::write) wrote. The bytes must be known to be whole: usearch
    /// follows the places that they name.
    ///
    /// # Errors
    /// When they are not a graph of vectors of `dimensions` numbers.
    pub fn read(bytes: &[u8], dimensions: usize) -> Result<Self> {
        let graph = Self::new(dimensions)?;
        (graph.index.load_from_buffer(bytes)).context("the graph of vectors")?;
        let got = graph.index.dimensions();
        ensure!(
            got == dimensions,
            "the graph of vectors: expected vectors of {dimensions} numbers, got {got}"
        );
        // A graph that was read keeps none of these.
        graph.index.change_expansion_add(CANDIDATES_OF_NEIGHBOURS);
        graph.index.change_expansion_search(CANDIDATES);
        graph.reserve(0)?;
        Ok(graph)
    }

    /// The bytes of the graph.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub fn write(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.index.serialized_length()];
        let written = self.index.save_to_buffer(&mut bytes);
        written.context("the graph of vectors")?;
        Ok(bytes)
    }

    /// Makes room for `more` vectors.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub fn reserve(&self, more: usize) -> Result<()> {
        let capacity = self.len() + more;
        (self.index.reserve_capacity_and_threads(capacity, threads()))
            .with_context(|| format!("the graph of vectors: room for {capacity}"))
    }

    /// Adds vectors, for which there must be room, on all cores.
    ///
    /// # Errors
    /// When a key is there already, or a vector has another length.
    pub fn add(&self, vectors: &[(u64, Vec<f32>)]) -> Result<()> {
        let add = |vectors: &[(u64, Vec<f32>)]| -> Result<()> {
            for (key, vector) in vectors {
                self.index
                    .add(*key, vector)
                    .context("the graph of vectors")?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let parts = vectors.chunks(vectors.len().div_ceil(threads()).max(1));
            let threads: Vec<_> = parts.map(|part| scope.spawn(move || add(part))).collect();
            for thread in threads {
                let added = thread.join();
                added.map_err(|_| anyhow::anyhow!("the graph of vectors: a thread panicked"))??;
            }
            Ok(())
        })
    }

    /// The `count` vectors nearest to `vector` among those that `keep` admits, the nearest first.
    ///
    /// # Errors
    /// When `vector` has another length.
    pub fn search(
        &self,
        vector: &[f32],
        count: usize,
        keep: impl Fn(u64) -> bool,
    ) -> Result<Vec<Near>> {
        if self.is_empty() {
            return Ok(Vec::new());
        }
        // No more can be found, and room is made for this number.
        let count = count.min(self.len());
        let found = self.index.filtered_search(vector, count, keep);
        let found = found.context("the graph of vectors")?;
        let near = found.keys.into_iter().zip(found.distances);
        Ok(near
            .map(|(key, distance)| Near {
                key,
                cosine: 1. - distance,
            })
            .collect())
    }

    /// The vector of a key.
    ///
    /// # Errors
    /// When usearch fails.
    pub fn get(&self, key: u64) -> Result<Option<Vec<f32>>> {
        let mut vector = vec![0.; self.dimensions];
        let found = self.index.get(key, &mut vector);
        let found = found.context("the graph of vectors")?;
        Ok((found > 0).then_some(vector))
    }

    /// Whether there is a vector of that key.
    pub fn contains(&self, key: u64) -> bool {
        self.index.contains(key)
    }

    /// The number of vectors.
    pub fn len(&self) -> usize {
        self.index.size()
    }

    /// Whether there is no vector.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The length of a vector.
    pub fn dimensions(&self) -> usize {
        self.dimensions
    }
}

fn threads() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}
