//! The classes of the tokens of texts, such as names of people and places.

use std::ops::Range;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::batches::{Batches, Options, opened};
use crate::folder::Encoder;
use crate::functions::softmax;
use crate::model::Head;
use crate::tokenizer::{Span, each};

/// A model that classifies the tokens of a text, such as one for named entities, from a folder of
/// transformers whose architecture ends with `ForTokenClassification`.
///
/// The bits of an answer do not depend on the other texts of a call, nor on the batches.
///
/// ```
/// use dynquant_embed::TokenClassifier;
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/reference/encoders/tokens-bert");
/// let classifier = TokenClassifier::open(folder)?;
/// let text = "the river runs to the harbour";
/// for entity in &classifier.entities(&[text])?[0] {
///     println!("{} {:.2} {}", entity.label, entity.score, &text[entity.span.clone()]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TokenClassifier(Batches);

/// A token with its class.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassifiedToken {
    /// The bytes of the token in the text.
    pub span: Range<usize>,
    /// The most likely class.
    pub label: String,
    /// The probability of each class, in the order of [`Config::labels`](crate::Config::labels).
    pub scores: Vec<f32>,
}

/// Adjacent tokens of one class.
#[derive(Clone, Debug, PartialEq)]
pub struct Entity {
    /// The bytes in the text.
    pub span: Range<usize>,
    /// The class, without `B-` or `I-`.
    pub label: String,
    /// The mean of the tokens' probabilities of their classes.
    pub score: f32,
}

opened!(TokenClassifier, 0, ", with logits by [`Head::TokenClasses`]");

impl TokenClassifier {
    /// Opens a folder with options.
    ///
    /// # Errors
    /// Also when an option does not fit the model, or the model has no head for the classes of tokens.
    pub fn open_with(dir: impl AsRef<Path>, options: Options) -> Result<Self> {
        let batches = options.open(dir.as_ref())?;
        ensure!(
            batches.encoder.model.classifies_tokens(),
            "{}: expected a model that classifies tokens, ..ForTokenClassification, got another",
            dir.as_ref().display(),
        );
        Ok(Self(batches))
    }

    /// The tokens of texts with their classes, without special tokens.
    ///
    /// # Errors
    /// When the model fails.
    pub fn classify(&self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<ClassifiedToken>>> {
        let Encoder { tokenizer, config, .. } = self.encoder();
        let located = each(texts, |text| tokenizer.located(text.as_ref()))?;
        let (tokens, spans): (Vec<_>, Vec<_>) = located.into_iter().unzip();
        let logits = self.0.answer(&tokens, Head::TokenClasses)?;
        let classified = |(logits, spans): (Vec<f32>, Vec<Span>)| {
            let tokens = logits.chunks_exact(config.labels.len()).zip(spans);
            let tokens = tokens.filter_map(|(logits, span)| {
                let scores = softmax(logits);
                Some(ClassifiedToken {
                    span: span?,
                    label: config.labels[greatest(&scores)].clone(),
                    scores,
                })
            });
            tokens.collect()
        };
        Ok(logits.into_iter().zip(spans).map(classified).collect())
    }

    /// The entities of texts: adjacent tokens of one class, where `B-` begins another entity and
    /// `O` is none. They are those of the strategy `simple` in transformers.
    ///
    /// # Errors
    /// The errors of [`classify`](Self::classify).
    pub fn entities(&self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<Entity>>> {
        let texts = self.classify(texts)?.into_iter();
        Ok(texts.map(|tokens| entities(&tokens)).collect())
    }
}

/// The first place of the greatest number.
fn greatest(scores: &[f32]) -> usize {
    let places = scores.iter().enumerate();
    let first = places.rev().max_by(|(_, a), (_, b)| a.total_cmp(b));
    first.map_or(0, |(place, _)| place)
}

fn entities(tokens: &[ClassifiedToken]) -> Vec<Entity> {
    let tag = |it: &ClassifiedToken| {
        let tag = it.label.strip_prefix("B-");
        let tag = tag.or_else(|| it.label.strip_prefix("I-"));
        tag.unwrap_or(&it.label).to_owned()
    };
    let is_same =
        |a: &ClassifiedToken, b: &ClassifiedToken| tag(a) == tag(b) && !b.label.starts_with("B-");
    let groups = tokens.chunk_by(is_same).map(|group| {
        let (first, last) = (&group[0], &group[group.len() - 1]);
        let scores = group.iter().map(|it| it.scores[greatest(&it.scores)]);
        let label = first.label.split_once('-');
        Entity {
            span: first.span.start..last.span.end,
            label: label.map_or(&*first.label, |(_, label)| label).to_owned(),
            score: scores.sum::<f32>() / group.len() as f32,
        }
    });
    groups.filter(|entity| entity.label != "O").collect()
}
