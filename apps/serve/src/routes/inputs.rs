//! The texts of requests, and their tokens.

use dynquant_embed::{Direction, Input, Prompt, Tokenizer, Tokens, TokensError};
use serde::Deserialize;

use crate::app::Before;
use crate::error::Refusal;
use crate::workers::Client;

/// A text, as characters or as tokens.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of token ids")]
pub enum Text {
    Characters(String),
    Ids(Vec<u32>),
}

impl Text {
    /// The approximate length.
    fn bytes(&self) -> usize {
        match self {
            Self::Characters(text) => text.len(),
            Self::Ids(ids) => ids.len(),
        }
    }
}

/// A string or several strings.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub enum Strings {
    One(String),
    Many(Vec<String>),
}

impl Strings {
    /// The strings as a list.
    pub fn into_list(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::Many(texts) => texts,
        }
    }
}

/// A text or several texts.
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
    /// The texts as a list.
    fn into_list(self) -> Vec<Text> {
        match self {
            // An empty list may be of anything.
            Self::One(Text::Ids(ids)) if ids.is_empty() => Vec::new(),
            Self::One(text) => vec![text],
            Self::Many(texts) => texts,
        }
    }

    /// The tokens of each text after a prompt, cut if there are too many. The texts are in the
    /// field `param`.
    pub fn behind(
        self,
        param: &'static str,
        before: Before,
        cut: Option<Direction>,
    ) -> TokenizerRequest<Vec<Tokens>> {
        let texts = self.into_list();
        TokenizerRequest {
            param,
            count: texts.len(),
            bytes: texts.iter().map(|text| before.prompt.len() + text.bytes()).sum(),
            kept: 0,
            work: Box::new(move |tokenizer, client| {
                let behind = Behind::new(tokenizer, &before, cut)?;
                each(client, param, &texts, |text| match text {
                    Text::Characters(text) => behind.characters(text),
                    Text::Ids(ids) => behind.ids(ids),
                })
            }),
        }
    }
}

/// A request to the tokenizer.
pub struct TokenizerRequest<T> {
    /// The field of the texts.
    pub param: &'static str,
    /// The number of texts.
    pub count: usize,
    /// The approximate number of bytes that the tokenizer reads.
    pub bytes: usize,
    /// The number of these bytes that are kept for the answer.
    pub kept: usize,
    pub work: Work<T>,
}

/// The work of the tokenizer.
pub type Work<T> = Box<dyn FnOnce(&Tokenizer, &Client) -> Result<T, Refusal> + Send>;

/// The reason why a text cannot be tokenized.
pub enum Fault {
    Empty,
    Tokens(TokensError),
}

impl From<TokensError> for Fault {
    fn from(error: TokensError) -> Self {
        Self::Tokens(error)
    }
}

impl Fault {
    /// The refusal of a text in the field `param`.
    pub fn at(self, param: &'static str, place: &str) -> Refusal {
        match self {
            Self::Empty => Refusal::empty_text(param, place),
            Self::Tokens(error @ TokensError::Failed(_)) => {
                Refusal::failed(format!("{place}: {error}"))
            }
            Self::Tokens(error) => Refusal::invalid(param, format!("{place}: {error}")),
        }
    }
}

/// Applies `work` to each text, until the client hangs up; a refusal names the text at fault.
pub fn each<T, U>(
    client: &Client,
    param: &'static str,
    texts: &[T],
    work: impl Fn(&T) -> Result<U, Fault>,
) -> Result<Vec<U>, Refusal> {
    let done = texts.iter().enumerate().map(|(index, text)| {
        client.check()?;
        work(text).map_err(|fault| match texts.len() {
            1 => fault.at(param, param),
            _ => fault.at(param, &format!("{param}[{index}]")),
        })
    });
    done.collect()
}

/// Tokenizes texts after a prompt.
pub struct Behind<'a> {
    tokenizer: &'a Tokenizer,
    prompt: Prompt,
    cut: Option<Direction>,
}

impl<'a> Behind<'a> {
    pub fn new(
        tokenizer: &'a Tokenizer,
        before: &Before,
        cut: Option<Direction>,
    ) -> Result<Self, Refusal> {
        let prompt = tokenizer.prompt(&before.prompt);
        let prompt = prompt.map_err(|e| Fault::from(e).at("prompt_name", "the prompt"))?;
        Ok(Self { tokenizer, prompt: prompt.of_queries(before.is_query), cut })
    }

    pub fn characters(&self, text: &str) -> Result<Tokens, Fault> {
        match text {
            "" => Err(Fault::Empty),
            text => Ok(self.tokenizer.encode_behind(&self.prompt, text, self.cut)?),
        }
    }

    /// The tokens of ids: unchanged, or decoded to characters to follow the prompt.
    fn ids(&self, ids: &[u32]) -> Result<Tokens, Fault> {
        match (ids, self.prompt.text()) {
            ([], _) => Err(Fault::Empty),
            (ids, "") => Ok(self.tokenizer.encode(Input::Ids(ids), self.cut)?),
            (ids, _) => self.characters(&self.tokenizer.decode(ids, false)?),
        }
    }
}
