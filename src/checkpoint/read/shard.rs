//! A safetensors file, or a GGUF file in one or several parts, on a disk or in memory, read where
//! and when a tensor is asked for.

use std::fmt::Debug;
use std::fs::File;
use std::io::{Cursor, ErrorKind, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytemuck::Pod;
use candle_core::{Device, Tensor, WithDType};
use candle_dynquant_io::input;
use half::{bf16, f16};
use safetensors::Dtype;
use serde_json::Value;

use super::gguf::{self, Metadata};
use super::header::{Axis, BlockPart, Blocks, Encoding, Entry, Header, Packing, invalid, reading};
use crate::error::{Error, Result};
use crate::halves::Halves;

/// Bytes that are read at once: few enough to stay in a cache, and in memory that was used before.
const CHUNK: usize = 1 << 16;
/// The code of the largest magnitude of a row.
const CODE_OF_ABSMAX: f32 = 127.;

trait Bytes: Read + Seek + Debug + Send {}

impl<B: Read + Seek + Debug + Send> Bytes for B {}

/// An open file and its header.
///
/// A file on a disk is read, not mapped: a mapped file that is cut short kills the program, a
/// mapped file that is changed is undefined behaviour, and its pages would count as memory beside
/// the weights made of them.
#[derive(Debug)]
pub struct Shard {
    pub path: PathBuf,
    pub header: Header,
    /// Whether the path leads to a file.
    pub is_on_disk: bool,
    file: Mutex<Box<dyn Bytes>>,
}

impl Shard {
    pub fn open(path: &Path) -> Result<Self> {
        let (mut joined, mut known, mut all) = <(Joined, Metadata, Header)>::default();
        let mut paths = vec![path.to_owned()];
        for part in 0.. {
            let Some(path) = paths.get(part) else { break };
            let opening = Error::io("open");
            let mut open = || {
                let mut file = input::open(path).map_err(opening)?;
                let length = file.metadata().map_err(opening)?.len();
                header(&mut file, [joined.at, length], part as u64, &mut known, &mut all)?;
                joined.files.push((joined.at, file));
                joined.at += length;
                let is_first = part == 0;
                is_first.then(|| known.parts(path)).transpose()
            };
            paths.extend(open().map_err(|e: Error| e.in_file(path))?.into_iter().flatten());
        }
        known.check_counts(joined.files.len() as u64).map_err(|e| e.in_file(path))?;
        let file: Box<dyn Bytes> = match joined.files.pop() {
            Some((0, file)) => Box::new(file),
            last => {
                joined.files.extend(last);
                Box::new(joined)
            }
        };
        Ok(Self { path: path.to_owned(), header: all, is_on_disk: true, file: Mutex::new(file) })
    }

    /// A file in memory; `path` is for errors.
    pub fn from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Self> {
        let (mut known, mut all) = (Metadata::default(), Header::default());
        header(&mut &bytes[..], [0, bytes.len() as u64], 0, &mut known, &mut all)
            .and_then(|()| known.check_counts(1))
            .map_err(|e| e.in_file(path))?;
        Ok(Self {
            path: path.to_owned(),
            header: all,
            is_on_disk: false,
            file: Mutex::new(Box::new(Cursor::new(bytes))),
        })
    }

    /// Calls `sink` with bytes `start..start + bytes` of the file, chunk by chunk; a chunk is a
    /// multiple of 64 bytes, except for the last.
    pub fn read(
        &self,
        start: u64,
        bytes: u64,
        mut sink: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut file = self.at(start)?;
        let mut left = bytes;
        let mut buffer = vec![0; left.min(CHUNK as u64) as usize];
        while left > 0 {
            let chunk = &mut buffer[..left.min(CHUNK as u64) as usize];
            file.read_exact(chunk).map_err(|e| self.reading(e))?;
            sink(chunk)?;
            left -= chunk.len() as u64;
        }
        Ok(())
    }

    pub fn value(&self, key: &str) -> Result<Option<Value>> {
        let Some(&(kind, start)) = self.header.keys.get(key) else { return Ok(None) };
        gguf::value(&mut *self.at(start)?, kind).map(Some).map_err(|e| e.in_file(&self.path))
    }

    /// Elements `range` of a tensor, each made of `B` bytes.
    fn elements<const B: usize, T: Copy>(
        &self,
        entry: &Entry,
        range: Range<usize>,
        make: impl Fn([u8; B]) -> T,
    ) -> Result<Vec<T>> {
        let mut values = Vec::with_capacity(range.len());
        if entry.heads > 0 || matches!(entry.encoding, Encoding::Blocks(_)) {
            let k = entry.columns().max(1);
            let rows = range.start / k..range.end.div_ceil(k);
            let first = range.start - rows.start * k;
            let bytes = self.rows(entry, rows)?;
            let elements = bytes.as_chunks::<B>().0.get(first..first + range.len());
            values.extend(elements.unwrap_or_default().iter().map(|bytes| make(*bytes)));
            return Ok(values);
        }
        match (entry.encoding, &entry.shape[..]) {
            (Encoding::Transposed, &[n, k]) if !range.is_empty() => {
                let rows = range.start / k..range.end.div_ceil(k);
                if rows == (0..n) {
                    self.successive(entry, 0..n * k, make, &mut values)?;
                } else {
                    for column in 0..k {
                        let part = column * n + rows.start..column * n + rows.end;
                        self.successive(entry, part, &make, &mut values)?;
                    }
                }
                let at = |i: usize| values[i % k * rows.len() + i / k - rows.start];
                Ok(range.map(at).collect())
            }
            _ => {
                self.successive(entry, range, make, &mut values)?;
                Ok(values)
            }
        }
    }

    /// Elements `range` of a tensor of `T`, without a copy where the file has them in order.
    fn stored<const B: usize, T: Pod>(
        &self,
        entry: &Entry,
        range: Range<usize>,
        make: impl Fn([u8; B]) -> T,
    ) -> Result<Vec<T>> {
        if entry.encoding != Encoding::Plain || entry.heads > 0 || cfg!(target_endian = "big") {
            return self.elements(entry, range, make);
        }
        let mut values = vec![T::zeroed(); range.len()];
        let mut file = self.at(entry.start + (range.start * B) as u64)?;
        file.read_exact(bytemuck::cast_slice_mut(&mut values)).map_err(|e| self.reading(e))?;
        Ok(values)
    }

    /// The bytes of some rows that the file has in another form or order.
    fn rows(&self, entry: &Entry, rows: Range<usize>) -> Result<Vec<u8>> {
        let k = entry.columns();
        let of_row = match entry.encoding {
            Encoding::Blocks(Blocks { dtype, .. }) if !dtype.is_read() => {
                let mut tensors = self.header.tensors.iter();
                let name = tensors.find(|(_, other)| *other == entry);
                let name = name.map_or("", |(name, _)| name);
                return Err(invalid(name, "a type of GGUF that is read", dtype.name()));
            }
            Encoding::Blocks(blocks) => blocks.bytes_of_row(k),
            _ => k * entry.dtype.bitsize() / 8,
        };
        let mut bytes = Vec::with_capacity(rows.len() * of_row);
        let mut read = |rows: Range<usize>| {
            let (start, length) = (rows.start * of_row, rows.len() * of_row);
            self.read(entry.start + start as u64, length as u64, |chunk| {
                bytes.extend_from_slice(chunk);
                Ok(())
            })
        };
        let all = entry.shape.first().copied().unwrap_or_default();
        if let Some(of_head) = all.checked_div(entry.heads) {
            for row in rows {
                let (head, within) = (row / of_head * of_head, row % of_head);
                let (half, pair) = (within / (of_head / 2), within % (of_head / 2));
                let there = head + 2 * pair + half;
                read(there..there + 1)?;
            }
        } else {
            read(rows)?;
        }
        match entry.encoding {
            Encoding::Blocks(blocks) => blocks.decode(&bytes),
            _ => Ok(bytes),
        }
    }

    /// Elements `range` in the order of the file.
    fn successive<const B: usize, T>(
        &self,
        entry: &Entry,
        range: Range<usize>,
        make: impl Fn([u8; B]) -> T,
        to: &mut Vec<T>,
    ) -> Result<()> {
        let (start, bytes) = (entry.start + (range.start * B) as u64, range.len() * B);
        self.read(start, bytes as u64, |chunk| {
            let (chunk, _) = chunk.as_chunks::<B>();
            to.extend(chunk.iter().map(|bytes| make(*bytes)));
            Ok(())
        })
    }

    pub fn bytes(&self, entry: &Entry) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(entry.bytes as usize);
        let mut file = self.at(entry.start)?;
        let read = (&mut *file).take(entry.bytes).read_to_end(&mut bytes);
        if read.map_err(|e| self.reading(e))? as u64 == entry.bytes {
            Ok(bytes)
        } else {
            Err(self.reading(ErrorKind::UnexpectedEof.into()))
        }
    }

    pub fn codes(&self, entry: &Entry, range: Range<usize>) -> Result<Vec<i8>> {
        if let Encoding::Packed(packing) = entry.encoding {
            return self.packed(entry, packing, range);
        }
        let codes = self.elements(entry, range, |[byte]: [u8; 1]| byte.cast_signed())?;
        let is_too_large = |code: &&i8| !(-8..8).contains(*code);
        if entry.encoding == Encoding::Unpacked
            && let Some(code) = codes.iter().find(is_too_large)
        {
            return Err(Error::argument("code of 4 bits", "-8 to 7", code).in_file(&self.path));
        }
        Ok(codes)
    }

    pub fn numbers(&self, entry: &Entry) -> Result<Vec<i32>> {
        self.elements(entry, 0..entry.elements(), i32::from_le_bytes)
    }

    fn packed(&self, entry: &Entry, packing: Packing, range: Range<usize>) -> Result<Vec<i8>> {
        let &[n, k] = &entry.shape[..] else { return Ok(Vec::new()) };
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let rows = range.start / k..range.end.div_ceil(k);
        let codes = packing.codes();
        // The rows of numbers that hold them, and the shape of all numbers.
        let (words, [height, width]) = match packing.axis {
            Axis::Columns => (rows.clone(), [n, k.div_ceil(codes)]),
            Axis::Rows => (rows.start / codes..rows.end.div_ceil(codes), [n.div_ceil(codes), k]),
        };
        let of_words = Entry {
            dtype: Dtype::I32,
            shape: vec![height, width],
            encoding: if packing.transposed { Encoding::Transposed } else { Encoding::Plain },
            ..entry.clone()
        };
        let all = words.start * width..words.end * width;
        let read: Vec<u32> = self.elements(&of_words, all, u32::from_le_bytes)?;
        let code = |at: usize| {
            let (row, column) = (at / k, at % k);
            let (word, place) = match packing.axis {
                Axis::Columns => ((row - words.start) * width + column / codes, column % codes),
                Axis::Rows => ((row / codes - words.start) * width + column, row % codes),
            };
            let code = (read[word] >> packing.shift(place)) as u8 & (u8::MAX >> (8 - packing.bits));
            code.wrapping_sub(packing.offset).cast_signed()
        };
        Ok(range.map(code).collect())
    }

    pub fn halves(&self, entry: &Entry, range: Range<usize>) -> Result<Halves> {
        Ok(if entry.dtype == Dtype::BF16 {
            Halves::BFloat16(self.stored(entry, range, bf16::from_le_bytes)?)
        } else {
            Halves::Float16(self.stored(entry, range, f16::from_le_bytes)?)
        })
    }

    /// The file, to be read from there on.
    fn at(&self, start: u64) -> Result<MutexGuard<'_, Box<dyn Bytes>>> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(start)).map_err(|e| self.reading(e))?;
        Ok(file)
    }

    fn reading(&self, error: std::io::Error) -> Error {
        Error::io("read the tensors")(error).in_file(&self.path)
    }

    fn f32s(&self, entry: &Entry, range: Range<usize>) -> Result<Vec<f32>> {
        match entry.encoding {
            Encoding::Absmax => {
                self.elements(entry, range, |b| f32::from_le_bytes(b) / CODE_OF_ABSMAX)
            }
            Encoding::PlusOne => self.elements(entry, range, |b| f32::from_le_bytes(b) - 1.),
            _ => self.stored(entry, range, f32::from_le_bytes),
        }
    }

    /// Calls `sink` with the bytes of a tensor, of packed codes of 4 bits as they are stored, chunk by
    /// chunk.
    pub fn copy(&self, entry: &Entry, mut sink: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let all = 0..entry.elements();
        match (entry.encoding, entry.dtype.bitsize()) {
            (Encoding::Absmax | Encoding::PlusOne, _) => {
                let values = self.f32s(entry, all)?.into_iter();
                sink(&values.flat_map(f32::to_le_bytes).collect::<Vec<_>>())
            }
            (Encoding::Transposed, 16) => {
                sink(self.elements(entry, all, |b: [u8; 2]| b)?.as_flattened())
            }
            (Encoding::Transposed, 32) => {
                sink(self.elements(entry, all, |b: [u8; 4]| b)?.as_flattened())
            }
            (Encoding::Transposed, 64) => {
                sink(self.elements(entry, all, |b: [u8; 8]| b)?.as_flattened())
            }
            (Encoding::Packed(packing), _) if packing.bits == 8 => {
                let codes = self.packed(entry, packing, all)?.into_iter();
                sink(&codes.map(i8::cast_unsigned).collect::<Vec<_>>())
            }
            (Encoding::Blocks(_), _) => {
                sink(&self.rows(entry, 0..entry.shape.iter().rev().skip(1).product())?)
            }
            _ if entry.heads > 0 => sink(&self.rows(entry, 0..entry.shape[0])?),
            _ => self.read(entry.start, entry.bytes, sink),
        }
    }

    pub fn floats(&self, name: &str, entry: &Entry, range: Range<usize>) -> Result<Vec<f32>> {
        match entry.dtype {
            Dtype::F32 => self.f32s(entry, range),
            Dtype::F16 => self.elements(entry, range, |b| f16::from_le_bytes(b).to_f32()),
            Dtype::BF16 => self.elements(entry, range, |b| bf16::from_le_bytes(b).to_f32()),
            Dtype::F64 => self.elements(entry, range, |b| f64::from_le_bytes(b) as f32),
            got => Err(invalid(name, "f64, f32, f16 or bf16", got).in_file(&self.path)),
        }
    }

    /// A tensor of a dtype that candle has, or an integer of another.
    pub fn tensor(&self, name: &str, entry: &Entry) -> Result<Tensor> {
        match entry.dtype {
            Dtype::U8 | Dtype::BOOL => Self::shaped(entry, self.bytes(entry)?),
            Dtype::I8 => {
                let codes = self.codes(entry, 0..entry.elements())?;
                Self::shaped(entry, codes.into_iter().map(i64::from).collect())
            }
            Dtype::I16 => self.of_elements(entry, i16::from_le_bytes),
            Dtype::U16 => self.of_elements(entry, |b| u32::from(u16::from_le_bytes(b))),
            Dtype::I32 => self.of_elements(entry, i32::from_le_bytes),
            Dtype::U32 => self.of_elements(entry, u32::from_le_bytes),
            Dtype::I64 => self.of_elements(entry, i64::from_le_bytes),
            Dtype::F16 => self.of_elements(entry, f16::from_le_bytes),
            Dtype::BF16 => self.of_elements(entry, bf16::from_le_bytes),
            Dtype::F32 => Self::shaped(entry, self.f32s(entry, 0..entry.elements())?),
            Dtype::F64 => self.of_elements(entry, f64::from_le_bytes),
            got => Err(invalid(name, "a dtype that candle has", got).in_file(&self.path)),
        }
    }

    fn of_elements<const B: usize, T: WithDType + Pod>(
        &self,
        entry: &Entry,
        make: impl Fn([u8; B]) -> T,
    ) -> Result<Tensor> {
        Self::shaped(entry, self.stored(entry, 0..entry.elements(), make)?)
    }

    fn shaped<T: WithDType>(entry: &Entry, values: Vec<T>) -> Result<Tensor> {
        Ok(Tensor::from_vec(values, &entry.shape[..], &Device::Cpu)?)
    }
}

/// Files that are read as one file, and where each begins.
#[derive(Debug, Default)]
struct Joined {
    files: Vec<(u64, File)>,
    at: u64,
}

impl Read for Joined {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        let count = self.files.partition_point(|(begin, _)| *begin <= self.at);
        let Some((begin, file)) = self.files[..count].last_mut() else { return Ok(0) };
        file.seek(SeekFrom::Start(self.at - *begin))?;
        let count = file.read(to)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for Joined {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        let SeekFrom::Start(at) = to else { return Err(ErrorKind::Unsupported.into()) };
        self.at = at;
        Ok(at)
    }
}

/// Reads the header of a file in one of two formats, of GGUF as a part of a model.
fn header(
    from: &mut impl Read,
    place: [u64; 2],
    part: u64,
    known: &mut Metadata,
    all: &mut Header,
) -> Result<()> {
    let mut first = Vec::new();
    let read = from.take(gguf::MAGIC.len() as u64).read_to_end(&mut first);
    read.map_err(reading)?;
    let is_gguf = first == gguf::MAGIC;
    let mut from = first.chain(from);
    if is_gguf {
        gguf::read(from, place, part, known, all)
    } else {
        *all = Header::read(&mut from, place[1])?;
        Ok(())
    }
}

impl Blocks {
    /// The bytes of a row of `k` values, or of scales.
    fn bytes_of_row(self, k: usize) -> usize {
        let blocks = match self.part {
            BlockPart::Scales | BlockPart::Minimums => k,
            BlockPart::Values | BlockPart::Codes => k / self.dtype.elements,
        };
        blocks * self.dtype.bytes
    }

    /// The bytes of the elements of blocks.
    fn decode(self, blocks: &[u8]) -> Result<Vec<u8>> {
        let each = blocks.chunks_exact(self.dtype.bytes);
        match (self.part, self.dtype.name) {
            (BlockPart::Scales, _) => Ok(each.flat_map(|block| [block[0], block[1]]).collect()),
            (BlockPart::Minimums, _) => Ok(each.flat_map(|block| [block[2], block[3]]).collect()),
            // The first half of a block has the low bits.
            (BlockPart::Codes, "Q4_0" | "Q4_1") => {
                let codes = each.flat_map(|block| {
                    let (_, codes) = block.split_at(block.len() - 16);
                    codes.iter().map(|byte| byte & 15).chain(codes.iter().map(|byte| byte >> 4))
                });
                Ok(codes.map(|code| code.wrapping_sub(8)).collect())
            }
            (BlockPart::Codes, _) => Ok(each.flat_map(|block| &block[2..]).copied().collect()),
            (BlockPart::Values, _) if blocks.is_empty() => Ok(Vec::new()),
            (BlockPart::Values, _) => {
                Ok(self.dtype.values(blocks)?.into_iter().flat_map(f32::to_le_bytes).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::gguf_types::BlockType;
    use super::*;

    const SHAPE: [usize; 2] = [16, 32];
    const LEN: usize = SHAPE[0] * SHAPE[1];

    /// A file of one tensor with many bytes, and where they begin.
    fn shard() -> Result<(Shard, Entry)> {
        let bytes: Vec<u8> = (0..16_384u32).map(|i| (i * i / 7 % 113) as u8).collect();
        let header = br#"{"a":{"dtype":"U8","shape":[16384],"data_offsets":[0,16384]}}"#;
        let file = [&(header.len() as u64).to_le_bytes()[..], header, &bytes].concat();
        let shard = Shard::from_bytes(Path::new("a"), file)?;
        let entry = shard.header.tensors["a"].clone();
        Ok((shard, entry))
    }

    fn entry(stored: &Entry, dtype: Dtype, encoding: Encoding, heads: usize) -> Entry {
        Entry {
            dtype,
            shape: SHAPE.to_vec(),
            bytes: (LEN * dtype.bitsize() / 8) as u64,
            encoding,
            heads,
            ..stored.clone()
        }
    }

    /// Checks that each range of elements equals the same range of all elements.
    fn check<T: PartialEq>(
        name: &str,
        read: impl Fn(Range<usize>) -> Result<Vec<T>>,
    ) -> Result<()> {
        let all = read(0..LEN)?;
        assert_eq!(all.len(), LEN, "{name}");
        for start in (0..=LEN).step_by(5) {
            for end in (start..=LEN).step_by(7) {
                assert!(read(start..end)? == all[start..end], "{name}: {start}..{end}");
            }
        }
        Ok(())
    }

    #[test]
    fn ranges_of_floats_are_parts_of_all() -> Result<()> {
        let (shard, stored) = shard()?;
        let blocks = |dtype| Encoding::Blocks(Blocks::values(dtype));
        for heads in [0, 2] {
            for encoding in
                [Encoding::Plain, blocks(BlockType::numbered(2)), blocks(BlockType::numbered(7))]
            {
                let entry = entry(&stored, Dtype::F32, encoding, heads);
                check(&format!("{encoding:?}"), |range| {
                    Ok(shard.floats("a", &entry, range)?.into_iter().map(f32::to_bits).collect())
                })?;
            }
        }
        for dtype in [Dtype::F16, Dtype::BF16, Dtype::F32, Dtype::F64] {
            let entry = entry(&stored, dtype, Encoding::Transposed, 0);
            check(&format!("{dtype:?} transposed"), |range| {
                Ok(shard.floats("a", &entry, range)?.into_iter().map(f32::to_bits).collect())
            })?;
            // As another reader has them.
            let (mut copied, size) = (Vec::new(), dtype.bitsize() / 8);
            shard.copy(&entry, |bytes| {
                copied.extend_from_slice(bytes);
                Ok(())
            })?;
            let bytes = shard.bytes(&entry)?;
            let [n, k] = SHAPE;
            for (i, got) in copied.chunks_exact(size).enumerate() {
                let there = (i % k * n + i / k) * size;
                assert!(*got == bytes[there..there + size], "{dtype:?} {i}");
            }
            assert_eq!(copied.len(), bytes.len());
            let empty = Entry { shape: vec![4, 0], bytes: 0, ..entry };
            assert!(shard.floats("a", &empty, 0..0)?.is_empty());
        }
        Ok(())
    }

    #[test]
    fn ranges_of_codes_are_parts_of_all() -> Result<()> {
        let (shard, stored) = shard()?;
        for dtype in [2, 8].map(BlockType::numbered) {
            for heads in [0, 4] {
                let encoding = Encoding::Blocks(Blocks { dtype, part: BlockPart::Codes });
                let entry = entry(&stored, Dtype::I8, encoding, heads);
                check(&format!("{dtype:?}"), |range| shard.codes(&entry, range))?;
            }
        }
        for axis in [Axis::Rows, Axis::Columns] {
            for (transposed, interleaved, bits) in
                [(false, false, 4), (false, true, 4), (true, false, 4), (true, false, 8)]
            {
                let packing = Packing { transposed, interleaved, ..Packing::plain(axis, bits) };
                let entry = entry(&stored, Dtype::I8, Encoding::Packed(packing), 0);
                check(&format!("{packing:?}"), |range| shard.codes(&entry, range))?;
            }
        }
        Ok(())
    }
}
