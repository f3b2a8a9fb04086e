//! What a recurrent step does after its products: gates and state, in place.
//!
//! The order of operations is PyTorch's, and nothing is contracted.

use super::activation::{sigmoid, tanh};

/// Which recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gates {
    /// Four gates, in the order i, f, g, o:
    /// `c' = sigmoid(f) c + sigmoid(i) tanh(g)`, `h' = sigmoid(o) tanh(c')`.
    Lstm,
    /// Three gates, in the order r, z, n: `n' = tanh(n_ih + sigmoid(r) n_hh)`,
    /// `h' = sigmoid(z) (h - n') + n'`.
    Gru,
    /// One gate: `h' = tanh(g)`.
    Tanh,
    /// One gate: `h' = max(g, 0)`.
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

/// The operands of a step, of one row or of several: `[rows, gates * hidden]` and
/// `[rows, hidden]`.
#[derive(Debug)]
pub struct Step<'a> {
    /// The input's projection, with its bias.
    pub ih: &'a [f32],
    /// The hidden state's projection, with its bias.
    pub hh: &'a [f32],
    /// The hidden state, which is replaced.
    pub h: &'a mut [f32],
    /// The cell state, which is replaced; empty unless it is an LSTM.
    pub c: &'a mut [f32],
}

impl<'a> Step<'a> {
    /// The same in parts of `height` rows.
    pub(super) fn parts(
        self,
        gates: Gates,
        hidden: usize,
        height: usize,
    ) -> impl Iterator<Item = Step<'a>> {
        let (wide, narrow) = (height * gates.count() * hidden, height * hidden);
        let mut c = self.c.chunks_mut(narrow);
        let operands = self.ih.chunks(wide).zip(self.hh.chunks(wide));
        let operands = operands.zip(self.h.chunks_mut(narrow));
        operands.map(move |((ih, hh), h)| Step {
            ih,
            hh,
            h,
            c: c.next().unwrap_or_default(),
        })
    }
}

/// Updates the state of one row.
#[inline(always)]
pub(super) fn update(gates: Gates, row: Step<'_>) {
    let Step { ih, hh, h, c } = row;
    match gates {
        Gates::Lstm => lstm(ih, hh, h, c),
        Gates::Gru => gru(ih, hh, h),
        Gates::Tanh => plain(ih, hh, h, tanh),
        // As torch's: NaN stays NaN.
        Gates::Relu => plain(ih, hh, h, |x| if x < 0. { 0. } else { x }),
    }
}

/// The gates of a row, each `[hidden]`.
#[inline(always)]
fn split<const GATES: usize>(row: &[f32], hidden: usize) -> [&[f32]; GATES] {
    std::array::from_fn(|gate| &row[gate * hidden..][..hidden])
}

#[inline(always)]
fn lstm(ih: &[f32], hh: &[f32], h: &mut [f32], c: &mut [f32]) {
    let hidden = h.len();
    let [i_ih, f_ih, g_ih, o_ih] = split(ih, hidden);
    let [i_hh, f_hh, g_hh, o_hh] = split(hh, hidden);
    let c = &mut c[..hidden];
    for j in 0..hidden {
        let i = sigmoid(i_hh[j] + i_ih[j]);
        let f = sigmoid(f_hh[j] + f_ih[j]);
        let g = tanh(g_hh[j] + g_ih[j]);
        let o = sigmoid(o_hh[j] + o_ih[j]);
        c[j] = f * c[j] + i * g;
        h[j] = o * tanh(c[j]);
    }
}

#[inline(always)]
fn gru(ih: &[f32], hh: &[f32], h: &mut [f32]) {
    let hidden = h.len();
    let [r_ih, z_ih, n_ih] = split(ih, hidden);
    let [r_hh, z_hh, n_hh] = split(hh, hidden);
    for j in 0..hidden {
        let r = sigmoid(r_hh[j] + r_ih[j]);
        let z = sigmoid(z_hh[j] + z_ih[j]);
        let n = tanh(n_ih[j] + n_hh[j] * r);
        h[j] = (h[j] - n) * z + n;
    }
}

#[inline(always)]
fn plain(ih: &[f32], hh: &[f32], h: &mut [f32], f: impl Fn(f32) -> f32) {
    for ((h, ih), hh) in h.iter_mut().zip(ih).zip(hh) {
        *h = f(hh + ih);
    }
}
