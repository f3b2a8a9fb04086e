//! Pictures in requests for embeddings: items of the input, beside texts.

use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use dynquant_embed::{Direction, Head, ImageEmbedder, Picture, Tokens};
use serde::Deserialize;

use super::ask::Answered;
use super::inputs::{Behind, Texts, TokenizerRequest};
use super::rest::Rest;
use crate::app::{App, Before};
use crate::error::Refusal;
use crate::limits::Admission;

/// The input of a request.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string, a list of strings, a list of token ids, a list of such lists, or a list of \
                 objects with a text or an image"
)]
pub enum Inputs {
    Texts(Texts),
    Items(Vec<Item>),
}

/// A text or a picture of a list.
#[derive(Deserialize)]
pub struct Item {
    text: Option<String>,
    image: Option<String>,
    #[serde(flatten)]
    rest: Rest,
}

impl App {
    /// The embeddings of texts and pictures, in order.
    pub async fn ask_items(
        &self,
        admission: Admission,
        items: Vec<Item>,
        before: Before,
        cut: Option<Direction>,
    ) -> Result<Answered, Refusal> {
        self.limits.check_texts("input", items.len())?;
        let (mut texts, mut pictures) = (Vec::new(), Vec::new());
        let mut is_text = Vec::with_capacity(items.len());
        for (index, Item { text, image, rest }) in items.into_iter().enumerate() {
            rest.check_part(&format!("input[{index}]."))?;
            is_text.push(text.is_some());
            match (text, image) {
                (Some(text), None) => texts.push((index, text)),
                (None, Some(uri)) => pictures.push((index, uri)),
                _ => {
                    let message = format!("input[{index}]: expected either a text or an image");
                    return Err(Refusal::invalid("input", message));
                }
            }
        }
        let mut answered = Answered { vectors: Vec::new(), tokens: 0, bytes: 0, admission };
        if !texts.is_empty() {
            let texts = behind(texts, before, cut);
            answered = self.ask(answered.admission, Head::Embedding, texts).await?;
        }
        if pictures.is_empty() {
            return Ok(answered);
        }
        let (admission, of_pictures) = self.ask_pictures(answered.admission, pictures).await?;
        let tokens = answered.tokens + of_pictures.1;
        let (mut texts, mut pictures) = (answered.vectors.into_iter(), of_pictures.0.into_iter());
        let next = |is_text| {
            if is_text { texts.next() } else { pictures.next() }
        };
        Ok(Answered {
            vectors: is_text.into_iter().filter_map(next).collect(),
            tokens,
            bytes: answered.bytes,
            admission,
        })
    }

    /// The embeddings of pictures, given as data URIs with their places, and their tokens.
    async fn ask_pictures(
        &self,
        admission: Admission,
        uris: Vec<(usize, String)>,
    ) -> Result<(Admission, (Vec<Vec<f32>>, usize)), Refusal> {
        self.check_open()?;
        let pictures = self.pictures()?;
        let (count, bytes) = (uris.len(), uris.iter().map(|(_, uri)| uri.len()).sum());
        let places = pictures.queue.reserve(count)?;
        let Admission { request, mut memory } = admission;
        let values = count * pictures.model.input_size();
        let held = bytes + values * size_of::<f32>();
        self.limits.reserve(&mut memory, "input", held)?;
        let model = Arc::clone(&pictures.model);
        let work = move |client: &crate::workers::Client| {
            let input = |(index, uri): &(usize, String)| {
                client.check()?;
                let message = |e| format!("input[{index}].image: {e:#}");
                input(&model, uri).map_err(|e| Refusal::invalid("input", message(e)))
            };
            let inputs = uris.iter().map(input).collect::<Result<Vec<_>, _>>();
            (inputs, places, memory)
        };
        let (inputs, places, memory) = self.limits.workers.run(bytes, work).await?;
        let vectors = pictures.queue.answer(places, inputs?.into_iter()).await?;
        let tokens = count * pictures.model.tokens();
        Ok((Admission { request, memory }, (vectors, tokens)))
    }
}

/// Tokenizes texts, given with their places, after a prompt.
fn behind(
    texts: Vec<(usize, String)>,
    before: Before,
    cut: Option<Direction>,
) -> TokenizerRequest<Vec<Tokens>> {
    let length = before.prompt.len();
    let bytes = texts.iter().map(|(_, text)| length + text.len());
    TokenizerRequest {
        param: "input",
        count: texts.len(),
        bytes: bytes.sum(),
        kept: 0,
        work: Box::new(move |tokenizer, client| {
            let behind = Behind::new(tokenizer, &before, cut)?;
            let tokens = texts.iter().map(|(index, text)| {
                client.check()?;
                let tokens = behind.characters(text);
                tokens.map_err(|fault| fault.at("input", &format!("input[{index}]")))
            });
            tokens.collect()
        }),
    }
}

/// The model's input for the picture of a data URI.
fn input(model: &ImageEmbedder, uri: &str) -> anyhow::Result<Vec<f32>> {
    let data = uri.strip_prefix("data:").and_then(|data| data.split_once(','));
    let Some((_, data)) = data.filter(|(kind, _)| kind.ends_with(";base64")) else {
        let got = if uri.starts_with("http") {
            "a URL: the server fetches none"
        } else {
            "something else"
        };
        anyhow::bail!("expected a data URI, data:image/png;base64,.., got {got}");
    };
    let bytes = BASE64_STANDARD.decode(data);
    let bytes = bytes.map_err(|e| anyhow::anyhow!("expected base64 behind the comma: {e}"))?;
    model.input(&Picture::Bytes(&bytes))
}
