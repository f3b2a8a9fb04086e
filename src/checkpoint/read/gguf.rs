//! GGUF: metadata and the places of tensors, whose names become safetensors' names.
//!
//! Sizes come before what they are of, so nothing is allocated by them that the file does not have.

use std::fmt::Display;
use std::io::{BufRead, BufReader, ErrorKind, Read};

use safetensors::Dtype;
use serde_json::{Value, json};

use super::gguf_names::{Metadata, NUMBER, encoding, heads, safetensors_name};
use super::gguf_types::BlockType;
use super::header::{self, BlockPart, Blocks, Encoding, Entry, Header, invalid, reading};
use crate::error::{Error, Result};
use crate::weight::{MINIMUM, SCALE};
use crate::words::brief;

pub const MAGIC: &[u8] = b"GGUF";
/// The maximum length of a key or name.
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
        let expected = format!("at most {MAX_TENSORS} tensors");
        return Err(malformed(expected, tensors));
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
    let described = (0..tensors).map(|_| from.described());
    let described = described.collect::<Result<Vec<_>>>()?;
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
        let read = self.from.read_exact(&mut bytes);
        read.map_err(|error| match error.kind() {
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

    /// A number, a truth value or a text.
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

    /// Skips a value.
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
            let expected = format!("at most {MAX_DIMENSIONS} sizes");
            return Err(invalid(&name, expected, dimensions));
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
            // Up to the next, for nobody knows the size.
            None if blocks.name.is_empty() => {
                let bytes = next.checked_sub(self.offset);
                (Dtype::F32, Encoding::Blocks(Blocks::values(blocks)), bytes)
            }
            None => {
                let [inputs, size] = [blocks.elements, blocks.bytes];
                let is_whole = shape.last().is_some_and(|k| k.is_multiple_of(inputs));
                // In f32, which are more, they can be counted.
                let fits = header::bytes(Dtype::F32, shape).filter(|_| is_whole);
                let bytes = fits.map(|bytes| bytes / 4 / inputs as u64 * size as u64);
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
