//! A safetensors file, written tensor by tensor.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};

use candle_dynquant_io::Unexpected;
use safetensors::Dtype;
use serde::ser::Serializer;
use serde_json::json;

use crate::checkpoint::read::{Axis, LENGTH, header, invalid};
use crate::error::{Error, Result};

#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
}

impl Planned {
    pub fn new(name: &str, dtype: Dtype, shape: &[usize]) -> Self {
        let (name, shape) = (name.to_owned(), shape.to_vec());
        Self { name, dtype, shape }
    }

    /// The size in bytes, if it can be counted.
    pub fn bytes(&self) -> Option<u64> {
        header::bytes(self.dtype, &self.shape)
    }
}

#[derive(Debug)]
struct ByteSpan {
    start: u64,
    bytes: u64,
    written: u64,
}

/// A file whose header is written, and which is filled in any order.
#[derive(Debug)]
pub struct Writer<'a> {
    file: &'a mut File,
    places: HashMap<String, ByteSpan>,
}

impl<'a> Writer<'a> {
    /// Writes the header; wider elements come first, so that all are aligned.
    pub fn new(
        file: &'a mut File,
        mut planned: Vec<Planned>,
        metadata: &BTreeMap<String, String>,
    ) -> Result<Self> {
        let order = |p: &Planned| (std::cmp::Reverse(p.dtype.bitsize()), p.name.clone());
        planned.sort_by_cached_key(order);
        let mut places = HashMap::new();
        let mut entries = Vec::with_capacity(planned.len() + 1);
        if !metadata.is_empty() {
            entries.push(("__metadata__".to_owned(), json!(metadata)));
        }
        let mut end = 0u64;
        for tensor in planned {
            let Some(next) = tensor.bytes().and_then(|bytes| end.checked_add(bytes)) else {
                let got = format!("{:?}", tensor.shape);
                return Err(invalid(&tensor.name, "a size that fits into a file", got));
            };
            let entry = json!({
                "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [end, next],
            });
            let place = ByteSpan { start: end, bytes: next - end, written: 0 };
            if places.insert(tensor.name.clone(), place).is_some() {
                return Err(invalid(&tensor.name, "one tensor of that name", "two"));
            }
            entries.push((tensor.name, entry));
            end = next;
        }
        let mut json = Vec::new();
        // In the order of their offsets.
        let written = serde_json::Serializer::new(&mut json).collect_map(entries);
        written.map_err(|error| Error::malformed("safetensors header", "JSON", error))?;
        json.resize(json.len().next_multiple_of(LENGTH as usize), b' ');
        let length = json.len() as u64;
        for place in places.values_mut() {
            place.start += LENGTH + length;
        }
        let write = |file: &mut File| {
            file.set_len(LENGTH + length + end)?;
            file.write_all(&length.to_le_bytes())?;
            file.write_all(&json)
        };
        write(file).map_err(writing)?;
        Ok(Self { file, places })
    }

    /// Writes the next bytes of a tensor.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let place = self.places.get_mut(name);
        let place = place.ok_or_else(|| invalid(name, "a planned tensor", "another"))?;
        let left = place.bytes - place.written;
        if bytes.len() as u64 > left {
            // They would overwrite the next tensor, or make the file longer.
            return Err(invalid(name, format!("at most {left} more bytes"), bytes.len()));
        }
        let at = SeekFrom::Start(place.start + place.written);
        let file = &mut self.file;
        file.seek(at).and_then(|_| file.write_all(bytes)).map_err(writing)?;
        place.written += bytes.len() as u64;
        Ok(())
    }

    /// Checks that every tensor is complete, and waits until the file is on the disk.
    pub fn finish(self) -> Result<()> {
        let unfinished = self.places.iter().find(|(_, place)| place.written != place.bytes);
        if let Some((name, place)) = unfinished {
            return Err(invalid(name, format!("{} bytes", place.bytes), place.written));
        }
        self.file.sync_all().map_err(writing)
    }
}

/// The error of an output that cannot be begun, written, or put in its place.
pub fn writing(error: std::io::Error) -> Error {
    match Unexpected::behind(&error) {
        Some(Unexpected { expected, got }) => {
            Error::argument("output", expected.clone(), got.clone())
        }
        None => Error::io("write")(error),
    }
}

pub const CODES: usize = 8;

/// A matrix of codes, each plus 8, eight to an i32 along an axis, the first in the lowest bits.
pub fn packed(codes: &[i8], [n, k]: [usize; 2], axis: Axis) -> Vec<u8> {
    let (height, width) = match axis {
        Axis::Columns => (n, k.div_ceil(CODES)),
        Axis::Rows => (n.div_ceil(CODES), k),
    };
    let word = |at: usize| {
        let nibble = |place: usize| {
            let (row, column) = match axis {
                Axis::Columns => (at / width, at % width * CODES + place),
                Axis::Rows => (at / width * CODES + place, at % width),
            };
            let is_within = row < n && column < k;
            let code = if is_within { codes[row * k + column] + 8 } else { 0 };
            (code as u32 & 15) << (4 * place)
        };
        (0..CODES).map(nibble).sum::<u32>().to_le_bytes()
    };
    (0..height * width).flat_map(word).collect()
}

// WASI has no folder for temporary files.
#[cfg(all(test, not(target_os = "wasi")))]
mod tests {
    use super::*;

    #[test]
    fn no_tensor_is_written_beyond_its_bytes() {
        let mut file = tempfile::tempfile().unwrap();
        let tensors = ["a", "b"].map(|name| Planned::new(name, Dtype::I8, &[4]));
        let mut writer = Writer::new(&mut file, tensors.into(), &BTreeMap::new()).unwrap();
        writer.write("a", &[1; 3]).unwrap();
        let error = writer.write("a", &[2; 2]).unwrap_err().to_string();
        assert!(error.contains("at most 1 more bytes"), "{error}");
        writer.write("a", &[2]).unwrap();
        let error = writer.finish().unwrap_err().to_string();
        assert!(error.contains("\"b\""), "{error}");
    }
}
