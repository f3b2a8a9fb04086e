//! The tokenizer of a GGUF file.

use std::collections::HashMap;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokenizers::Tokenizer;

use super::Metadata;
use super::keys::{BOS, TOKENS};

const MODEL: &str = "tokenizer.ggml.model";
const CUTS: &str = "tokenizer.ggml.pre";
const SCORES: &str = "tokenizer.ggml.scores";
const KINDS: &str = "tokenizer.ggml.token_type";

const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
const END: &str = "tokenizer.ggml.eos_token_id";
/// The names of the pre-tokenizer of Llama 3, whose tokens are whole words where the vocabulary has
/// them, and whose texts have a first token.
const LLAMA: [&str; 2] = ["llama-bpe", "lfm2"];
/// The words of Llama 3, Qwen2 and others.
const WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+";
/// The words of o200k_base, which are cut before a capital letter.
const CASED_WORDS: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?";
/// The tokens that end a text whatever the metadata says.
const ENDS: &str = "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> \
    <end_of_turn> <|endoftext|> </s> <|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> \
    <end_of_utterance> <eos> <turn|> <|tool_response> <｜end▁of▁sentence｜> [e~[ <|fim_pad|> \
    <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame> \
    <|file_sep|>";

/// The type of tokens that are matched as a whole and not shown.
const CONTROL: i64 = 3;
/// The type of tokens that are matched as a whole and shown.
const USER_DEFINED: i64 = 4;

/// The longest token that a merge makes, in bytes, since every cut is tried; Gemma's have up to 93.
const MAX_TOKEN: usize = 256;
/// The character that SentencePiece writes for a space.
const SPACE: &str = "\u{2581}";

impl Metadata<'_> {
    /// The tokenizer: SentencePiece's BPE, or a byte-level BPE with a known pre-tokenizer.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        let text = match &*self.get::<String>(MODEL)? {
            "gpt2" => self.byte_level()?,
            "llama" => self.sentence_piece()?,
            other => return Err(self.unknown(MODEL, other)),
        };
        Tokenizer::from_bytes(text.to_string())
            .map_err(|e| anyhow!("{}: expected a tokenizer, got {e}", self.name))
    }

    fn unknown(&self, key: &str, got: &str) -> anyhow::Error {
        anyhow!(
            "{}: expected a known tokenizer, got {got:?}; pass its tokenizer.json",
            self.at(key)
        )
    }

    fn byte_level(&self) -> Result<Value> {
        let cut = self.find::<String>(CUTS)?;
        let cut = cut.as_deref().unwrap_or("none");
        let (normalizer, cuts) = cuts(cut).ok_or_else(|| self.unknown(CUTS, cut))?;
        let is_llama = LLAMA.contains(&cut);
        let model = json!({"unk_token": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": is_llama, "merges": self.get::<Vec<String>>("tokenizer.ggml.merges")?});
        let parts = json!({"normalizer": normalizer, "pre_tokenizer": cuts,
            "decoder": byte_level(true)});
        self.json(parts, model)
    }

    /// Converts SentencePiece, which joins the two neighbours whose union has the highest score, to
    /// a BPE with merges ranked by score.
    fn sentence_piece(&self) -> Result<Value> {
        let tokens = &self.tokens;
        let scores = self.per_token::<f32>(SCORES)?;
        let ids: HashMap<&str, usize> = tokens.iter().map(String::as_str).zip(0..).collect();
        let mut unions = Vec::new();
        for ((token, score), kind) in tokens.iter().zip(scores).zip(self.kinds()?) {
            if is_whole(kind) {
                continue;
            }
            ensure!(
                token.len() <= MAX_TOKEN,
                "{}: expected tokens of at most {MAX_TOKEN} bytes, got one of {}",
                self.at(TOKENS),
                token.len(),
            );
            let ends = token.char_indices().skip(1);
            for parts in ends.map(|(end, _)| token.split_at(end)) {
                let parts = <[&str; 2]>::from(parts);
                if let [Some(left), Some(right)] = parts.map(|part| ids.get(part)) {
                    unions.push((score, [left, right], parts));
                    continue;
                }
                // llama.cpp joins characters, too, that are no tokens.
                let is_joined = |part: &&str| ids.contains_key(part) || part.chars().count() == 1;
                ensure!(
                    !parts.iter().all(is_joined),
                    "{}: expected a token for each character, got none for one of {token:?}; pass its tokenizer.json",
                    self.at(TOKENS),
                );
            }
        }
        unions.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        // llama.cpp joins the leftmost of two unions with one score, whichever tokens they are.
        let same = |two: &&[(f32, _, [&str; 2])]| {
            two[0].0 == two[1].0 && two[0].2.concat() != two[1].2.concat()
        };
        if let Some([(score, _, a), (_, _, b)]) = unions.windows(2).find(same) {
            let (at, [a, b]) = (self.at(SCORES), [a, b].map(|parts| parts.concat()));
            bail!(
                "{at}: expected different scores, got {score} for {a:?} and {b:?}; pass its tokenizer.json"
            );
        }
        let merges: Vec<_> = unions.into_iter().map(|(.., parts)| parts).collect();

        let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
        let mut normalizers = vec![replace(" ", SPACE)];
        let mut decoders =
            vec![replace(SPACE, " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
        if self.find("tokenizer.ggml.add_space_prefix")?.unwrap_or(true) {
            normalizers.insert(0, json!({"type": "Prepend", "prepend": SPACE}));
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        let unknown = self.token(UNKNOWN)?;
        let model = json!({"unk_token": unknown.map(|id| &self.tokens[id]), "fuse_unk": true,
            "byte_fallback": true, "ignore_merges": false, "merges": merges});
        let parts = json!({
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "decoder": {"type": "Sequence", "decoders": decoders},
        });
        self.json(parts, model)
    }

    /// The contents of a `tokenizer.json` with these parts and this BPE.
    fn json(&self, mut all: Value, mut model: Value) -> Result<Value> {
        let vocab = self.tokens.iter().zip(0..);
        let vocab: Map<_, _> =
            vocab.map(|(token, id): (_, usize)| (token.clone(), json!(id))).collect();
        let (count, tokens) = (vocab.len(), self.tokens.len());
        ensure!(
            count == tokens,
            "{}: expected {tokens} different tokens, got {count}",
            self.at(TOKENS)
        );
        model["type"] = json!("BPE");
        model["vocab"] = vocab.into();
        all["model"] = model;
        let mut whole = Vec::new();
        for (id, (content, kind)) in self.tokens.iter().zip(self.kinds()?).enumerate() {
            if is_whole(kind) {
                whole.push(json!({"id": id, "content": content, "special": kind == CONTROL,
                    "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}));
            }
        }
        all["added_tokens"] = whole.into();
        if let Some(id) = self.begin()? {
            let token = &self.tokens[id as usize];
            let begin = json!({"SpecialToken": {"id": token, "type_id": 0}});
            let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
            all["post_processor"] = json!({
                "type": "TemplateProcessing",
                "single": [begin, text("A")],
                "pair": [begin, text("A"), begin, text("B")],
                "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}},
            });
        }
        Ok(all)
    }

    /// The token before every text, if there is one; SentencePiece and one pre-tokenizer have it by
    /// default.
    pub fn begin(&self) -> Result<Option<u32>> {
        let cut = self.find::<String>(CUTS)?;
        let is_llama = cut.is_some_and(|cut| LLAMA.contains(&&*cut));
        let begins = self.is_sentence_piece()? || is_llama;
        let begins = self.find("tokenizer.ggml.add_bos_token")?.unwrap_or(begins);
        let missing = || format!("{}: expected a token, with which texts begin", self.at(BOS));
        let begin = || self.token(BOS)?.with_context(missing);
        Ok(begins.then(begin).transpose()?.map(|id| id as u32))
    }

    fn is_sentence_piece(&self) -> Result<bool> {
        Ok(self.find::<String>(MODEL)?.as_deref() == Some("llama"))
    }

    /// The tokens that end a text, as in llama.cpp: the end token of the metadata, its other end
    /// tokens, and tokens with known names.
    pub fn ends(&self) -> Result<Vec<usize>> {
        let mut ends = Vec::new();
        for key in ["eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"] {
            ends.extend(self.token(&format!("tokenizer.ggml.{key}_token_id"))?);
        }
        let named = self.tokens.iter().enumerate();
        let named = named.filter(|(_, token)| ENDS.split(' ').any(|end| end == *token));
        ends.extend(named.map(|(id, _)| id));
        let has = |names: [&str; 2]| ends.iter().any(|id| names.contains(&&*self.tokens[*id]));
        let is_harmony = has(["<|call|>", "<|calls|>"]) && has(["<|return|>", "<|flush|>"]);
        let is_gemma = has(["<|tool_response>"; 2]);
        // These models use tokens of that name within answers.
        ends.retain(|id| match &*self.tokens[*id] {
            "<|end|>" => !is_harmony,
            "</s>" => !is_gemma,
            _ => true,
        });
        Ok(ends)
    }

    /// The kind of each token; begin and end tokens never occur in texts.
    fn kinds(&self) -> Result<Vec<i64>> {
        let mut kinds = match self.find::<Value>(KINDS)? {
            Some(_) => self.per_token(KINDS)?,
            None => vec![1; self.tokens.len()],
        };
        for id in self.ends()?.into_iter().chain(self.token(BOS)?) {
            kinds[id] = CONTROL;
        }
        Ok(kinds)
    }

    /// The value of a key that lists one entry per token.
    fn per_token<T: DeserializeOwned>(&self, key: &str) -> Result<Vec<T>> {
        let (values, count): (Vec<T>, _) = (self.get(key)?, self.tokens.len());
        let (at, got) = (self.at(key), values.len());
        ensure!(got == count, "{at}: expected {count}, one for each token, got {got}");
        Ok(values)
    }

    /// The token whose id is the value of a key; SentencePiece has defaults for some keys.
    pub fn token(&self, key: &str) -> Result<Option<usize>> {
        let count = self.tokens.len();
        let Some(id) = self.find(key)? else {
            let default = [UNKNOWN, BOS, END].iter().position(|known| *known == key);
            let has_default = self.is_sentence_piece()?;
            return Ok(default.filter(|id| has_default && *id < count));
        };
        ensure!(id < count, "{}: expected a token below {count}, got {id}", self.at(key));
        Ok(Some(id))
    }
}

fn is_whole(kind: i64) -> bool {
    [CONTROL, USER_DEFINED].contains(&kind)
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": use_regex})
}

/// The normalizer and pre-tokenizer with this name.
fn cuts(pre: &str) -> Option<(Value, Value)> {
    let sequence = |first: Value, use_regex| json!({"type": "Sequence", "pretokenizers": [first, byte_level(use_regex)]});
    let split = |words: &str, digits: &str, behind: &str| {
        let pattern = format!(
            r"{words}|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[{behind}]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        );
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
            "invert": false})
    };
    Some(match pre {
        "gpt-2" | "mpt" | "olmo" => (Value::Null, byte_level(true)),
        "smollm" | "starcoder" | "refact" | "command-r" => {
            let digits = json!({"type": "Digits", "individual_digits": true});
            (Value::Null, sequence(digits, true))
        }
        "qwen2" => (json!({"type": "NFC"}), sequence(split(WORDS, "", r"\r\n"), false)),
        "gpt-4o" => (Value::Null, sequence(split(CASED_WORDS, "{1,3}", r"\r\n/"), false)),
        name if name == "smaug-bpe" || LLAMA.contains(&name) => {
            (Value::Null, sequence(split(WORDS, "{1,3}", r"\r\n"), false))
        }
        _ => return None,
    })
}
