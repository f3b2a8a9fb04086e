//! Pictures in requests for embeddings, beside texts: items of the input, or a message of a chat.

use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use dynquant_embed::{Direction, Head, ImageEmbedder, Picture};
use serde::Deserialize;

use super::ask::Answered;
use super::inputs::{Text, Texts};
use super::rest::Rest;
use crate::app::App;
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
#[serde(
    untagged,
    expecting = "expected a string, or an object with a text or an image"
)]
pub enum Item {
    Text(String),
    Part {
        text: Option<String>,
        image: Option<String>,
        #[serde(flatten)]
        rest: Rest,
    },
}

#[derive(Deserialize)]
pub struct Message {
    #[serde(rename = "role")]
    _role: String,
    content: Content,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of parts")]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

/// A part of a message.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part {
    Text { text: String },
    ImageUrl { image_url: Url },
}

#[derive(Deserialize)]
struct Url {
    url: String,
}

/// What a request asks for.
pub enum Asked {
    Texts(Texts),
    Items(Vec<Asks>),
}

/// A text, or the data URI of a picture.
pub enum Asks {
    Text(String),
    Picture(String),
}

impl Asked {
    pub fn new(input: Option<Inputs>, messages: Option<Vec<Message>>) -> Result<Self, Refusal> {
        let items = match (input, messages) {
            (Some(Inputs::Texts(texts)), None) => return Ok(Self::Texts(texts)),
            (Some(Inputs::Items(items)), None) => {
                let items = items.into_iter().enumerate();
                let items = items.map(|(index, item)| item.asks(index));
                items.collect::<Result<Vec<_>, _>>()?
            }
            (None, Some(messages)) => vec![of_chat(messages)?],
            (Some(_), Some(_)) => {
                let message = "messages: expected none beside input";
                return Err(Refusal::invalid("messages", message));
            }
            (None, None) => {
                let message = "input: expected texts or pictures, got none";
                return Err(Refusal::invalid("input", message));
            }
        };
        Ok(Self::Items(items))
    }
}

impl Item {
    fn asks(self, index: usize) -> Result<Asks, Refusal> {
        match self {
            Self::Text(text) => Ok(Asks::Text(text)),
            Self::Part { text, image, rest } => {
                rest.check_part(&format!("input[{index}]."))?;
                match (text, image) {
                    (Some(text), None) => Ok(Asks::Text(text)),
                    (None, Some(uri)) => Ok(Asks::Picture(uri)),
                    _ => Err(Refusal::invalid(
                        "input",
                        format!("input[{index}]: expected either a text or an image"),
                    )),
                }
            }
        }
    }
}

/// The only part of a chat, whose embedding is its own.
fn of_chat(messages: Vec<Message>) -> Result<Asks, Refusal> {
    let mut parts = messages
        .into_iter()
        .flat_map(|message| match message.content {
            Content::Text(text) => vec![Part::Text { text }],
            Content::Parts(parts) => parts,
        });
    match (parts.next(), parts.next()) {
        (Some(Part::Text { text }), None) => Ok(Asks::Text(text)),
        (Some(Part::ImageUrl { image_url }), None) => Ok(Asks::Picture(image_url.url)),
        _ => Err(Refusal::invalid(
            "messages",
            "messages: expected one message with one part, a text or an image",
        )),
    }
}

impl App {
    /// The embeddings of texts and pictures, in order.
    pub async fn ask_items(
        &self,
        admission: Admission,
        items: Vec<Asks>,
        prompt: String,
        cut: Option<Direction>,
    ) -> Result<Answered, Refusal> {
        self.limits.check_texts("input", items.len())?;
        let (mut texts, mut pictures) = (Vec::new(), Vec::new());
        let mut is_text = Vec::with_capacity(items.len());
        for (index, item) in items.into_iter().enumerate() {
            is_text.push(matches!(item, Asks::Text(_)));
            match item {
                Asks::Text(text) => texts.push(Text::Characters(text)),
                Asks::Picture(uri) => pictures.push((index, uri)),
            }
        }
        let mut answered = Answered {
            vectors: Vec::new(),
            tokens: 0,
            bytes: 0,
            admission,
        };
        if !texts.is_empty() {
            let texts = Texts::Many(texts).behind("input", prompt, cut);
            answered = self.ask(answered.admission, Head::Embedding, texts).await?;
        }
        if pictures.is_empty() {
            return Ok(answered);
        }
        let (admission, of_pictures) = self.ask_pictures(answered.admission, pictures).await?;
        let tokens = answered.tokens + of_pictures.1;
        let (mut texts, mut pictures) = (answered.vectors.into_iter(), of_pictures.0.into_iter());
        let next = |is_text| {
            if is_text {
                texts.next()
            } else {
                pictures.next()
            }
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
        let pictures = self.embedder()?.pictures.as_ref();
        let pictures = pictures.ok_or_else(|| {
            Refusal::other_model("the model has no embeddings of pictures: it takes texts")
        })?;
        let (count, bytes) = (uris.len(), uris.iter().map(|(_, uri)| uri.len()).sum());
        let places = pictures.queue.reserve(count)?;
        let Admission {
            request,
            mut memory,
        } = admission;
        memory.at_least(bytes)?;
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
        let (inputs, places, mut memory) = self.limits.workers.run(bytes, work).await?;
        let inputs = inputs?;
        let values: usize = inputs.iter().map(Vec::len).sum();
        self.limits
            .reserve(&mut memory, "input", values * size_of::<f32>())?;
        let vectors = pictures.queue.answer(places, inputs.into_iter()).await?;
        let tokens = count * pictures.model.tokens();
        Ok((Admission { request, memory }, (vectors, tokens)))
    }
}

/// The model's input for the picture of a data URI.
fn input(model: &ImageEmbedder, uri: &str) -> anyhow::Result<Vec<f32>> {
    let data = uri
        .strip_prefix("data:")
        .and_then(|data| data.split_once(','));
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
    model.input(&Picture::from(&*bytes))
}
