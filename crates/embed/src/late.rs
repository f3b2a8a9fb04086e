//! The settings of late interaction (ColBERT): how queries and documents become tokens, each of which
//! gets a vector.

use std::path::Path;

use anyhow::Result;

use crate::config::{NamedToken, unread};
use crate::files::{ARTIFACT, optional_text};
use crate::keys::{Keys, parse};
use crate::modules::{Modules, Tool, config};
use crate::prompts::SETTINGS;
use crate::sentence::{Expansion, Sentence};
use crate::tables;
use crate::tokens::{Tokens, TokensError};

#[derive(Clone, Debug)]
pub(crate) struct LateSettings {
    pub query: Side,
    pub document: Side,
    /// The length of a vector after a product in the checkpoint of the model, if there is one.
    pub projection: Option<usize>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Side {
    /// The token that stands behind the first.
    prefix: Option<String>,
    /// The most tokens of a text, if not the model's.
    most: Option<usize>,
    expansion: Option<Expansion>,
    /// The tokens whose vectors are left out.
    skipped: Vec<String>,
    /// The token that is left out if a word to be left out is none.
    unknown: Option<String>,
}

/// The characters of Python's `string.punctuation`.
const PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

/// The most tokens to which queries are expanded, since every query has as many.
const MOST: usize = 1 << 16;

/// The keys of prefixes with their defaults, of lengths, and of whether appended tokens are attended
/// to: of PyLate and of Stanford's ColBERT.
type Names = ([(&'static str, &'static str); 2], [&'static str; 3]);
const PYLATE: Names = (
    [("query_prefix", "[Q] "), ("document_prefix", "[D] ")],
    ["query_length", "document_length", "attend_to_expansion_tokens"],
);
const STANFORD: Names = (
    [("query_token_id", "[unused0]"), ("doc_token_id", "[unused1]")],
    ["query_maxlen", "doc_maxlen", "attend_to_mask_tokens"],
);

impl LateSettings {
    /// The settings in the files of a folder with these modules, with notes on keys that nothing
    /// reads.
    pub fn read(
        dir: &Path,
        modules: &Modules,
        sentence: &Sentence,
        notes: &mut Vec<String>,
    ) -> Result<Option<Self>> {
        let (file, names) = match &modules.late {
            None => return Ok(None),
            Some(Tool::SentenceTransformers(mask)) => {
                return Self::of_modules(mask, sentence).map(Some);
            }
            Some(Tool::PyLate) => (SETTINGS, PYLATE),
            Some(Tool::Stanford) => (ARTIFACT, STANFORD),
        };
        let path = dir.join(file);
        let text = optional_text(&path)?.unwrap_or_else(|| "{}".to_owned());
        let path = path.display().to_string();
        let map = parse(&path, &text, "a JSON object")?;
        let (keys, unknown) = Keys::flat_with(&path, map, &tables::LATE)?;
        let mut settings = Self::of_keys(&keys, names)?;
        if file == ARTIFACT {
            notes.extend(unread(&path, unknown));
            settings.projection = Some(keys.number("dim")?.unwrap_or(128));
        }
        Ok(Some(settings))
    }

    fn of_keys(keys: &Keys, (prefixes, lengths): Names) -> Result<Self> {
        let [query_length, document_length, attended] = lengths;
        let side = |(prefix, default): (&str, &str), length, most| {
            let prefix = keys.word(prefix)?.unwrap_or_else(|| default.to_owned());
            anyhow::Ok(Side {
                prefix: Some(prefix).filter(|it| !it.is_empty()),
                most: Some(keys.number(length)?.unwrap_or(most)),
                ..Side::default()
            })
        };
        let mut query = side(prefixes[0], query_length, 32)?;
        let mut document = side(prefixes[1], document_length, 180)?;
        let expansion = Expansion {
            token: None,
            length: query.most.unwrap_or_default(),
            is_fixed: true,
            is_attended: keys.flag(attended, false)?,
        };
        query.expansion = (keys.flag("do_query_expansion", true)?).then_some(expansion);
        if keys.flag("mask_punctuation", true)? {
            let punctuation = || PUNCTUATION.chars().map(String::from).collect();
            let words = keys.optional("skiplist_words", "words")?;
            document.skipped = words.unwrap_or_else(punctuation);
        }
        document.unknown = Some("unk_token".to_owned());
        Ok(Self { query, document, projection: None })
    }

    /// The settings of sentence-transformers; `mask` is the folder of `MultiVectorMask`.
    fn of_modules(mask: &Path, sentence: &Sentence) -> Result<Self> {
        let keys = config(mask, &tables::MULTI_VECTOR_MASK)?;
        let words: Option<Vec<String>> = keys.optional("skiplist_words", "words")?;
        let tasks: Option<Vec<String>> = keys.optional("skiplist_tasks", "names of tasks")?;
        let tasks = tasks.unwrap_or_else(|| vec!["document".to_owned()]);
        let side = |task: &str, most| Side {
            most,
            skipped: (words.clone())
                .filter(|_| tasks.iter().any(|it| it == task))
                .unwrap_or_default(),
            ..Side::default()
        };
        let [query, document] = sentence.lengths;
        Ok(Self {
            query: Side { expansion: sentence.expansion.clone(), ..side("query", query) },
            document: side("document", document),
            projection: None,
        })
    }

    /// Replaces the keys of tokens by these tokens.
    pub fn name(&mut self, named: &[NamedToken]) {
        let token = |key: &str| {
            let found = named.iter().find(|it| it.key == key);
            found.map(|it| it.token.content.clone())
        };
        if let Some(expansion) = &mut self.query.expansion {
            let mask = || token("mask_token").or_else(|| token("eos_token"));
            expansion.token = expansion.token.take().or_else(mask);
        }
        self.document.unknown = self.document.unknown.as_deref().and_then(token);
    }

    /// The most tokens of any text, if the settings say so.
    pub fn most(&self) -> Option<usize> {
        Some(self.document.most?.max(self.query.most.unwrap_or(0)))
    }

    /// The least tokens of queries whose appended tokens no token attends to.
    pub fn hidden(&self) -> Option<usize> {
        let expansion = self.query.expansion.as_ref();
        expansion.filter(|it| !it.is_attended).map(|it| it.length)
    }
}

impl Side {
    /// The most tokens of a text before [`finish`](Self::finish), of a model that takes `most`.
    pub fn room(&self, most: usize) -> usize {
        let fixed = self.expansion.as_ref().filter(|it| it.is_fixed);
        let length = fixed.map(|it| it.length).or(self.most);
        let room = length.map_or(most, |length| length.min(most));
        room.saturating_sub(usize::from(self.prefix.is_some()))
    }

    /// Inserts the prefix, appends an expansion, and marks the tokens without a vector.
    pub fn finish(
        &self,
        mut tokens: Tokens,
        most: usize,
        id: impl Fn(&str) -> Option<u32>,
    ) -> Result<Tokens, TokensError> {
        let known = |word: &str| {
            let fault = || TokensError::Failed(format!("expected a token, got {word:?}"));
            id(word).ok_or_else(fault)
        };
        if let Some(prefix) = &self.prefix {
            tokens.ids.insert(1, known(prefix)?);
            tokens.types.insert(1, 0);
        }
        if let Some(expansion) = &self.expansion {
            if expansion.length > MOST {
                let (limit, got) = (MOST, expansion.length);
                return Err(TokensError::TooLong { limit, got });
            }
            let length = tokens.len().max(expansion.length.min(most));
            if !expansion.is_attended {
                tokens.hidden = length - tokens.len();
            }
            let token = expansion.token.as_deref().unwrap_or("mask_token");
            tokens.ids.resize(length, known(token)?);
            tokens.types.resize(length, 0);
        }
        let unknown = self.unknown.as_deref().and_then(&id);
        let skipped = self.skipped.iter().filter_map(|word| id(word).or(unknown));
        let skipped: Vec<u32> = skipped.collect();
        let ids = tokens.ids.iter().enumerate();
        let ids = ids.filter(|(_, id)| skipped.contains(id));
        tokens.skipped = ids.map(|(place, _)| place).collect();
        Ok(tokens)
    }
}
