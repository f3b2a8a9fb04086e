//! Vectors and rankings, compared.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::task::Task;

/// The number of ranks that count.
const DEPTH: usize = 10;

/// The vectors of a task.
pub struct Vectors {
    pub passages: Vec<Vec<f32>>,
    pub queries: Vec<Vec<f32>>,
}

/// The answers of a model against the float model's.
#[derive(Serialize)]
pub struct Figures {
    pub name: String,
    /// The mean over texts.
    pub cosine: f64,
    /// The SQNR; `None` if all numbers are equal.
    pub sqnr_db: Option<f64>,
    pub ndcg_10: f64,
    pub mrr_10: f64,
    /// The mean over queries.
    pub spearman: f64,
    /// The share of queries with the same first passage.
    pub same_first: f64,
}

impl Vectors {
    /// Checks that both models have vectors of the same size.
    pub fn check_shape(&self, other: &Self) -> Result<()> {
        let size = |vectors: &Self| vectors.passages.first().map_or(0, Vec::len);
        ensure!(
            size(self) == size(other),
            "expected vectors of {} numbers as the float model has, got {}",
            size(self),
            size(other)
        );
        Ok(())
    }

    /// The cosine of each query with each passage.
    fn scores(&self) -> Vec<Vec<f64>> {
        let of_query = |query: &Vec<f32>| {
            let passages = self.passages.iter();
            passages.map(|passage| cosine(query, passage)).collect()
        };
        self.queries.iter().map(of_query).collect()
    }

    fn all(&self) -> impl Iterator<Item = &Vec<f32>> {
        self.passages.iter().chain(&self.queries)
    }
}

impl Figures {
    pub const HEADER: &str = "mean cosine      SQNR   nDCG@10    MRR@10  Spearman  same first";

    pub fn new(name: &str, vectors: &Vectors, float: &Vectors, task: &Task) -> Self {
        let (scores, float_scores) = (vectors.scores(), float.scores());
        let rankings: Vec<Vec<usize>> = scores.iter().map(|it| ranking(it)).collect();
        let judged = || rankings.iter().zip(&task.grades);
        let beside = || scores.iter().zip(&float_scores);
        let first = |scores: &Vec<f64>| ranking(scores).first().copied();
        Self {
            name: name.to_owned(),
            cosine: mean(float.all().zip(vectors.all()).map(|(a, b)| cosine(a, b))),
            sqnr_db: sqnr_db(float.all().flatten().zip(vectors.all().flatten())),
            ndcg_10: mean(judged().map(|(ranking, grades)| ndcg(ranking, grades))),
            mrr_10: mean(judged().map(|(ranking, grades)| reciprocal_rank(ranking, grades))),
            spearman: mean(beside().map(|(scores, float)| spearman(scores, float))),
            same_first: mean(
                beside().map(|(scores, float)| f64::from(u8::from(first(scores) == first(float)))),
            ),
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sqnr = self.sqnr_db.map_or(String::new(), |db| format!("{db:.1} dB"));
        write!(
            f,
            "{:>11.5}{sqnr:>10}{:>10.4}{:>10.4}{:>10.5}{:>10.1} %",
            self.cosine,
            self.ndcg_10,
            self.mrr_10,
            self.spearman,
            100. * self.same_first
        )
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0., 0u32), |(sum, count), x| (sum + x, count + 1));
    sum / f64::from(count.max(1))
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        let pairs = a.iter().zip(b);
        pairs.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    };
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths > 0. { dot(a, b) / lengths } else { 0. }
}

fn sqnr_db<'a>(pairs: impl Iterator<Item = (&'a f32, &'a f32)>) -> Option<f64> {
    let (signal, noise) = pairs.fold((0., 0.), |(signal, noise), (&x, &y)| {
        let (x, y) = (f64::from(x), f64::from(y));
        (signal + x * x, noise + (x - y) * (x - y))
    });
    (noise > 0.).then(|| 10. * f64::log10(signal / noise))
}

/// Passages, the best first; equal passages keep their order.
fn ranking(scores: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    order
}

/// Normalized discounted cumulative gain, with grades as gains.
fn ndcg(ranking: &[usize], grades: &HashMap<usize, f64>) -> f64 {
    let gain = |grades: &mut dyn Iterator<Item = f64>| -> f64 {
        let ranks = grades.take(DEPTH).zip(2u32..);
        ranks.map(|(grade, rank)| grade / f64::from(rank).log2()).sum()
    };
    let grade = |passage: &usize| grades.get(passage).copied().unwrap_or(0.);
    let mut best: Vec<f64> = grades.values().copied().collect();
    best.sort_by_key(|grade| Reverse(grade.to_bits()));
    gain(&mut ranking.iter().map(grade)) / gain(&mut best.into_iter())
}

/// The reciprocal rank of the first passage with a grade.
fn reciprocal_rank(ranking: &[usize], grades: &HashMap<usize, f64>) -> f64 {
    let mut ranks = ranking.iter().take(DEPTH).zip(1u32..);
    let found = ranks.find(|(passage, _)| grades.contains_key(passage));
    found.map_or(0., |(_, rank)| 1. / f64::from(rank))
}

/// Spearman's correlation: Pearson's correlation of the ranks.
fn spearman(a: &[f64], b: &[f64]) -> f64 {
    let (a, b) = (ranks(a), ranks(b));
    let middle = (a.len() as f64 + 1.) / 2.;
    let product = |a: &[f64], b: &[f64]| -> f64 {
        let pairs = a.iter().zip(b);
        pairs.map(|(a, b)| (a - middle) * (b - middle)).sum()
    };
    let spread = (product(&a, &a) * product(&b, &b)).sqrt();
    if spread > 0. { product(&a, &b) / spread } else { 1. }
}

/// The ranks from 1; equal values share the mean of their ranks.
fn ranks(values: &[f64]) -> Vec<f64> {
    let order = ranking(values);
    let mut ranks = vec![0.; values.len()];
    let mut next = 0;
    for group in order.chunk_by(|&a, &b| values[a] == values[b]) {
        let rank = next as f64 + (group.len() as f64 + 1.) / 2.;
        group.iter().for_each(|&index| ranks[index] = rank);
        next += group.len();
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_near(got: f64, expected: f64) {
        assert!((got - expected).abs() < 1e-6, "{got}, {expected}");
    }

    #[test]
    fn ndcg_is_the_gain_by_the_best_gain() {
        // By hand: (1 / log2(2) + 2 / log2(4)) / (2 / log2(2) + 1 / log2(3)).
        let grades = HashMap::from([(7, 1.), (3, 2.)]);
        assert_near(ndcg(&[7, 0, 3], &grades), 2. / 2.630_929_75);
        assert_near(ndcg(&[3, 7, 0], &grades), 1.);
        let beyond: Vec<usize> = (10..20).chain([3, 7]).collect();
        assert_near(ndcg(&beyond, &grades), 0.);
    }

    #[test]
    fn the_reciprocal_rank_is_that_of_the_first_answer() {
        let grades = HashMap::from([(4, 2.), (5, 1.)]);
        assert_near(reciprocal_rank(&[0, 5, 4], &grades), 0.5);
        let beyond: Vec<usize> = (10..20).chain([4]).collect();
        assert_near(reciprocal_rank(&beyond, &grades), 0.);
    }

    #[test]
    fn spearman_is_of_ranks_and_equal_values_share_theirs() {
        assert_near(spearman(&[1., 2., 3.], &[10., 20., 90.]), 1.);
        assert_near(spearman(&[1., 2., 3.], &[3., 2., 1.]), -1.);
        // By hand: ranks less 3 are 2, 0.5, 0.5, -1, -2 and 1, 2, 0, -2, -1.
        assert_near(spearman(&[1., 2., 2., 4., 5.], &[2., 1., 3., 5., 4.]), 7. / 95f64.sqrt());
        assert_eq!(ranks(&[5., 1., 5., 9.]), [2.5, 4., 2.5, 1.]);
    }

    #[test]
    fn noise_of_a_tenth_has_20_db_and_no_noise_none() {
        let (x, y) = ([1f32, -2.], [1.1f32, -2.2]);
        let db = sqnr_db(x.iter().zip(&y));
        assert!(db.is_some_and(|db| (db - 20.).abs() < 1e-5), "{db:?}");
        assert_eq!(sqnr_db(x.iter().zip(&x)), None);
        assert_near(cosine(&x, &y), 1.);
    }
}
