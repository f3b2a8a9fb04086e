//! The words of passages, and their ranking by BM25: what the words of a question are worth, by
//! how few passages have them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// How soon a word that is repeated gains no more.
const K1: f64 = 1.2;
/// How much a long passage needs more words than a short one.
const B: f64 = 0.75;

/// The inverted index: words, and the passages that have them. It depends on the passages alone,
/// not on the order of updates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    /// The keys of the passages, in their order.
    keys: Vec<u64>,
    /// The number of words of each.
    lengths: Vec<u32>,
    /// For each word the passages, by their places in `keys`, and how often it is there.
    postings: BTreeMap<String, Vec<(u32, u32)>>,
}

/// The ranking of all passages by the words of a question.
pub struct Scores<'a> {
    keys: &'a [u64],
    scores: Vec<f64>,
}

impl Terms {
    /// Of the passages `keys`: what `old` knows of them, and for others their texts.
    pub fn new(old: &Self, keys: &BTreeSet<u64>, texts: &BTreeMap<u64, String>) -> Self {
        let keys: Vec<u64> = keys.iter().copied().collect();
        let mut lengths = vec![0; keys.len()];
        let mut postings = BTreeMap::<String, Vec<(u32, u32)>>::new();
        let place = |key: u64| keys.binary_search(&key).ok();
        let new_places: Vec<Option<usize>> = old.keys.iter().map(|&key| place(key)).collect();
        for (length, place) in old.lengths.iter().zip(&new_places) {
            if let Some(place) = *place {
                lengths[place] = *length;
            }
        }
        for (term, passages) in &old.postings {
            let kept = passages.iter().filter_map(|&(at, count)| {
                let place = new_places.get(at as usize).copied().flatten()?;
                Some((place as u32, count))
            });
            let kept: Vec<(u32, u32)> = kept.collect();
            if !kept.is_empty() {
                postings.insert(term.clone(), kept);
            }
        }
        for (&key, text) in texts {
            let is_known = old.keys.binary_search(&key).is_ok();
            if let Some(place) = place(key).filter(|_| !is_known) {
                let mut counts = BTreeMap::<String, u32>::new();
                for term in terms(text) {
                    *counts.entry(term).or_default() += 1;
                }
                lengths[place] = counts.values().sum();
                for (term, count) in counts {
                    postings
                        .entry(term)
                        .or_default()
                        .push((place as u32, count));
                }
            }
        }
        postings
            .values_mut()
            .for_each(|passages| passages.sort_unstable());
        Self {
            keys,
            lengths,
            postings,
        }
    }

    /// Reads what [`write`](Self::write) wrote.
    ///
    /// # Errors
    /// When it is something else.
    pub fn read(bytes: &[u8]) -> Result<Self> {
        let terms: Self = postcard::from_bytes(bytes).context("the words of passages")?;
        let count = terms.keys.len();
        let mut passages = terms.postings.values().flatten();
        ensure!(
            terms.lengths.len() == count
                && terms.keys.is_sorted()
                && passages.all(|&(at, _)| (at as usize) < count),
            "the words of passages: expected those of {count} passages"
        );
        Ok(terms)
    }

    /// The bytes of it.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub fn write(&self) -> Result<Vec<u8>> {
        postcard::to_stdvec(self).context("the words of passages")
    }

    /// Scores all passages by the words of `query`.
    pub fn score(&self, query: &str) -> Scores<'_> {
        let mut scores = vec![0.; self.keys.len()];
        let count = self.keys.len() as f64;
        let all: f64 = self.lengths.iter().map(|it| f64::from(*it)).sum();
        let mean = (all / count).max(1.);
        let terms: BTreeSet<String> = terms(query).collect();
        // In one order, so that sums have the same bits.
        for passages in terms.iter().filter_map(|term| self.postings.get(term)) {
            let having = passages.len() as f64;
            let worth = ((count - having + 0.5) / (having + 0.5)).ln_1p();
            for &(at, count) in passages {
                let (at, count) = (at as usize, f64::from(count));
                let length = f64::from(self.lengths[at]) / mean;
                scores[at] += worth * count * (K1 + 1.) / (count + K1 * (1. - B + B * length));
            }
        }
        Scores {
            keys: &self.keys,
            scores,
        }
    }
}

impl Scores<'_> {
    /// The `count` passages with the highest scores above 0, the highest first.
    pub fn best(&self, count: usize) -> Vec<u64> {
        let scored = self.keys.iter().zip(&self.scores);
        let mut scored: Vec<(&u64, &f64)> = scored.filter(|(_, score)| **score > 0.).collect();
        let order = |a: &(&u64, &f64), b: &(&u64, &f64)| b.1.total_cmp(a.1).then(a.0.cmp(b.0));
        // A common word is in most passages: only the best are sorted.
        if count < scored.len() {
            scored.select_nth_unstable_by(count, order);
            scored.truncate(count);
        }
        scored.sort_unstable_by(order);
        scored.iter().map(|(key, _)| **key).collect()
    }

    /// The score of a passage.
    pub fn of(&self, key: u64) -> f32 {
        let place = self.keys.binary_search(&key);
        place.map_or(0., |place| self.scores[place] as f32)
    }
}

/// The words of a text without their case; a name such as `max_tokens` whole, and its parts.
fn terms(text: &str) -> impl Iterator<Item = String> {
    let names = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    let names = names.map(|name| name.trim_matches('_'));
    names.filter(|name| !name.is_empty()).flat_map(|name| {
        let parts = name.split('_').filter(|part| !part.is_empty());
        let parts = parts.filter(move |_| name.contains('_'));
        std::iter::once(name).chain(parts).map(str::to_lowercase)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::{Terms, terms};

    const TEXTS: [&str; 5] = [
        "a b c",
        "The error E0277: the trait is not implemented",
        "call quantize_dynamic, then save",
        "dynamic prices",
        "the the the trait",
    ];

    fn texts(numbers: &[u64]) -> BTreeMap<u64, String> {
        let text = |&number: &u64| (number, TEXTS[number as usize].to_owned());
        numbers.iter().map(text).collect()
    }

    fn of(old: &Terms, keys: &[u64], new: &[u64]) -> Terms {
        let keys: BTreeSet<u64> = keys.iter().copied().collect();
        Terms::new(old, &keys, &texts(new))
    }

    #[test]
    fn names_are_words_with_their_parts() {
        let found: Vec<String> = terms("a::max_Tokens, __x__ (Größe) E0277 _").collect();
        assert_eq!(
            found,
            ["a", "max_tokens", "max", "tokens", "x", "größe", "e0277"]
        );
    }

    #[test]
    fn rare_words_decide() {
        let all = of(&Terms::default(), &[0, 1, 2, 3, 4], &[0, 1, 2, 3, 4]);
        let best = |query: &str| all.score(query).best(5);
        assert_eq!(best("what is e0277"), [1]);
        assert_eq!(best("quantize_dynamic"), [2, 3]);
        assert_eq!(best("the trait")[0], 4);
        assert_eq!(best("zebra"), [0; 0]);
        let scores = all.score("dynamic");
        assert!(scores.of(3) > scores.of(2) && scores.of(2) > 0. && scores.of(0) == 0.);
        assert!(Terms::default().score("a").best(5).is_empty());
    }

    /// Texts: two words, the first twice. With n = 2 and one passage that has it, the worth is
    /// ln(1 + 1.5 / 1.5); lengths are 3 and 1, so 3 / 2 of the mean.
    #[test]
    fn the_formula_is_bm25() {
        let texts = BTreeMap::from([(7, "a a b".to_owned()), (9, "c".to_owned())]);
        let all = Terms::new(&Terms::default(), &BTreeSet::from([7, 9]), &texts);
        let expected = 2f64.ln() * 2. * 2.2 / (2. + 1.2 * (0.25 + 0.75 * 1.5));
        assert_eq!(all.score("A").of(7), expected as f32);
    }

    #[test]
    fn the_way_to_the_passages_makes_no_difference() {
        let first = of(&Terms::default(), &[0, 2, 4], &[0, 2, 4]);
        let second = of(&first, &[1, 2, 3], &[1, 3]);
        assert_eq!(second, of(&Terms::default(), &[1, 2, 3], &[1, 2, 3]));
        assert_eq!(second, of(&second, &[1, 2, 3], &[2]));
    }

    #[test]
    fn bytes_that_lie_are_an_error() {
        let all = of(&Terms::default(), &[0, 1], &[0, 1]);
        let bytes = all.write().unwrap_or_default();
        assert_eq!(Terms::read(&bytes).ok(), Some(all.clone()));
        for end in 0..bytes.len() {
            assert!(Terms::read(&bytes[..end]).is_err(), "{end}");
        }
        let lies = [
            Terms {
                lengths: vec![1],
                ..all.clone()
            },
            Terms {
                keys: vec![1, 0],
                ..all.clone()
            },
            Terms {
                postings: BTreeMap::from([("a".to_owned(), vec![(2, 1)])]),
                ..all
            },
        ];
        for lie in lies {
            assert!(
                Terms::read(&lie.write().unwrap_or_default()).is_err(),
                "{lie:?}"
            );
        }
    }
}
