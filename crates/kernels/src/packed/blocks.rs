//! Weights of codes in blocks: 32 inputs of a channel that share a scale.
//!
//! A panel holds, block after block of inputs:
//!
//! ```text
//! codes    [rows of codes] [width of the panel] [4 bytes]
//! scales   [width of the panel]                             f16
//! offsets  [width of the panel]                             f16, of some formats
//! ```
//!
//! so that one row of activations reads it strictly forwards. A byte of 4-bit codes holds an input
//! in its low half and the fourth after it in its high half: 4 rows of codes of 8 inputs. Codes of
//! 8 bits are stored plus 128: 8 rows of 4 inputs.

use half::f16;

use super::{Channel, Packed, Panel, PanelMut};
use crate::qparams::blocks::{BlockScale, Blocks, INPUTS, factor};

/// The codes of a block of a channel, in the order of inputs.
pub type BlockCodes = [u8; INPUTS];

impl Blocks {
    /// Bytes of a channel's codes in a block.
    pub(super) const fn code_bytes(self) -> usize {
        INPUTS * self.bits() / 8
    }

    /// Bytes of a channel in a block.
    pub(super) const fn bytes(self) -> usize {
        let parameters = if self.has_offsets() { 2 } else { 1 };
        self.code_bytes() + parameters * size_of::<f16>()
    }

    /// The place of an input in a panel's codes of a block: its byte, and how far it is shifted.
    const fn place(self, width: usize, channel: usize, input: usize) -> (usize, u32) {
        let (row, byte, shift) = match self.bits() {
            4 => (input / 8, input % 4, if input % 8 < 4 { 0 } else { 4 }),
            _ => (input / 4, input % 4, 0),
        };
        ((row * width + channel) * 4 + byte, shift)
    }
}

/// A block of the channels of a panel.
#[derive(Clone, Copy)]
pub struct PanelBlock<'a, const LANES: usize, const BYTES: usize> {
    /// Row after row of codes, a register each `LANES` channels.
    pub codes: &'a [[u8; BYTES]],
    /// Registers of a row.
    pub registers: usize,
    /// The scales of each register.
    pub scales: &'a [[[u8; 2]; LANES]],
    /// The offsets of each register, or empty.
    pub offsets: &'a [[[u8; 2]; LANES]],
}

impl<'a> Panel<'a> {
    /// The blocks of this panel: `BYTES` are the codes of a row in a register.
    #[inline(always)]
    pub fn blocks<const LANES: usize, const BYTES: usize>(
        self,
        format: Blocks,
    ) -> impl Iterator<Item = PanelBlock<'a, LANES, BYTES>> {
        let width = self.sums.len();
        let of_blocks = self.weights.chunks_exact(width * format.bytes());
        of_blocks.map(move |block| {
            let (codes, parameters) = block.split_at(width * format.code_bytes());
            let (parameters, _) = parameters.as_chunks::<2>().0.as_chunks();
            let (scales, offsets) = parameters.split_at(width / LANES);
            PanelBlock { codes: codes.as_chunks().0, registers: width / LANES, scales, offsets }
        })
    }
}

impl PanelMut<'_> {
    /// Writes a block of a channel, both counted within the panel.
    pub fn put_block(
        &mut self,
        format: Blocks,
        [block, channel]: [usize; 2],
        codes: &BlockCodes,
        scale: BlockScale,
    ) {
        let width = self.sums.len();
        let bytes = width * format.bytes();
        let of_block = &mut self.weights[block * bytes..][..bytes];
        let (to, parameters) = of_block.split_at_mut(width * format.code_bytes());
        for (input, code) in codes.iter().enumerate() {
            let (byte, shift) = format.place(width, channel, input);
            to[byte] |= code << shift;
        }
        let (parameters, _) = parameters.as_chunks_mut::<2>();
        parameters[channel] = scale.scale.to_le_bytes();
        if format.has_offsets() {
            parameters[width + channel] = scale.offset.to_le_bytes();
        }
    }

    /// Replaces the factors of channels that have one by what [`factor`] gives, and divides the
    /// scales to match: the values stay as they are.
    pub fn settle_factors(&mut self, format: Blocks) {
        let width = self.sums.len();
        let (bytes, codes) = (width * format.bytes(), width * format.code_bytes());
        let scaled = if format == Blocks::Int4Minimum { 2 } else { 1 };
        for (channel, factor_before) in self.scales.iter_mut().enumerate().take(self.channels) {
            if *factor_before == 1. {
                continue;
            }
            let places = (0..self.weights.len()).step_by(bytes).flat_map(|block| {
                let place = move |i| block + codes + 2 * (i * width + channel);
                (0..scaled).map(place)
            });
            let number = |weights: &[u8], at: usize| {
                f16::from_le_bytes([weights[at], weights[at + 1]]).to_f32() * *factor_before
            };
            let new = factor(places.clone().map(|at| number(self.weights, at)));
            for at in places {
                let half = f16::from_f32(number(self.weights, at) / new);
                self.weights[at..at + 2].copy_from_slice(&half.to_le_bytes());
            }
            *factor_before = new;
        }
    }
}

impl Channel<'_> {
    /// The codes and the scale of a block of inputs.
    pub fn block(&self, format: Blocks, block: usize) -> (BlockCodes, BlockScale) {
        let width = self.panel.sums.len();
        let bytes = width * format.bytes();
        let of_block = &self.panel.weights[block * bytes..][..bytes];
        let (from, parameters) = of_block.split_at(width * format.code_bytes());
        let mask = if format.bits() == 4 { 0xf } else { 0xff };
        let codes = std::array::from_fn(|input| {
            let (byte, shift) = format.place(width, self.lane, input);
            from[byte] >> shift & mask
        });
        let (parameters, _) = parameters.as_chunks::<2>();
        let offset = parameters.get(width + self.lane).copied();
        let scale = BlockScale {
            scale: f16::from_le_bytes(parameters[self.lane]),
            offset: offset.map_or(f16::ZERO, f16::from_le_bytes),
        };
        (codes, scale)
    }

    /// The values from the input `first` on, a multiple of a block's, as
    /// [`reference::dequantize_blocks`](crate::reference::dequantize_blocks) says.
    pub fn values(&self, format: Blocks, first: usize, values: &mut [f32]) {
        for (i, values) in values.chunks_mut(INPUTS).enumerate() {
            let (codes, scale) = self.block(format, first / INPUTS + i);
            let (step, offset) = (scale.scale.to_f32(), scale.offset.to_f32());
            let addend = format.addend(step, offset);
            for (value, code) in values.iter_mut().zip(codes) {
                let code = (i32::from(code) - format.middle()) as f32;
                *value = (step * code + addend) * self.scale();
            }
        }
    }
}

impl Packed {
    /// The codes in row order again, `[n, k]`, and the scales, `[n, blocks]`; none of other
    /// weights.
    pub fn blocks(&self) -> (Vec<u8>, Vec<BlockScale>) {
        let super::Element::Blocks { format, .. } = self.element else {
            return (Vec::new(), Vec::new());
        };
        let mut codes = Vec::with_capacity(self.n * self.k);
        let mut scales = Vec::with_capacity(self.n * self.groups);
        for channel in 0..self.n {
            let channel = self.channel(channel);
            for (block, first) in (0..self.k).step_by(INPUTS).enumerate() {
                let (of_block, scale) = channel.block(format, block);
                codes.extend_from_slice(&of_block[..INPUTS.min(self.k - first)]);
                scales.push(scale);
            }
        }
        (codes, scales)
    }
}
