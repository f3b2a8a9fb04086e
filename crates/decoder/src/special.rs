//! Special tokens: only a chat template may write them, contents of messages may not.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokenizers::{OffsetReferential, OffsetType, Tokenizer};

use crate::chat::Template;
use crate::template::{Message, Variables};

/// The private-use characters that stand for special tokens in a template's text.
const TOKENS: RangeInclusive<char> = '\u{100000}'..='\u{10fffd}';

/// The private-use characters that break up special tokens in contents while a template is rendered.
const BREAKS: RangeInclusive<char> = '\u{f0000}'..='\u{ffffd}';

/// The variable whose texts are treated as contents of messages.
const TOOLS: &str = "tools";

pub struct Special {
    /// The character and the text of each special token.
    ids: HashMap<u32, (char, String)>,
    /// The first and last characters of the special tokens.
    edges: HashSet<char>,
    /// The same tokenizer with these characters for tokens, made on first use.
    separate: OnceLock<Result<Tokenizer, String>>,
}

impl Special {
    /// The tokens that the tokenizer calls special, together with `also`.
    ///
    /// # Errors
    /// When there are more tokens than private-use characters.
    pub fn new(tokenizer: &Tokenizer, also: &[u32]) -> Result<Self> {
        let added = tokenizer.get_added_tokens_decoder().into_iter();
        let special = added.filter(|(id, token)| token.special || also.contains(id));
        let special: Vec<_> = special.map(|(id, token)| (id, token.content)).collect();
        let (most, got) = (TOKENS.count(), special.len());
        ensure!(got <= most, "tokenizer: expected at most {most} special tokens, got {got}");
        let texts = special.iter().map(|(_, text)| text.chars());
        Ok(Self {
            edges: texts.flat_map(|mut all| [all.next(), all.last()]).flatten().collect(),
            ids: (TOKENS.zip(special).map(|(mark, (id, text))| (id, (mark, text)))).collect(),
            separate: OnceLock::new(),
        })
    }

    /// The tokens of messages: the tokens of the whole text, except special tokens that contents,
    /// other fields of messages or tools have or complete, also in the parts into which the template
    /// cuts them.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        template: &Template,
        messages: &[Message],
        (add_generation_prompt, variables): (bool, &Variables),
    ) -> Result<Vec<u32>> {
        for (name, value) in variables {
            ensure!(
                name == TOOLS || !self.may_be_special(value),
                "variable {name:?}: expected no character that special tokens begin or end with, got {value}"
            );
        }
        let plain = template.render_with(messages, add_generation_prompt, variables)?;
        let mut tools = variables.get(TOOLS).into_iter();
        let is_plain = !messages.iter().any(|message| self.may_write_special(message))
            && !tools.any(|tools| self.may_be_special(tools));
        if is_plain {
            return ids(tokenizer, &plain);
        }
        let has: HashSet<char> = plain.chars().collect();
        let mut free = BREAKS.filter(|c| !has.contains(c));
        let marks: HashMap<char, char> = self.edges.iter().copied().zip(&mut free).collect();
        let mark = free.next();
        let mark = mark.context("messages: expected fewer characters of private use")?;
        let shown = |text: &str| {
            let back: HashMap<_, _> = marks.iter().map(|(c, mark)| (*mark, *c)).collect();
            let chars = text.chars().filter(|c| *c != mark);
            let chars = chars.map(|c| back.get(&c).copied().unwrap_or(c));
            chars.collect::<String>()
        };
        let rendered = |literals: &[String]| {
            let change = |text: &str| self.broken(tokenizer, &hidden(text, &marks, literals), mark);
            let (mut messages, mut variables) = (messages.to_vec(), variables.clone());
            for message in &mut messages {
                message.content = change(&message.content);
                let fields = message.fields.values_mut();
                fields.for_each(|value| change_texts(value, &change));
            }
            if let Some(tools) = variables.get_mut(TOOLS) {
                change_texts(tools, &change);
            }
            template.render_with(&messages, add_generation_prompt, &variables)
        };
        // In the first rendering the strings that the template's code has stay as they are in
        // contents, which the code may compare or cut; in the second one nothing does.
        let text = rendered(&template.literals)?;
        let places = self.places(tokenizer, &text);
        let of_template = names(&places);
        let is_apart = names(&self.places(tokenizer, &rendered(&[])?)) == of_template;
        ensure!(
            is_apart && shown(&text) == plain,
            "messages: expected contents whose special tokens' text the chat template does not change"
        );
        if names(&self.places(tokenizer, &plain)) == of_template {
            return ids(tokenizer, &plain);
        }
        ensure!(
            !plain.contains(|c| TOKENS.contains(&c)),
            "messages: expected no characters U+100000 to U+10FFFD beside a special token's text"
        );
        let separate = self.separate.get_or_init(|| {
            let separate = separated(tokenizer, &self.ids);
            separate.map_err(|e| format!("{e:#}"))
        });
        let separate = separate.as_ref().map_err(|e| anyhow::anyhow!("{e}"))?;
        let (mut marked, mut at) = (String::new(), 0);
        for (id, start, end) in places {
            marked += &text[at..start];
            marked.extend(self.ids.get(&id).map(|(token, _)| token));
            at = end;
        }
        marked += &text[at..];
        ids(separate, &shown(&marked))
    }

    fn may_write_special(&self, message: &Message) -> bool {
        let mut fields = message.fields.values();
        message.content.contains(|c| self.edges.contains(&c))
            || fields.any(|value| self.may_be_special(value))
    }

    /// Whether the texts of a value may become special tokens, or complete some.
    fn may_be_special(&self, value: &Value) -> bool {
        let has_edge = |text: &String| text.contains(|c| self.edges.contains(&c));
        match value {
            Value::String(text) => has_edge(text),
            Value::Array(values) => values.iter().any(|value| self.may_be_special(value)),
            Value::Object(values) => {
                values.iter().any(|(key, value)| has_edge(key) || self.may_be_special(value))
            }
            _ => false,
        }
    }

    /// The special tokens of a text, with their positions.
    fn places(&self, tokenizer: &Tokenizer, text: &str) -> Vec<(u32, usize, usize)> {
        let added = tokenizer.get_added_vocabulary();
        let found = added.extract_and_normalize(tokenizer.get_normalizer(), text);
        let found = found.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let place = |(_, (start, end), tokens): (_, (usize, usize), &Option<Vec<_>>)| {
            let token: &tokenizers::Token = tokens.as_ref()?.first()?;
            let all = text.get(start..end).filter(|_| self.ids.contains_key(&token.id))?;
            // Some special tokens take the spaces around them.
            let (start, all) = (start + all.len() - all.trim_start().len(), all.trim());
            Some((token.id, start, start + all.len()))
        };
        found.into_iter().filter_map(place).collect()
    }

    /// A content with marks inside special tokens.
    fn broken(&self, tokenizer: &Tokenizer, content: &str, mark: char) -> String {
        let (mut broken, mut at) = (String::new(), 0);
        for (_, start, end) in self.places(tokenizer, content) {
            broken += &content[at..start];
            broken.extend(content[start..end].chars().flat_map(|c| [c, mark]));
            at = end;
        }
        broken + &content[at..]
    }
}

/// The tokens of a text, special ones by their text.
fn ids(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    let encoding = tokenizer.encode(text, false);
    let encoding = encoding.map_err(|e| anyhow::anyhow!("tokenizer: {e}"))?;
    Ok(encoding.get_ids().to_vec())
}

/// Changes all texts of a value, and the keys of its objects.
fn change_texts(value: &mut Value, change: &impl Fn(&str) -> String) {
    match value {
        Value::String(text) => *text = change(text),
        Value::Array(values) => {
            let values = values.iter_mut();
            values.for_each(|value| change_texts(value, change));
        }
        Value::Object(values) => {
            let changed = std::mem::take(values).into_iter().map(|(key, mut value)| {
                change_texts(&mut value, change);
                (change(&key), value)
            });
            *values = changed.collect();
        }
        _ => {}
    }
}

fn names(places: &[(u32, usize, usize)]) -> Vec<u32> {
    places.iter().map(|place| place.0).collect()
}

/// A content with marks for characters, except in these texts.
fn hidden(content: &str, marks: &HashMap<char, char>, texts: &[String]) -> String {
    let (mut hidden, mut rest) = (String::new(), content);
    while let Some(c) = rest.chars().next() {
        let kept = texts.iter().filter(|text| rest.starts_with(&***text));
        let kept = kept.map(String::len).max().unwrap_or(0);
        let (text, behind) = rest.split_at(kept.max(c.len_utf8()));
        rest = behind;
        match marks.get(&c).filter(|_| kept == 0) {
            Some(mark) => hidden.push(*mark),
            None => hidden += text,
        }
    }
    hidden
}

/// The tokenizer with private-use characters for special tokens, also in the vocabulary of its
/// model, so that no visible text encodes to them.
fn separated(tokenizer: &Tokenizer, special: &HashMap<u32, (char, String)>) -> Result<Tokenizer> {
    let fault = |e| anyhow::anyhow!("tokenizer: {e}");
    let marks = special.values().map(|(mark, text)| (text.as_str(), mark.to_string()));
    let marks: HashMap<&str, String> = marks.collect();
    let rename = |text: &mut Value| {
        if let Some(mark) = text.as_str().and_then(|text| marks.get(text)) {
            *text = mark.as_str().into();
        }
    };
    let mut json: Value = serde_json::from_str(&tokenizer.to_string(false).map_err(fault)?)?;
    for token in json["added_tokens"].as_array_mut().into_iter().flatten() {
        rename(&mut token["content"]);
    }
    let model = json["model"].as_object_mut().context("tokenizer: expected a model")?;
    for key in ["unk_token", "vocab", "merges"] {
        match model.get_mut(key) {
            Some(Value::Object(vocab)) => {
                for (text, mark) in &marks {
                    if let Some(id) = vocab.remove(*text) {
                        vocab.insert(mark.clone(), id);
                    }
                }
            }
            // Merges whose result is a special token are dropped.
            Some(Value::Array(merges)) if key == "merges" => merges.retain(|merge| {
                let parts = merge.as_array().into_iter().flatten().filter_map(Value::as_str);
                let union =
                    merge.as_str().map_or_else(|| parts.collect(), |two| two.replacen(' ', "", 1));
                !marks.contains_key(&*union)
            }),
            Some(Value::Array(vocab)) => vocab.iter_mut().for_each(|entry| rename(&mut entry[0])),
            Some(text) => rename(text),
            None => {}
        }
    }
    let separate = Tokenizer::from_bytes(json.to_string()).map_err(fault)?;
    for (id, (mark, text)) in special {
        let found = separate.token_to_id(&mark.to_string());
        ensure!(
            found == Some(*id),
            "tokenizer: token {text:?}: cannot be kept apart from messages"
        );
    }
    Ok(separate)
}
