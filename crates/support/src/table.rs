//! Figures of the float model beside the quantized model.

use std::fmt::Write;

/// A table with a name and two figures per row.
pub struct Table(String);

impl Table {
    /// A table with the header only.
    pub fn with_header() -> Self {
        let mut table = Self(String::new());
        table.row("", "float", "quantized");
        table
    }

    /// Adds a row with a figure of each model.
    pub fn row(&mut self, name: &str, float: impl AsRef<str>, quantized: impl AsRef<str>) {
        let (float, quantized) = (float.as_ref(), quantized.as_ref());
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{name:<32}{float:>12}{quantized:>14}");
    }

    /// The rows, followed by a last line.
    pub fn finish(mut self, last: &str) -> String {
        self.0.push_str(last);
        self.0
    }
}

pub fn percent(share: f64) -> String {
    format!("{:.2} %", 100. * share)
}

pub fn megabytes(bytes: usize) -> String {
    format!("{:.2} MB", bytes as f64 / 1e6)
}
