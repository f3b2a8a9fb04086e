//! The order of results: by meaning, by words, or by both.

use std::collections::BTreeMap;

use clap::ValueEnum;

/// The ranking of results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Rank {
    /// The meaning: the cosine of embeddings.
    Meaning,
    /// The words, by BM25; the model is not read.
    Words,
    /// Both.
    #[default]
    Both,
}

/// The results of each ranking that are merged, where fewer are shown.
pub const MERGED: usize = 100;

/// The constant of reciprocal rank fusion: the larger, the more equal are neighbouring ranks.
const EVENNESS: f64 = 60.;

/// Merges rankings by reciprocal ranks: the keys and what their places are worth, the highest
/// first.
pub fn merged(rankings: &[Vec<u64>]) -> Vec<(u64, f64)> {
    let mut worth = BTreeMap::<u64, f64>::new();
    for ranking in rankings {
        for (place, key) in ranking.iter().enumerate() {
            *worth.entry(*key).or_default() += 1. / (EVENNESS + 1. + place as f64);
        }
    }
    let mut merged: Vec<(u64, f64)> = worth.into_iter().collect();
    // Stable: of equals, the lower key is first.
    merged.sort_by(|a, b| b.1.total_cmp(&a.1));
    merged
}

#[cfg(test)]
mod tests {
    use super::merged;

    #[test]
    fn a_text_that_both_know_goes_first() {
        let keys = |rankings: &[Vec<u64>]| -> Vec<u64> {
            merged(rankings).into_iter().map(|(key, _)| key).collect()
        };
        assert_eq!(keys(&[vec![5, 3], vec![9, 3]]), [3, 5, 9]);
        assert_eq!(keys(&[vec![5, 3], vec![]]), [5, 3]);
        assert_eq!(keys(&[vec![2, 1], vec![1, 2]]), [1, 2]);
        assert_eq!(keys(&[]), [0; 0]);
    }
}
