//! The packed layout of weights.
//!
//! A weight of `n` output channels and `k` inputs is cut into panels of up to `panel_width`
//! channels, all about as wide, in whole vector registers. Channels that are the gates of
//! recurrent units are cut alike gate by gate; the panels of the same units of all gates are
//! adjacent, in the order in which a step reads them. Within a panel the layout is
//!
//! ```text
//! [ceil(k / group)] [width of the panel] [group]
//! ```
//!
//! with groups of four int8 inputs, of two bfloat16 or of one float16, so that one load gives a
//! group of each of a register's channels, which is what an instruction multiplies by a group of
//! activations. Two groups of bfloat16 are stored together where pairs are of alternate inputs
//! ([`Registers::alternate`]). Missing inputs and channels are zeros. Stored beside the weights,
//! per channel: the sum of its codes less their zero point (for the activations' zero point), its
//! zero point, its scale and its bias. Nothing outside this module indexes weights.
//!
//! Weights in blocks of inputs with a scale each have another layout, see [`blocks`], and so have
//! keys and values of attention: see [`heads`].
//!
//! Where an instruction set multiplies u8 by u8 only ([`Registers::shift`]), codes and zero points
//! are shifted by 128; sums, which are of their differences, are not.

pub mod blocks;
mod element;
pub mod heads;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use half::{bf16, f16};

use super::isa::{Isa, Registers};
use super::reference::Affine;
use super::threads::CacheLine;
use crate::sizes;
pub use element::Element;

/// Cache line, and the widest vector register.
const ALIGN: usize = 64;

/// Extras of a group in [split](crate::loops::split) rows, at most: codes less the number that is
/// taken from them are at most three times 64.
const EXTRAS: usize = 2;

/// Groups of a split row with the room for its extras, two each.
pub const fn split_width(groups: usize) -> usize {
    groups + 2 * EXTRAS * groups
}

/// Weights in the order that an instruction set reads them.
#[derive(Debug)]
pub struct Packed {
    isa: Isa,
    pub(super) element: Element,
    n: usize,
    k: usize,
    /// Groups of inputs.
    groups: usize,
    /// Ranges of channels that are cut alike.
    gates: usize,
    /// The panels in the order of memory, where the same units of all gates are adjacent.
    places: Vec<PanelPlace>,
    /// Weights start at `aligned`, a multiple of a cache line.
    weights: Vec<u8>,
    aligned: usize,
    sums: Vec<i32>,
    /// The zero points; empty where all are 0.
    zero_points: Vec<i32>,
    scales: Vec<f32>,
    bias: Vec<f32>,
    reduced_range: bool,
    /// Whether activations are [split](crate::loops::split).
    splits: bool,
    /// Whether the next pass over all panels begins with the last: see [`Packed::turn`]. Each call
    /// writes it; on a separate line it takes no other field from the caches of the threads that
    /// read them.
    backwards: CacheLine<AtomicBool>,
}

/// The place of a panel in memory.
#[derive(Clone, Copy, Debug)]
struct PanelPlace {
    /// The first channel, and the number of channels.
    start: usize,
    channels: usize,
    /// The first channel, counted with the padding of each gate.
    padded_start: usize,
    /// The first lane, counted over all panels with padding, and the number of lanes.
    at: usize,
    width: usize,
}

/// The order of the elements of a panel.
#[derive(Clone, Copy)]
struct Order {
    width: usize,
    group: usize,
    alternate: bool,
}

impl Order {
    /// The place of a channel's input.
    fn place(self, input: usize, channel: usize) -> usize {
        let (group, within) = if self.alternate {
            (4, [1, 3, 0, 2][input % 4])
        } else {
            (self.group, input & (self.group - 1))
        };
        // Groups are powers of two.
        ((input >> group.trailing_zeros()) * self.width + channel) * group + within
    }
}

/// A panel: consecutive output channels that one tile computes together.
#[derive(Clone, Copy)]
pub struct Panel<'a> {
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
    /// The first channel, counted with the padding of each gate.
    pub padded_start: usize,
}

/// The parameters of the channels of one register.
#[derive(Clone, Copy)]
pub struct Channels<'a, const LANES: usize> {
    pub sums: &'a [i32; LANES],
    /// `None` where all are 0.
    pub zero_points: Option<&'a [i32; LANES]>,
    pub scales: &'a [f32; LANES],
    pub bias: &'a [f32; LANES],
}

impl<'a> Panel<'a> {
    /// The weights of each group: `NV` registers of `BYTES`.
    #[inline(always)]
    pub fn groups<const BYTES: usize, const NV: usize>(self) -> &'a [[[u8; BYTES]; NV]] {
        self.weights.as_chunks::<BYTES>().0.as_chunks::<NV>().0
    }

    /// The parameters of `NV` registers of channels, which begin at a lane.
    ///
    /// # Panics
    /// If the panel has fewer.
    #[inline(always)]
    pub fn channels<const LANES: usize, const NV: usize>(
        self,
        lane: usize,
    ) -> [Channels<'a, LANES>; NV] {
        let sums = registers::<_, LANES, NV>(self.sums, lane);
        let zero_points = match self.zero_points {
            [] => None,
            zero_points => Some(registers::<_, LANES, NV>(zero_points, lane)),
        };
        let scales = registers::<_, LANES, NV>(self.scales, lane);
        let bias = registers::<_, LANES, NV>(self.bias, lane);
        std::array::from_fn(|v| Channels {
            sums: &sums[v],
            zero_points: zero_points.map(|zero_points| &zero_points[v]),
            scales: &scales[v],
            bias: &bias[v],
        })
    }
}

/// The registers of a panel that begin at a lane.
#[inline(always)]
fn registers<T, const LANES: usize, const NV: usize>(
    of_panel: &[T],
    lane: usize,
) -> &[[T; LANES]; NV] {
    let registers = of_panel[lane..].as_chunks().0.first_chunk();
    registers.expect("a panel of NV registers")
}

/// A panel that is being written; padding is zero already.
pub struct PanelMut<'a> {
    /// `[groups, width, group]`.
    weights: &'a mut [u8],
    /// `[width]`.
    pub sums: &'a mut [i32],
    /// `[width]`, or empty of halves.
    pub zero_points: &'a mut [i32],
    pub scales: &'a mut [f32],
    /// First channel.
    pub start: usize,
    /// Channels that are real.
    pub channels: usize,
}

impl PanelMut<'_> {
    /// Writes groups, from the group `first` on, of up to `LANES` channels from the channel `lane`
    /// of the panel on: the same number from each of `rows`. Rows beyond the panel's channels are
    /// not read.
    #[inline(always)]
    pub fn put<const BYTES: usize, const LANES: usize>(
        &mut self,
        lane: usize,
        first: usize,
        rows: [&[[u8; BYTES]]; LANES],
    ) {
        let groups = rows.first().map_or(0, |row| row.len());
        let rows = rows.map(|row| &row[..groups]);
        let (width, lanes) = (self.sums.len(), LANES.min(self.channels - lane));
        let (places, _) = self.weights.as_chunks_mut::<BYTES>();
        let places = places.chunks_exact_mut(width).skip(first);
        for (group, places) in (0..groups).zip(places) {
            let places = &mut places[lane..];
            match places.first_chunk_mut::<LANES>() {
                Some(places) if lanes == LANES => {
                    *places = std::array::from_fn(|lane| rows[lane][group]);
                }
                _ => {
                    for (place, row) in places.iter_mut().zip(rows).take(lanes) {
                        *place = row[group];
                    }
                }
            }
        }
    }
}

impl Packed {
    /// Weights of `k` inputs that are all zero, with a bias per channel, to be written by panels;
    /// `n` is the length of `bias`. Channels are `gates` stretches of one length, 1 without gates.
    ///
    /// # Panics
    /// If `gates` does not divide `n`, or memory cannot hold the weights.
    pub fn zeros(isa: Isa, element: Element, k: usize, gates: usize, bias: &[f32]) -> Self {
        let n = bias.len();
        let places = places(isa, n, gates);
        let width = places.iter().map(|place| place.width).sum::<usize>();
        let groups = element.groups(isa, k);
        let sizes = [width, groups, element.group()[1]];
        let weights = vec![0; sizes::length("packed weights", &sizes) + ALIGN];
        let aligned = weights.as_ptr().align_offset(ALIGN).min(ALIGN);
        // Halves have neither scales nor zero points; blocks have theirs among the codes.
        let is_int8 = element.is_int8();
        let mut packed = Self {
            isa,
            element,
            n,
            k,
            groups,
            gates,
            places,
            weights,
            aligned,
            sums: vec![0; width],
            zero_points: vec![0; if is_int8 { width } else { 0 }],
            scales: vec![if is_int8 { 0. } else { 1. }; width],
            bias: vec![0.; width],
            reduced_range: false,
            splits: false,
            backwards: CacheLine(AtomicBool::new(false)),
        };
        for place in &packed.places {
            let of_place = &bias[place.start..][..place.channels];
            packed.bias[place.at..][..place.channels].copy_from_slice(of_place);
        }
        packed
    }

    /// The panels, to be written.
    pub fn panels_mut(&mut self) -> impl Iterator<Item = PanelMut<'_>> {
        fn take<'a, T>(rest: &mut &'a mut [T], count: usize) -> &'a mut [T] {
            rest.split_off_mut(..count).unwrap_or_default()
        }
        let row = self.row_bytes();
        let mut weights = &mut self.weights[self.aligned..];
        let (mut sums, mut zero_points) = (&mut self.sums[..], &mut self.zero_points[..]);
        let mut scales = &mut self.scales[..];
        self.places.iter().map(move |place| PanelMut {
            weights: take(&mut weights, place.width * row),
            sums: take(&mut sums, place.width),
            zero_points: take(&mut zero_points, place.width),
            scales: take(&mut scales, place.width),
            start: place.start,
            channels: place.channels,
        })
    }

    /// The weights when all panels are written.
    #[must_use]
    pub fn written(mut self) -> Self {
        if self.zero_points.iter().all(|zero_point| *zero_point == 0) {
            self.zero_points = Vec::new();
        }
        // Mostly one of the first codes says no.
        let mut codes = self.weights[self.aligned..].iter();
        self.reduced_range =
            self.element.is_int8() && codes.all(|code| code.wrapping_add(64) <= 128);
        let is_wide = matches!(self.element, Element::Int8(config) if !config.reduce_range);
        self.splits = is_wide && !self.reduced_range && self.isa.registers().saturates;
        self
    }

    /// Whether no int8 code is beyond +-64, so that two products with any u8 add up to an i16.
    #[allow(dead_code, reason = "most instruction sets add up four products at once")]
    pub fn has_reduced_range(&self) -> bool {
        self.reduced_range
    }

    /// Whether products with any u8 can exceed an i16, so that activations are
    /// [split](crate::loops::split).
    pub(crate) fn splits(&self) -> bool {
        self.splits
    }

    /// Bytes of the weights of a place.
    fn row_bytes(&self) -> usize {
        self.groups() * self.element.group()[1]
    }

    /// An output channel.
    ///
    /// # Panics
    /// If `channel` is out of range.
    pub fn channel(&self, channel: usize) -> Channel<'_> {
        assert!(channel < self.n, "channel {channel} of {}", self.n);
        let units = self.n / self.gates;
        let (gate, unit) = (channel / units, channel % units);
        let before = |place: &PanelPlace| place.start % units + place.channels <= unit;
        let panel = self.panel(self.places.partition_point(before) + gate);
        Channel {
            order: self.order(panel.sums.len()),
            lane: channel - panel.start,
            panel,
            element: self.element,
            shift: self.isa.registers().shift,
        }
    }

    /// Whether alternate inputs are paired: see [`Registers::alternate`].
    pub(crate) fn alternates(&self) -> bool {
        self.element.alternates(self.isa)
    }

    /// The order of a panel of that width.
    fn order(&self, width: usize) -> Order {
        Order { width, group: self.element.group()[0], alternate: self.alternates() }
    }

    /// Whether this pass over all panels should begin with the last: every other one should.
    ///
    /// Weights that are a little larger than the cache would be gone each time if every pass
    /// began with the first; turning around, it begins with those that are still there.
    pub fn turn(&self) -> bool {
        self.backwards.0.fetch_xor(true, Ordering::Relaxed)
    }

    /// The int8 codes in row order again, `[n, k]`; empty for other weights.
    pub fn codes(&self) -> Vec<i8> {
        if !self.element.is_int8() {
            return Vec::new();
        }
        let mut codes = Vec::with_capacity(self.n * self.k);
        let mut groups = vec![[0; 4]; self.groups];
        for channel in 0..self.n {
            self.channel(channel).codes(0, &mut groups);
            let row = &groups.as_flattened()[..self.k];
            codes.extend(row.iter().map(|code| (code ^ 128).cast_signed()));
        }
        codes
    }

    /// The float16 weights in row order again, `[n, k]`; empty for other weights.
    pub fn halves(&self) -> Vec<f16> {
        self.unpack(Element::Float16, f16::from_le_bytes)
    }

    /// The bfloat16 weights in row order again, `[n, k]`; empty for other weights.
    pub fn bfloats(&self) -> Vec<bf16> {
        self.unpack(Element::BFloat16, bf16::from_le_bytes)
    }

    /// The type of the weights.
    pub fn element(&self) -> Element {
        self.element
    }

    /// All weights in row order, if they are halves `of_type`.
    fn unpack<T>(&self, of_type: Element, of_bytes: impl Fn([u8; 2]) -> T) -> Vec<T> {
        let channels = if self.element == of_type { self.n } else { 0 };
        let mut values = Vec::with_capacity(channels * self.k);
        for channel in 0..channels {
            values.extend(self.channel(channel).halves(0..self.k).map(&of_bytes));
        }
        values
    }

    /// These weights, if in blocks, for activations with one scale a row, or one for each 32
    /// inputs, as they have after packing; other weights as they are.
    #[must_use]
    pub fn scaled_per_row(mut self, by_row: bool) -> Self {
        if let Element::Blocks { per_row, .. } = &mut self.element {
            *per_row = by_row;
        }
        self
    }

    /// These weights with another bias per channel.
    ///
    /// # Panics
    /// If `bias` has another length than the channels.
    #[must_use]
    pub fn with_bias(&self, bias: &[f32]) -> Self {
        sizes::check("bias, [n]", bias, &[self.n]);
        let mut packed = Self::zeros(self.isa, self.element, self.k, self.gates, bias);
        let bytes = self.padded_n() * self.row_bytes();
        packed.weights[packed.aligned..][..bytes]
            .copy_from_slice(&self.weights[self.aligned..][..bytes]);
        packed.sums.clone_from(&self.sums);
        packed.zero_points.clone_from(&self.zero_points);
        packed.scales.clone_from(&self.scales);
        packed.reduced_range = self.reduced_range;
        packed.splits = self.splits;
        packed
    }

    /// Checks the type of the weights.
    pub fn check_element(&self, expected: Element) {
        let got = self.element;
        assert!(expected == got, "weights: expected {expected:?}, got {got:?}");
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

    /// The scale of a channel.
    ///
    /// # Panics
    /// If `channel` is out of range.
    pub fn scale(&self, channel: usize) -> f32 {
        self.channel(channel).scale()
    }

    /// The code that stands for 0.0 in a channel.
    ///
    /// # Panics
    /// If `channel` is out of range.
    pub fn zero_point(&self, channel: usize) -> i32 {
        self.channel(channel).zero_point()
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
    pub fn has_zero_points(&self) -> bool {
        !self.zero_points.is_empty()
    }

    /// Groups of inputs.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// Groups of a row of activations, with the room for what is left of them if they are split.
    pub(crate) fn row_groups(&self) -> usize {
        if self.splits { split_width(self.groups) } else { self.groups }
    }

    /// Channels, padding included.
    pub fn padded_n(&self) -> usize {
        self.sums.len()
    }

    pub(crate) fn panels(&self) -> usize {
        self.places.len()
    }

    /// Panels that follow one another with the same units, one a gate; 1 without gates.
    pub fn gates(&self) -> usize {
        self.gates
    }

    /// The weights of a panel and all behind them, which tiles that are not full read as well.
    #[cfg(target_arch = "x86_64")]
    pub fn weights_from(&self, index: usize) -> &[u8] {
        let row = self.row_bytes();
        &self.weights[self.aligned + self.places[index].at * row..]
    }

    pub(crate) fn panel(&self, index: usize) -> Panel<'_> {
        self.panels_from(index, 1)
    }

    /// The panel of a gate, and the panels of the same units of the next gates behind it.
    pub(crate) fn panels_from(&self, index: usize, gates: usize) -> Panel<'_> {
        let PanelPlace { start, channels, padded_start, at, width } = self.places[index];
        let (row, lanes) = (self.row_bytes(), at..at + gates * width);
        let zero_points = self.zero_points.get(lanes.clone());
        Panel {
            weights: &self.weights[self.aligned + at * row..][..lanes.len() * row],
            sums: &self.sums[lanes.clone()],
            zero_points: zero_points.unwrap_or_default(),
            scales: &self.scales[lanes.clone()],
            bias: &self.bias[lanes],
            start,
            channels,
            padded_start,
        }
    }
}

/// The weights of one output channel.
#[derive(Clone, Copy)]
pub struct Channel<'a> {
    panel: Panel<'a>,
    order: Order,
    lane: usize,
    pub element: Element,
    shift: u8,
}

impl Channel<'_> {
    pub fn scale(&self) -> f32 {
        self.panel.scales[self.lane]
    }

    /// The code that stands for 0.0.
    pub fn zero_point(&self) -> i32 {
        // Without zero points in memory, all are packed as 0.
        let shifted = self.panel.zero_points.get(self.lane).copied();
        shifted.unwrap_or(0) - i32::from(self.shift)
    }

    /// The value of the codes that [`codes`](Self::codes) gives.
    pub fn affine(&self) -> Affine {
        Affine { shift: self.zero_point() + 128, scale: self.scale(), offset: 0. }
    }

    /// The int8 codes from the input `first` on, a multiple of a group, each plus 128: u8.
    pub fn codes(&self, first: usize, codes: &mut [[u8; 4]]) {
        let missing = 128 - self.shift;
        let (groups, _) = self.panel.weights.as_chunks::<4>();
        let of_channel = groups.iter().skip(self.lane).step_by(self.panel.sums.len());
        for (codes, group) in codes.iter_mut().zip(of_channel.skip(first / 4)) {
            *codes = group.map(|byte| byte.wrapping_add(missing));
        }
    }

    /// The bytes of the halves of some inputs.
    pub fn halves(&self, inputs: Range<usize>) -> impl ExactSizeIterator<Item = [u8; 2]> {
        let (elements, _) = self.panel.weights.as_chunks::<2>();
        inputs.map(move |input| elements[self.order.place(input, self.lane)])
    }
}

/// The panels of `n` channels in `gates` ranges: as few and as wide as possible, since a narrow
/// panel has too few sums to hide the latency of a dot product.
///
/// # Panics
/// If `gates` does not divide `n`: no panel would have the channels that are left.
fn places(isa: Isa, n: usize, gates: usize) -> Vec<PanelPlace> {
    assert!(gates > 0 && n.is_multiple_of(gates), "gates: {gates} does not divide {n} channels");
    let cut = Cut::new(isa, n / gates);
    let places = (0..cut.panels).flat_map(|panel| (0..gates).map(move |gate| (gate, panel)));
    let place = |(gate, panel)| {
        let place = cut.place(gate, panel);
        let first = place.padded_start - gate * cut.registers * cut.lanes;
        PanelPlace { at: first * gates + gate * place.width, ..place }
    };
    places.map(place).collect()
}

/// The cut of a range of channels into panels.
#[derive(Clone, Copy)]
struct Cut {
    units: usize,
    lanes: usize,
    registers: usize,
    panels: usize,
}

impl Cut {
    fn new(isa: Isa, units: usize) -> Self {
        let Registers { lanes, panel_width, .. } = isa.registers();
        let registers = units.div_ceil(lanes);
        let panels = registers.div_ceil(panel_width / lanes);
        sizes::length("registers by panels", &[registers, panels]);
        Self { units, lanes, registers, panels }
    }

    /// A panel of one of several ranges, which follow one another in memory.
    fn place(self, range: usize, panel: usize) -> PanelPlace {
        let bound = |panel: usize| self.registers * panel / self.panels * self.lanes;
        let (first, end) = (bound(panel), bound(panel + 1));
        let padded_start = range * self.registers * self.lanes + first;
        PanelPlace {
            start: range * self.units + first,
            padded_start,
            channels: end.min(self.units) - first,
            at: padded_start,
            width: end - first,
        }
    }
}
