//! The packed layout of weights.
//!
//! A weight of `n` output channels and `k` inputs is cut into panels of up to `panel_width`
//! channels, all about as wide, in whole vector registers. Channels that are the gates of
//! recurrent units are cut alike gate by gate; the panels of the same units of all gates lie side
//! by side, as a step reads them one after the other. Within a panel the weights lie as
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
//! Where an instruction set multiplies u8 by u8 only ([`Registers::shift`]), codes and zero points are
//! shifted by 128; sums, which are of their differences, are not.

use std::sync::atomic::{AtomicBool, Ordering};

use half::f16;

use super::isa::{Isa, Registers};
use super::reference::{Affine, Int8};
use crate::sizes;

/// Cache line, and the widest vector register.
const ALIGN: usize = 64;

/// The type of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
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
    /// Stretches of channels that are cut alike.
    gates: usize,
    /// In the order of memory: the panels of the same units of all gates follow one another.
    places: Vec<Place>,
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

/// Where a panel lies.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// First of its channels, and how many it has.
    start: usize,
    channels: usize,
    /// The first where each gate's channels have their padding behind them.
    padded_start: usize,
    /// First of its places among those of all panels, padding included, and how many it has.
    at: usize,
    width: usize,
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
    /// First channel, where each gate's channels have their padding behind them.
    pub padded_start: usize,
}

impl<'a> Panel<'a> {
    /// The weights of each group: `NV` registers of `BYTES`.
    #[inline(always)]
    pub fn groups<const BYTES: usize, const NV: usize>(self) -> &'a [[[u8; BYTES]; NV]] {
        self.weights.as_chunks::<BYTES>().0.as_chunks::<NV>().0
    }
}

impl Packed {
    /// Packs int8 weights of `k` inputs, with a bias per channel; `n` is the length of `bias`.
    /// Channels are `gates` stretches of one length, 1 where they are no gates.
    ///
    /// # Panics
    /// If `n` is no multiple of `gates`, there are no `n * k` codes, or no `n` scales or zero
    /// points.
    pub fn int8(isa: Isa, k: usize, gates: usize, int8: Int8<'_>, bias: &[f32]) -> Self {
        let (shift, n) = (isa.registers().shift, bias.len());
        sizes::check("codes, [n, k]", int8.codes, &[n, k]);
        sizes::check("scales, [n]", int8.scales, &[n]);
        sizes::check("zero points, [n]", int8.zero_points, &[n]);
        let mut packed = Self::new::<1, 4>(isa, Element::Int8, k, gates, bias, |at| {
            [int8.codes[at].cast_unsigned().wrapping_add(shift)]
        });
        packed.scales = packed.padded(|channel| int8.scales[channel]);
        if int8.zero_points.iter().any(|z| z + i32::from(shift) != 0) {
            packed.zero_points =
                packed.padded(|channel| int8.zero_points[channel] + i32::from(shift));
        }
        packed.sums = packed.padded(|channel| {
            let codes = int8.codes[channel * k..][..k].iter();
            let codes = codes.map(|code| i32::from(*code) - int8.zero_points[channel]);
            codes.fold(0, i32::wrapping_add)
        });
        packed
    }

    /// Packs float16 weights in row order, `[n, k]`, with a bias per channel; gates as for
    /// [`int8`](Self::int8).
    ///
    /// # Panics
    /// If `n` is no multiple of `gates`, or there are no `n * k` values.
    pub fn float16(isa: Isa, k: usize, gates: usize, values: &[f16], bias: &[f32]) -> Self {
        sizes::check("values, [n, k]", values, &[bias.len(), k]);
        Self::new::<2, 1>(isa, Element::Float16, k, gates, bias, |at| {
            values[at].to_le_bytes()
        })
    }

    /// Packs elements by their index in row order, without scales and zero points.
    fn new<const BYTES: usize, const GROUP: usize>(
        isa: Isa,
        element: Element,
        k: usize,
        gates: usize,
        bias: &[f32],
        bytes_of: impl Fn(usize) -> [u8; BYTES],
    ) -> Self {
        let (n, groups) = (bias.len(), k.div_ceil(GROUP));
        let places = places(isa, n, gates);
        let width = places.iter().map(|place| place.width).sum::<usize>();
        let bytes = sizes::length("packed weights", &[width, groups, GROUP, BYTES]);
        let mut weights = vec![0; bytes + ALIGN];
        let aligned = weights.as_ptr().align_offset(ALIGN).min(ALIGN);
        let (elements, _) = weights[aligned..].as_chunks_mut::<BYTES>();
        for place in &places {
            for lane in 0..place.channels {
                for input in 0..k {
                    let group = place.at * groups + input / GROUP * place.width + lane;
                    elements[group * GROUP + input % GROUP] =
                        bytes_of((place.start + lane) * k + input);
                }
            }
        }
        let mut packed = Self {
            isa,
            element,
            n,
            k,
            gates,
            places,
            weights,
            aligned,
            sums: vec![0; width],
            zero_points: Vec::new(),
            scales: vec![1.; width],
            bias: Vec::new(),
            backwards: AtomicBool::new(false),
        };
        packed.bias = packed.padded(|channel| bias[channel]);
        packed
    }

    /// A value for each place: that of its channel, and zeros for padding.
    fn padded<T: Copy + Default>(&self, of_channel: impl Fn(usize) -> T) -> Vec<T> {
        let mut padded = vec![T::default(); self.sums.len()];
        for place in &self.places {
            for lane in 0..place.channels {
                padded[place.at + lane] = of_channel(place.start + lane);
            }
        }
        padded
    }

    /// An output channel.
    ///
    /// # Panics
    /// If there is no such channel.
    pub fn channel(&self, channel: usize) -> Channel<'_> {
        assert!(channel < self.n, "channel {channel} of {}", self.n);
        let units = self.n / self.gates;
        let (gate, unit) = (channel / units, channel % units);
        let before = |place: &Place| place.start % units + place.channels <= unit;
        let panel = self.panel(self.places.partition_point(before) + gate);
        Channel {
            lane: channel - panel.start,
            panel,
            element: self.element,
            shift: self.isa.registers().shift,
        }
    }

    /// Whether this pass over all panels should begin with the last: every other one should.
    ///
    /// Weights that are a little larger than the cache would be gone each time if every pass
    /// began with the first; turning around, it begins with those that are still there.
    pub fn turn(&self) -> bool {
        self.backwards.fetch_xor(true, Ordering::Relaxed)
    }

    /// The int8 codes in row order again, `[n, k]`; none of float16 weights.
    pub fn codes(&self) -> Vec<i8> {
        match self.element {
            Element::Int8 => {
                self.unpack(|[byte]| byte.wrapping_sub(self.isa.registers().shift).cast_signed())
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
        let of_gate = |gate: usize| (gate..self.panels()).step_by(self.gates);
        for panel in (0..self.gates).flat_map(of_gate).map(|p| self.panel(p)) {
            let (elements, _) = panel.weights.as_chunks::<BYTES>();
            for channel in 0..panel.channels {
                let at =
                    |input| (input / group * panel.sums.len() + channel) * group + input % group;
                values.extend((0..self.k).map(|input| of_bytes(elements[at(input)])));
            }
        }
        values
    }

    /// Checks the type of the weights.
    pub fn check_element(&self, expected: Element) {
        let got = self.element;
        assert!(
            expected == got,
            "weights: expected {expected:?}, got {got:?}"
        );
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
    /// If there is no such channel.
    pub fn scale(&self, channel: usize) -> f32 {
        self.channel(channel).scale()
    }

    /// The code that stands for 0.0 in a channel.
    ///
    /// # Panics
    /// If there is no such channel.
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
        self.k.div_ceil(self.element.group())
    }

    /// Channels, padding included.
    pub fn padded_n(&self) -> usize {
        self.sums.len()
    }

    pub fn panels(&self) -> usize {
        self.places.len()
    }

    /// Panels that follow one another with the same units, one a gate; 1 where channels are no
    /// gates.
    pub fn gates(&self) -> usize {
        self.gates
    }

    /// The weights of a panel and all behind them, which tiles that are not full read as well.
    #[cfg(target_arch = "x86_64")]
    pub fn weights_from(&self, index: usize) -> &[u8] {
        let row = self.groups() * self.element.group() * self.element.bytes();
        &self.weights[self.aligned + self.places[index].at * row..]
    }

    pub fn panel(&self, index: usize) -> Panel<'_> {
        let Place {
            start,
            channels,
            padded_start,
            at,
            width,
        } = self.places[index];
        let row = self.groups() * self.element.group() * self.element.bytes();
        let zero_points = self.zero_points.get(at..at + width);
        Panel {
            weights: &self.weights[self.aligned + at * row..][..width * row],
            sums: &self.sums[at..][..width],
            zero_points: zero_points.unwrap_or_default(),
            scales: &self.scales[at..][..width],
            bias: &self.bias[at..][..width],
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
        let shifted = self.panel.zero_points.get(self.lane);
        shifted.map_or(0, |shifted| shifted - i32::from(self.shift))
    }

    /// The value of the codes that [`codes`](Self::codes) gives.
    pub fn affine(&self) -> Affine {
        Affine {
            shift: self.zero_point() + 128,
            scale: self.scale(),
            offset: 0.,
        }
    }

    /// The int8 codes from the input `first` on, a multiple of a group, each plus 128: u8.
    pub fn codes(&self, first: usize, codes: &mut [[u8; 4]]) {
        let missing = 128 - self.shift;
        let (groups, _) = self.panel.weights.as_chunks::<4>();
        for (i, codes) in codes.iter_mut().enumerate() {
            let group = groups[(first / 4 + i) * self.panel.sums.len() + self.lane];
            *codes = group.map(|byte| byte.wrapping_add(missing));
        }
    }

    /// The float16 weights from the input `first` on.
    pub fn halves(&self, first: usize, halves: &mut [f16]) {
        let (elements, _) = self.panel.weights.as_chunks::<2>();
        for (i, half) in halves.iter_mut().enumerate() {
            let element = elements[(first + i) * self.panel.sums.len() + self.lane];
            *half = f16::from_le_bytes(element);
        }
    }
}

/// The panels of `n` channels in `gates` stretches: as few as there can be, and no narrower than
/// they must, since a narrow one has too few sums to hide the latency of a dot product.
///
/// # Panics
/// If there are channels that belong to no gate: no panel would have them.
fn places(isa: Isa, n: usize, gates: usize) -> Vec<Place> {
    assert!(
        gates > 0 && n.is_multiple_of(gates),
        "gates: expected some that divide the {n} channels, got {gates}"
    );
    let Registers {
        lanes, panel_width, ..
    } = isa.registers();
    let units = n / gates;
    let registers = units.div_ceil(lanes);
    let panels = registers.div_ceil(panel_width / lanes);
    sizes::length("registers by panels", &[registers, panels]);
    let place = |gate: usize, panel: usize| {
        let first = registers * panel / panels * lanes;
        let end = registers * (panel + 1) / panels * lanes;
        Place {
            start: gate * units + first,
            padded_start: gate * registers * lanes + first,
            channels: end.min(units) - first,
            at: first * gates + gate * (end - first),
            width: end - first,
        }
    };
    let places = (0..panels).flat_map(|panel| (0..gates).map(move |gate| (gate, panel)));
    places.map(|(gate, panel)| place(gate, panel)).collect()
}
