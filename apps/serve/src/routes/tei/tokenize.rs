//! `POST /tokenize` and `POST /decode`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use dynquant_embed::Token;
use serde::{Deserialize, Serialize, Serializer};

use super::super::inputs::{Fault, Strings, TokenizerRequest, each};
use super::super::rest::Rest;
use crate::app::App;
use crate::error::Tei;

/// The bytes of a token in an answer, without its text.
const TOKEN: usize = 80;
/// The most bytes in JSON for a byte of text.
const ESCAPED: usize = 6;

#[derive(Deserialize)]
struct TokenizeRequest {
    inputs: Strings,
    #[serde(default = "yes")]
    add_special_tokens: bool,
    prompt_name: Option<String>,
    #[serde(flatten)]
    rest: Rest,
}

fn yes() -> bool {
    true
}

/// `POST /tokenize`: the tokens of texts, of any number, with their bytes in the text with its
/// prompt.
pub async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Result<Response, Tei> {
    let (request, admission) = app.receive::<TokenizeRequest>(request).await?;
    request.rest.check()?;
    let prompt = app.embedder()?.prompt(request.prompt_name.as_deref())?.prompt;
    let special = request.add_special_tokens;
    let texts = request.inputs.into_list();
    let asked = TokenizerRequest {
        param: "inputs",
        count: texts.len(),
        bytes: texts.iter().map(|text| prompt.len() + text.len()).sum(),
        kept: 0,
        work: Box::new(move |tokenizer, client| {
            each(client, "inputs", &texts, |text| match &**text {
                "" => Err(Fault::Empty),
                text => Ok(Listed(tokenizer.tokens(&format!("{prompt}{text}"), special)?)),
            })
        }),
    };
    let size = |Listed(tokens): &Listed| -> usize {
        let sizes = tokens.iter().map(|token| TOKEN + ESCAPED * token.text.len());
        sizes.sum()
    };
    Ok(app.convert(admission, asked, size).await?)
}

/// Tokens in the API's format.
struct Listed(Vec<Token>);

impl Serialize for Listed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Entry<'a> {
            id: u32,
            text: &'a str,
            special: bool,
            start: Option<usize>,
            stop: Option<usize>,
        }
        serializer.collect_seq(self.0.iter().map(|token| Entry {
            id: token.id,
            text: &token.text,
            special: token.span.is_none(),
            start: token.span.as_ref().map(|span| span.start),
            stop: token.span.as_ref().map(|span| span.end),
        }))
    }
}

/// The ids of one or several texts.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a list of token ids, or a list of such lists")]
enum Ids {
    One(Vec<u32>),
    Many(Vec<Vec<u32>>),
}

#[derive(Deserialize)]
struct DecodeRequest {
    ids: Ids,
    #[serde(default = "yes")]
    skip_special_tokens: bool,
    #[serde(flatten)]
    rest: Rest,
}

/// `POST /decode`: the texts of token ids.
pub async fn decode(State(app): State<Arc<App>>, request: Request) -> Result<Response, Tei> {
    let (request, admission) = app.receive::<DecodeRequest>(request).await?;
    request.rest.check()?;
    let special = !request.skip_special_tokens;
    let lists = match request.ids {
        Ids::One(ids) => vec![ids],
        Ids::Many(lists) => lists,
    };
    let asked = TokenizerRequest {
        param: "ids",
        count: lists.len(),
        bytes: lists.iter().map(Vec::len).sum(),
        kept: 0,
        work: Box::new(move |tokenizer, client| {
            each(client, "ids", &lists, |ids| match &**ids {
                [] => Err(Fault::Empty),
                ids => Ok(tokenizer.decode(ids, special)?),
            })
        }),
    };
    let size = |text: &String| ESCAPED * text.len();
    Ok(app.convert(admission, asked, size).await?)
}
