//! Sums of products of rows of f64, for the few matrices that are decomposed.
//!
//! Sums are of 8 lanes and then of pairs of them, without fused operations, so that each
//! instruction set finds the same sums.

use super::number::together;

const LANES: usize = 8;

/// The product of each two rows of one length.
#[inline(always)]
pub fn tile<const ROWS: usize, const COLUMNS: usize>(
    rows: [&[f64]; ROWS],
    columns: [&[f64]; COLUMNS],
) -> [[f64; COLUMNS]; ROWS] {
    let len = rows[0].len();
    let rows = rows.map(|row| row[..len].as_chunks::<LANES>());
    let columns = columns.map(|column| column[..len].as_chunks::<LANES>());
    let mut sums = [[[0f64; LANES]; COLUMNS]; ROWS];
    for i in 0..len / LANES {
        let columns = columns.map(|(chunks, _)| chunks[i]);
        for (sums, (chunks, _)) in sums.iter_mut().zip(rows) {
            for (sums, column) in sums.iter_mut().zip(columns) {
                for lane in 0..LANES {
                    sums[lane] += chunks[i][lane] * column[lane];
                }
            }
        }
    }
    let mut out = [[0.; COLUMNS]; ROWS];
    for i in 0..ROWS {
        for j in 0..COLUMNS {
            for (lane, (x, y)) in rows[i].1.iter().zip(columns[j].1).enumerate() {
                sums[i][j][lane] += x * y;
            }
            out[i][j] = together(sums[i][j], |a, b| a + b);
        }
    }
    out
}

/// The product of two rows of one length.
#[inline(always)]
pub fn dot(row: &[f64], column: &[f64]) -> f64 {
    let [[sum]] = tile([row], [column]);
    sum
}
