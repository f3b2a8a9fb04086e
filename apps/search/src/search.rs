//! Questions to an index.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use candle_dynquant_io::input;
use dynquant_embed::{Encoder, Input, ModelOptions};
use serde::Serialize;

use crate::graph::{Graph, Near};
use crate::identity::Identity;
use crate::index::{Entry, Index};
use crate::passages::{Passage, key};
use crate::place::Place;
use crate::update::vectors;

/// The most places of a text that are named; a licence is in hundreds of files.
const MAX_PLACES: usize = 4;

/// An index with its model, ready to answer.
pub struct Searcher {
    encoder: Encoder,
    graph: Graph,
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
    /// Texts, the nearest first.
    pub results: Vec<Hit>,
    /// Milliseconds of all.
    pub milliseconds: f64,
    /// Milliseconds in the model.
    pub embedding_milliseconds: f64,
    /// Milliseconds in the graph.
    pub search_milliseconds: f64,
}

/// A text that is near to a question.
#[derive(Clone, Debug, Serialize)]
pub struct Hit {
    /// The cosine of the angle between it and the question.
    pub score: f32,
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

impl Searcher {
    /// Reads an index and its model; `options` name another folder of that model, if any.
    ///
    /// # Errors
    /// When one of them cannot be read, or the index is of another model.
    pub fn open(place: &Place, options: &ModelOptions) -> Result<Self> {
        let file = place.file();
        let Index { catalog, graph } = Index::read(file)?;
        let (encoder, model) = Identity::open(options, Some(&catalog.model))?;
        ensure!(
            catalog.model.matches(&model),
            "{}: expected an index of the model {model}, got one of {}",
            file.display(),
            catalog.model
        );
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
        Ok(Self {
            encoder,
            graph,
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

    /// The `count` texts nearest to `query`.
    ///
    /// # Errors
    /// When the query has no words or too many, or the model fails.
    pub fn answer(&self, query: &str, count: usize) -> Result<Answer> {
        let start = Instant::now();
        let vector = self.vector(query)?;
        let embedded = Instant::now();
        let near = self.near(&vector, count)?;
        let searched = Instant::now();
        let results = near.iter().map(|near| self.hit(near)).collect();
        let milliseconds = |from: Instant, to: Instant| (to - from).as_secs_f64() * 1e3;
        Ok(Answer {
            query: query.to_owned(),
            results,
            milliseconds: milliseconds(start, Instant::now()),
            embedding_milliseconds: milliseconds(start, embedded),
            search_milliseconds: milliseconds(embedded, searched),
        })
    }

    /// The embedding of a query, of length 1.
    ///
    /// # Errors
    /// When it has no words or too many, or the model fails.
    pub fn vector(&self, query: &str) -> Result<Vec<f32>> {
        ensure!(
            !query.trim().is_empty(),
            "the query: expected words, got none"
        );
        let tokens = self.encoder.tokenizer.encode(Input::Text(query), None);
        let mut vectors = vectors(&self.encoder, &[&tokens.context("the query")?])?;
        vectors
            .pop()
            .context("the model: expected an embedding, got none")
    }

    /// The `count` texts nearest to a vector.
    ///
    /// # Errors
    /// When the vector has another length than the vectors of the index.
    pub fn near(&self, vector: &[f32], count: usize) -> Result<Vec<Near>> {
        self.graph
            .search(vector, count, |key| self.places.contains_key(&key))
    }

    /// The vectors of all texts, by key.
    ///
    /// # Errors
    /// When the graph fails.
    pub fn all(&self) -> Result<Vec<(u64, Vec<f32>)>> {
        let vector = |&key: &u64| {
            let vector = self.graph.get(key)?;
            Ok((
                key,
                vector.context("expected the vector of a passage, got none")?,
            ))
        };
        self.places.keys().map(vector).collect()
    }

    fn hit(&self, near: &Near) -> Hit {
        let all = self.places.get(&near.key).map_or(&[][..], Vec::as_slice);
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
            score: near.cosine,
            more: all.len() - places.len(),
            places,
            text,
        }
    }
}

/// The text of a passage, if it is still in that place, at those lines.
fn current(path: &Path, passage: &Passage) -> Option<String> {
    let mut bytes = Vec::new();
    let end = passage.bytes.end as u64;
    (input::open(path).ok()?.take(end).read_to_end(&mut bytes)).ok()?;
    let text = bytes.get(passage.bytes.clone())?;
    let before = &bytes[..passage.bytes.start];
    let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
    let same = line == passage.first_line && key(text) == passage.key;
    same.then(|| String::from_utf8_lossy(text).into_owned())
}
