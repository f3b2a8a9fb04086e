//! Products of activations in a wider form than they are kept in.
//!
//! Where an instruction multiplies i16 only, a code would be widened anew for each panel of
//! weights. It is widened once instead: block by block of rows, which then pass all panels.

use std::mem::MaybeUninit;

use super::product::{Group, Part, Product, Sink, Windows};

/// The even and the odd codes of a group, as i16.
#[derive(Clone, Copy, Default)]
pub struct EvenOdd {
    pub even: i32,
    pub odd: i32,
}

impl EvenOdd {
    /// The codes of a group.
    pub fn new(codes: [u8; 4]) -> Self {
        let codes = i32::from_le_bytes(codes);
        Self { even: codes & 0x00ff_00ff, odd: codes >> 8 & 0x00ff_00ff }
    }
}

impl Group for EvenOdd {
    const EXACT: bool = true;
}

/// Widened groups of a block: 64 KiB of four i16 each, which stay in L2.
const GROUPS: usize = 8 << 10;

/// Computes a part of a product by `multiply`, which is given blocks of its rows with their groups
/// widened.
///
/// Blocks have whole tiles of `tile_rows`.
///
/// # Safety
/// No other thread computes a part that overlaps.
#[inline(always)]
pub unsafe fn multiply<G: Copy, W: Copy>(
    product: &Product<'_, G>,
    out: &Sink<'_>,
    part: Part,
    tile_rows: usize,
    widen: impl Fn(G) -> W,
    multiply: impl Fn(&Product<'_, W>, &Sink<'_>, Part),
) {
    let groups = product.groups;
    if let Some(windows) = product.windows {
        // Windows of successive positions overlap: all positions of the part at once.
        let positions = windows.positions(part.rows.clone());
        let lhs = &product.lhs[positions.start * groups..positions.end * groups];
        let mut room = vec![MaybeUninit::uninit(); lhs.len()];
        let wide = widened(lhs, &mut room, &widen);
        let product = Product {
            windows: Some(Windows { first: windows.first + positions.start, ..windows }),
            ..product.with(product.m, wide, &product.rows[positions])
        };
        return multiply(&product, out, part);
    }
    let fitting = GROUPS / groups.max(1) / tile_rows * tile_rows;
    let mut near = [const { MaybeUninit::uninit() }; GROUPS];
    let mut far = Vec::new();
    let (rows, room) = match fitting {
        0 => {
            far.resize(tile_rows * groups, MaybeUninit::uninit());
            (tile_rows, &mut far[..])
        }
        rows => (rows, &mut near[..]),
    };
    for first in part.rows.clone().step_by(rows) {
        let block = first..part.rows.end.min(first + rows);
        let lhs = &product.lhs[block.start * groups..block.end * groups];
        let wide = widened(lhs, room, &widen);
        let rows = product.rows.get(block.clone()).unwrap_or_default();
        let product = product.with(block.len(), wide, rows);
        let part = Part { rows: 0..block.len(), ..part.clone() };
        multiply(&product, &out.starting_at(first), part);
    }
}

/// Groups, widened into `room`.
#[inline(always)]
fn widened<'a, G: Copy, W: Copy>(
    lhs: &[G],
    room: &'a mut [MaybeUninit<W>],
    widen: impl Fn(G) -> W,
) -> &'a [W] {
    let wide = &mut room[..lhs.len()];
    for (&group, wide) in lhs.iter().zip(wide.iter_mut()) {
        wide.write(widen(group));
    }
    // SAFETY: each is written, and a written `MaybeUninit<W>` is a `W`.
    unsafe { &*(std::ptr::from_ref(wide) as *const [W]) }
}
