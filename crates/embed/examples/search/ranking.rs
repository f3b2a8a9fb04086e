//! The order of passages by meaning and by words.

use std::collections::BTreeSet;

/// The number of best passages of each ranking that are combined.
const COMPARED: usize = 100;
/// The weight of words against 1 for meaning, both as standard scores.
const WEIGHT_OF_WORDS: f64 = 0.7;
/// BM25's usual parameters: the saturation of a word's count, and the share of a text's length.
const K1: f64 = 1.2;
const B: f64 = 0.75;

/// The BM25 score of each text for the words of a query.
pub fn bm25(query: &str, texts: &[&str]) -> Vec<f64> {
    let texts: Vec<Vec<String>> = texts.iter().map(|text| terms(text).collect()).collect();
    let count = texts.len() as f64;
    let mean = texts.iter().map(Vec::len).sum::<usize>() as f64 / count;
    let mut scores = vec![0.; texts.len()];
    for term in terms(query).collect::<BTreeSet<_>>() {
        let times = |words: &Vec<String>| words.iter().filter(|word| **word == term).count();
        let times: Vec<f64> = texts.iter().map(|words| times(words) as f64).collect();
        let having = times.iter().filter(|&&n| n > 0.).count() as f64;
        let worth = ((count - having + 0.5) / (having + 0.5)).ln_1p();
        for ((score, n), words) in scores.iter_mut().zip(times).zip(&texts) {
            let length = words.len() as f64 / mean.max(1.);
            *score += worth * n * (K1 + 1.) / (n + K1 * (1. - B + B * length));
        }
    }
    scores
}

/// The lower-case words of a text; a name such as `max_tokens` also yields its parts.
fn terms(text: &str) -> impl Iterator<Item = String> {
    let names = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    let names = names.map(|name| name.trim_matches('_'));
    names.filter(|name| !name.is_empty()).flat_map(|name| {
        let parts = name.split('_').filter(|part| !part.is_empty());
        let parts = parts.filter(move |_| name.contains('_'));
        std::iter::once(name).chain(parts).map(str::to_lowercase)
    })
}

/// The best by meaning and the best by words in one order, with their scores: sums of standard
/// scores, which measure the distance above the mean in units of the spread.
pub fn both(cosines: &[f64], bm25: &[f64]) -> Vec<(usize, f64)> {
    let best = |scores: &[f64]| {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        order.truncate(COMPARED);
        order
    };
    let by_words = best(bm25).into_iter().filter(|&index| bm25[index] > 0.);
    let chosen: BTreeSet<usize> = best(cosines).into_iter().chain(by_words).collect();
    let standard = |scores: &[f64]| -> Vec<f64> {
        let count = chosen.len() as f64;
        let mean = chosen.iter().map(|&index| scores[index]).sum::<f64>() / count;
        let squares = chosen.iter().map(|&index| (scores[index] - mean).powi(2));
        let deviation = (squares.sum::<f64>() / count).sqrt();
        let scale = if deviation > 0. { 1. / deviation } else { 0. };
        chosen.iter().map(|&index| (scores[index] - mean) * scale).collect()
    };
    let sums = standard(cosines).into_iter().zip(standard(bm25));
    let sums = sums.map(|(meaning, words)| meaning + WEIGHT_OF_WORDS * words);
    let mut order: Vec<(usize, f64)> = chosen.iter().copied().zip(sums).collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    order
}
