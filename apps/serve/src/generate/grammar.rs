//! Answers that keep to a grammar: JSON, of any form or by a schema, and calls of tools.

use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use candle_dynquant_decoder::{Texts, ToolFormat};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory, token_bytes_from_tokenizer_json};
use serde::Deserialize;
use serde_json::Value;

use super::calls::{ARGUMENTS, Functions};
use super::json::{in_one_line, literal};
use super::marks::special_token;
use super::{reasoning, xml};

pub struct Grammars {
    texts: Arc<Texts>,
    vocabulary: usize,
    ends: Vec<u32>,
    /// The tokens as bytes, made when a first request needs them.
    factory: OnceLock<Result<ParserFactory, String>>,
}

/// The form of an answer, by the names of vLLM.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// JSON by a schema, in one line, as Python writes it: with free space between its parts some
    /// models write nothing else.
    Json(Value),
    Choice(Vec<String>),
    Regex(String),
    /// A text of a context-free grammar, in llguidance's variant of Lark.
    Grammar(String),
}

impl Form {
    pub fn bytes(&self) -> usize {
        match self {
            Self::Json(schema) => schema.to_string().len(),
            Self::Choice(texts) => texts.iter().map(|text| text.len() + 32).sum(),
            Self::Regex(text) | Self::Grammar(text) => text.len(),
        }
    }
}

pub struct Grammar {
    matcher: Matcher,
    /// Whether the grammar allows any text around calls.
    pub has_text: bool,
}

impl Grammars {
    /// Grammars of texts of `vocabulary` tokens, which `ends` end.
    pub fn new(texts: Arc<Texts>, vocabulary: usize, ends: Vec<u32>) -> Self {
        Self { texts, vocabulary, ends, factory: OnceLock::new() }
    }

    /// The grammar of texts of a form; an error when a schema has something that is not checked, a
    /// grammar or an expression is malformed, or either is too large.
    pub fn by_form(&self, form: Form) -> Result<Grammar, String> {
        let grammar = match form {
            Form::Json(schema) => {
                return self.compiled(TopLevelGrammar::from_json_schema(in_one_line(schema)));
            }
            Form::Choice(texts) if texts.is_empty() => {
                return Err("expected one text or more, got none".to_owned());
            }
            Form::Choice(texts) => {
                let texts: Vec<_> = texts.iter().map(|text| literal(text)).collect();
                TopLevelGrammar::from_lark(format!("start: {}", texts.join(" | ")))
            }
            Form::Regex(regex) => TopLevelGrammar::from_regex(&regex),
            Form::Grammar(grammar) => TopLevelGrammar::from_lark(grammar),
        };
        self.compiled(grammar).map_err(|error| first_line(&error).to_owned())
    }

    /// The grammar of calls of functions whose arguments keep to a schema each: a text of nothing
    /// but calls, or any text with calls or without. Of several calls `functions` decides.
    pub fn calls(
        &self,
        functions: &Functions,
        schemas: Vec<Value>,
        has_text: bool,
    ) -> Result<Grammar, String> {
        let marks = functions.marks();
        let mark = |mark: &str| self.token(mark).unwrap_or_else(|| literal(mark));
        let [begin, end] = marks.map(mark);
        let several = |between: &str| {
            if functions.is_single { "call".to_owned() } else { format!("call ({between} call)*") }
        };
        let body = match functions.format {
            ToolFormat::Hermes | ToolFormat::Xml => format!("\"\\n\" call \"\\n\" {end}"),
            ToolFormat::Mistral => format!("\" \"? \"[\" {} \"]\"", several("\", \"")),
            ToolFormat::MistralArguments => several(&begin),
            ToolFormat::Llama => "call".to_owned(),
        };
        let is_repeated = marks[1] == "</tool_call>" && !functions.is_single;
        let start = match (has_text, is_repeated) {
            (true, _) if marks[0].is_empty() => "body | /(?s:\\s*([^{\\s].*)?)/".to_owned(),
            (true, true) => "(before body)* text".to_owned(),
            (true, false) => "before body | text".to_owned(),
            (false, true) => format!("{begin} body (\"\\n\" {begin} body)*"),
            (false, false) => format!("{begin} body"),
        };
        let call = |(name, schema): (&String, Value)| {
            let arguments = match functions.format {
                ToolFormat::Xml => return xml::rule(name, &schema),
                ToolFormat::MistralArguments => {
                    let schema = in_one_line(schema);
                    return Ok(format!("{} {} %json {schema}", literal(name), mark(ARGUMENTS)));
                }
                ToolFormat::Llama => "parameters",
                ToolFormat::Hermes | ToolFormat::Mistral => "arguments",
            };
            let before = format!("{{\"name\": {}, \"{arguments}\": ", literal(name));
            let schema = in_one_line(schema);
            Ok(format!("{} %json {schema} \"}}\"", literal(&before)))
        };
        let calls = functions.names.iter().zip(schemas).map(call);
        let calls = calls.collect::<Result<Vec<_>, String>>()?.join("\n    | ");
        let mut grammar = format!("start: {start}\nbody: {body}\ncall: {calls}\n");
        if functions.format == ToolFormat::Xml {
            grammar += xml::UNTIL;
        }
        if has_text && !marks[0].is_empty() {
            grammar += &self.text_before(marks[0]);
        }
        let compiled = self.compiled(TopLevelGrammar::from_lark(grammar));
        let grammar = compiled.map_err(|error| {
            let line = first_line(&error);
            line.split_once("JSON schema: ").map_or(line, |(_, fault)| fault).to_owned()
        })?;
        Ok(Grammar { has_text, ..grammar })
    }

    /// The rules `text`, any text without a mark, and `before`, such a text and the mark.
    fn text_before(&self, mark: &str) -> String {
        // Regular expressions match no special token.
        let special = reasoning::MARKS.iter().filter_map(|mark| self.token(mark));
        let special = special.collect::<Vec<_>>().join(" | ");
        let parts =
            if special.is_empty() { String::new() } else { format!("(PLAIN ({special}))* ") };
        if let Some(token) = self.token(mark) {
            return format!("text: {parts}PLAIN\nPLAIN: /(?s:.*)/\nbefore: text {token}\n");
        }
        let mark = literal(mark);
        let plain = format!("/(?s:.*)/ & ~(/(?s:.*)/ {mark} /(?s:.*)/)");
        let before = format!("before: {parts}until\nuntil[lazy]: /(?s:.*)/ {mark}");
        format!("text: {parts}PLAIN\nPLAIN: {plain}\n{before}\n")
    }

    fn token(&self, mark: &str) -> Option<String> {
        special_token(&self.texts, mark).map(|id| format!("<[{id}]>"))
    }

    fn compiled(&self, grammar: TopLevelGrammar) -> Result<Grammar, String> {
        let fault = |error| format!("the tokenizer: {error:#}");
        let factory = self.factory.get_or_init(|| self.factory().map_err(fault));
        let parser = factory.as_ref()?.create_parser(grammar);
        let grammar = Matcher::new(parser);
        // The first tokens show whether the grammar has an end, and whether it is too large.
        let first = grammar.deep_clone().compute_mask();
        first.map_err(|error| format!("{error:#}"))?;
        Ok(Grammar { matcher: grammar, has_text: false })
    }

    fn factory(&self) -> Result<ParserFactory> {
        let tokenizer = self.texts.tokenizer.to_string(false);
        let tokenizer = tokenizer.map_err(|error| anyhow::anyhow!("{error}"))?;
        let mut tokens = token_bytes_from_tokenizer_json(&serde_json::from_str(&tokenizer)?)?;
        tokens.resize(self.vocabulary, Vec::new());
        let end = *self.ends.first().context("expected a token that ends a text")?;
        let info = TokRxInfo::new(self.vocabulary as u32, end);
        let trie = TokTrie::from(&info, &tokens).with_eos_tokens(&self.ends);
        let tokens: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&tokens)?;
        let limits = factory.quiet().limits_mut();
        limits.verbose_errors = false;
        // Some 2 kB each, for each text.
        limits.max_lexer_states = 10_000;
        limits.max_grammar_size = 100_000;
        Ok(factory)
    }
}

/// The fault: behind the first line an error quotes the grammar.
fn first_line(error: &str) -> &str {
    error.lines().next().unwrap_or_default()
}

impl Clone for Grammar {
    fn clone(&self) -> Self {
        Self { matcher: self.matcher.deep_clone(), ..*self }
    }
}

impl Grammar {
    /// Excludes the tokens that may not come next; an error when finding them takes too long.
    pub fn mask(&mut self, scores: &mut [f32]) -> Result<()> {
        let allowed = self.matcher.compute_mask_or_eos()?;
        for (token, score) in scores.iter_mut().enumerate() {
            if token >= allowed.len() || !allowed.get(token) {
                *score = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// Adds a token to the text, which must be one that may come next.
    pub fn push(&mut self, token: u32) -> Result<()> {
        self.matcher.consume_token(token)
    }
}

#[cfg(test)]
mod tests {
    use candle_dynquant_decoder::Folder;
    use candle_dynquant_support::repository;
    use serde_json::json;
    use tokenizers::AddedToken;

    use super::*;

    /// The grammars of the small Llama, whose vocabulary has some marks as special tokens.
    fn grammars(special: &[&str]) -> Result<Grammars> {
        let folder = Folder::open(&repository().join("assets/decoder"), None)?;
        let mut texts = folder.texts;
        let special = special.iter().map(|mark| AddedToken::from(*mark, true));
        let added = texts.tokenizer.add_special_tokens(special);
        added.map_err(|error| anyhow::anyhow!("{error}"))?;
        let size = texts.tokenizer.get_vocab_size(true);
        Ok(Grammars::new(Arc::new(texts), size, vec![0]))
    }

    /// Whether a text keeps to a grammar, token by token, and may end.
    fn accepts(grammars: &Grammars, grammar: &Grammar, text: &str) -> Result<bool> {
        let mut grammar = grammar.clone();
        let tokens = grammars.texts.tokenizer.encode(text, false);
        let tokens = tokens.map_err(|error| anyhow::anyhow!("{error}"))?;
        for token in tokens.get_ids().iter().chain(&[0]) {
            let mut scores = vec![0.; grammars.vocabulary];
            grammar.mask(&mut scores)?;
            if scores[*token as usize] != 0. || *token != 0 && grammar.push(*token).is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    #[test]
    fn calls_in_a_text_keep_to_their_schema() -> Result<()> {
        use ToolFormat::{Hermes, Llama, Mistral, MistralArguments, Xml};
        const RIGHT: &str = r#"{"name": "f", "arguments": {"a": 7}}"#;
        const ANY: &str = r#"{"name": "g", "arguments": {"b": [null, "x<tool"]}}"#;
        let schemas = || {
            let f = json!({"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}},
                "required": ["a"], "additionalProperties": false});
            vec![f, json!({"type": "object"})]
        };
        let hermes = |call: &str| format!("<tool_call>\n{call}\n</tool_call>");
        let of_llama = |call: &str| call.replace("arguments", "parameters");
        let wrong = [
            RIGHT.replace('7', "\"7\""),
            RIGHT.replace("\"f\"", "\"h\""),
            RIGHT.replace('}', ""),
            String::new(),
        ];
        // The format, the text, and whether it keeps to the grammar of one call and of several.
        let mut cases = vec![
            (Llama, String::new(), [true; 2]),
            (Llama, " \n".to_owned(), [true; 2]),
            (Llama, "It is {\"name\": 1}".to_owned(), [true; 2]),
            (Llama, of_llama(RIGHT), [true; 2]),
            (Llama, of_llama(&wrong[0]), [false; 2]),
            (Llama, "{\"name\": 1}".to_owned(), [false; 2]),
        ];
        for text in ["", "And it came.\n\n", "{ <tool [1] <tool_calls", "<think>\na</think>b"] {
            let (one, two) = (format!("{text}{}", hermes(RIGHT)), hermes(ANY));
            cases.extend([
                (Hermes, text.to_owned(), [true; 2]),
                (Hermes, one.clone(), [true; 2]),
                (Hermes, format!("{one}\n{two} text"), [false, true]),
                (Mistral, text.to_owned(), [true; 2]),
                (Mistral, format!("{text}[TOOL_CALLS] [{RIGHT}]"), [true; 2]),
                (Mistral, format!("{text}[TOOL_CALLS][{RIGHT}, {ANY}]"), [false, true]),
            ]);
            let named = |call: &str| {
                let call = call.replace("{\"name\": \"", "[TOOL_CALLS]");
                call.replace("\", \"arguments\": ", "[ARGS]").replace("}}", "}")
            };
            let of_f = |a: &str| {
                let a = format!("<parameter=a>\n{a}\n</parameter>\n");
                format!("{text}<tool_call>\n<function=f>\n{a}</function>\n</tool_call>")
            };
            let of_g = "<tool_call>\n<function=g>\n<parameter=b>\n</parameter>\n</parameter>\n</function>\n</tool_call>";
            cases.extend([
                (MistralArguments, text.to_owned(), [true; 2]),
                (MistralArguments, format!("{text}{}", named(RIGHT)), [true; 2]),
                (MistralArguments, format!("{text}{}{}", named(RIGHT), named(ANY)), [false, true]),
                (Xml, text.to_owned(), [true; 2]),
                (Xml, of_f("7"), [true; 2]),
                (Xml, of_f("x"), [false; 2]),
                (Xml, of_f("7").replace("=a", "=b"), [false; 2]),
                (Xml, format!("{}\n{of_g}", of_f("7")), [false, true]),
            ]);
            for wrong in &wrong {
                if wrong.contains("}}") {
                    cases.push((MistralArguments, format!("{text}{}", named(wrong)), [false; 2]));
                }
                cases.push((Hermes, format!("{text}{}", hermes(wrong)), [false; 2]));
                cases.push((Mistral, format!("{text}[TOOL_CALLS] [{wrong}]"), [false; 2]));
            }
        }
        for special in [
            &[][..],
            &["<think>", "</think>"],
            &["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]"],
            &["</think>", "<tool_call>", "[TOOL_CALLS]"],
        ] {
            let grammars = grammars(special)?;
            for (format, text, expected) in &cases {
                for (is_single, expected) in [true, false].into_iter().zip(expected) {
                    let functions = Functions {
                        format: *format,
                        names: vec!["f".to_owned(), "g".to_owned()],
                        parameters: Vec::new(),
                        is_single,
                    };
                    let grammar = grammars.calls(&functions, schemas(), true);
                    let grammar = grammar.map_err(anyhow::Error::msg)?;
                    let got = accepts(&grammars, &grammar, text)?;
                    assert_eq!(got, *expected, "{special:?} {is_single} {text:?}");
                }
            }
        }
        Ok(())
    }
}
