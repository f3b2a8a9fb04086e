//! Activations where two products of 8 bits add up in an i16.
//!
//! `maddubs` multiplies two u8 by two i8 and adds the products up: exact while the i8 of one sign
//! add up to at most 128, as `255 * 128 < 2^15`. So the u8 are weights, their codes plus 128, and the
//! i8 activations, their codes less a number near the code of 0.0. Few pairs of activations are
//! beyond that. They are clipped, and their rest is an *extra*, multiplied by the same weights once
//! more. A row is
//!
//! ```text
//! [groups, 4] i8 | [extras, 2, 4]: a u32, the group, and its i8 | room
//! ```

use super::product::{Part, Product, Row};
use super::rows;

/// The sum that the products of two codes are added up in.
#[allow(dead_code, reason = "most instruction sets add up four products at once")]
pub enum PairSums {
    /// An i16, which no two of these codes exceed.
    Exact,
    /// An i16, of activations that are split.
    Split,
    /// An i32.
    Wide,
}

impl Product<'_, [u8; 4]> {
    /// The sums that a part needs.
    #[allow(dead_code, reason = "most instruction sets add up four products at once")]
    pub fn pair_sums(&self, part: &Part) -> PairSums {
        let rows = part.rows.clone();
        let rows = self.windows.map_or(rows.clone(), |all| all.positions(rows));
        let has_7_bits = || {
            let codes = &self.lhs[rows.start * self.groups..rows.end * self.groups];
            codes.as_flattened().iter().fold(0, |used, code| used | code) <= 127
        };
        if self.rhs.splits() {
            PairSums::Split
        } else if self.rhs.has_reduced_range() || has_7_bits() {
            PairSums::Exact
        } else {
            PairSums::Wide
        }
    }
}

/// Groups that are split together.
const CHUNK: usize = 8;

/// The two codes of each pair.
type Pairs = [[i16; 2 * CHUNK]; 2];

/// Splits `k` codes in so many groups, and changes the parameters of their row.
#[inline(always)]
pub fn split(codes: &mut [[u8; 4]], groups: usize, k: usize, row: &mut Row) {
    // Neither end of the range is far from it.
    let middle = row.zero_point.clamp(64, 192);
    let (codes, extras) = codes.split_at_mut(groups);
    row.sum = rows::sum(&codes.as_flattened()[..k]).wrapping_sub(k as i32 * middle);
    row.zero_point -= middle;
    // Zeros fill up the last group.
    codes.as_flattened_mut()[k..].fill(middle as u8);
    let extras = extras.as_chunks_mut().0;
    let (mut first, mut count) = (0, 0);
    let (chunks, rest) = codes.as_chunks_mut::<CHUNK>();
    for chunk in chunks {
        count += split_chunk(chunk, middle as i16, first, &mut extras[count..]);
        first += CHUNK;
    }
    if !rest.is_empty() {
        let mut chunk = [[middle as u8; 4]; CHUNK];
        chunk[..rest.len()].copy_from_slice(rest);
        count += split_chunk(&mut chunk, middle as i16, first, &mut extras[count..]);
        rest.copy_from_slice(&chunk[..rest.len()]);
    }
    assert!(count <= extras.len(), "extras of a row");
    row.extras = count as u32;
}

/// Splits groups from the group `first` on; returns how many extras they have.
#[inline(always)]
fn split_chunk(
    codes: &mut [[u8; 4]; CHUNK],
    middle: i16,
    first: usize,
    extras: &mut [[[u8; 4]; 2]],
) -> usize {
    let mut pairs = [[0; 2 * CHUNK]; 2];
    for (i, pair) in codes.as_flattened().as_chunks().0.iter().enumerate() {
        let pair = u16::from_le_bytes(*pair);
        pairs[0][i] = (pair & 255).cast_signed() - middle;
        pairs[1][i] = (pair >> 8).cast_signed() - middle;
    }
    let (taken, mut is_all) = take(&mut pairs);
    *codes = taken;
    let mut count = 0;
    while !is_all {
        let taken;
        (taken, is_all) = take(&mut pairs);
        for (i, codes) in taken.into_iter().enumerate() {
            // Behind the last there may be no room; a branch on the codes no CPU predicts.
            if let Some(extra) = extras.get_mut(count) {
                *extra = [((first + i) as u32).to_le_bytes(), codes];
            }
            count += usize::from(codes != [0; 4]);
        }
    }
    count
}

/// Takes from pairs what is not beyond their range, as groups; returns whether that is all.
#[inline(always)]
fn take(pairs: &mut Pairs) -> ([[u8; 4]; CHUNK], bool) {
    let (mut groups, mut beyond) = ([[0; 4]; CHUNK], [0i16; 2 * CHUNK]);
    let to = groups.as_flattened_mut().as_chunks_mut().0.iter_mut();
    let [even, odd] = pairs;
    let pairs = even.iter_mut().zip(odd).zip(&mut beyond);
    for (((a, b), beyond), to) in pairs.zip(to) {
        let above = (*a).max(0) + (*b).max(0) > 127;
        let below = (*a).min(0) + (*b).min(0) < -128;
        *beyond = -i16::from(above | below);
        // Half of the range each.
        let [first, second] = [*a, *b].map(|x| x & !*beyond | x.clamp(-64, 64) & *beyond);
        *a -= first;
        *b -= second;
        *to = ((first & 255) | second << 8).to_le_bytes();
    }
    (groups, beyond.iter().fold(0, |all, one| all | one) == 0)
}
