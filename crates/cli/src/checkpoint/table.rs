//! Tables of text.

use candle_dynquant_io::print;

/// The most characters of a cell: a name in a file may be as long as the file.
const MAX_CELL: usize = 200;

/// A table with columns as wide as their cells; the last is not padded. Each cell is escaped to one
/// line, since names may come from anywhere.
pub fn table(rows: &[Vec<String>]) -> String {
    let cells = |row: &Vec<String>| row.iter().map(|text| cell(text)).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let widths = cells.map(|cell| cell.chars().count());
        widths.max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths);
        let cells = cells.map(|(cell, width)| format!("{cell:width$}  "));
        cells.collect::<String>().trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn cell(text: &str) -> String {
    let text = print::on_one_line(text);
    match text.char_indices().nth(MAX_CELL) {
        Some((end, _)) => format!("{}..", &text[..end]),
        None => text.into_owned(),
    }
}

/// A size in megabytes, such as `90.9 MB`.
pub fn megabytes(bytes: u64) -> String {
    format!("{:.2} MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let rows = [["name", "a"], ["größe", "bc"], ["x", ""]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(table(&rows), "name   a\ngröße  bc\nx");
        assert_eq!(table(&[]), "");
    }

    #[test]
    fn a_cell_is_one_short_line() {
        let rows = [vec!["x".repeat(MAX_CELL)], vec!["ü".repeat(70_000)]];
        let expected = format!("{}\n{}..", "x".repeat(MAX_CELL), "ü".repeat(MAX_CELL));
        assert_eq!(table(&rows), expected);
        assert_eq!(table(&[vec!["a\n\u{1b}[2J".to_owned()]]), "a\\n\\u{1b}[2J");
    }
}
