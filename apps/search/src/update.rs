//! Makes an index of a folder, or brings one up to date: only texts that are new are embedded.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use candle_dynquant_io::input;
use dynquant_embed::{Embedder, ModelOptions};
use rayon::prelude::*;
use serde::Serialize;

use crate::identity::{Identity, absolute};
use crate::index::{self, Catalog, Entry, Index};
use crate::markdown::is_markdown;
use crate::passages::Splitter;
use crate::place::{Lock, Place};
use crate::progress::Progress;
use crate::terms::Terms;
use crate::vectors::Vectors;
use crate::walk::{Reason, Skipped, WalkOptions, walk};

/// Bytes of texts that are embedded between two steps of the bar.
const BATCH_BYTES: usize = 8192;
/// The least time between two partial indexes.
const SAVE_EVERY: Duration = Duration::from_secs(60);
/// And the part of the time that they may take, as a divisor.
const SAVE_PART: u32 = 20;

/// An index to make.
pub struct Update<'a> {
    /// The folder.
    pub dir: &'a Path,
    /// The index.
    pub place: &'a Place,
    /// The model; without an option, the old index's.
    pub model: &'a ModelOptions,
    /// The files to take.
    pub walk: &'a WalkOptions,
    /// Whether an old index is left unread.
    pub rebuild: bool,
}

/// The work that was done.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Files in the index.
    pub files: usize,
    /// The new or changed ones among them.
    pub read: usize,
    /// Files that were in the old index, and are not in this one.
    pub removed: usize,
    /// Passages in the index.
    pub passages: usize,
    /// Texts that were embedded.
    pub embedded: usize,
    /// Files that are left out.
    pub skipped: Vec<Skipped>,
    /// The model.
    pub model: String,
    /// The file of the index.
    pub index: String,
    /// Its length.
    pub bytes: u64,
    /// The time that it took.
    pub seconds: f64,
}

/// A file as it is now.
enum Now {
    Unchanged,
    Changed(Entry, Vec<String>),
    Skipped(Reason),
}

impl Update<'_> {
    /// Makes the index. The file is replaced at the end, if anything has changed.
    ///
    /// # Errors
    /// When the folder, the model, or an old index cannot be read, the index cannot be written,
    /// another process writes it, or the old index is of another folder or model.
    pub fn run(&self, progress: &Progress) -> Result<Outcome> {
        let start = Instant::now();
        ensure!(
            self.dir.is_dir(),
            "{}: expected a folder, got {}",
            self.dir.display(),
            if self.dir.exists() {
                "a file"
            } else {
                "no such folder"
            }
        );
        let lock = self.place.lock()?;
        let old = self.old()?;
        let of_index = match &old {
            Some(old) => Some(old.catalog.model.clone()),
            None => self.model_of_replaced(),
        };
        let (embedder, model) = Identity::open(self.model, of_index.as_ref())?;
        let new = self.empty(model, embedder.dimensions())?;
        if let Some(old) = &old {
            self.check_same(&old.catalog, &new)?;
        }
        let is_new = old.is_none();
        let Index {
            catalog: before,
            terms: old_terms,
            mut vectors,
        } = self.start(old, &new)?;

        let mut catalog = new;
        let (texts, skipped) = self.read(&embedder, &before, &mut catalog, progress)?;
        let mut saver = Saver::new(&before, &old_terms, self.place.partial(), &lock);
        let embedded = embed(&embedder, &texts, &mut vectors, progress, &mut saver)?;
        let keys = keys(&catalog);
        let terms = Terms::new(&old_terms, &keys, &texts);
        let vectors = without_dead(vectors, &keys);

        let bytes = if before == catalog && !is_new {
            self.place.file().metadata()?.len()
        } else {
            index::write(&catalog, &terms, &vectors, self.place, &lock)?
        };
        saver.discard();
        let changed = |(name, entry): &(&String, &Entry)| before.files.get(*name) != Some(*entry);
        let gone = |name: &&String| !catalog.files.contains_key(*name);
        let passages = catalog.files.values().map(|entry| entry.passages.len());
        Ok(Outcome {
            files: catalog.files.len(),
            read: catalog.files.iter().filter(changed).count(),
            removed: before.files.keys().filter(gone).count(),
            passages: passages.sum(),
            embedded,
            skipped,
            model: catalog.model.to_string(),
            index: self.place.file().display().to_string(),
            bytes,
            seconds: start.elapsed().as_secs_f64(),
        })
    }

    fn old(&self) -> Result<Option<Index>> {
        let file = self.place.file();
        if self.rebuild || !file.exists() {
            return Ok(None);
        }
        let index = Index::read(file).context("the old index (--rebuild replaces it)")?;
        Ok(Some(index))
    }

    /// The model of an index that is made anew, if it can be read.
    fn model_of_replaced(&self) -> Option<Identity> {
        let index = Index::read(self.place.file()).ok()?;
        Some(index.catalog.model)
    }

    /// The catalog of an index without files.
    fn empty(&self, model: Identity, dimensions: usize) -> Result<Catalog> {
        let root = match self.place.root() {
            Some(_) => None,
            None => Some(absolute(self.dir)?),
        };
        Ok(Catalog {
            model,
            dimensions,
            root,
            files: BTreeMap::new(),
        })
    }

    fn check_same(&self, old: &Catalog, new: &Catalog) -> Result<()> {
        let file = self.place.file().display();
        if !old.model.matches(&new.model) {
            bail!(
                "{file}: expected an index of the model {}, got one of {}; --rebuild replaces it",
                new.model,
                old.model
            );
        }
        let root = |it: &Catalog| match &it.root {
            Some(root) => root.clone(),
            None => "the folder that it is in".to_owned(),
        };
        ensure!(
            old.root == new.root,
            "{file}: expected an index of {}, got one of {}; --rebuild replaces it",
            root(new),
            root(old)
        );
        Ok(())
    }

    /// The index to go on from: the partial one if it is of the old one, else the old one, else
    /// `new`.
    fn start(&self, old: Option<Index>, new: &Catalog) -> Result<Index> {
        let start = match old {
            Some(old) => old,
            None => Index {
                catalog: new.clone(),
                terms: Terms::default(),
                vectors: Vectors::new(new.dimensions),
            },
        };
        // A partial one that is damaged or of another index is of no use, and will be replaced.
        let read = || Index::read(self.place.partial().file()).ok();
        let partial = (!self.rebuild).then(read).flatten();
        Ok(partial
            .filter(|it| it.catalog == start.catalog)
            .unwrap_or(start))
    }

    /// Fills the catalog; the texts of files that are not as they were, and the files that are left
    /// out.
    fn read(
        &self,
        embedder: &Embedder,
        before: &Catalog,
        catalog: &mut Catalog,
        progress: &Progress,
    ) -> Result<(BTreeMap<u64, String>, Vec<Skipped>)> {
        progress.phase("finding files", None);
        let found = walk(self.dir, self.place, self.walk, || {
            // To be interrupted here gains nothing: reading begins with a look at the flag.
            let _ = progress.advance(1);
        })?;
        progress.phase("reading files", Some(found.files.len()));
        let tokenizer = &embedder.encoder().tokenizer;
        let splitter = Splitter::new(tokenizer, embedder.encoder().prompts.document())?;
        let files = found.files.into_par_iter().map(|(name, path)| {
            progress.advance(1)?;
            let now = self.look(&path, before.files.get(&name), &splitter)?;
            Ok((name, path, now))
        });
        let mut texts = BTreeMap::new();
        let mut skipped = found.skipped;
        for (name, path, now) in files.collect::<Result<Vec<_>>>()? {
            let entry = match now {
                Now::Changed(entry, of_file) => {
                    let keys = entry.passages.iter().map(|passage| passage.key);
                    texts.extend(keys.zip(of_file));
                    Some(entry)
                }
                Now::Unchanged => before.files.get(&name).cloned(),
                Now::Skipped(reason) => {
                    let path = path.display().to_string();
                    skipped.push(Skipped { path, reason });
                    None
                }
            };
            if let Some(entry) = entry {
                catalog.files.insert(name, entry);
            }
        }
        Ok((texts, skipped))
    }

    /// Reads a file, and cuts it into passages if it is not as it was before.
    fn look(&self, path: &Path, before: Option<&Entry>, splitter: &Splitter<'_>) -> Result<Now> {
        let limit = u64::from(self.walk.max_file_mib) << 20;
        let bytes = match input::read(path, limit) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::FileTooLarge => {
                return Ok(Now::Skipped(Reason::TooLarge(self.walk.max_file_mib)));
            }
            Err(error) => return Ok(Now::Skipped(Reason::Unreadable(error.to_string()))),
        };
        let hash = blake3::hash(&bytes).to_string();
        if before.is_some_and(|before| before.hash == hash) {
            return Ok(Now::Unchanged);
        }
        if bytes.contains(&0) {
            return Ok(Now::Skipped(Reason::Binary));
        }
        let Ok(text) = String::from_utf8(bytes) else {
            return Ok(Now::Skipped(Reason::NotUtf8));
        };
        let passages = if is_markdown(path) {
            splitter.split_markdown(&text)
        } else {
            splitter.split(&text)
        };
        let passages = passages.with_context(|| path.display().to_string())?;
        let (passages, texts) = passages.into_iter().unzip();
        Ok(Now::Changed(Entry { hash, passages }, texts))
    }
}

fn keys(catalog: &Catalog) -> BTreeSet<u64> {
    let passages = catalog.files.values().flat_map(|entry| &entry.passages);
    passages.map(|passage| passage.key).collect()
}

/// The vectors, without removed texts where these are a quarter or more: a text that comes back
/// soon has its vector.
fn without_dead(vectors: Vectors, keys: &BTreeSet<u64>) -> Vectors {
    let alive = keys.iter().filter(|&&key| vectors.contains(key)).count();
    if (vectors.len() - alive) * 4 <= vectors.len() {
        vectors
    } else {
        vectors.only(keys)
    }
}

/// Adds the vectors of `texts` that are not there; their number.
fn embed(
    embedder: &Embedder,
    texts: &BTreeMap<u64, String>,
    vectors: &mut Vectors,
    progress: &Progress,
    saver: &mut Saver<'_>,
) -> Result<usize> {
    let new = texts.iter().filter(|(key, _)| !vectors.contains(**key));
    // Texts of about one length are computed together.
    let mut new: Vec<(u64, &str)> = new.map(|(key, text)| (*key, text.as_str())).collect();
    new.sort_by_key(|&(key, text)| (text.len(), key));
    progress.phase(
        "embedding bytes",
        Some(new.iter().map(|it| it.1.len()).sum()),
    );
    let mut rest = &new[..];
    while !rest.is_empty() {
        let mut bytes = 0;
        let fit = rest.iter().take_while(|(_, text)| {
            bytes += text.len();
            bytes <= BATCH_BYTES
        });
        let (batch, later) = rest.split_at(fit.count().max(1));
        let texts: Vec<&str> = batch.iter().map(|(_, text)| *text).collect();
        let embeddings = directions(embedder.embed_documents(&texts)?)?;
        for ((key, _), embedding) in batch.iter().zip(&embeddings) {
            vectors.add(*key, embedding)?;
        }
        let interrupted = progress.advance(texts.iter().map(|text| text.len()).sum());
        if interrupted.is_err() || saver.is_due() {
            saver.save(vectors)?;
        }
        interrupted?;
        rest = later;
    }
    Ok(new.len())
}

/// Keeps finished vectors before the index is complete: the old catalog with all vectors so far.
struct Saver<'a> {
    catalog: &'a Catalog,
    terms: &'a Terms,
    place: Place,
    lock: &'a Lock,
    due: Instant,
}

impl<'a> Saver<'a> {
    fn new(catalog: &'a Catalog, terms: &'a Terms, place: Place, lock: &'a Lock) -> Self {
        let due = Instant::now() + SAVE_EVERY;
        Self {
            catalog,
            terms,
            place,
            lock,
            due,
        }
    }

    fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    fn save(&mut self, vectors: &Vectors) -> Result<()> {
        let start = Instant::now();
        index::write(self.catalog, self.terms, vectors, &self.place, self.lock)?;
        self.due = Instant::now() + SAVE_EVERY.max(start.elapsed() * SAVE_PART);
        Ok(())
    }

    /// There is a complete index now.
    fn discard(self) {
        // If it stays it is of another index, and not read.
        let _ = fs::remove_file(self.place.file());
    }
}

/// The vectors, scaled to length 1.
///
/// # Errors
/// When one has no direction.
pub fn directions(mut vectors: Vec<Vec<f32>>) -> Result<Vec<Vec<f32>>> {
    for vector in &mut vectors {
        let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
        ensure!(
            norm.is_normal(),
            "the model: expected an embedding of finite numbers that are not all 0, got the length {norm}"
        );
        for x in vector {
            *x /= norm;
        }
    }
    Ok(vectors)
}
