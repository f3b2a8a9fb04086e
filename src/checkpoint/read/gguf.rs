//! GGUF: metadata and the places of tensors, whose names become safetensors' names.
//!
//! Sizes come before what they are of, so nothing is allocated by them that the file does not have.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use serde_json::{Value, json};

use super::gguf_types::BlockType;
use super::header::{self, BlockPart, Blocks, Encoding, Entry, Header, invalid, reading};
use crate::error::{Error, Result};
use crate::weight::{MINIMUM, SCALE};
use crate::words::brief;

pub const MAGIC: &[u8] = b"GGUF";
const MAX_NAME: u64 = 1 << 16;
const MAX_TENSORS: u64 = 1 << 20;
const MAX_KEYS: u64 = 1 << 16;
/// The maximum length of a text that is read, and of an array.
const MAX_TEXT: u64 = 1 << 20;
const MAX_ELEMENTS: u64 = 1 << 22;
const MAX_DIMENSIONS: u32 = 4;
const MAX_EXPERTS: usize = 1 << 12;
const TEXT: u32 = 8;
const ARRAY: u32 = 9;
/// How deep arrays are in each other.
const MAX_DEPTH: u32 = 4;
const ALIGNMENT: &str = "general.alignment";
const ARCHITECTURE: &str = "general.architecture";

/// Types of floats and integers, by their numbers.
const PLAIN: [(u32, Dtype); 8] = [
    (0, Dtype::F32),
    (1, Dtype::F16),
    (24, Dtype::I8),
    (25, Dtype::I16),
    (26, Dtype::I32),
    (27, Dtype::I64),
    (28, Dtype::F64),
    (30, Dtype::BF16),
];

struct GgufReader<R> {
    from: R,
    at: u64,
}

/// A tensor as the file describes it.
struct TensorHeader {
    name: String,
    shape: Vec<usize>,
    dtype: u32,
    offset: u64,
}

/// Reads the beginning of a file that is `length` bytes long, and adds its tensors to the tensors
/// of the parts before, which are `base` bytes. The metadata is the first part's.
///
/// # Errors
/// When its version is neither 2 nor 3, a tensor is not within the file, two tensors have one name
/// or the same bytes, or the file is another part than the next.
pub fn read(
    from: impl Read,
    [base, length]: [u64; 2],
    part: u64,
    known: &mut Metadata,
    read: &mut Header,
) -> Result<()> {
    let mut from = GgufReader { from: BufReader::new(from), at: 0 };
    from.bytes::<4>()?;
    match u32::from_le_bytes(from.bytes()?) {
        2 | 3 => {}
        got => return Err(malformed("version 2 or 3", got)),
    }
    let (tensors, keys) = (from.u64()?, from.u64()?);
    if tensors > MAX_TENSORS {
        return Err(malformed(format!("at most {MAX_TENSORS} tensors"), tensors));
    }
    if keys > MAX_KEYS {
        return Err(malformed(format!("at most {MAX_KEYS} keys"), keys));
    }
    for _ in 0..keys {
        let (key, (kind, at)) = from.key(known)?;
        let other = read.keys.insert(key.clone(), (kind, base + at));
        if other.is_some() && !(part > 0 && key.starts_with("split.")) {
            return Err(malformed("each key once", format!("two of {key:?}")));
        }
    }
    let number = known.numbers.get("split.no").copied().unwrap_or(0);
    if number != part {
        let expected = format!("part {part} of a model, which is opened by its first, part 0");
        return Err(malformed(expected, format!("part {number}, by key \"split.no\"")));
    }
    let described = (0..tensors).map(|_| from.described()).collect::<Result<Vec<_>>>()?;
    known.tensors += tensors;
    let alignment = known.numbers.get(ALIGNMENT).copied().unwrap_or(32);
    // Writers of parts have two opinions on what is not said in each.
    if part > 0 && alignment != 32 {
        return Err(malformed("an alignment of 32 in a model of several files", alignment));
    }
    let data = from.at.checked_next_multiple_of(alignment);
    let data = data.filter(|data| *data <= length || described.is_empty());
    let Some(data) = data else {
        let expected = format!("an alignment that leaves tensors in {length} bytes");
        return Err(malformed(expected, alignment));
    };
    let mut offsets: Vec<_> = described.iter().map(|tensor| tensor.offset).collect();
    offsets.sort_unstable();
    let mut places = Vec::with_capacity(described.len());
    for tensor in described {
        let next = offsets.partition_point(|offset| *offset <= tensor.offset);
        let next = offsets.get(next).copied().unwrap_or(length - data);
        let entries = tensor.entries(known, [data, length], next)?;
        let bytes: u64 = entries.iter().map(|(_, entry)| entry.bytes).sum();
        places.push((tensor.offset, bytes, tensor.name));
        for (name, mut entry) in entries {
            entry.start += base;
            if read.tensors.insert(name.clone(), entry).is_some() {
                return Err(invalid(&name, "one tensor of that name", "two"));
            }
        }
    }
    check_places(places)
}

/// Reads the value of that type that begins there, as JSON; a number that is not finite is null.
pub fn value(from: impl Read, kind: u32) -> Result<Value> {
    let mut from = GgufReader { from: BufReader::new(from), at: 0 };
    if kind != ARRAY {
        return from.scalar(kind);
    }
    let (kind, count) = (from.u32()?, from.u64()?);
    if count > MAX_ELEMENTS {
        return Err(malformed(format!("arrays of at most {MAX_ELEMENTS}"), count));
    }
    (0..count).map(|_| from.scalar(kind)).collect()
}

/// Checks that no tensor lies in the bytes of another: many that did would be more than the file.
fn check_places(mut places: Vec<(u64, u64, String)>) -> Result<()> {
    places.sort();
    let mut end = 0;
    for (offset, bytes, name) in &places {
        if *offset < end {
            let got = format!("offset {offset}, where another ends at {end}");
            return Err(invalid(name, "bytes of its own", got));
        }
        end = offset + bytes;
    }
    Ok(())
}

impl<R: BufRead> GgufReader<R> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.from.read_exact(&mut bytes).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => ended(),
            _ => reading(error),
        })?;
        self.at += N as u64;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    fn skip(&mut self, bytes: u64) -> Result<()> {
        let skipped = std::io::copy(&mut (&mut self.from).take(bytes), &mut std::io::sink());
        if skipped.map_err(reading)? < bytes {
            return Err(ended());
        }
        self.at += bytes;
        Ok(())
    }

    fn name(&mut self) -> Result<String> {
        self.text("names", MAX_NAME)
    }

    fn text(&mut self, what: &str, most: u64) -> Result<String> {
        let length = self.u64()?;
        if length > most {
            let expected = format!("{what} of at most {most} bytes");
            return Err(malformed(expected, format!("{length} bytes")));
        }
        let mut bytes = Vec::new();
        let read = (&mut self.from).take(length).read_to_end(&mut bytes);
        if (read.map_err(reading)? as u64) < length {
            return Err(ended());
        }
        self.at += length;
        String::from_utf8(bytes).map_err(|error| {
            let name = String::from_utf8_lossy(error.as_bytes()).into_owned();
            malformed(format!("{what} in UTF-8"), brief(&name, 100))
        })
    }

    /// Reads a key and its value, which is kept if it is used; the type and the place of the value.
    fn key(&mut self, known: &mut Metadata) -> Result<(String, (u32, u64))> {
        let key = self.name()?;
        let kind = self.u32()?;
        let place = (kind, self.at);
        if key == ALIGNMENT && kind != 4 {
            return Err(malformed(format!("{ALIGNMENT:?} of type 4, u32"), format!("type {kind}")));
        }
        if key == ARCHITECTURE && kind == TEXT {
            known.architecture = self.name()?;
        } else if size(kind).is_some() {
            if let Some(number) = self.scalar(kind)?.as_u64() {
                known.numbers.insert(key.clone(), number);
            }
        } else {
            self.skip_value(kind, 0)?;
        }
        Ok((key, place))
    }

    fn scalar(&mut self, kind: u32) -> Result<Value> {
        Ok(match kind {
            0 => json!(u8::from_le_bytes(self.bytes()?)),
            1 => json!(i8::from_le_bytes(self.bytes()?)),
            2 => json!(u16::from_le_bytes(self.bytes()?)),
            3 => json!(i16::from_le_bytes(self.bytes()?)),
            4 => json!(self.u32()?),
            5 => json!(i32::from_le_bytes(self.bytes()?)),
            6 => json!(f32::from_le_bytes(self.bytes()?)),
            7 => match self.bytes()? {
                [byte @ (0 | 1)] => json!(byte == 1),
                [byte] => return Err(malformed("a truth value of 0 or 1", byte)),
            },
            TEXT => json!(self.text("texts", MAX_TEXT)?),
            10 => json!(self.u64()?),
            11 => json!(i64::from_le_bytes(self.bytes()?)),
            12 => json!(f64::from_le_bytes(self.bytes()?)),
            _ => return Err(malformed("numbers or texts", format!("type {kind}"))),
        })
    }

    fn skip_value(&mut self, kind: u32, depth: u32) -> Result<()> {
        match (size(kind), kind) {
            (Some(size), _) => self.skip(size),
            (None, TEXT) => {
                let length = self.u64()?;
                self.skip(length)
            }
            (None, ARRAY) if depth < MAX_DEPTH => {
                let (kind, count) = (self.u32()?, self.u64()?);
                if let Some(size) = size(kind) {
                    return self.skip(count.saturating_mul(size));
                }
                (0..count).try_for_each(|_| self.skip_value(kind, depth + 1))
            }
            _ => {
                let expected = format!("types 0 to 12, arrays {MAX_DEPTH} deep");
                Err(malformed(expected, format!("type {kind} at depth {depth}")))
            }
        }
    }

    fn described(&mut self) -> Result<TensorHeader> {
        let name = self.name()?;
        let dimensions = self.u32()?;
        if dimensions > MAX_DIMENSIONS {
            return Err(invalid(&name, format!("at most {MAX_DIMENSIONS} sizes"), dimensions));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            let size = self.u64()?;
            let fits = usize::try_from(size);
            shape.push(fits.map_err(|_| invalid(&name, "sizes that fit", size))?);
        }
        shape.reverse();
        let (dtype, offset) = (self.u32()?, self.u64()?);
        Ok(TensorHeader { name, shape, dtype, offset })
    }
}

/// The bytes of a value of a type that has always as many.
fn size(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

impl TensorHeader {
    /// The tensors that stand for it: a matrix for each expert, a weight of codes with its scales
    /// beside it.
    fn entries(
        &self,
        known: &Metadata,
        [data, length]: [u64; 2],
        next: u64,
    ) -> Result<Vec<(String, Entry)>> {
        let Self { name, shape, .. } = self;
        let plain = PLAIN.iter().find(|(number, _)| *number == self.dtype);
        let by_name = encoding(name, plain.map(|(_, dtype)| *dtype), known)?;
        let blocks = BlockType::numbered(self.dtype);
        let (dtype, encoding, bytes) = match plain {
            Some((_, dtype)) => (*dtype, by_name, header::bytes(*dtype, shape)),
            None => {
                let [inputs, size] = [blocks.elements, blocks.bytes];
                let is_whole = shape.last().is_some_and(|k| k.is_multiple_of(inputs));
                // In f32, which are more, they can be counted.
                let fits = header::bytes(Dtype::F32, shape).filter(|_| is_whole);
                let bytes = match blocks.name {
                    // Up to the next, for nobody knows the size.
                    "" => next.checked_sub(self.offset),
                    _ => fits.map(|bytes| bytes / 4 / inputs as u64 * size as u64),
                };
                (Dtype::F32, Encoding::Blocks(Blocks::values(blocks)), bytes)
            }
        };
        // The bits of a row must be countable, even where there are no rows.
        let counted: Vec<_> = shape.iter().map(|size| (*size).max(1)).collect();
        let bytes = header::bytes(Dtype::F64, &counted).and(bytes);
        let start = data.checked_add(self.offset);
        let end = start.and_then(|start| start.checked_add(bytes?));
        let Some((start, bytes)) =
            start.zip(bytes).filter(|_| end.is_some_and(|end| end <= length))
        else {
            let expected = format!("whole blocks of {shape:?} within {length} bytes");
            return Err(invalid(name, expected, format!("offset {}", self.offset)));
        };
        let heads = heads(name, shape, known)?;
        if heads > 0 && shape.len() == 1 && encoding != by_name {
            return Err(invalid(name, "a bias of floats", blocks.name()));
        }
        let entry = Entry { dtype, shape: shape.clone(), start, bytes, encoding, heads };
        let named = safetensors_name(name, &known.architecture);
        let (true, &[experts, ref matrix @ ..]) = (named.contains(NUMBER), &shape[..]) else {
            return Ok(entry.divided(named));
        };
        if matrix.len() != 2 || experts > MAX_EXPERTS || bytes % experts.max(1) as u64 != 0 {
            let expected = format!("[experts, out, in] of up to {MAX_EXPERTS} experts");
            return Err(invalid(name, expected, format!("{shape:?}")));
        }
        let bytes = bytes / experts.max(1) as u64;
        let expert = |number| Entry {
            shape: matrix.to_vec(),
            start: start + bytes * number as u64,
            bytes,
            ..entry.clone()
        };
        let experts = 0..experts;
        Ok(experts.flat_map(|n| expert(n).divided(named.replace(NUMBER, &n.to_string()))).collect())
    }
}

impl Entry {
    /// The tensors of a matrix in blocks: its codes have their scales beside them.
    fn divided(self, name: String) -> Vec<(String, Self)> {
        let (Encoding::Blocks(blocks), &[n, k]) = (self.encoding, &self.shape[..]) else {
            return vec![(name, self)];
        };
        if !(blocks.has_codes() && name.ends_with("weight")) {
            return vec![(name, self)];
        }
        let part = |part, dtype, shape: [usize; 2], bytes| Self {
            dtype,
            shape: shape.to_vec(),
            bytes,
            encoding: Encoding::Blocks(Blocks { part, ..blocks }),
            ..self.clone()
        };
        let count = k / blocks.dtype.elements;
        let of_scales = 2 * (n * count) as u64;
        let scales = part(BlockPart::Scales, Dtype::F16, [n, count], of_scales);
        let mut tensors = vec![(format!("{name}{SCALE}"), scales)];
        let mut left = self.bytes - of_scales;
        if blocks.dtype.name == "Q4_1" {
            let minimums = part(BlockPart::Minimums, Dtype::F16, [n, count], of_scales);
            tensors.push((format!("{name}{MINIMUM}"), minimums));
            left -= of_scales;
        }
        tensors.push((name, part(BlockPart::Codes, Dtype::I8, [n, k], left)));
        tensors
    }
}

fn ended() -> Error {
    malformed("what it says of its tensors", "the end of the file")
}

fn malformed(expected: impl Display, got: impl Display) -> Error {
    Error::malformed("GGUF file", expected, got)
}

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
        for (key, got) in [("split.count", parts), ("split.tensors.count", self.tensors)] {
            if let Some(count) = self.numbers.get(key).filter(|count| **count != got) {
                return Err(Error::malformed("GGUF file", format!("{count}, by key {key:?}"), got));
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
        invalid(name, expected, heads.map_or("no number".to_owned(), |heads| heads.to_string()))
    })
}
