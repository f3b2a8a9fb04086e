//! Calls of tools in an answer, apart from the text around them.

use std::hash::{BuildHasher, RandomState};
use std::mem::take;
use std::sync::Arc;

use candle_dynquant_decoder::ToolFormat;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::marks::take_before;
use super::xml;

/// The mark between the name of a function and its arguments.
pub const ARGUMENTS: &str = "[ARGS]";

pub struct Functions {
    pub format: ToolFormat,
    pub names: Vec<String>,
    pub parameters: Vec<Value>,
    pub is_single: bool,
}

impl Functions {
    /// The marks around calls; without the second these reach to the end of the text, without the
    /// first the text is a call or has none.
    pub fn marks(&self) -> [&'static str; 2] {
        match self.format {
            ToolFormat::Hermes | ToolFormat::Xml => ["<tool_call>", "</tool_call>"],
            ToolFormat::Mistral | ToolFormat::MistralArguments => ["[TOOL_CALLS]", ""],
            ToolFormat::Llama => ["", ""],
        }
    }

    /// The calls that a text between the marks has; `None` if it has anything else.
    fn read(&self, text: &str) -> Option<Vec<Written>> {
        let text = text.trim();
        let calls: Vec<Written> = match self.format {
            ToolFormat::Xml => xml::read(text, &self.names, &self.parameters)?
                .into_iter()
                .map(|(name, arguments)| Written { name, arguments })
                .collect(),
            ToolFormat::MistralArguments => behind_names(text)?,
            _ if text.starts_with('[') => serde_json::from_str(text).ok()?,
            _ => vec![serde_json::from_str(text).ok()?],
        };
        let is_call = |call: &Written| {
            self.names.contains(&call.name) && call.arguments.get().starts_with('{')
        };
        (!calls.is_empty() && calls.iter().all(is_call)).then_some(calls)
    }
}

/// A call as the model writes it.
#[derive(Deserialize)]
struct Written {
    name: String,
    #[serde(alias = "parameters")]
    arguments: Box<RawValue>,
}

/// Calls of a name, a mark and arguments each, with another mark between two.
fn behind_names(text: &str) -> Option<Vec<Written>> {
    let (mut calls, mut rest) = (Vec::new(), text);
    loop {
        let (name, behind) = rest.split_once(ARGUMENTS)?;
        let mut values = serde_json::Deserializer::from_str(behind).into_iter();
        let arguments: Box<RawValue> = values.next()?.ok()?;
        calls.push(Written { name: name.trim().to_owned(), arguments });
        rest = behind[values.byte_offset()..].trim_start();
        if rest.is_empty() {
            return Some(calls);
        }
        rest = rest.strip_prefix("[TOOL_CALLS]")?;
    }
}

pub struct Call {
    pub index: usize,
    pub id: String,
    pub name: String,
    /// The arguments in JSON, as the model wrote them.
    pub arguments: String,
}

impl Call {
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.id.len() + self.name.len() + self.arguments.len()
    }
}

/// A name for a call: some templates take only nine letters and digits.
fn id() -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let random = RandomState::new().hash_one(());
    let digit = |place| char::from(DIGITS[(random / 36_u64.pow(place) % 36) as usize]);
    (0..9).map(digit).collect()
}

/// The calls of a text that arrives in pieces. A text that only begins like a call stays text.
pub struct Calls {
    functions: Arc<Functions>,
    state: State,
    /// The text that may become a mark, and space before it.
    held: String,
    /// The text of a call so far, and the space before the mark of the first call in a row.
    body: String,
    space: String,
    /// Whether there was other text, and whether a call is the last that there was.
    has_text: bool,
    is_behind: bool,
    /// The number of calls so far.
    pub count: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing yet, where only the whole text can be a call.
    Begin,
    Outside,
    Inside,
    /// No call can follow.
    Text,
    /// The only call was there.
    Done,
}

impl Calls {
    pub fn new(functions: Arc<Functions>) -> Self {
        let is_whole = functions.marks()[0].is_empty();
        let state = if is_whole { State::Begin } else { State::Outside };
        let [held, body, space] = [const { String::new() }; 3];
        Self { functions, state, held, body, space, has_text: false, is_behind: false, count: 0 }
    }

    /// Whether nothing may follow.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Adds text; returns the certain text and calls, without the space around calls.
    pub fn push(&mut self, text: &str, is_end: bool) -> (String, Vec<Call>) {
        let mut held = take(&mut self.held) + text;
        let (mut out, mut calls) = (String::new(), Vec::new());
        let [begin, end] = self.functions.marks();
        loop {
            match self.state {
                State::Begin => {
                    let begun = held.trim_start();
                    if begun.is_empty() && !is_end {
                        break;
                    }
                    self.state = if begun.starts_with('{') { State::Inside } else { State::Text };
                }
                State::Outside => {
                    let (before, space) = take_before(&mut held, begin, is_end);
                    self.say(&before, &mut out);
                    let Some(space) = space else { break };
                    if !self.is_behind {
                        self.space = space;
                    }
                    self.state = State::Inside;
                }
                State::Inside => {
                    let closed = if end.is_empty() {
                        self.body += &take(&mut held);
                        None
                    } else {
                        let (before, space) = take_before(&mut held, end, is_end);
                        self.body += &before;
                        space
                    };
                    if closed.is_none() && !is_end {
                        break;
                    }
                    self.state = if closed.is_some() { State::Outside } else { State::Text };
                    self.end(closed, &mut out, &mut calls);
                }
                State::Text => {
                    self.say(&take(&mut held), &mut out);
                    break;
                }
                State::Done => {
                    held.clear();
                    break;
                }
            }
        }
        self.held = held;
        (out, calls)
    }

    /// Ends a call, after whose text the second mark is, behind space, or the end.
    fn end(&mut self, closed: Option<String>, out: &mut String, calls: &mut Vec<Call>) {
        let body = take(&mut self.body);
        let functions = Arc::clone(&self.functions);
        let Some(written) = functions.read(&body) else {
            let space = if self.is_behind { "" } else { &self.space };
            let [begin, end] = functions.marks();
            let closed = closed.map_or(String::new(), |space| space + end);
            let text = format!("{space}{begin}{body}{closed}");
            return self.say(&text, out);
        };
        let most = if functions.is_single { 1 } else { written.len() };
        if functions.is_single {
            self.state = State::Done;
        }
        for Written { name, arguments } in written.into_iter().take(most) {
            let arguments = arguments.get().to_owned();
            calls.push(Call { index: self.count, id: id(), name, arguments });
            self.count += 1;
        }
        self.is_behind = true;
    }

    /// Adds text to `out`, without the space behind a call.
    fn say(&mut self, text: &str, out: &mut String) {
        let text = if self.is_behind { text.trim_start() } else { text };
        if text.is_empty() {
            return;
        }
        if take(&mut self.is_behind) && self.has_text {
            *out += &self.space;
        }
        self.has_text = true;
        *out += text;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::marks::in_pieces;
    use super::*;

    /// The text and the calls of a text that arrives in pieces of so many characters.
    fn parts(format: ToolFormat, is_single: bool, text: &str, size: usize) -> (String, String) {
        let functions = Functions {
            format,
            names: vec!["f".to_owned(), "g".to_owned()],
            parameters: vec![
                json!({"properties": {"a": {"type": "string"}, "c": {"enum": ["7", "8"]}}}),
                json!({}),
            ],
            is_single,
        };
        let mut separate = Calls::new(Arc::new(functions));
        let (mut all, mut calls) = (String::new(), Vec::new());
        in_pieces(text, size, |piece, is_end| {
            let (text, found) = separate.push(piece, is_end);
            all += &text;
            calls.extend(found);
        });
        assert_eq!(separate.count, calls.len());
        assert!((0..).zip(&calls).all(|(index, call)| call.index == index && call.id.len() == 9));
        let calls = calls.iter().map(|call| format!("{}{}", call.name, call.arguments));
        (all, calls.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn calls_are_apart_however_the_text_arrives() {
        const F: &str = r#"<tool_call>
{"name": "f", "arguments": {"a": "<tool_call>", "b": 1e400}}
</tool_call>"#;
        const OF_F: &str = r#"f{"a": "<tool_call>", "b": 1e400}"#;
        let g = F.replace("\"f\"", "\"g\"").replace("{\"a\": \"<tool_call>\", \"b\": 1e400}", "{}");
        let list = r#"[{"name": "f", "arguments": {"a": [1]}, "id": "x"}, {"name": "g", "arguments": {}}]"#;
        let object = r#"{"type": "function", "name": "g", "parameters": {"a": {"}": "]"}}}"#;
        let both = format!("{OF_F} g{{}}");
        let of_list = r#"f{"a": [1]} g{}"#;
        let named = r#"f[ARGS]{"a": "[TOOL_CALLS]"} [TOOL_CALLS] g[ARGS]{}"#;
        let of_named = r#"f{"a": "[TOOL_CALLS]"} g{}"#;
        const XML: &str = "<tool_call>\n<function=f>\n<parameter=a>\n7\n\n</parameter>.\n</parameter>\n\
            <parameter=b>\n7\n</parameter>\n<parameter=c>\n7\n</parameter>\n</function>\n</tool_call>";
        const OF_XML: &str = r#"f{"a": "7\n\n</parameter>.", "b": 7, "c": "7"}"#;
        let of_g = XML.replace("=f", "=g").replace("c>\n7", "c>\nTrue");
        let of_g = of_g.replace("b>\n7", "b>\n[\"None\", 1e400]");
        use ToolFormat::{Hermes, Llama, Mistral, MistralArguments, Xml};
        let check = |format, text: &str, expected: [&str; 2]| {
            for size in [1, 2, 3, 7, 1000] {
                let got = parts(format, false, text, size);
                assert_eq!([&got.0, &got.1], expected, "{text:?} {size}");
            }
        };
        for (format, text, expected) in [
            (Hermes, F.to_owned(), ["", OF_F]),
            (Hermes, format!("\n{F}\n{g}\n"), ["", &both]),
            (Hermes, format!(" a <b>\n\n{F}\n {g} c"), [" a <b>\n\nc", &both]),
            (Hermes, format!("{F}\nc\n{g}"), ["c", &both]),
            (Hermes, format!("<tool_call>{list}</tool_call>"), ["", of_list]),
            (Hermes, format!("{F}\n<tool_call> x"), ["<tool_call> x", OF_F]),
            // A text that was cut.
            (Hermes, F.trim_end_matches("</tool_call>").into(), ["", OF_F]),
            (Mistral, format!("[TOOL_CALLS] {list}"), ["", of_list]),
            (Mistral, format!("A\n[TOOL_CALLS]{list}\n"), ["A", of_list]),
            (MistralArguments, format!("A [TOOL_CALLS]{named}\n"), ["A", of_named]),
            (Xml, format!("A\n{XML}\n"), ["A", OF_XML]),
            (Xml, of_g, ["", r#"g{"a": "7\n\n</parameter>.", "b": ["None", 1e400], "c": true}"#]),
            (
                Xml,
                "<tool_call><function=g></function><function=f></function></tool_call>".into(),
                ["", "g{} f{}"],
            ),
            (Llama, format!(" {object}\n"), ["", r#"g{"a": {"}": "]"}}"#]),
        ] {
            check(format, &text, expected);
        }
        // Nothing but calls of known functions with an object are calls; others are cut.
        for (format, text) in [
            (Hermes, F.replace("\"f\"", "\"h\"")),
            (Hermes, F.replace('}', "")),
            (Hermes, "a\n<tool_call>\n</tool_call>\nb".into()),
            (Hermes, "<tool_call>[]</tool_call>".into()),
            (Hermes, r#"<tool_call>{"name": "f", "arguments": "{}"}</tool_call>"#.into()),
            (Hermes, F[..40].into()),
            (Hermes, "a \n <tool_ca".into()),
            (Hermes, " \n".into()),
            (Mistral, format!("[TOOL_CALLS]{list} B")),
            (Mistral, format!("[TOOL_CALLS]{}", &list[..70])),
            (MistralArguments, format!("[TOOL_CALLS]{named} B")),
            (MistralArguments, format!("[TOOL_CALLS]{list}")),
            (Xml, XML.replace("=f>", "=h>")),
            (Xml, F.to_owned()),
            (Xml, XML[..60].into()),
            (Llama, format!("It is {object}")),
            (Llama, format!(" {object}.")),
            (Llama, " {\"name\": 1}".into()),
            (Llama, String::new()),
        ] {
            check(format, &text, [&text, ""]);
        }
        for size in [1, 7, 1000] {
            let single = parts(Hermes, true, &format!("a {F}{g}\nb"), size);
            assert_eq!([&single.0[..], &single.1], ["a", OF_F]);
            let single = parts(Mistral, true, &format!("[TOOL_CALLS]{list}"), size);
            assert_eq!([&single.0[..], &single.1], ["", r#"f{"a": [1]}"#]);
        }
    }
}
