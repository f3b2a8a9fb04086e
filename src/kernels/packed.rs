//! The packed layout of int8 weights.
//!
//! A weight of `n` output channels and `k` inputs is cut into panels of `panel_width`
//! channels; the last panel is as narrow as whole vector registers allow. Within a panel the
//! bytes lie as
//!
//! ```text
//! [ceil(k / 4)] [width of the panel] [4]
//! ```
//!
//! so that one load gives four consecutive inputs of each of a register's channels, which is
//! what a dot-product instruction multiplies by four activation bytes. Missing inputs and
//! channels are zeros. Beside the codes stand, per channel: the sum of its codes (for the
//! activations' zero point), its scale and its bias. Nothing outside this file indexes codes.

use std::sync::atomic::{AtomicBool, Ordering};

use super::isa::Isa;

/// Inputs that one 32-bit lane holds.
pub(super) const GROUP: usize = 4;

/// Cache line, and the widest vector register.
const ALIGN: usize = 64;

/// int8 weights in the order that an instruction set reads them.
#[derive(Debug)]
pub struct Packed {
    isa: Isa,
    n: usize,
    k: usize,
    /// Codes start at `aligned`, a multiple of a cache line.
    codes: Vec<i8>,
    aligned: usize,
    sums: Vec<i32>,
    scales: Vec<f32>,
    bias: Vec<f32>,
    /// Whether the next pass over all panels begins with the last: see [`Packed::turn`].
    backwards: AtomicBool,
}

/// A panel: consecutive output channels that one tile computes together.
#[derive(Clone, Copy)]
pub(super) struct Panel<'a> {
    /// `[ceil(k / 4), width, 4]`.
    pub codes: &'a [i8],
    /// `[width]`, a multiple of the lanes.
    pub sums: &'a [i32],
    pub scales: &'a [f32],
    pub bias: &'a [f32],
    /// First channel.
    pub start: usize,
    /// Channels that are real; the rest of the width is padding.
    pub channels: usize,
}

impl Packed {
    /// Packs `codes`, `[n, k]` in row order, with a scale and a bias per channel.
    ///
    /// `n` is the length of `scales`; `bias` has the same length and `codes` `n * k` elements.
    pub fn new(isa: Isa, k: usize, codes: &[i8], scales: &[f32], bias: &[f32]) -> Self {
        let n = scales.len();
        let groups = k.div_ceil(GROUP);
        let width = n.next_multiple_of(isa.lanes());
        let bytes = width * groups * GROUP;
        let mut packed = vec![0; bytes + ALIGN];
        let aligned = packed.as_ptr().align_offset(ALIGN).min(ALIGN);
        let pad = |values: &[f32]| {
            let mut padded = values.to_vec();
            padded.resize(width, 0.);
            padded
        };
        let mut sums = vec![0i32; width];
        for (channel, sum) in sums.iter_mut().enumerate().take(n) {
            let row = &codes[channel * k..][..k];
            *sum = row.iter().fold(0, |sum, &c| sum.wrapping_add(c.into()));
            let (start, width) = panel_of(isa, width, channel);
            let panel = aligned + start * groups * GROUP;
            for (group, inputs) in row.chunks(GROUP).enumerate() {
                let at = panel + (group * width + channel - start) * GROUP;
                packed[at..at + inputs.len()].copy_from_slice(inputs);
            }
        }
        Self {
            isa,
            n,
            k,
            codes: packed,
            aligned,
            sums,
            scales: pad(scales),
            bias: pad(bias),
            backwards: AtomicBool::new(false),
        }
    }

    /// Whether this pass over all panels should begin with the last: every other one should.
    ///
    /// Weights that are a little larger than the cache would be gone each time if every pass
    /// began with the first; turning around, it begins with those that are still there.
    pub(super) fn turn(&self) -> bool {
        self.backwards.fetch_xor(true, Ordering::Relaxed)
    }

    /// The codes in row order again, `[n, k]`.
    pub fn unpack(&self) -> Vec<i8> {
        let mut codes = vec![0; self.n * self.k];
        for panel in (0..self.panels()).map(|p| self.panel(p)) {
            let width = panel.sums.len();
            for channel in 0..panel.channels {
                let row = &mut codes[(panel.start + channel) * self.k..][..self.k];
                for (group, inputs) in row.chunks_mut(GROUP).enumerate() {
                    let at = (group * width + channel) * GROUP;
                    inputs.copy_from_slice(&panel.codes[at..at + inputs.len()]);
                }
            }
        }
        codes
    }

    /// Output channels.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Inputs.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The instruction set it is packed for.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Scale of each channel, `[n]`.
    pub fn scales(&self) -> &[f32] {
        &self.scales[..self.n]
    }

    /// Bytes in memory of codes, sums and scales, padding included; the bias is not counted.
    pub fn bytes(&self) -> usize {
        self.codes.len() + size_of_val(&*self.sums) + size_of_val(&*self.scales)
    }

    /// Bytes of a row of activation codes: `k` rounded up to whole groups.
    pub(super) fn row_bytes(&self) -> usize {
        self.k.next_multiple_of(GROUP)
    }

    pub(super) fn panels(&self) -> usize {
        self.sums.len().div_ceil(self.isa.panel_width())
    }

    pub(super) fn panel(&self, index: usize) -> Panel<'_> {
        let (start, width) = panel_of(self.isa, self.sums.len(), index * self.isa.panel_width());
        let row = self.row_bytes();
        Panel {
            codes: &self.codes[self.aligned + start * row..][..width * row],
            sums: &self.sums[start..][..width],
            scales: &self.scales[start..][..width],
            bias: &self.bias[start..][..width],
            start,
            channels: width.min(self.n - start),
        }
    }
}

/// First channel and width of the panel that `channel` lies in.
fn panel_of(isa: Isa, padded_channels: usize, channel: usize) -> (usize, usize) {
    let full = isa.panel_width();
    let start = channel / full * full;
    (start, full.min(padded_channels - start))
}
