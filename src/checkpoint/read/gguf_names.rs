//! GGUF's names of tensors, and safetensors' names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::Dtype;

use super::header::{Encoding, invalid};
use crate::error::{Error, Result};

/// The part of the metadata that is used.
#[derive(Debug, Default)]
pub struct Metadata {
    pub architecture: String,
    pub numbers: BTreeMap<String, u64>,
    /// The tensors of all parts.
    pub tensors: u64,
}

impl Metadata {
    /// The paths of the other parts of a model that is split.
    ///
    /// # Errors
    /// When the name of the first does not tell them.
    pub fn parts(&self, first: &Path) -> Result<Vec<PathBuf>> {
        let count = self.numbers.get("split.count").copied().unwrap_or(1);
        let end = |part: u64| format!("-{part:05}-of-{count:05}.gguf");
        let name = first.file_name().and_then(|name| name.to_str());
        let stem = name.and_then(|name| name.strip_suffix(&end(1)));
        match stem {
            _ if count <= 1 => Ok(Vec::new()),
            Some(stem) if count <= MAX_PARTS => {
                let path = |part| first.with_file_name(format!("{stem}{}", end(part)));
                Ok((2..=count).map(path).collect())
            }
            _ => {
                let expected = format!("a name that ends with {:?}", end(1));
                Err(Error::malformed("part of a GGUF file", expected, format!("{name:?}")))
            }
        }
    }

    /// Checks that so many parts are all, and have all tensors.
    pub fn check_counts(&self, parts: u64) -> Result<()> {
        let counts = [("split.count", parts), ("split.tensors.count", self.tensors)];
        for (key, got) in counts {
            if let Some(count) = self.numbers.get(key).filter(|count| **count != got) {
                let expected = format!("{count}, by key {key:?}");
                return Err(Error::malformed("GGUF file", expected, got));
            }
        }
        Ok(())
    }
}

/// Parts of a model, as many as their names can count.
const MAX_PARTS: u64 = 99_999;
const GEMMA: &str = "gemma3";
const LFM2: &str = "lfm2";
const PHI3: &str = "phi3";
/// Decoders of transformers.
const DECODERS: [&str; 9] =
    ["llama", "qwen2", "qwen3", "smollm3", "granite", "qwen3moe", "olmoe", "granitemoe", LFM2];
/// Decoders that rotate neighbouring features of queries and keys.
const INTERLEAVED: [&str; 4] = ["llama", "smollm3", "granite", "granitemoe"];
/// The number of an expert in its name.
pub const NUMBER: &str = "{number}";
const OF_LFM2: [(&str, &str); 2] =
    [("token_embd", "model.embed_tokens"), ("token_embd_norm", "model.norm")];
const OF_DECODER: [(&str, &str); 3] =
    [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];
/// Names of a layer of a decoder. Experts are one tensor of three dimensions.
const OF_LAYER: [(&str, &str); 18] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.{number}.gate_proj"),
    ("ffn_up_exps", "mlp.experts.{number}.up_proj"),
    ("ffn_down_exps", "mlp.experts.{number}.down_proj"),
    ("shortconv.conv", "conv.conv"),
    ("shortconv.in_proj", "conv.in_proj"),
    ("shortconv.out_proj", "conv.out_proj"),
];
/// Names of a layer of Gemma, in place of a decoder's.
const OF_GEMMA: [(&str, &str); 3] = [
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];
/// Names of a layer of Phi-3, in place of a decoder's.
const OF_PHI3: [(&str, &str); 2] =
    [("attn_qkv", "self_attn.qkv_proj"), ("ffn_up", "mlp.gate_up_proj")];
const OF_BERT: [(&str, &str); 4] = [
    ("token_embd", "embeddings.word_embeddings"),
    ("position_embd", "embeddings.position_embeddings"),
    ("token_types", "embeddings.token_type_embeddings"),
    ("token_embd_norm", "embeddings.LayerNorm"),
];
const OF_BERT_LAYER: [(&str, &str); 8] = [
    ("attn_q", "attention.self.query"),
    ("attn_k", "attention.self.key"),
    ("attn_v", "attention.self.value"),
    ("attn_output", "attention.output.dense"),
    ("attn_output_norm", "attention.output.LayerNorm"),
    ("ffn_up", "intermediate.dense"),
    ("ffn_down", "output.dense"),
    ("layer_output_norm", "output.LayerNorm"),
];

/// The name of a tensor in safetensors; unchanged where that is not known.
pub fn safetensors_name(name: &str, architecture: &str) -> String {
    let (whole, of_layer, layers): (&[_], [&[_]; 2], _) = match architecture {
        "bert" => (&OF_BERT, [&OF_BERT_LAYER, &[]], "encoder.layer"),
        LFM2 => (&OF_LFM2, [&OF_LAYER, &[]], "model.layers"),
        PHI3 => (&OF_DECODER, [&OF_PHI3, &OF_LAYER], "model.layers"),
        GEMMA => (&OF_DECODER, [&OF_GEMMA, &OF_LAYER], "model.layers"),
        name if DECODERS.contains(&name) => (&OF_DECODER, [&OF_LAYER, &[]], "model.layers"),
        _ => return name.to_owned(),
    };
    let translated = || {
        let (module, last) = name.rsplit_once('.')?;
        let find = |table: &[(&str, &'static str)], part: &str| {
            let mut table = table.iter();
            table.find(|(from, _)| *from == part).map(|(_, to)| *to)
        };
        let Some(rest) = module.strip_prefix("blk.") else {
            return Some(format!("{}.{last}", find(whole, module)?));
        };
        let (layer, module) = rest.split_once('.')?;
        let module = of_layer.iter().find_map(|table| find(table, module))?;
        Some(format!("{layers}.{layer}.{module}.{last}"))
    };
    translated().unwrap_or_else(|| name.to_owned())
}

/// How the elements of a tensor are stored, if not in blocks: Gemma's norms with the 1 that its
/// layers add to them.
///
/// # Errors
/// When such a norm is not f32.
pub fn encoding(name: &str, dtype: Option<Dtype>, known: &Metadata) -> Result<Encoding> {
    if known.architecture != GEMMA || !name.ends_with("norm.weight") {
        return Ok(Encoding::Plain);
    }
    match dtype {
        Some(Dtype::F32) => Ok(Encoding::PlusOne),
        got => {
            let got = got.map_or("blocks".to_owned(), |dtype| dtype.to_string());
            Err(invalid(name, "a norm in f32", got))
        }
    }
}

/// The heads of a tensor whose rows GGUF has in another order: queries and keys of some decoders; 0
/// of others.
///
/// # Errors
/// When the rows are not pairs of that many heads.
pub fn heads(name: &str, shape: &[usize], known: &Metadata) -> Result<usize> {
    let module = name.rsplit_once('.').map_or("", |(module, _)| module);
    let is = |last: &str| module.ends_with(&format!(".{last}"));
    let architecture = &*known.architecture;
    if !INTERLEAVED.contains(&architecture) || !(is("attn_q") || is("attn_k")) {
        return Ok(0);
    }
    let number = |key: &str| known.numbers.get(&format!("{architecture}.attention.{key}")).copied();
    let all = number("head_count");
    let of_keys = number("head_count_kv").or(all);
    let heads = if is("attn_q") { all } else { of_keys };
    let heads = heads.and_then(|heads| usize::try_from(heads).ok());
    let fits = |heads: &usize| match (shape, heads.checked_mul(2)) {
        ([_], _) if !name.ends_with(".bias") => false,
        ([rows] | [rows, _], Some(halves)) => halves > 0 && rows.is_multiple_of(halves),
        _ => false,
    };
    heads.filter(fits).ok_or_else(|| {
        let expected = format!("halves of {architecture}.attention.head_count heads in {shape:?}");
        let got = heads.map_or("no number".to_owned(), |heads| heads.to_string());
        invalid(name, expected, got)
    })
}
