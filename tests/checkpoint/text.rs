//! Files of tensors and tables of cases, from text.

use std::fmt::Display;

use serde_json::Map;

use crate::kit::*;

/// A file with a header and a body.
pub fn file(header: &[u8], body: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header, body].concat()
}

/// A file of adjacent tensors: name, dtype, shape, bytes.
pub fn tensors(tensors: &[(&str, &str, Value, &[u8])], metadata: Value) -> Vec<u8> {
    let (mut header, mut body) = (Map::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [body.len(), body.len() + bytes.len()];
        body.extend_from_slice(bytes);
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        header.insert((*name).to_owned(), entry);
    }
    if !metadata.is_null() {
        header.insert("__metadata__".into(), metadata);
    }
    file(Value::Object(header).to_string().as_bytes(), &body)
}

/// A file of `NAME DTYPE SHAPE VALUE ..; ..`, in which `3*1` is 1 three times.
pub fn written(text: &str, metadata: Value) -> Vec<u8> {
    let read = |tensor| {
        let mut words = str::split(tensor, ' ');
        let [name, dtype, shape] = [(); 3].map(|()| words.next().expect(tensor));
        let values = words.flat_map(|word| {
            let (times, value) = word.split_once('*').unwrap_or(("1", word));
            let value = match dtype {
                "F32" | "I32" => value.parse::<f32>().expect(tensor).to_le_bytes().to_vec(),
                _ => vec![value.parse::<i16>().expect(tensor) as u8],
            };
            value.repeat(times.parse().expect(tensor))
        });
        let shape: Value = serde_json::from_str(shape).expect(tensor);
        (name, dtype, shape, values.collect::<Vec<u8>>())
    };
    let all: Vec<_> = text.split("; ").map(read).collect();
    let all =
        all.iter().map(|(name, dtype, shape, bytes)| (*name, *dtype, shape.clone(), &bytes[..]));
    tensors(&all.collect::<Vec<_>>(), metadata)
}

pub fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The first line of an error; candle appends a backtrace.
pub fn first_line(error: impl Display) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().to_owned()
}

/// The header of a file.
pub fn header(file: &[u8]) -> Value {
    let (length, rest) = file.split_first_chunk().expect("a length");
    let length = u64::from_le_bytes(*length) as usize;
    serde_json::from_slice(&rest[..length]).expect("a header")
}

/// The file with another header.
pub fn with_header(whole: &[u8], changed: &Value) -> Vec<u8> {
    let length = u64::from_le_bytes(whole[..8].try_into().expect("a length")) as usize;
    let mut header = changed.to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    file(&header, &whole[8 + length..])
}
