//! The tensors of a small state dict that PyTorch saved; no code of the pickle in it is run.

use std::io::{Cursor, Read};
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use candle_core::pickle::{Object, Stack};
use serde_json::{Map, json};
use zip::ZipArchive;

use crate::files::{MAX_TEXT, read};

/// The most bytes of a pickle: a byte can put all values into another.
const MOST_BYTES: usize = 1024;

/// The file of safetensors with the same tensors.
pub(crate) fn safetensors(path: &Path) -> Result<Vec<u8>> {
    let archive = read(path, MAX_TEXT)?;
    let converted = convert(|name| file(&archive, name));
    converted.with_context(|| format!("{}: expected a state dict of PyTorch", path.display()))
}

/// The bytes of a file in the folder of an archive.
fn file(archive: &[u8], name: &str) -> Result<Vec<u8>> {
    let mut archive = ZipArchive::new(Cursor::new(archive))?;
    let names = archive.file_names().collect::<Result<Vec<_>, _>>()?;
    let is_name = |path: &str| path.split_once('/').is_some_and(|(_, it)| it == name);
    let index = names.iter().position(|path| is_name(path));
    let index = index.with_context(|| format!("expected {name}, got none"))?;
    let mut bytes = Vec::new();
    archive.by_index(index)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn convert(file: impl Fn(&str) -> Result<Vec<u8>>) -> Result<Vec<u8>> {
    let is_little = file("byteorder").map_or(true, |order| order == b"little");
    ensure!(is_little, "byteorder: expected little, got another");
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, value) in pairs(&file("data.pkl")?)? {
        let Object::Unicode(name) = name else {
            bail!("expected names of tensors, got others");
        };
        if name == "_metadata" {
            continue;
        }
        let place =
            || format!("tensor {name:?}: expected 16 or 32 bits, row by row, in the archive");
        let (path, dtype, shape, range) = stored(value).with_context(place)?;
        let start = data.len();
        data.extend(file(&path)?.get(range).with_context(place)?);
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]});
        let other = header.insert(name.clone(), entry);
        ensure!(other.is_none(), "tensor {name:?}: expected one, got two");
    }
    let header = serde_json::to_vec(&header)?;
    let length = (header.len() as u64).to_le_bytes();
    Ok([&length, &*header, &data].concat())
}

/// The names and values of a pickled dictionary.
fn pairs(pickle: &[u8]) -> Result<Vec<(Object, Object)>> {
    let check = |is_small| {
        ensure!(is_small, "data.pkl: expected few small values, got more");
        Ok(())
    };
    check(pickle.len() <= MOST_BYTES)?;
    let (mut rest, mut stack) = (pickle, Stack::empty());
    loop {
        // candle trusts the lengths of texts and integers, and copies of copies grow without limit.
        check(match rest {
            [b'X', _, _, c, d, ..] => (c | d) == 0,
            [0x8a, length, ..] => *length <= 8,
            _ => true,
        })?;
        let is_copy = matches!(rest, [b'h' | b'j', ..]);
        if stack.read(&mut rest)? {
            break;
        }
        let is_name = |it: &Object| matches!(it, Object::Class { .. } | Object::Unicode(_));
        check(!is_copy || stack.stack().last().is_some_and(is_name))?;
    }
    let dict = stack.finalize()?.dict().ok();
    dict.context("data.pkl: expected a dictionary, got another object")
}

/// The file of a pickled tensor, and the type, shape and place in it; `None` of another object.
fn stored(value: Object) -> Option<(String, &'static str, Vec<usize>, Range<usize>)> {
    let (rebuild, args) = value.reduce().ok()?;
    let (module, function) = rebuild.class().ok()?;
    let mut args = args.tuple().ok()?.into_iter();
    let storage = args.next()?.persistent_load().ok()?;
    let mut storage = storage.tuple().ok()?.into_iter().skip(1);
    let (dtype, size) = match &*storage.next()?.class().ok()?.1 {
        "FloatStorage" => ("F32", 4),
        "HalfStorage" => ("F16", 2),
        "BFloat16Storage" => ("BF16", 2),
        _ => return None,
    };
    let path = format!("data/{}", storage.next()?.unicode().ok()?);
    let first = usize::try_from(args.next()?).ok()?;
    let shape = Vec::<usize>::try_from(args.next()?).ok()?;
    let strides = Vec::<usize>::try_from(args.next()?).ok()?;
    let mut is_known = module == "torch._utils"
        && function == "_rebuild_tensor_v2"
        && shape.len() == strides.len();
    let mut count = 1usize;
    for (&length, stride) in shape.iter().zip(strides).rev() {
        is_known &= length == 1 || stride == count;
        count = count.checked_mul(length)?;
    }
    let start = first.checked_mul(size)?;
    let end = start.checked_add(count.checked_mul(size)?)?;
    is_known.then_some((path, dtype, shape, start..end))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
#[rustfmt::skip]
mod tests {
    use super::*;

    const FILE: &[u8] = include_bytes!("../../../assets/reference/encoders/xlm-roberta/sparse_linear.pt");

    /// The error of a file with other bytes in place of one.
    fn fault(other: &str, bytes: &[u8]) -> String {
        let files = |name: &str| if name == other { Ok(bytes.to_vec()) } else { file(FILE, name) };
        convert(files).map_or_else(|error| format!("{error:#}"), |_| String::new())
    }

    #[test]
    fn mistakes_are_named() {
        let pickle = file(FILE, "data.pkl").unwrap();
        assert_eq!(fault("data.pkl", &pickle), "");
        assert!(fault("byteorder", b"big").contains("expected little"));
        let edits: [(&[u8], &[u8], &str); 4] = [
            (b"HalfStorage", b"LongStorage", "tensor \"bias\": expected 16 or 32 bits"),
            (b"_metadata", b"_metadatb", "tensor \"_metadatb\": expected 16 or 32 bits"),
            (b"X\x04\0\0\0bias", b"X\x06\0\0\0weight", "expected one, got two"),
            (b"QK\0K\x01K\x20", b"QK\x01K\x01K\x20", "tensor \"weight\": expected 16 or 32 bits"),
        ];
        let edited = edits.map(|(from, to, expected)| {
            let at = pickle.windows(from.len()).position(|it| it == from).unwrap();
            ([&pickle[..at], to, &pickle[at + from.len()..]].concat(), expected)
        });
        for (pickle, expected) in edited.into_iter().chain([
            ([b"K\0".to_vec(), b"q\0h\0\x86".repeat(60)].concat(), "expected few small values"),
            ([b"K\0", &*b"\x85".repeat(1000), b"q\0."].concat(), "expected a dictionary"),
            (b"X\xff\xff\xff\xff".to_vec(), "expected few small values"),
            (b"\x8a\x21".to_vec(), "expected few small values"),
            (b"K".repeat(2000), "expected few small values"),
            (b"cos\nsystem\nX\x04\0\0\0true\x85R.".to_vec(), "expected a dictionary"),
            (b"}X\x01\0\0\0actorch._utils\n_rebuild_tensor_v2\n)Rs.".to_vec(), "tensor \"a\""),
        ]) {
            let error = fault("data.pkl", &pickle);
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }

    #[test]
    fn no_bytes_make_a_panic() {
        let pickle = file(FILE, "data.pkl").unwrap();
        for (at, value) in (0..FILE.len()).flat_map(|at| (0..=255).map(move |it| (at, it))) {
            let [mut archive, mut edited] = [FILE.to_vec(), pickle.clone()];
            archive[at] = value;
            let _ = (file(&archive[..at], "data.pkl"), file(&archive, "data.pkl"));
            if at < edited.len() {
                edited[at] = value;
                fault("data.pkl", &edited);
            }
        }
    }
}
