//! The tokenizer of a GGUF file.

use std::collections::HashMap;

use anyhow::{Context, Result, anyhow, ensure};
use candle_core::quantized::gguf_file::Value;
use serde_json::{Map, Value as Json, json};
use tokenizers::Tokenizer;

use super::{Metadata, TOKENS};

const MODEL: &str = "tokenizer.ggml.model";
const CUTS: &str = "tokenizer.ggml.pre";
const SCORES: &str = "tokenizer.ggml.scores";
const KINDS: &str = "tokenizer.ggml.token_type";

/// The type of tokens that are matched as a whole and not shown.
const CONTROL: i32 = 3;
/// The type of tokens that are matched as a whole and shown.
const USER_DEFINED: i32 = 4;

/// The most bytes of a token that unions make, each cut of which is tried; Gemma's have up to 93.
const MAX_TOKEN: usize = 256;
/// The character that SentencePiece writes for a space.
const SPACE: &str = "\u{2581}";

impl Metadata {
    /// The tokenizer: SentencePiece's BPE, or a byte-level BPE whose way to cut texts is known.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        let text = match self.text(MODEL)? {
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

    fn byte_level(&self) -> Result<Json> {
        let cut = self.text(CUTS).unwrap_or("none");
        let (normalizer, cuts) = cuts(cut).ok_or_else(|| self.unknown(CUTS, cut))?;
        let is_llama = cut == "llama-bpe";
        let model = json!({"unk_token": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": is_llama, "merges": self.texts("tokenizer.ggml.merges")?});
        let parts = json!({"normalizer": normalizer, "pre_tokenizer": cuts,
            "decoder": byte_level(true)});
        self.json(parts, model, is_llama)
    }

    /// SentencePiece joins the two neighbours whose union has the highest score: a BPE with unions
    /// ranked by score.
    fn sentence_piece(&self) -> Result<Json> {
        let tokens = self.texts(TOKENS)?;
        let scores = self.list(SCORES)?;
        ensure!(
            scores.len() == tokens.len(),
            "{}: expected {} scores, one for each token, got {}",
            self.at(SCORES),
            tokens.len(),
            scores.len(),
        );
        let ids: HashMap<&str, usize> = tokens.iter().copied().zip(0..).collect();
        let mut unions = Vec::new();
        for ((token, score), kind) in tokens.iter().zip(scores).zip(self.kinds()?) {
            let score = score.to_f32().with_context(|| self.at(SCORES))?;
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
            for (left, right) in ends.map(|(end, _)| token.split_at(end)) {
                if let (Some(left_id), Some(right_id)) = (ids.get(left), ids.get(right)) {
                    unions.push((score, [left_id, right_id], [left, right]));
                }
            }
        }
        unions.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let merges: Vec<_> = unions.into_iter().map(|(.., parts)| parts).collect();

        let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
        let mut normalizers = vec![replace(" ", SPACE)];
        let mut decoders = vec![
            replace(SPACE, " "),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if self.flag("tokenizer.ggml.add_space_prefix", true)? {
            normalizers.insert(0, json!({"type": "Prepend", "prepend": SPACE}));
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        let unknown = self.token("tokenizer.ggml.unknown_token_id")?;
        let model = json!({"unk_token": unknown.map(|(_, text)| text), "fuse_unk": true,
            "byte_fallback": true, "ignore_merges": false, "merges": merges});
        let parts = json!({
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "decoder": {"type": "Sequence", "decoders": decoders},
        });
        self.json(parts, model, true)
    }

    /// The contents of a `tokenizer.json` with these parts and this BPE.
    fn json(&self, mut all: Json, mut model: Json, begins: bool) -> Result<Json> {
        let tokens = self.texts(TOKENS)?;
        let vocab = tokens.iter().zip(0..);
        let vocab = vocab.map(|(token, id): (_, usize)| (token.to_string(), json!(id)));
        model["type"] = json!("BPE");
        model["vocab"] = vocab.collect::<Map<_, _>>().into();
        all["model"] = model;
        let mut whole = Vec::new();
        for (id, (content, kind)) in tokens.iter().zip(self.kinds()?).enumerate() {
            if is_whole(kind) {
                whole.push(
                    json!({"id": id, "content": content, "special": kind == CONTROL,
                    "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}),
                );
            }
        }
        all["added_tokens"] = whole.into();
        if self.flag("tokenizer.ggml.add_bos_token", begins)?
            && let Some((id, token)) = self.token("tokenizer.ggml.bos_token_id")?
        {
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

    fn kinds(&self) -> Result<Vec<i32>> {
        let kinds = self.list(KINDS)?.iter().map(Value::to_i32);
        kinds
            .collect::<candle_core::Result<_>>()
            .with_context(|| self.at(KINDS))
    }

    /// The token whose number is the value of a key.
    fn token(&self, key: &str) -> Result<Option<(usize, &str)>> {
        let Some(value) = self.values.get(key) else {
            return Ok(None);
        };
        let id = value.to_u64().with_context(|| self.at(key))? as usize;
        let tokens = self.texts(TOKENS)?;
        let token = tokens.get(id).with_context(|| {
            let count = tokens.len();
            format!("{}: expected a token below {count}, got {id}", self.at(key))
        })?;
        Ok(Some((id, token)))
    }

    fn flag(&self, key: &str, otherwise: bool) -> Result<bool> {
        let flag = self.values.get(key).map(Value::to_bool).transpose();
        Ok(flag.with_context(|| self.at(key))?.unwrap_or(otherwise))
    }

    fn texts(&self, key: &str) -> Result<Vec<&str>> {
        let texts = self.list(key)?.iter();
        let texts = texts.map(|text| Ok(text.to_string()?.as_str()));
        texts
            .collect::<candle_core::Result<_>>()
            .with_context(|| self.at(key))
    }
}

fn is_whole(kind: i32) -> bool {
    [CONTROL, USER_DEFINED].contains(&kind)
}

fn byte_level(use_regex: bool) -> Json {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": use_regex})
}

/// How a text is normalized and cut before its parts are encoded, by the name of the rule.
fn cuts(pre: &str) -> Option<(Json, Json)> {
    let sequence = |first: Json, use_regex| json!({"type": "Sequence", "pretokenizers": [first, byte_level(use_regex)]});
    let split = |digits: &str| {
        let pattern = format!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        );
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
            "invert": false})
    };
    Some(match pre {
        "gpt-2" | "mpt" => (Json::Null, byte_level(true)),
        "smollm" | "starcoder" | "refact" | "command-r" => {
            let digits = json!({"type": "Digits", "individual_digits": true});
            (Json::Null, sequence(digits, true))
        }
        "qwen2" => (json!({"type": "NFC"}), sequence(split(""), false)),
        "llama-bpe" => (Json::Null, sequence(split("{1,3}"), false)),
        _ => return None,
    })
}
