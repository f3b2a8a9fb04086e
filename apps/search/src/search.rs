//! Questions to an index.

use std::collections::{BTreeSet, HashMap};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use candle_dynquant_io::input;
use dynquant_embed::{Embedder, Input, ModelOptions};
use serde::Serialize;

use crate::identity::Identity;
use crate::index::{Entry, Index};
use crate::passages::{Passage, key};
use crate::place::Place;
use crate::rank::{COMPARED, Rank, scores_by_both};
use crate::terms::Terms;
use crate::update::directions;
use crate::vectors::{Near, Vectors};

/// The most places of a text that are named; a licence is in hundreds of files.
const MAX_PLACES: usize = 4;

/// An index with its model, ready to answer.
pub struct Searcher {
    rank: Rank,
    /// `None` where words decide.
    embedder: Option<Embedder>,
    terms: Terms,
    vectors: Vectors,
    root: PathBuf,
    files: Vec<(String, Entry)>,
    /// The files that a text is in, and the numbers of its passages there.
    places: HashMap<u64, Vec<(usize, usize)>>,
}

/// An answer.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// The question.
    pub query: String,
    /// Texts, the best first.
    pub results: Vec<Hit>,
    /// Milliseconds of all.
    pub milliseconds: f64,
    /// Milliseconds in the model.
    pub embedding_milliseconds: f64,
    /// Milliseconds in the vectors and in the words.
    pub search_milliseconds: f64,
}

/// A text that answers a question.
#[derive(Clone, Debug, Serialize)]
pub struct Hit {
    /// The score of the order: the cosine, BM25, or the sum of their standard scores.
    pub score: f32,
    /// The cosine of the angle between it and the question, where meaning decides.
    pub cosine: Option<f32>,
    /// The BM25 score, where words decide.
    pub bm25: Option<f32>,
    /// Where it is, at most four places: those first that are as they were indexed.
    pub places: Vec<Occurrence>,
    /// The number of further places.
    pub more: usize,
    /// The text; `None` if all files named have changed since they were indexed.
    pub text: Option<String>,
}

/// A place of a text.
#[derive(Clone, Debug, Serialize)]
pub struct Occurrence {
    /// The file.
    pub path: String,
    /// The number of its first line, from 1.
    pub first_line: usize,
    /// The number of its last line.
    pub last_line: usize,
    /// Whether the text is not there any more.
    pub changed: bool,
}

/// A text that was found.
struct Found {
    key: u64,
    score: f32,
    cosine: Option<f32>,
    bm25: Option<f32>,
}

impl Searcher {
    /// Reads an index, and its model if meaning is to decide; `options` name another folder of that
    /// model, if any.
    ///
    /// # Errors
    /// When one of them cannot be read, or the index is of another model.
    pub fn open(place: &Place, options: &ModelOptions, rank: Rank) -> Result<Self> {
        let file = place.file();
        let Index {
            catalog,
            terms,
            vectors,
        } = Index::read(file)?;
        let embedder = match rank {
            Rank::Words => None,
            Rank::Meaning | Rank::Both => {
                let (embedder, model) = Identity::open(options, Some(&catalog.model))?;
                ensure!(
                    catalog.model.matches(&model),
                    "{}: expected an index of the model {model}, got one of {}",
                    file.display(),
                    catalog.model
                );
                Some(embedder)
            }
        };
        let root = match (catalog.root, place.root()) {
            (Some(root), _) => PathBuf::from(root),
            (None, Some(root)) => root.to_owned(),
            (None, None) => anyhow::bail!(
                "{}: expected it in the folder `.dynquant-search` of the folder that it is of",
                file.display()
            ),
        };
        let files: Vec<(String, Entry)> = catalog.files.into_iter().collect();
        let mut places = HashMap::<u64, Vec<(usize, usize)>>::new();
        for (file, (_, entry)) in files.iter().enumerate() {
            for (number, passage) in entry.passages.iter().enumerate() {
                places.entry(passage.key).or_default().push((file, number));
            }
        }
        // An index keeps vectors of texts that are gone.
        let vectors = if vectors.len() > places.len() {
            vectors.only(&places.keys().copied().collect())
        } else {
            vectors
        };
        Ok(Self {
            rank,
            embedder,
            terms,
            vectors,
            root,
            files,
            places,
        })
    }

    /// The number of passages that differ.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The `count` texts that answer `query` best.
    ///
    /// # Errors
    /// When the query has no words or too many, or the model fails.
    pub fn answer(&self, query: &str, count: usize) -> Result<Answer> {
        let start = Instant::now();
        ensure!(
            !query.trim().is_empty(),
            "the query: expected words, got none"
        );
        let vector = (self.embedder.as_ref()).map(|it| vector(it, query));
        let vector = vector.transpose()?;
        let embedded = Instant::now();
        let found = self.found(query, vector.as_deref(), count)?;
        let searched = Instant::now();
        let results = found.into_iter().map(|found| self.hit(found)).collect();
        let milliseconds = |from: Instant, to: Instant| (to - from).as_secs_f64() * 1e3;
        Ok(Answer {
            query: query.to_owned(),
            results,
            milliseconds: milliseconds(start, Instant::now()),
            embedding_milliseconds: milliseconds(start, embedded),
            search_milliseconds: milliseconds(embedded, searched),
        })
    }

    /// Merges the best by meaning, of which there is a vector, and by words.
    fn found(&self, query: &str, vector: Option<&[f32]>, count: usize) -> Result<Vec<Found>> {
        let depth = match self.rank {
            Rank::Both => count.max(COMPARED),
            Rank::Meaning | Rank::Words => count,
        };
        let near = vector.map(|vector| self.near(vector, depth)).transpose()?;
        let words = (self.rank != Rank::Meaning).then(|| self.terms.score(query));
        let best = words.as_ref().map(|it| it.best(depth));
        let near = near.into_iter().flatten().map(|near| near.key);
        let keys: BTreeSet<u64> = near.chain(best.into_iter().flatten()).collect();
        let cosine = |&key: &u64| match vector {
            Some(vector) => self.vectors.cosine(key, vector),
            None => Ok(0.),
        };
        let cosines: Vec<f32> = keys.iter().map(cosine).collect::<Result<_>>()?;
        let bm25 = |&key: &u64| words.as_ref().map_or(0., |it| it.of(key));
        let bm25: Vec<f32> = keys.iter().map(bm25).collect();
        let scores = match self.rank {
            Rank::Meaning => cosines.clone(),
            Rank::Words => bm25.clone(),
            Rank::Both => scores_by_both(&cosines, &bm25),
        };
        let found = keys
            .into_iter()
            .zip(scores)
            .zip(cosines.into_iter().zip(bm25));
        let mut found: Vec<Found> = found
            .map(|((key, score), (cosine, bm25))| Found {
                key,
                score,
                cosine: vector.map(|_| cosine),
                bm25: words.as_ref().map(|_| bm25),
            })
            .collect();
        // Stable: of equals, the lower key is first.
        found.sort_by(|a, b| b.score.total_cmp(&a.score));
        found.truncate(count);
        Ok(found)
    }

    /// The embedding of a query, of length 1.
    ///
    /// # Errors
    /// When it has too many words, the model fails, or none was read.
    pub fn vector(&self, query: &str) -> Result<Vec<f32>> {
        let embedder = self.embedder.as_ref();
        vector(embedder.context("expected a ranking by meaning")?, query)
    }

    /// The `count` texts nearest to a vector.
    ///
    /// # Errors
    /// When the vector has another length than the vectors of the index.
    pub fn near(&self, vector: &[f32], count: usize) -> Result<Vec<Near>> {
        self.vectors.search(vector, count)
    }

    fn hit(&self, found: Found) -> Hit {
        let Found {
            key,
            score,
            cosine,
            bm25,
        } = found;
        let all = self.places.get(&key).map_or(&[][..], Vec::as_slice);
        let mut text = None;
        let place = |&(file, number): &(usize, usize)| {
            let (name, entry) = &self.files[file];
            let passage = &entry.passages[number];
            let path = self.root.join(name);
            let now = current(&path, passage);
            let changed = now.is_none();
            text = text.take().or(now);
            Occurrence {
                path: path.display().to_string(),
                first_line: passage.first_line,
                last_line: passage.last_line,
                changed,
            }
        };
        let mut places: Vec<Occurrence> = all.iter().take(MAX_PLACES).map(place).collect();
        places.sort_by_key(|place| place.changed);
        Hit {
            score,
            cosine,
            bm25,
            more: all.len() - places.len(),
            places,
            text,
        }
    }
}

fn vector(embedder: &Embedder, query: &str) -> Result<Vec<f32>> {
    let text = format!("{}{query}", embedder.encoder().prompts.query());
    // An embedder would cut a text that is too long.
    (embedder
        .encoder()
        .tokenizer
        .encode(Input::Text(&text), None))
    .context("the query")?;
    let mut vectors = directions(embedder.embed_queries(&[query])?)?;
    (vectors.pop()).context("the model: expected an embedding, got none")
}

/// The text of a passage, if it is still in that place, at those lines.
fn current(path: &Path, passage: &Passage) -> Option<String> {
    let mut bytes = Vec::new();
    let end = passage.bytes.end as u64;
    (input::open(path).ok()?.take(end).read_to_end(&mut bytes)).ok()?;
    let text = bytes.get(passage.bytes.clone())?;
    let before = &bytes[..passage.bytes.start];
    let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
    let same = line == passage.first_line && key(text) == passage.source;
    same.then(|| String::from_utf8_lossy(text).into_owned())
}
