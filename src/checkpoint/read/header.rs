//! The header of a safetensors file: eight bytes of length, then JSON, then the tensors.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io::Read;
use std::marker::PhantomData;

use candle_dynquant_io::{format, json};
use safetensors::Dtype;
use serde::de::{DeserializeOwned, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::gguf_types::BlockType;
use crate::error::{Error, Fault, Result};
use crate::words::brief;

/// The limit of the `safetensors` crate.
const MAX_HEADER: u64 = 100_000_000;
/// More dimensions than any library has.
const MAX_RANK: usize = 32;
pub const LENGTH: u64 = 8;
const METADATA: &str = "__metadata__";

#[derive(Debug, Default)]
pub struct Header {
    pub tensors: BTreeMap<String, Entry>,
    pub metadata: BTreeMap<String, String>,
    /// Metadata of GGUF: the type of each value, and where it begins.
    pub keys: BTreeMap<String, (u32, u64)>,
}

/// A tensor and its place, which is within the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Offset from the beginning of the file.
    pub start: u64,
    pub bytes: u64,
    pub encoding: Encoding,
    /// The number of heads whose rows the file has with their halves interleaved; 0 if none.
    pub heads: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Plain,
    /// f32, the largest magnitudes of rows: 127 times their scales.
    Absmax,
    /// f32, each 1 more than the element: GGUF's norms of Gemma.
    PlusOne,
    Transposed,
    /// Codes of a matrix, several to a number; dtype and shape describe the codes.
    Packed(Packing),
    /// Codes of 4 bits, a byte each.
    Unpacked,
    Blocks(Blocks),
}

/// GGUF's blocks, each of a scale and codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    pub dtype: BlockType,
    pub part: BlockPart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockPart {
    /// f32.
    Values,
    /// i8.
    Codes,
    /// f16.
    Scales,
    /// f16.
    Minimums,
}

impl Blocks {
    pub fn values(dtype: BlockType) -> Self {
        Self { dtype, part: BlockPart::Values }
    }

    /// Whether there are scales and codes that weights in groups have, too.
    pub fn has_codes(self) -> bool {
        ["Q4_0", "Q4_1", "Q8_0"].contains(&self.dtype.name)
    }
}

impl Encoding {
    pub fn is_int4(self) -> bool {
        match self {
            Self::Packed(packing) => packing.bits == 4,
            Self::Unpacked => true,
            Self::Blocks(Blocks { dtype, part }) => {
                part == BlockPart::Codes && ["Q4_0", "Q4_1"].contains(&dtype.name)
            }
            _ => false,
        }
    }
}

/// How codes of 4 or 8 bits are stored, eight or four to an i32, the first in the lowest bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    pub bits: usize,
    /// The axis along which the codes of one number are.
    pub axis: Axis,
    /// Whether the file has the matrix of numbers transposed.
    pub transposed: bool,
    /// Whether codes of even places come before odd ones in a number.
    pub interleaved: bool,
    /// The number that is added to a code where it is stored, modulo 256.
    pub offset: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    Rows,
    Columns,
}

impl Packing {
    /// compressed-tensors'.
    pub fn plain(axis: Axis, bits: usize) -> Self {
        Self { bits, axis, transposed: false, interleaved: false, offset: 1 << (bits - 1) }
    }

    /// The bits of a number by which the code of a place is shifted.
    pub fn shift(self, place: usize) -> usize {
        let place = if self.interleaved { place / 2 + place % 2 * 4 } else { place };
        self.bits * place
    }

    pub fn codes(self) -> usize {
        32 / self.bits
    }
}

impl Entry {
    /// The elements of a row; of a vector that is in another order, each element is a row.
    pub fn columns(&self) -> usize {
        match self.shape[..] {
            [_] if self.heads > 0 => 1,
            ref shape => shape.last().copied().unwrap_or_default(),
        }
    }

    /// The header has checked that they can be counted.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether its elements are floats that can be quantized.
    pub fn is_float(&self) -> bool {
        use Dtype::{BF16, F16, F32, F64};
        matches!(self.dtype, F64 | F32 | F16 | BF16)
    }

    /// This tensor of numbers as the codes that they hold.
    pub fn packed(&self, shape: [usize; 2], packing: Packing) -> Self {
        let (dtype, encoding) = (Dtype::I8, Encoding::Packed(packing));
        Self { dtype, shape: shape.to_vec(), encoding, ..self.clone() }
    }

    pub fn check_float(&self, name: &str) -> Result<()> {
        if self.is_float() { Ok(()) } else { Err(invalid(name, "a float dtype", self.dtype)) }
    }

    /// Checks the dtype and the shape; `what` says more of them.
    pub fn check(&self, name: &str, dtype: Dtype, shape: &[usize], what: &str) -> Result<()> {
        if self.dtype == dtype && self.shape == shape {
            return Ok(());
        }
        Err(invalid(name, format!("{dtype} {shape:?}{what}"), self.kind()))
    }

    pub fn kind(&self) -> String {
        format!("{} {:?}", self.dtype, self.shape)
    }
}

impl Header {
    /// Reads the header of a file that is `length` bytes long.
    ///
    /// # Errors
    /// When it is none, or if a tensor's bytes are not where the file has them: in the order of
    /// their offsets tensors follow one another without a gap and end where the file ends.
    pub fn read(from: &mut impl Read, length: u64) -> Result<Self> {
        let mut first = Vec::new();
        from.take(format::LENGTH as u64).read_to_end(&mut first).map_err(reading)?;
        if let Some(format) = format::detect(&first) {
            return Err(Error::malformed("file of tensors", "safetensors", format));
        }
        let from = &mut first.chain(from);
        let mut prefix = [0; LENGTH as usize];
        if length < LENGTH {
            return Err(malformed("a length of 8 bytes", format!("{length} bytes in all")));
        }
        from.read_exact(&mut prefix).map_err(reading)?;
        let header = u64::from_le_bytes(prefix);
        if header > MAX_HEADER || header > length - LENGTH {
            let most = MAX_HEADER.min(length - LENGTH);
            return Err(malformed(
                format!("at most {most} bytes, in a file of {length}"),
                format!("{header} bytes"),
            ));
        }
        let mut json = vec![0; header as usize];
        from.read_exact(&mut json).map_err(reading)?;
        let UniqueMap(raw) = parse(&json).map_err(|got| malformed("JSON of tensors", got))?;
        let (start, data) = (LENGTH + header, length - LENGTH - header);
        let mut places = Vec::with_capacity(raw.len());
        let (mut tensors, mut metadata) = (BTreeMap::new(), BTreeMap::new());
        for (name, raw) in raw {
            let tensor = match raw {
                HeaderValue::Tensor(tensor) => tensor,
                HeaderValue::Metadata(entries) => {
                    metadata = entries;
                    continue;
                }
            };
            let [begin, end] = tensor.data_offsets;
            let bytes = bytes(tensor.dtype, &tensor.shape.0);
            let invalid = |expected: String| invalid(&name, expected, format!("{begin} to {end}"));
            let Some(bytes) = bytes.filter(|bytes| begin.checked_add(*bytes) == Some(end)) else {
                let shape = &tensor.shape.0;
                let expected = match bytes {
                    Some(bytes) => format!("{bytes} bytes, for {} {shape:?}", tensor.dtype),
                    None => format!("whole bytes that fit into memory, for {shape:?}"),
                };
                return Err(invalid(expected));
            };
            if end > data {
                return Err(invalid(format!("offsets within {data} bytes of tensors")));
            }
            places.push((begin, end, name.clone()));
            let entry = Entry {
                dtype: tensor.dtype,
                shape: tensor.shape.0,
                start: start + begin,
                bytes,
                encoding: Encoding::Plain,
                heads: 0,
            };
            tensors.insert(name, entry);
        }
        check_places(places, data)?;
        Ok(Self { tensors, metadata, ..Self::default() })
    }
}

/// Checks that tensors follow one another from 0 to `data`.
fn check_places(mut places: Vec<(u64, u64, String)>, data: u64) -> Result<()> {
    places.sort();
    let mut at = 0;
    for (begin, end, name) in &places {
        if *begin != at {
            let expected = format!("offset {at}, where the tensor before it ends");
            return Err(invalid(name, expected, begin));
        }
        at = *end;
    }
    if at == data {
        Ok(())
    } else {
        Err(malformed(
            format!("tensors of {data} bytes, which the file has"),
            format!("{at} bytes"),
        ))
    }
}

/// The bytes of a tensor, if they are whole and `usize` counts its elements.
pub fn bytes(dtype: Dtype, shape: &[usize]) -> Option<u64> {
    // With a 0 replaced by 1, no partial product overflows either.
    let product =
        shape.iter().try_fold(1usize, |product, size| product.checked_mul((*size).max(1)))?;
    let product = if shape.contains(&0) { 0 } else { product };
    let bits = product.checked_mul(dtype.bitsize())?;
    let bytes = bits.is_multiple_of(8).then_some(bits / 8)?;
    (bytes <= isize::MAX as usize).then_some(bytes as u64)
}

/// A type from JSON; an error in few words.
pub fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T, String> {
    serde_json::from_slice(json).map_err(|e| brief(&e.to_string(), 300))
}

/// [`parse`] of a whole file, which Python or an editor may have written.
pub fn parse_file<T: DeserializeOwned>(text: Vec<u8>) -> Result<T, String> {
    let other = format::detect(&text).filter(|format| *format != format::JSON);
    parse(&json::strict(text)).map_err(|error| other.map_or(error, |format| format.to_string()))
}

fn malformed(expected: impl fmt::Display, got: impl fmt::Display) -> Error {
    Error::malformed("safetensors header", expected, got)
}

/// An error at a tensor, whose name may be as long as the file.
pub fn invalid(tensor: &str, expected: impl fmt::Display, got: impl fmt::Display) -> Error {
    Error::from(Fault::InvalidTensor {
        tensor: brief(tensor, 200),
        expected: expected.to_string(),
        got: got.to_string(),
    })
}

pub fn reading(error: std::io::Error) -> Error {
    Error::io("read the header")(error)
}

enum HeaderValue {
    Tensor(RawEntry),
    Metadata(BTreeMap<String, String>),
}

impl Keyed for HeaderValue {
    const MAP: &'static str = "an object of tensors";

    fn read<'de, A: MapAccess<'de>>(name: &str, from: &mut A) -> Result<Self, A::Error> {
        match name {
            METADATA => from.next_value().map(Self::Metadata),
            _ => from.next_value().map(Self::Tensor),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    dtype: Dtype,
    shape: Shape,
    data_offsets: [u64; 2],
}

struct Shape(Vec<usize>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Sizes;

        impl<'de> Visitor<'de> for Sizes {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {MAX_RANK} sizes")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Shape, A::Error> {
                let mut shape = Vec::new();
                while let Some(size) = from.next_element()? {
                    if shape.len() == MAX_RANK {
                        return Err(A::Error::invalid_length(MAX_RANK + 1, &self));
                    }
                    shape.push(size);
                }
                Ok(Shape(shape))
            }
        }

        from.deserialize_seq(Sizes)
    }
}

/// A value whose type may depend on its key.
pub trait Keyed: Sized {
    /// The map, for errors.
    const MAP: &'static str;

    fn read<'de, A: MapAccess<'de>>(key: &str, from: &mut A) -> Result<Self, A::Error>;
}

pub struct UniqueMap<V>(pub Vec<(String, V)>);

impl<'de, V: Keyed> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Entries<V>(PhantomData<V>);

        impl<'de, V: Keyed> Visitor<'de> for Entries<V> {
            type Value = UniqueMap<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(V::MAP)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<UniqueMap<V>, A::Error> {
                let (mut map, mut seen) = (Vec::new(), HashSet::new());
                while let Some(key) = from.next_key::<String>()? {
                    if !seen.insert(key.clone()) {
                        let key = brief(&key, 200);
                        return Err(A::Error::custom(format_args!("{key:?} twice")));
                    }
                    let value = V::read(&key, &mut from)?;
                    map.push((key, value));
                }
                Ok(UniqueMap(map))
            }
        }

        from.deserialize_map(Entries(PhantomData))
    }
}
