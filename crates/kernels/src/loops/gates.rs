//! The gates and state of a recurrent step, after its products, in place.
//!
//! The order of operations is PyTorch's, and nothing is contracted.

use super::activation::{sigmoid, tanh};
use super::number::filled_up;

/// The kind of recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gates {
    /// Four gates, in the order i, f, g, o:
    /// `c' = sigmoid(f) c + sigmoid(i) tanh(g)`, `h' = sigmoid(o) tanh(c')`.
    Lstm,
    /// Three gates, in the order r, z, n: `n' = tanh(n_ih + sigmoid(r) n_hh)`,
    /// `h' = sigmoid(z) (h - n') + n'`.
    Gru,
    /// A single gate: `h' = tanh(g)`.
    Tanh,
    /// A single gate: `h' = max(g, 0)`.
    Relu,
}

impl Gates {
    /// How many rows of the stacked weight each element of the state has.
    pub fn count(self) -> usize {
        match self {
            Self::Lstm => 4,
            Self::Gru => 3,
            Self::Tanh | Self::Relu => 1,
        }
    }
}

/// The max [`Gates::count`].
pub const MAX_GATES: usize = 4;

/// Some units of one row: of each gate, and of the state.
pub struct RowUnits<'a> {
    pub ih: [&'a [f32]; MAX_GATES],
    pub hh: [&'a [f32]; MAX_GATES],
    pub h: &'a mut [f32],
    pub c: &'a mut [f32],
}

/// Elements that are computed together: a register's worth.
const BLOCK: usize = 16;

/// Blocks that take the first half of a step before any takes the second. From a gate to the new
/// state one function waits for another; separate blocks wait for nothing.
const ABREAST: usize = 8;

type Block = [f32; BLOCK];

/// Updates the state of units.
#[inline(always)]
pub fn update(gates: Gates, units: RowUnits<'_>) {
    match gates {
        Gates::Lstm => blocks::<LstmStep, 4>(units),
        Gates::Gru => blocks::<GruStep, 3>(units),
        Gates::Tanh => blocks::<TanhStep, 1>(units),
        Gates::Relu => blocks::<ReluStep, 1>(units),
    }
}

/// A block from an expression of `j`.
macro_rules! lanes {
    ($j:ident => $value:expr) => {{
        let mut block = [0f32; BLOCK];
        for ($j, value) in block.iter_mut().enumerate() {
            *value = $value;
        }
        block
    }};
}

/// The step of a block, in two halves. A trait, since closures are functions without the
/// instruction set's features, and these are too long to be inlined.
trait BlockStep<const GATES: usize> {
    /// Whether there is a cell state.
    const HAS_C: bool = false;

    /// The argument of the outer function of the new state; replaces the cell state.
    #[inline(always)]
    fn inner(ih: &[Block; GATES], hh: &[Block; GATES], _: &mut Block) -> Block {
        lanes!(j => hh[0][j] + ih[0][j])
    }

    /// Replaces the state.
    fn outer(ih: &[Block; GATES], hh: &[Block; GATES], inner: Block, h: &mut Block);
}

/// Takes units block by block. The last block is filled up, so that no unit is computed by
/// itself.
#[inline(always)]
fn blocks<S: BlockStep<GATES>, const GATES: usize>(units: RowUnits<'_>) {
    let RowUnits { ih, hh, h, c } = units;
    let hidden = h.len();
    // One length for all, so that it is looked at once.
    let ih: [_; GATES] = std::array::from_fn(|gate| &ih[gate][..hidden]);
    let hh: [_; GATES] = std::array::from_fn(|gate| &hh[gate][..hidden]);
    let c = &mut c[..if S::HAS_C { hidden } else { 0 }];
    let full = hidden / BLOCK * BLOCK;
    let mut inner = [[0.; BLOCK]; ABREAST];
    for start in (0..full).step_by(ABREAST * BLOCK) {
        let starts = (start..full).step_by(BLOCK).zip(&mut inner);
        for (start, inner) in starts {
            let mut c_block = [0.; BLOCK];
            if S::HAS_C {
                c_block = block(c, start);
            }
            *inner = S::inner(&of_gates(ih, start), &of_gates(hh, start), &mut c_block);
            if S::HAS_C {
                c[start..start + BLOCK].copy_from_slice(&c_block);
            }
        }
        let starts = (start..full).step_by(BLOCK).zip(inner);
        for (start, inner) in starts {
            let mut h_block = block(h, start);
            S::outer(&of_gates(ih, start), &of_gates(hh, start), inner, &mut h_block);
            h[start..start + BLOCK].copy_from_slice(&h_block);
        }
    }
    if full < hidden {
        let rest = hidden - full;
        let (ih, hh) =
            (ih.map(|of| filled_up(&of[full..], 0.)), hh.map(|of| filled_up(&of[full..], 0.)));
        let mut h_block = filled_up(&h[full..], 0.);
        let mut c_block = filled_up(c.get(full..).unwrap_or_default(), 0.);
        let inner = S::inner(&ih, &hh, &mut c_block);
        S::outer(&ih, &hh, inner, &mut h_block);
        h[full..].copy_from_slice(&h_block[..rest]);
        if S::HAS_C {
            c[full..].copy_from_slice(&c_block[..rest]);
        }
    }
}

/// A block of each gate.
#[inline(always)]
fn of_gates<const GATES: usize>(gates: [&[f32]; GATES], start: usize) -> [Block; GATES] {
    let mut blocks = [[0.; BLOCK]; GATES];
    for gate in 0..GATES {
        blocks[gate] = block(gates[gate], start);
    }
    blocks
}

#[inline(always)]
fn block(row: &[f32], start: usize) -> Block {
    let mut block = [0.; BLOCK];
    block.copy_from_slice(&row[start..start + BLOCK]);
    block
}

struct LstmStep;

impl BlockStep<4> for LstmStep {
    const HAS_C: bool = true;

    #[inline(always)]
    fn inner(ih: &[Block; 4], hh: &[Block; 4], c: &mut Block) -> Block {
        let i = lanes!(j => sigmoid(hh[0][j] + ih[0][j]));
        let f = lanes!(j => sigmoid(hh[1][j] + ih[1][j]));
        let g = lanes!(j => tanh(hh[2][j] + ih[2][j]));
        *c = lanes!(j => f[j] * c[j] + i[j] * g[j]);
        *c
    }

    #[inline(always)]
    fn outer(ih: &[Block; 4], hh: &[Block; 4], c: Block, h: &mut Block) {
        let o = lanes!(j => sigmoid(hh[3][j] + ih[3][j]));
        *h = lanes!(j => o[j] * tanh(c[j]));
    }
}

struct GruStep;

impl BlockStep<3> for GruStep {
    #[inline(always)]
    fn inner(ih: &[Block; 3], hh: &[Block; 3], _: &mut Block) -> Block {
        let r = lanes!(j => sigmoid(hh[0][j] + ih[0][j]));
        lanes!(j => ih[2][j] + hh[2][j] * r[j])
    }

    #[inline(always)]
    fn outer(ih: &[Block; 3], hh: &[Block; 3], inner: Block, h: &mut Block) {
        let z = lanes!(j => sigmoid(hh[1][j] + ih[1][j]));
        let n = lanes!(j => tanh(inner[j]));
        *h = lanes!(j => (h[j] - n[j]) * z[j] + n[j]);
    }
}

struct TanhStep;

impl BlockStep<1> for TanhStep {
    #[inline(always)]
    fn outer(_: &[Block; 1], _: &[Block; 1], inner: Block, h: &mut Block) {
        *h = lanes!(j => tanh(inner[j]));
    }
}

struct ReluStep;

impl BlockStep<1> for ReluStep {
    /// Keeps NaN, as torch does.
    #[inline(always)]
    fn outer(_: &[Block; 1], _: &[Block; 1], inner: Block, h: &mut Block) {
        *h = lanes!(j => if inner[j] < 0. { 0. } else { inner[j] });
    }
}
