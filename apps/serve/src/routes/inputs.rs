//! Texts as both APIs write them, and their tokens.

use dynquant_embed::{Direction, Input, Tokenizer, Tokens, TokensError};
use serde::Deserialize;

use crate::error::Refusal;

/// A text, as characters or as tokens.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of token ids")]
pub enum Text {
    Characters(String),
    Ids(Vec<u32>),
    /// A list of lists is not one text: only `/predict` makes pairs.
    #[serde(skip)]
    Pair(String, String),
}

impl Text {
    /// Its length, about.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Characters(text) => text.len(),
            Self::Ids(ids) => ids.len(),
            Self::Pair(first, second) => first.len() + second.len(),
        }
    }

    fn is_empty(&self) -> bool {
        self.bytes() == 0
    }
}

/// One text or several.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string, a list of strings, a list of token ids, or a list of such lists"
)]
pub enum Texts {
    One(Text),
    Many(Vec<Text>),
}

impl Texts {
    /// As a list.
    pub fn into_list(self) -> Vec<Text> {
        match self {
            // An empty list could be of anything.
            Self::One(Text::Ids(ids)) if ids.is_empty() => Vec::new(),
            Self::One(text) => vec![text],
            Self::Many(texts) => texts,
        }
    }
}

/// The tokens of each text; an error names the one at fault.
pub fn tokenize(
    tokenizer: &Tokenizer,
    param: &'static str,
    texts: &[Text],
    cut: Option<Direction>,
) -> Result<Vec<Tokens>, Refusal> {
    let tokens = texts.iter().enumerate().map(|(index, text)| {
        let place = match texts.len() {
            1 => param.to_owned(),
            _ => format!("{param}[{index}]"),
        };
        if text.is_empty() {
            return Err(Refusal::invalid(
                param,
                format!("{place}: expected a text, got an empty one"),
            ));
        }
        let input = match text {
            Text::Characters(text) => Input::Text(text),
            Text::Ids(ids) => Input::Ids(ids),
            Text::Pair(first, second) => Input::Pair(first, second),
        };
        let tokens = tokenizer.encode(input, cut);
        tokens.map_err(|error| match error {
            TokensError::Failed(_) => Refusal::failed(format!("{place}: {error}")),
            error => Refusal::invalid(param, format!("{place}: {error}")),
        })
    });
    tokens.collect()
}

/// The same direction at length 1; zeros stay.
pub fn normalize(mut embedding: Vec<f32>) -> Vec<f32> {
    let norm = embedding.iter().map(|x| x * x).sum::<f32>().sqrt();
    if norm > 0. {
        for x in &mut embedding {
            *x /= norm;
        }
    }
    embedding
}
