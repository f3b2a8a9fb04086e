//! A chat of several turns, whose tokens are read once.

use anyhow::Result;

use crate::generation::{FinishReason, Generation, GenerationConfig, Generator, Past, Piece};
use crate::template::Message;

/// A chat of several turns by the model's template. Keys and values are kept between turns: a turn
/// reads only its new tokens, and the answer has the bytes of an answer that reads all again.
pub struct Chat<'a> {
    generator: &'a Generator<'a>,
    /// The messages so far.
    pub messages: Vec<Message>,
    past: Option<Past>,
}

/// The answer to a message, token by token. Dropped before its end, it leaves the text so far as the
/// answer in the chat.
pub struct Reply<'c, 'a> {
    chat: &'c mut Chat<'a>,
    generation: Generation<'a>,
    text: String,
    cached: usize,
}

impl<'a> Chat<'a> {
    /// A chat without messages.
    pub fn new(generator: &'a Generator<'a>) -> Self {
        Self { generator, messages: Vec::new(), past: None }
    }

    /// Adds a message by `user`, and returns the model's answer.
    ///
    /// # Errors
    /// When the model has no chat template, the template refuses the messages, or these take all
    /// positions of the model. The chat is then as before.
    pub fn say(&mut self, text: &str, config: &GenerationConfig) -> Result<Reply<'_, 'a>> {
        self.messages.push(Message::new("user", text));
        let generator = self.generator;
        let prompt = generator.texts.chat(&self.messages, true);
        let generation = prompt.and_then(|prompt| {
            let past = self.past.as_ref().filter(|_| generator.has_independent_rows());
            match past.cloned() {
                Some(past) => generator.resume(past, &prompt, config),
                None => generator.generate(&prompt, config),
            }
        });
        let generation = generation.inspect_err(|_| {
            self.messages.pop();
        })?;
        // Without a second owner of the pages they are appended to in place.
        self.past = None;
        Ok(Reply { cached: generation.cached(), chat: self, generation, text: String::new() })
    }
}

impl Reply<'_, '_> {
    /// The text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The number of tokens of the prompt, and of those that were read in earlier turns.
    pub fn prompt_tokens(&self) -> [usize; 2] {
        [self.generation.prompt_tokens(), self.cached]
    }

    /// The reason why the answer ended; none before its end.
    pub fn finish(&self) -> Option<FinishReason> {
        self.generation.finish()
    }
}

impl Iterator for Reply<'_, '_> {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Self::Item> {
        let piece = self.generation.next()?;
        if let Ok(piece) = &piece {
            self.text.push_str(&piece.text);
        }
        Some(piece)
    }
}

impl Drop for Reply<'_, '_> {
    fn drop(&mut self) {
        let text = std::mem::take(&mut self.text);
        self.chat.messages.push(Message::new("assistant", &text));
        self.chat.past = Some(self.generation.take_past());
    }
}
