//! GGUF: metadata and the places of tensors, whose names become safetensors' names.
//!
//! Sizes come before what they are of, so nothing is allocated by them that the file does not have.

use std::fmt::Display;
use std::io::{BufRead, BufReader, ErrorKind, Read};

use candle_core::quantized::GgmlDType;
use safetensors::Dtype;

use super::gguf_names::{Known, encoding, heads, own_name};
use super::header::{self, Blocks, Encoding, Entry, Header, Part, invalid, reading};
use crate::error::{Error, Result};
use crate::weight::{MINIMUM, SCALE};
use crate::words::brief;

pub const MAGIC: &[u8] = b"GGUF";
/// The maximum length of a key or name.
const MAX_NAME: u64 = 1 << 16;
const MAX_TENSORS: u64 = 1 << 20;
const MAX_DIMENSIONS: u32 = 4;
/// How deep arrays are in each other.
const MAX_DEPTH: u32 = 4;
const ALIGNMENT: &str = "general.alignment";
const ARCHITECTURE: &str = "general.architecture";

/// Types by their numbers: of floats and integers, and of blocks.
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
const BLOCKS: [(u32, GgmlDType); 11] = [
    (2, GgmlDType::Q4_0),
    (3, GgmlDType::Q4_1),
    (6, GgmlDType::Q5_0),
    (7, GgmlDType::Q5_1),
    (8, GgmlDType::Q8_0),
    (10, GgmlDType::Q2K),
    (11, GgmlDType::Q3K),
    (12, GgmlDType::Q4K),
    (13, GgmlDType::Q5K),
    (14, GgmlDType::Q6K),
    (15, GgmlDType::Q8K),
];

struct Source<R> {
    from: R,
    at: u64,
}

/// A tensor as the file says.
struct Described {
    name: String,
    shape: Vec<usize>,
    dtype: u32,
    offset: u64,
}

/// Reads the beginning of a file that is `length` bytes long.
///
/// # Errors
/// When it is none of version 2 or 3, a tensor is not within the file or has a type that is not
/// known, or two have one name or the same bytes.
pub fn read(from: impl Read, length: u64) -> Result<Header> {
    let mut from = Source {
        from: BufReader::new(from),
        at: 0,
    };
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
    let mut known = Known::default();
    for _ in 0..keys {
        from.key(&mut known)?;
    }
    let described = (0..tensors).map(|_| from.described());
    let described = described.collect::<Result<Vec<_>>>()?;
    let alignment = known.numbers.get(ALIGNMENT).copied().unwrap_or(32);
    let data = from.at.checked_next_multiple_of(alignment);
    let data = data.filter(|data| *data <= length || described.is_empty());
    let Some(data) = data else {
        let expected = format!("an alignment that leaves tensors in {length} bytes");
        return Err(malformed(expected, alignment));
    };
    let mut read = Header::default();
    let mut places = Vec::with_capacity(described.len());
    for tensor in described {
        let entries = tensor.entries(&known, data, length)?;
        let bytes: u64 = entries.iter().map(|(_, entry)| entry.bytes).sum();
        places.push((tensor.offset, bytes, tensor.name));
        for (name, entry) in entries {
            if read.tensors.insert(name.clone(), entry).is_some() {
                return Err(invalid(&name, "one tensor of that name", "two"));
            }
        }
    }
    check_places(places)?;
    Ok(read)
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

impl<R: BufRead> Source<R> {
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
        let length = self.u64()?;
        if length > MAX_NAME {
            let expected = format!("names of at most {MAX_NAME} bytes");
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
            malformed("names in UTF-8", brief(&name, 100))
        })
    }

    /// Reads a key and its value, which is kept if it is used.
    fn key(&mut self, known: &mut Known) -> Result<()> {
        let key = self.name()?;
        let kind = self.u32()?;
        match kind {
            8 if key == ARCHITECTURE => known.architecture = self.name()?,
            4 => drop(known.numbers.insert(key, self.u32()?.into())),
            10 => drop(known.numbers.insert(key, self.u64()?)),
            _ => self.value(kind, 0)?,
        }
        Ok(())
    }

    /// Skips a value.
    fn value(&mut self, kind: u32, depth: u32) -> Result<()> {
        match (size(kind), kind) {
            (Some(size), _) => self.skip(size),
            (None, 8) => {
                let length = self.u64()?;
                self.skip(length)
            }
            (None, 9) if depth < MAX_DEPTH => {
                let (kind, count) = (self.u32()?, self.u64()?);
                if let Some(size) = size(kind) {
                    return self.skip(count.saturating_mul(size));
                }
                (0..count).try_for_each(|_| self.value(kind, depth + 1))
            }
            _ => {
                let expected = format!("types 0 to 12, arrays {MAX_DEPTH} deep");
                Err(malformed(expected, format!("type {kind} at depth {depth}")))
            }
        }
    }

    fn described(&mut self) -> Result<Described> {
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
        Ok(Described {
            name,
            shape,
            dtype,
            offset,
        })
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

impl Described {
    /// The tensors that stand for it: a weight of codes has its scales beside it.
    fn entries(&self, known: &Known, data: u64, length: u64) -> Result<Vec<(String, Entry)>> {
        let Self { name, shape, .. } = self;
        let plain = PLAIN.iter().find(|(number, _)| *number == self.dtype);
        let blocks = BLOCKS.iter().find(|(number, _)| *number == self.dtype);
        let own = encoding(name, plain.map(|(_, dtype)| *dtype), known)?;
        let (dtype, encoding, bytes) = match (plain, blocks) {
            (Some((_, dtype)), _) => (*dtype, own, header::bytes(*dtype, shape)),
            (None, Some((_, dtype))) => {
                let [inputs, size] = [dtype.block_size(), dtype.type_size()];
                let is_whole = shape.last().is_some_and(|k| k.is_multiple_of(inputs));
                // In f32, which are more, they can be counted.
                let fits = header::bytes(Dtype::F32, shape).filter(|_| is_whole);
                let bytes = fits.map(|bytes| bytes / 4 / inputs as u64 * size as u64);
                (Dtype::F32, Encoding::Blocks(Blocks::values(*dtype)), bytes)
            }
            (None, None) => {
                let got = format!("type {}", self.dtype);
                return Err(invalid(name, "a type of GGUF that is known", got));
            }
        };
        // The bits of a row can be counted, even where there are no rows.
        let counted: Vec<_> = shape.iter().map(|size| (*size).max(1)).collect();
        let bytes = header::bytes(Dtype::F64, &counted).and(bytes);
        let start = data.checked_add(self.offset);
        let end = start.and_then(|start| start.checked_add(bytes?));
        let Some((start, bytes)) = start
            .zip(bytes)
            .filter(|_| end.is_some_and(|end| end <= length))
        else {
            let expected = format!("whole blocks of {shape:?} within {length} bytes");
            return Err(invalid(name, expected, format!("offset {}", self.offset)));
        };
        let entry = Entry {
            dtype,
            shape: shape.clone(),
            start,
            bytes,
            encoding,
            heads: heads(name, shape, known)?,
        };
        let name = own_name(name, &known.architecture);
        let (Encoding::Blocks(blocks), &[n, k]) = (encoding, &shape[..]) else {
            return Ok(vec![(name, entry)]);
        };
        if !(blocks.has_codes() && name.ends_with("weight")) {
            return Ok(vec![(name, entry)]);
        }
        let part = |part, dtype, shape: [usize; 2], bytes| Entry {
            dtype,
            shape: shape.to_vec(),
            bytes,
            encoding: Encoding::Blocks(Blocks { part, ..blocks }),
            ..entry.clone()
        };
        let count = k / blocks.dtype.block_size();
        let of_scales = 2 * (n * count) as u64;
        let scales = part(Part::Scales, Dtype::F16, [n, count], of_scales);
        let mut tensors = vec![(format!("{name}{SCALE}"), scales)];
        let mut left = bytes - of_scales;
        if blocks.dtype == GgmlDType::Q4_1 {
            let minimums = part(Part::Minimums, Dtype::F16, [n, count], of_scales);
            tensors.push((format!("{name}{MINIMUM}"), minimums));
            left -= of_scales;
        }
        tensors.push((name, part(Part::Codes, Dtype::I8, [n, k], left)));
        Ok(tensors)
    }
}

fn ended() -> Error {
    malformed("what it says of its tensors", "the end of the file")
}

fn malformed(expected: impl Display, got: impl Display) -> Error {
    Error::malformed("GGUF file", expected, got)
}
