//! Answers that keep to a grammar: JSON, of any form or by a schema, and calls of tools.

use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use candle_dynquant_decoder::{Texts, ToolFormat};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{JsonCompileOptions, Matcher, ParserFactory, token_bytes_from_tokenizer_json};
use serde_json::Value;

use super::calls::Functions;
use super::marks::special_token;

/// The grammars of a tokenizer.
pub struct Grammars {
    texts: Arc<Texts>,
    vocabulary: usize,
    ends: Vec<u32>,
    /// The tokens as bytes, made when a first request needs them.
    factory: OnceLock<Result<ParserFactory, String>>,
}

/// The state of a text that keeps to a grammar.
pub struct Grammar(Matcher);

impl Grammars {
    /// Grammars of texts of `vocabulary` tokens, which `ends` end.
    pub fn new(texts: Arc<Texts>, vocabulary: usize, ends: Vec<u32>) -> Self {
        Self {
            texts,
            vocabulary,
            ends,
            factory: OnceLock::new(),
        }
    }

    /// The grammar of JSON by a schema, in one line, as Python writes it: with free space between
    /// its parts some models write nothing else.
    ///
    /// # Errors
    /// When the schema has something that is not checked, or is too large.
    pub fn json(&self, schema: Value) -> Result<Grammar, String> {
        self.compiled(TopLevelGrammar::from_json_schema(in_one_line(schema)))
    }

    /// The grammar of calls of functions, one or more unless only one is allowed, whose arguments
    /// keep to a schema each.
    ///
    /// # Errors
    /// The errors of [`json`](Self::json).
    pub fn calls(&self, functions: &Functions, schemas: Vec<Value>) -> Result<Grammar, String> {
        let literal = |text: &str| Value::from(text).to_string();
        let [begin, end] = functions.marks().map(|mark| {
            let special = special_token(&self.texts, mark);
            special.map_or_else(|| literal(mark), |id| format!("<[{id}]>"))
        });
        let more = |between: &str, what: &str| {
            let more = format!("({} {what})*", literal(between));
            if functions.is_single {
                String::new()
            } else {
                more
            }
        };
        let (arguments, start) = match functions.format {
            ToolFormat::Hermes => {
                let marked = format!("marked: {begin} \"\\n\" call \"\\n\" {end}");
                let more = more("\n", "marked");
                ("arguments", format!("marked {more}\n{marked}"))
            }
            ToolFormat::Mistral => (
                "arguments",
                format!("{begin} \" \"? \"[\" call {} \"]\"", more(", ", "call")),
            ),
            ToolFormat::Llama => ("parameters", "call".to_owned()),
        };
        let calls = functions.names.iter().zip(schemas).map(|(name, schema)| {
            let before = format!("{{\"name\": {}, \"{arguments}\": ", literal(name));
            let schema = in_one_line(schema);
            format!("{} %json {schema} \"}}\"", literal(&before))
        });
        let calls = calls.collect::<Vec<_>>().join("\n    | ");
        let grammar = format!("start: {start}\ncall: {calls}\n");
        let compiled = self.compiled(TopLevelGrammar::from_lark(grammar));
        // Behind the first line the error quotes the grammar.
        let fault = |error: String| {
            let line = error.lines().next().unwrap_or_default();
            let fault = line.split_once("JSON schema: ").map(|(_, fault)| fault);
            fault.unwrap_or(line).to_owned()
        };
        compiled.map_err(fault)
    }

    fn compiled(&self, grammar: TopLevelGrammar) -> Result<Grammar, String> {
        let factory = self.factory.get_or_init(|| {
            let factory = self.factory();
            factory.map_err(|error| format!("the tokenizer: {error:#}"))
        });
        let parser = factory.as_ref()?.create_parser(grammar);
        let grammar = Matcher::new(parser);
        // The first tokens show whether the grammar has an end, and whether it is too large.
        let first = grammar.deep_clone().compute_mask();
        first.map_err(|error| format!("{error:#}"))?;
        Ok(Grammar(grammar))
    }

    fn factory(&self) -> Result<ParserFactory> {
        let tokenizer = self.texts.tokenizer.to_string(false);
        let tokenizer = tokenizer.map_err(|error| anyhow::anyhow!("{error}"))?;
        let mut tokens = token_bytes_from_tokenizer_json(&serde_json::from_str(&tokenizer)?)?;
        tokens.resize(self.vocabulary, Vec::new());
        let end = *self
            .ends
            .first()
            .context("expected a token that ends a text")?;
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

/// A schema whose JSON is written in one line.
fn in_one_line(mut schema: Value) -> Value {
    if schema.is_object() {
        let options = JsonCompileOptions {
            item_separator: ", ".to_owned(),
            key_separator: ": ".to_owned(),
            whitespace_flexible: false,
            ..JsonCompileOptions::default()
        };
        options.apply_to(&mut schema);
    }
    schema
}

impl Clone for Grammar {
    fn clone(&self) -> Self {
        Self(self.0.deep_clone())
    }
}

impl Grammar {
    /// Excludes the tokens that may not come next.
    ///
    /// # Errors
    /// When finding them takes too long.
    pub fn mask(&mut self, scores: &mut [f32]) -> Result<()> {
        let allowed = self.0.compute_mask_or_eos()?;
        for (token, score) in scores.iter_mut().enumerate() {
            if token >= allowed.len() || !allowed.get(token) {
                *score = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// Adds a token to the text.
    ///
    /// # Errors
    /// When the token may not come next.
    pub fn push(&mut self, token: u32) -> Result<()> {
        self.0.consume_token(token)
    }
}
