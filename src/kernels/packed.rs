//! The packed layout of weights.
//!
//! A weight of `n` output channels and `k` inputs is cut into panels of `panel_width`
//! channels; the last panel is as narrow as whole vector registers allow. Within a panel the
//! weights lie as
//!
//! ```text
//! [ceil(k / group)] [width of the panel] [group]
//! ```
//!
//! with groups of four int8 inputs or of one float16, so that one load gives a group of each of
//! a register's channels, which is what an instruction multiplies by a group of activations.
//! Missing inputs and channels are zeros. Beside the weights stand, per channel: the sum of its
//! codes less their zero point (for the activations' zero point), its zero point, its scale and
//! its bias. Nothing outside this file indexes weights.
//!
//! Where an instruction set multiplies u8 by u8 only (`Isa::shift`), codes and zero points are
//! shifted by 128; sums, which are of their differences, are not.

use std::sync::atomic::{AtomicBool, Ordering};

use half::f16;

use super::dequantize::{Affine, CHUNK, dequantize_row, widen_row};
use super::isa::Isa;

/// Cache line, and the widest vector register.
const ALIGN: usize = 64;

/// What weights are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Element {
    Int8,
    Float16,
}

impl Element {
    /// Inputs that lie together.
    fn group(self) -> usize {
        match self {
            Self::Int8 => 4,
            Self::Float16 => 1,
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::Int8 => 1,
            Self::Float16 => 2,
        }
    }
}

/// Weights in the order that an instruction set reads them.
#[derive(Debug)]
pub struct Packed {
    isa: Isa,
    element: Element,
    n: usize,
    k: usize,
    /// Weights start at `aligned`, a multiple of a cache line.
    weights: Vec<u8>,
    aligned: usize,
    sums: Vec<i32>,
    /// Empty where all are 0.
    zero_points: Vec<i32>,
    scales: Vec<f32>,
    bias: Vec<f32>,
    /// Whether the next pass over all panels begins with the last: see [`Packed::turn`].
    backwards: AtomicBool,
}

/// A panel: consecutive output channels that one tile computes together.
#[derive(Clone, Copy)]
pub(super) struct Panel<'a> {
    /// `[groups, width, group]`.
    pub weights: &'a [u8],
    /// `[width]`, a multiple of the lanes.
    pub sums: &'a [i32],
    /// `[width]`, or empty where all are 0.
    pub zero_points: &'a [i32],
    pub scales: &'a [f32],
    pub bias: &'a [f32],
    /// First channel.
    pub start: usize,
    /// Channels that are real; the rest of the width is padding.
    pub channels: usize,
}

impl<'a> Panel<'a> {
    /// The weights of each group: `NV` registers of `BYTES`.
    #[inline(always)]
    pub fn groups<const BYTES: usize, const NV: usize>(self) -> &'a [[[u8; BYTES]; NV]] {
        self.weights.as_chunks::<BYTES>().0.as_chunks::<NV>().0
    }
}

/// int8 weights in row order, `[n, k]`, and what their codes stand for, `[n]` each.
#[derive(Clone, Copy, Debug)]
pub struct Int8<'a> {
    /// Codes, `[n, k]`.
    pub codes: &'a [i8],
    /// What one step of a channel's codes is worth.
    pub scales: &'a [f32],
    /// The code that stands for 0.0 in each channel.
    pub zero_points: &'a [i32],
}

impl Packed {
    /// Packs int8 weights of `k` inputs, with a bias per channel; `n` is the length of `bias`.
    pub fn int8(isa: Isa, k: usize, int8: Int8<'_>, bias: &[f32]) -> Self {
        let shift = isa.shift();
        let mut packed = Self::new::<1, 4>(isa, Element::Int8, k, bias, |at| {
            [int8.codes[at].cast_unsigned().wrapping_add(shift)]
        });
        let width = packed.sums.len();
        packed.scales = padded(int8.scales, width);
        let zero_points = int8.zero_points.iter();
        let zero_points: Vec<_> = zero_points.map(|z| z + i32::from(shift)).collect();
        if zero_points.iter().any(|zero_point| *zero_point != 0) {
            packed.zero_points = padded(&zero_points, width);
        }
        for (channel, sum) in packed.sums.iter_mut().enumerate().take(bias.len()) {
            let codes = int8.codes[channel * k..][..k].iter();
            let codes = codes.map(|code| i32::from(*code) - int8.zero_points[channel]);
            *sum = codes.fold(0, i32::wrapping_add);
        }
        packed
    }

    /// Packs float16 weights in row order, `[n, k]`, with a bias per channel.
    pub fn float16(isa: Isa, k: usize, values: &[f16], bias: &[f32]) -> Self {
        Self::new::<2, 1>(isa, Element::Float16, k, bias, |at| {
            values[at].to_le_bytes()
        })
    }

    /// Packs elements by their index in row order, without scales and zero points.
    fn new<const BYTES: usize, const GROUP: usize>(
        isa: Isa,
        element: Element,
        k: usize,
        bias: &[f32],
        bytes_of: impl Fn(usize) -> [u8; BYTES],
    ) -> Self {
        let n = bias.len();
        let groups = k.div_ceil(GROUP);
        let width = n.next_multiple_of(isa.lanes());
        let mut weights = vec![0; width * groups * GROUP * BYTES + ALIGN];
        let aligned = weights.as_ptr().align_offset(ALIGN).min(ALIGN);
        let (elements, _) = weights[aligned..].as_chunks_mut::<BYTES>();
        for channel in 0..n {
            let (start, width) = panel_of(isa, width, channel);
            for input in 0..k {
                let group = start * groups + input / GROUP * width + channel - start;
                elements[group * GROUP + input % GROUP] = bytes_of(channel * k + input);
            }
        }
        Self {
            isa,
            element,
            n,
            k,
            weights,
            aligned,
            sums: vec![0; width],
            zero_points: Vec::new(),
            scales: padded(&vec![1.; n], width),
            bias: padded(bias, width),
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

    /// The int8 codes in row order again, `[n, k]`; none of float16 weights.
    pub fn codes(&self) -> Vec<i8> {
        match self.element {
            Element::Int8 => {
                self.unpack(|[byte]| byte.wrapping_sub(self.isa.shift()).cast_signed())
            }
            Element::Float16 => Vec::new(),
        }
    }

    /// The float16 weights in row order again, `[n, k]`; none of int8 weights.
    pub fn halves(&self) -> Vec<f16> {
        match self.element {
            Element::Int8 => Vec::new(),
            Element::Float16 => self.unpack(f16::from_le_bytes),
        }
    }

    fn unpack<T, const BYTES: usize>(&self, of_bytes: impl Fn([u8; BYTES]) -> T) -> Vec<T> {
        let group = self.element.group();
        let mut values = Vec::with_capacity(self.n * self.k);
        for panel in (0..self.panels()).map(|p| self.panel(p)) {
            let (elements, _) = panel.weights.as_chunks::<BYTES>();
            for channel in 0..panel.channels {
                let at =
                    |input| (input / group * panel.sums.len() + channel) * group + input % group;
                values.extend((0..self.k).map(|input| of_bytes(elements[at(input)])));
            }
        }
        values
    }

    /// Calls `sink` with what the weights of a channel stand for, chunk by chunk: a row of the
    /// table that the weights are where an embedding shares them.
    ///
    /// # Panics
    /// If there is no such channel.
    pub fn read_channel(&self, channel: usize, mut sink: impl FnMut(&[f32])) {
        let panel = self.panel(channel / self.isa.panel_width());
        let (lane, width) = (channel - panel.start, panel.sums.len());
        let chunks = (0..self.k).step_by(CHUNK);
        let chunks = chunks.map(|start| (start, CHUNK.min(self.k - start)));
        match self.element {
            Element::Int8 => {
                let affine = Affine {
                    // The bytes are made u8, which is the code and 128.
                    shift: self.zero_point(channel) + 128,
                    scale: self.scales[channel],
                    offset: 0.,
                };
                let missing = 128 - self.isa.shift();
                let (groups, _) = panel.weights.as_chunks::<4>();
                for (start, len) in chunks {
                    let mut codes = [[0; 4]; CHUNK / 4];
                    for (i, codes) in codes.iter_mut().enumerate().take(len.div_ceil(4)) {
                        let group = groups[(start / 4 + i) * width + lane];
                        *codes = group.map(|byte| byte.wrapping_add(missing));
                    }
                    dequantize_row(self.isa, &codes.as_flattened()[..len], affine, &mut sink);
                }
            }
            Element::Float16 => {
                let (elements, _) = panel.weights.as_chunks::<2>();
                for (start, len) in chunks {
                    let mut halves = [f16::ZERO; CHUNK];
                    for (i, half) in halves.iter_mut().enumerate().take(len) {
                        *half = f16::from_le_bytes(elements[(start + i) * width + lane]);
                    }
                    widen_row(self.isa, &halves[..len], &mut sink);
                }
            }
        }
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

    /// The code that stands for 0.0 in a channel.
    pub fn zero_point(&self, channel: usize) -> i32 {
        let zero_point = self.zero_points.get(channel);
        zero_point.map_or(0, |shifted| shifted - i32::from(self.isa.shift()))
    }

    /// Bytes in memory of weights, sums, zero points and scales, padding included; the bias is
    /// not counted.
    pub fn bytes(&self) -> usize {
        self.weights.len()
            + size_of_val(&*self.sums)
            + size_of_val(&*self.zero_points)
            + size_of_val(&*self.scales)
    }

    /// Whether some channel's zero is packed as another code than 0, so that sums of activation
    /// codes are asked for.
    pub(super) fn has_zero_points(&self) -> bool {
        !self.zero_points.is_empty()
    }

    /// Groups of inputs.
    pub(super) fn groups(&self) -> usize {
        self.k.div_ceil(self.element.group())
    }

    pub(super) fn panels(&self) -> usize {
        self.sums.len().div_ceil(self.isa.panel_width())
    }

    pub(super) fn panel(&self, index: usize) -> Panel<'_> {
        let (start, width) = panel_of(self.isa, self.sums.len(), index * self.isa.panel_width());
        let row = self.groups() * self.element.group() * self.element.bytes();
        let zero_points = self.zero_points.get(start..start + width);
        Panel {
            weights: &self.weights[self.aligned + start * row..][..width * row],
            sums: &self.sums[start..][..width],
            zero_points: zero_points.unwrap_or_default(),
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

/// `values` and zeros, `width` in all.
fn padded<T: Copy + Default>(values: &[T], width: usize) -> Vec<T> {
    let mut padded = values.to_vec();
    padded.resize(width, T::default());
    padded
}
