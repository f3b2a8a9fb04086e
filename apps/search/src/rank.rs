//! The order of results: by meaning, by words, or by both.

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

/// The results of each ranking that are compared, where fewer are shown.
pub const COMPARED: usize = 100;

/// The weight of a standard score of words, beside 1 of meaning: `benches/questions.py`.
const WEIGHT_OF_WORDS: f64 = 0.7;

/// The scores of texts by both, from their cosines and their BM25 scores: sums of standard scores,
/// which tell how far a text is above the others, in units of their spread.
pub fn scores_by_both(cosines: &[f32], bm25: &[f32]) -> Vec<f32> {
    let (meaning, words) = (standard_scores(cosines), standard_scores(bm25));
    let both = meaning.zip(words);
    both.map(|(meaning, words)| (meaning + WEIGHT_OF_WORDS * words) as f32)
        .collect()
}

/// `(x - mean) / standard deviation`, or zeros if all are equal.
fn standard_scores(values: &[f32]) -> impl Iterator<Item = f64> {
    let count = values.len() as f64;
    let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
    let variance = (values.iter())
        .map(|&x| (f64::from(x) - mean).powi(2))
        .sum::<f64>()
        / count;
    let deviation = variance.sqrt();
    let scale = if deviation > 0. { 1. / deviation } else { 0. };
    values.iter().map(move |&x| (f64::from(x) - mean) * scale)
}

#[cfg(test)]
mod tests {
    use super::{WEIGHT_OF_WORDS, scores_by_both};

    #[test]
    fn scores_are_sums_of_standard_scores() {
        let [root, words] = [1.5f64.sqrt(), WEIGHT_OF_WORDS];
        // Means 2 and 4, deviations sqrt(2 / 3) and sqrt(8).
        let scores = scores_by_both(&[1., 2., 3.], &[0., 4., 8.]);
        let expected = [-1., 0., 1.].map(|x| (x * root * (1. + words)) as f32);
        for (score, expected) in scores.iter().zip(expected) {
            assert!((score - expected).abs() < 1e-6, "{scores:?}");
        }
    }

    #[test]
    fn what_is_the_same_for_all_decides_nothing() {
        assert_eq!(scores_by_both(&[0.5, 0.25], &[0., 0.]), [1., -1.]);
        assert_eq!(scores_by_both(&[0.5], &[3.]), [0.]);
        assert_eq!(scores_by_both(&[], &[]), [0f32; 0]);
    }
}
