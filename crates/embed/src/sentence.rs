//! `sentence_bert_config.json`, the settings of sentence-transformers for the tokenizer and the
//! model.

use std::path::Path;

use anyhow::{Result, bail};

use crate::files::optional_text;
use crate::keys::Keys;
use crate::tables;

/// The names of the file; sentence-transformers reads the first that exists.
pub(crate) const FILES: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

#[derive(Clone, Debug, Default)]
pub(crate) struct Sentence {
    /// The most tokens of a text, with the file and the key.
    pub max_tokens: Option<(String, usize)>,
    /// The most tokens of queries and of documents, for late interaction.
    pub lengths: [Option<usize>; 2],
    /// The tokens that are appended to queries.
    pub expansion: Option<Expansion>,
    /// Whether texts are lower-cased before the tokenizer.
    pub lower_case: bool,
    /// Whether the model ends with a head that guesses words.
    pub guesses_words: bool,
    /// Whether the model ends with a head of classes.
    pub has_classes: bool,
    /// Whether a pair of texts in a chat template ends with the beginning of an answer.
    pub add_generation_prompt: bool,
}

/// Tokens that are appended to short queries.
#[derive(Clone, Debug)]
pub(crate) struct Expansion {
    /// The token, if not the one for masks.
    pub token: Option<String>,
    /// The least tokens of a query.
    pub length: usize,
    /// Whether longer queries are cut.
    pub is_fixed: bool,
    /// Whether tokens attend to the appended ones.
    pub is_attended: bool,
}

impl Sentence {
    /// Reads the settings of a folder, or the defaults if the file is missing.
    pub fn read(dir: &Path) -> Result<Self> {
        for path in FILES.map(|file| dir.join(file)) {
            if let Some(text) = optional_text(&path)? {
                return Self::parse(&path.display().to_string(), &text);
            }
        }
        Ok(Self::default())
    }

    fn parse(path: &str, text: &str) -> Result<Self> {
        let expected = "the sentence configuration of sentence-transformers";
        let keys = Keys::flat_text(path, text, expected, &tables::SENTENCE)?;
        let task = keys.word("transformer_task")?;
        let (output, values) = match task.as_deref() {
            None | Some("feature-extraction") => ("token_embeddings", "last_hidden_state"),
            Some("sequence-classification") => ("scores", "logits"),
            Some("fill-mask") => ("token_embeddings", "logits"),
            Some("text-generation") => ("causal_logits", "logits"),
            Some(_) => bail!(keys.fault(
                "transformer_task",
                "feature-extraction, fill-mask, sequence-classification or text-generation",
            )),
        };
        for (key, expected) in [
            ("module_output_name", output),
            ("modality_config.text.method_output_name", values),
            ("modality_config.message.method_output_name", values),
        ] {
            if keys.word(key)?.is_some_and(|got| got != expected) {
                return Err(keys.fault(key, expected));
            }
        }
        let limit = |key: &str| {
            let number = keys.number(key)?;
            anyhow::Ok(number.map(|it| (format!("{path}: key {key:?}"), it)))
        };
        let of_call = limit("processing_kwargs.text.max_length")?;
        let of_tokenizer = limit("max_seq_length")?;
        let length = |key| keys.number(key);
        Ok(Self {
            max_tokens: of_call.or(of_tokenizer),
            lengths: [length("query_length")?, length("document_length")?],
            expansion: expansion(&keys)?,
            lower_case: keys.flag("do_lower_case", false)?,
            guesses_words: task.as_deref() == Some("fill-mask"),
            has_classes: output == "scores",
            add_generation_prompt: keys
                .flag("processing_kwargs.chat_template.add_generation_prompt", false)?,
        })
    }
}

/// The tokens that are appended to queries, if any.
fn expansion(keys: &Keys) -> Result<Option<Expansion>> {
    let [strategy, length] = ["query_expansion.strategy", "query_expansion.length"];
    let Some(word) = keys.word(strategy)? else {
        return Ok(None);
    };
    if !["fixed", "min"].contains(&&*word) {
        return Err(keys.fault(strategy, "fixed or min"));
    }
    let number = keys.number(length)?;
    Ok(Some(Expansion {
        token: keys.word("query_expansion.token")?,
        length: number.ok_or_else(|| keys.fault(length, "a number of tokens"))?,
        is_fixed: word == "fixed",
        is_attended: keys.flag("query_expansion.attend", false)?,
    }))
}
