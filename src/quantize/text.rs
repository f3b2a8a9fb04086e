//! Paths, bytes and tables as reports show them.

use std::fmt::Display;

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};

/// A rule below the header and one at the end.
const RULED: TableStyle = {
    let rule = LineStyle::none().fill('─').junction('─');
    TableStyle::new().header_separator(rule).bottom_border(rule)
};

/// A table, some columns of which are aligned at the right.
pub fn table<const N: usize>(
    header: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
    right: &[usize],
) -> String {
    let mut table = Table::new();
    table.load_style(RULED);
    table.set_header(header);
    table.add_rows(rows);
    for column in right {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// A path as the report shows it.
pub fn shown(path: &str) -> &str {
    match path {
        "" => "(the model itself)",
        path => path,
    }
}

/// Some of the items, and how many more there are; `None` without items.
pub fn some<T: Display>(all: &[T]) -> Option<String> {
    let mut texts: Vec<_> = all.iter().take(3).map(T::to_string).collect();
    if all.len() > texts.len() {
        texts.push(format!("and {} more", all.len() - texts.len()));
    }
    (!texts.is_empty()).then(|| texts.join("; "))
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
