//! The format of a file by its first bytes, for the error when another format is expected.

use std::fmt;

/// A format in which models are distributed, or that replaces a model after a failed download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// The name, for messages.
    pub name: &'static str,
    /// The way to convert the file to safetensors.
    pub cure: &'static str,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.name, self.cure)
    }
}

/// A JSON object.
pub const JSON: Format = Format { name: "JSON", cure: "an index of shards is a file *.index.json" };

/// The number of bytes that suffice to detect a format.
pub const LENGTH: usize = 256;

const TORCH: &str = "convert it with scripts/convert_pytorch.py";
const NUMPY: &str = "write its arrays with safetensors.numpy.save_file";
const UNPACK: &str = "unpack it first";
const FRAMEWORK: &str = "save safetensors with the framework that wrote it";

/// The first bytes of each format; the first match decides.
const BEGINNINGS: [(&[u8], &str, &str); 15] = [
    (b"version https://git-lfs", "a pointer of Git LFS", "fetch the file with `git lfs pull`"),
    (b"\x93NUMPY", "an array of NumPy", NUMPY),
    (b"GGUF", "GGUF", "open the file itself"),
    (b"ggml", "GGML", "take the checkpoint that it was made of"),
    (b"\x89HDF\r\n\x1a\n", "HDF5, as Keras writes it", FRAMEWORK),
    (b"\x1f\x8b\x08", "a gzip archive", UNPACK),
    (b"BZh", "a bzip2 archive", UNPACK),
    (b"\xfd7zXZ", "an xz archive", UNPACK),
    (b"\x28\xb5\x2f\xfd", "a zstd archive", UNPACK),
    // Pickle's protocols 2 to 5 begin with the protocol.
    (b"\x80\x02", "a pickle, as old versions of PyTorch write it", TORCH),
    (b"\x80\x03", "a pickle of Python", TORCH),
    (b"\x80\x04", "a pickle of Python", TORCH),
    (b"\x80\x05", "a pickle of Python", TORCH),
    (b"%PDF", "a PDF", "download the model"),
    (b"Entry not found", "the answer to a failed download", "download it again"),
];

/// The format of a file with these first bytes; `None` for safetensors and unknown formats.
///
/// ```
/// use candle_dynquant_io::format;
///
/// let format = format::detect(b"PK\x03\x04...archive/data.pkl").unwrap();
/// assert_eq!(format.name, "a zip archive, as PyTorch writes it");
/// ```
pub fn detect(first: &[u8]) -> Option<Format> {
    // Safetensors: the length of a header, then JSON. The length may be another format's first
    // bytes.
    if let [_, _, _, _, 0, 0, 0, 0, b'{' | b' ', ..] = first {
        return None;
    }
    let known = BEGINNINGS.iter().find(|(begin, ..)| first.starts_with(begin));
    if let Some((_, name, cure)) = known {
        return Some(Format { name, cure });
    }
    if is_json(first) {
        return Some(JSON);
    }
    let (name, cure) = if first.starts_with(b"PK\x03\x04") {
        zip(first)
    } else if is_onnx(first) {
        ("ONNX", "export the weights of the model that it was made of")
    } else if first.get(4..8) == Some(b"TFL3") {
        ("TensorFlow Lite", FRAMEWORK)
    } else {
        text(first)?
    };
    Some(Format { name, cure })
}

/// The kind of a zip archive, by the name of its first file, which is not compressed.
fn zip(first: &[u8]) -> (&'static str, &'static str) {
    let names = &first[..first.len().min(LENGTH)];
    let has = |name: &[u8]| names.windows(name.len()).any(|at| at == name);
    if has(b".npy") {
        ("a zip archive of NumPy's arrays", NUMPY)
    } else if has(b"data.pkl") || has(b"/version") || has(b"/.format_version") || has(b"/byteorder")
    {
        ("a zip archive, as PyTorch writes it", TORCH)
    } else {
        ("a zip archive", "unpack it first, or convert it with scripts/convert_pytorch.py")
    }
}

/// Whether a protocol buffer begins with a version and the name of a program.
fn is_onnx(first: &[u8]) -> bool {
    matches!(first, [8, 1..=30, 0x12, length, rest @ ..]
        if rest.iter().take((*length).into()).all(|byte| byte.is_ascii_graphic()))
}

fn text(first: &[u8]) -> Option<(&'static str, &'static str)> {
    let text = without_mark(first);
    let begins =
        |word: &[u8]| text.get(..word.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(word));
    if begins(b"<!doctype html") || begins(b"<html") || begins(b"<head") {
        return Some((
            "an HTML page",
            "download the file itself: with `resolve` in the Hub's address",
        ));
    }
    if begins(b"<?xml") {
        return Some(("XML", "download the file itself"));
    }
    None
}

fn is_json(first: &[u8]) -> bool {
    matches!(without_mark(first), [b'{', rest @ ..]
        if matches!(rest.trim_ascii_start(), [b'"' | b'}', ..]))
}

/// The text without a byte order mark and leading spaces.
fn without_mark(first: &[u8]) -> &[u8] {
    let text = first.strip_prefix("\u{feff}".as_bytes()).unwrap_or(first);
    text.trim_ascii_start()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_by_their_first_bytes() {
        let torch = b"PK\x03\x04\0\0\x08\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\x12\0archive/data.pkl";
        let npz = b"PK\x03\x04\x2d\0\0\0\0\0\0\0\x21\0\x01\x02\x03\x04\xff\xff\xff\xff\xff\xff\xff\xff\x05\0\x14\0w.npy";
        let cases: [(&[u8], &str); 19] = [
            (torch, "a zip archive, as PyTorch writes it"),
            (npz, "a zip archive of NumPy's arrays"),
            (b"PK\x03\x04\x14\0\0\0config.json", "a zip archive"),
            (
                b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.",
                "a pickle, as old versions of PyTorch write it",
            ),
            (b"\x80\x04\x95\0\0", "a pickle of Python"),
            (b"\x93NUMPY\x01\0v\0{'descr'", "an array of NumPy"),
            (b"GGUF\x03\0\0\0", "GGUF"),
            (b"\x89HDF\r\n\x1a\n\0\0", "HDF5, as Keras writes it"),
            (b"\x1f\x8b\x08\0\0\0\0\0", "a gzip archive"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "a pointer of Git LFS"),
            (b"\n<!DOCTYPE html><html>", "an HTML page"),
            (b"<html><head>", "an HTML page"),
            (b"<?xml version=\"1.0\"?><Error>", "XML"),
            (b"{\"metadata\": {}, \"weight_map\"", "JSON"),
            (b"\xef\xbb\xbf{\n  \"a\"", "JSON"),
            (b"\x08\x07\x12\x07pytorch\x1a\x05", "ONNX"),
            (b"\x1c\0\0\0TFL3\x14\0", "TensorFlow Lite"),
            (b"Entry not found", "the answer to a failed download"),
            (b"BZh91AY", "a bzip2 archive"),
        ];
        for (first, name) in cases {
            let found = detect(first).map(|format| format.name);
            assert_eq!(found, Some(name), "{:?}", String::from_utf8_lossy(first));
        }
    }

    #[test]
    fn safetensors_and_noise_are_no_known_format() {
        let header = br#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
        let safetensors = [&(header.len() as u64).to_le_bytes()[..], header].concat();
        let pickled = b"\x80\x02\0\0\0\0\0\0{\"a\":";
        let cases: [&[u8]; 7] = [&safetensors, pickled, b"", b"\x08", b"{", &[0xff; 64], b"hello"];
        for first in cases {
            assert_eq!(detect(first), None, "{first:?}");
        }
    }
}
