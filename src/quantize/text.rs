//! Paths and bytes as reports show them.

/// A path as the report shows it.
pub fn shown(path: &str) -> &str {
    match path {
        "" => "(the model itself)",
        path => path,
    }
}

/// Three or more significant digits with a decimal unit; 999,950 B and more are not `1000.0 kB`.
pub fn human_bytes(bytes: usize) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..999_950 => format!("{:.1} kB", bytes as f64 / 1e3),
        999_950..999_950_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}
