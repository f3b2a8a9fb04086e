//! Reads the PyTorch fixtures of `assets/reference`.

use std::fmt::Display;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

/// A fixture file in memory.
pub struct Fixture {
    bytes: Vec<u8>,
    metadata: std::collections::HashMap<String, String>,
}

impl Fixture {
    pub fn open(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/reference");
        let path = folder.join(format!("{name}.safetensors"));
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let (_, metadata) = SafeTensors::read_metadata(&bytes).expect("safetensors header");
        let metadata = metadata.metadata().clone().expect("fixtures have metadata");
        let torch = metadata.get("torch");
        assert!(torch.is_none_or(|version| version == "2.9.1"), "{torch:?}");
        Self { bytes, metadata }
    }

    pub fn text(&self, key: &str) -> &str {
        &self.metadata[key]
    }

    pub fn json(&self, key: &str) -> Value {
        serde_json::from_str(&self.metadata[key]).expect("metadata is JSON")
    }

    /// The case list, which must not be empty.
    pub fn cases(&self) -> Vec<Value> {
        let cases = self.json("cases").as_array().expect("a list").clone();
        assert!(!cases.is_empty());
        cases
    }

    fn bytes_of(&self, name: &str, dtype: Dtype) -> Option<Vec<u8>> {
        let file = SafeTensors::deserialize(&self.bytes).expect("safetensors");
        let view = file.tensor(name).ok()?;
        assert_eq!(view.dtype(), dtype, "{name}");
        Some(view.data().to_vec())
    }

    /// Numbers of N bytes.
    fn numbers<const N: usize, T>(
        &self,
        name: &str,
        dtype: Dtype,
        convert: fn([u8; N]) -> T,
    ) -> Vec<T> {
        let bytes = self.bytes_of(name, dtype).expect(name);
        bytes.as_chunks().0.iter().map(|number| convert(*number)).collect()
    }

    pub fn f32(&self, name: &str) -> Vec<f32> {
        self.numbers(name, Dtype::F32, f32::from_le_bytes)
    }

    pub fn f64(&self, name: &str) -> Vec<f64> {
        self.numbers(name, Dtype::F64, f64::from_le_bytes)
    }

    pub fn i32(&self, name: &str) -> Vec<i32> {
        self.numbers(name, Dtype::I32, i32::from_le_bytes)
    }

    pub fn u8(&self, name: &str) -> Vec<u8> {
        self.bytes_of(name, Dtype::U8).expect(name)
    }

    /// The codes, if the fixture stores them.
    pub fn codes(&self, name: &str) -> Option<Vec<i32>> {
        let bytes = self.bytes_of(name, Dtype::I8)?;
        Some(bytes.iter().map(|b| i32::from(*b as i8)).collect())
    }
}

/// The first place where two results differ in bits; any two NaN are the same.
pub fn difference(got: &[f32], expected: &[f32]) -> Option<String> {
    if got.len() != expected.len() {
        return Some(format!("{} elements, expected {}", got.len(), expected.len()));
    }
    let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    let at = (0..got.len()).find(|&i| !same(got[i], expected[i]))?;
    let count = (0..got.len()).filter(|&i| !same(got[i], expected[i])).count();
    Some(format!(
        "{count} of {} differ, the first at {at}: got {:e}, expected {:e}",
        got.len(),
        got[at],
        expected[at]
    ))
}

/// A size in a fixture's JSON.
pub fn size(value: &Value) -> usize {
    value.as_u64().unwrap_or_else(|| panic!("no size: {value}")) as usize
}

pub fn sizes(value: &Value) -> Vec<usize> {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}")).iter().map(size).collect()
}

/// What differs in the cases of a fixture, told at once, so that one run shows every failing case.
#[derive(Default)]
pub struct Failures(Vec<String>);

impl Failures {
    pub fn add(&mut self, failure: String) {
        self.0.push(failure);
    }

    /// Compares the bits of floats.
    pub fn compare(&mut self, case: impl Display, got: &[f32], expected: &[f32]) {
        self.0.extend(difference(got, expected).map(|difference| format!("{case}: {difference}")));
    }

    pub fn check(&mut self, is_right: bool, failure: impl Display) {
        self.0.extend((!is_right).then(|| failure.to_string()));
    }

    pub fn report(self, cases: usize) {
        let Self(all) = self;
        assert!(all.is_empty(), "{} of {cases} cases fail:\n{}", all.len(), all.join("\n"));
    }
}
