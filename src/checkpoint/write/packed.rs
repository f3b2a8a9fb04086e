//! Codes of 4 bits as compressed-tensors packs them.

use crate::checkpoint::read::Axis;

/// Codes in an i32.
pub const CODES: usize = 8;

/// A matrix of codes, each plus 8, eight to an i32 along an axis, the first in the lowest bits.
pub fn packed(codes: &[i8], [n, k]: [usize; 2], axis: Axis) -> Vec<u8> {
    let (height, width) = match axis {
        Axis::Columns => (n, k.div_ceil(CODES)),
        Axis::Rows => (n.div_ceil(CODES), k),
    };
    let word = |at: usize| {
        let nibble = |place: usize| {
            let (row, column) = match axis {
                Axis::Columns => (at / width, at % width * CODES + place),
                Axis::Rows => (at / width * CODES + place, at % width),
            };
            let is_within = row < n && column < k;
            let code = is_within.then(|| codes[row * k + column] + 8);
            (code.unwrap_or(0) as u32 & 15) << (4 * place)
        };
        (0..CODES).map(nibble).sum::<u32>().to_le_bytes()
    };
    (0..height * width).flat_map(word).collect()
}
