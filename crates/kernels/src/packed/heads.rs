//! Keys and values of attention as packed codes: each head has separate panels, one head behind the
//! other.

use std::ops::Range;

use super::{ALIGN, Cut, Element, Packed, PanelPlace};
use crate::isa::Isa;
use crate::qparams::activation::DynamicConfig;
use crate::sizes;
use crate::threads::Shared;

/// The element of keys and values of attention, whose rows have a scale each, as queries have.
pub const HEADS: Element = Element::Int8(DynamicConfig::PER_ROW);

impl Packed {
    /// Codes of `heads` matrices, of `n` channels and `k` inputs each, in the memory of `self`;
    /// their values are left from before, and to be written. Scales are 1, zero points and biases
    /// 0.
    ///
    /// # Panics
    /// If memory cannot hold the codes.
    #[must_use]
    pub fn of_heads(self, isa: Isa, heads: usize, n: usize, k: usize) -> Self {
        let channels = sizes::length("channels of heads", &[heads, n]);
        let groups = HEADS.groups(isa, k);
        let cut = Cut::new(isa, n);
        let width = sizes::length("padded heads", &[heads, cut.registers, cut.lanes]);
        let bytes = sizes::length("packed heads", &[width, groups, 4]) + ALIGN;
        let same = self.isa == isa && self.gates == heads && self.n == channels;
        let places = if same {
            self.places
        } else {
            let all = (0..heads).flat_map(|head| (0..cut.panels).map(move |panel| (head, panel)));
            all.map(|(head, panel)| cut.place(head, panel)).collect()
        };
        let mut weights = self.weights;
        if weights.len() < bytes {
            // Keys become more step by step: memory for a few steps at once.
            weights = vec![0; bytes.max(weights.len() + weights.len() / 4)];
        }
        let aligned = weights.as_ptr().align_offset(ALIGN).min(ALIGN);
        let shift = i32::from(isa.registers().shift);
        let (mut sums, mut scales, mut bias) = (self.sums, self.scales, self.bias);
        let mut zero_points = self.zero_points;
        sums.resize(width, 0);
        bias.resize(width, 0.);
        scales.clear();
        scales.resize(width, 1.);
        zero_points.clear();
        if shift != 0 {
            zero_points.resize(width, shift);
        }
        Self {
            isa,
            element: HEADS,
            n: channels,
            k,
            groups,
            gates: heads,
            places,
            weights,
            aligned,
            sums,
            zero_points,
            scales,
            bias,
            reduced_range: false,
            splits: false,
            backwards: self.backwards,
        }
    }

    /// Takes the first channels of each head, and so many groups of their inputs, from other heads
    /// of the same instruction set.
    ///
    /// # Panics
    /// If either has fewer.
    pub fn copy_heads(&mut self, from: &Self, channels: usize, groups: usize) {
        assert!(self.isa == from.isa && self.gates == from.gates, "heads");
        assert!(groups <= self.groups.min(from.groups), "groups");
        for head in 0..self.gates {
            let mut channel = 0;
            while channel < channels {
                let (to, source) = (self.lanes_of(head, channel), from.lanes_of(head, channel));
                let count = to.left.min(source.left).min(channels - channel);
                for group in 0..groups {
                    let [to, source] = [(&to, self.aligned), (&source, from.aligned)]
                        .map(|(lanes, aligned)| aligned + 4 * (lanes.first + group * lanes.width));
                    self.weights[to..][..4 * count]
                        .copy_from_slice(&from.weights[source..][..4 * count]);
                }
                self.sums[to.at..][..count].copy_from_slice(&from.sums[source.at..][..count]);
                self.scales[to.at..][..count].copy_from_slice(&from.scales[source.at..][..count]);
                channel += count;
            }
        }
    }

    /// The rest of a head's panel, from a channel of the head on.
    fn lanes_of(&self, head: usize, channel: usize) -> ChannelRun {
        let (places, start) = places_of(&self.places, self.panels_of_head(), head);
        ChannelRun::new(places, start + channel, self.groups)
    }

    /// The bytes of all heads, biases included, which layers count by themselves.
    pub fn bytes_of_heads(&self) -> usize {
        self.bytes() + size_of_val(&*self.bias)
    }

    /// The heads, to be written by several threads.
    pub fn heads_mut(&mut self) -> HeadsMut<'_> {
        HeadsMut {
            groups: self.groups,
            panels: self.panels_of_head(),
            shift: self.isa.registers().shift,
            weights: Shared::new(self.weights[self.aligned..].as_chunks_mut().0),
            sums: Shared::new(&mut self.sums),
            scales: Shared::new(&mut self.scales),
            places: &self.places,
        }
    }

    /// Panels of each head of [`of_heads`](Self::of_heads).
    pub fn panels_of_head(&self) -> usize {
        self.places.len().checked_div(self.gates).unwrap_or(0)
    }

    /// The panels of the first `count` channels of a head.
    pub fn panels_of(&self, head: usize, count: usize) -> Range<usize> {
        let first = head * self.panels_of_head();
        let (places, start) = places_of(&self.places, self.panels_of_head(), head);
        let used = places.partition_point(|place| place.start < start + count);
        first..first + used
    }

    /// Channels of the panels of the first `count` channels of a head, padding included.
    pub fn padded(&self, count: usize) -> usize {
        let panels = self.panels_of(0, count);
        let last = panels.last().map(|panel| &self.places[panel]);
        last.map_or(0, |place| place.at + place.width)
    }
}

/// The panels of a head, of `panels` each, and its first channel.
#[inline(always)]
fn places_of(all: &[PanelPlace], panels: usize, head: usize) -> (&[PanelPlace], usize) {
    let places = &all[head * panels..][..panels];
    (places, places.first().map_or(0, |place| place.start))
}

/// Neighbouring channels of a panel.
struct ChannelRun {
    /// The number of channels.
    left: usize,
    /// The first channel, counted over all channels with padding.
    at: usize,
    /// The first group of the first channel, and the distance from one of its groups to the next.
    first: usize,
    width: usize,
}

impl ChannelRun {
    /// The channels of a panel from `channel` on, which have `groups` groups each.
    #[inline(always)]
    fn new(places: &[PanelPlace], channel: usize, groups: usize) -> Self {
        let after = places.partition_point(|place| place.start <= channel);
        let place = places[after - 1];
        let lane = channel - place.start;
        Self {
            left: place.channels - lane,
            at: place.at + lane,
            first: place.at * groups + lane,
            width: place.width,
        }
    }
}

/// The codes of heads, of which several threads write different channels or inputs.
#[derive(Clone, Copy)]
pub struct HeadsMut<'a> {
    /// Groups of a channel.
    groups: usize,
    /// Added to the codes, for the instruction set.
    pub shift: u8,
    /// The codes, group after group.
    weights: Shared<'a, [u8; 4]>,
    sums: Shared<'a, i32>,
    scales: Shared<'a, f32>,
    /// The panels of each head, one head behind the other.
    places: &'a [PanelPlace],
    panels: usize,
}

impl HeadsMut<'_> {
    /// The panels of a head, and its first channel.
    #[inline(always)]
    fn places(&self, head: usize) -> (&[PanelPlace], usize) {
        places_of(self.places, self.panels, head)
    }

    /// Writes the groups of up to four neighbouring channels of a head, which begin at a multiple
    /// of four, the sums of their codes, and their scales.
    ///
    /// # Safety
    /// No other thread writes these channels, and none reads them.
    #[inline(always)]
    pub unsafe fn put_channels(
        self,
        [head, channel]: [usize; 2],
        rows: &[&[[u8; 4]]],
        (sums, scales): ([i32; 4], [f32; 4]),
    ) {
        let (places, start) = self.places(head);
        let ChannelRun { left, at, first, width } =
            ChannelRun::new(places, start + channel, self.groups);
        let count = rows.len();
        assert!(count <= left && rows.iter().all(|row| row.len() <= self.groups));
        // SAFETY: what there is of these channels is this thread's.
        unsafe {
            self.sums.part(at..at + count).copy_from_slice(&sums[..count]);
            self.scales.part(at..at + count).copy_from_slice(&scales[..count]);
            if let [a, b, c, d] = rows {
                let rows = a.iter().zip(*b).zip(c.iter().zip(*d));
                let groups = rows.map(|((a, b), (c, d))| [*a, *b, *c, *d]);
                return self.weights.scatter(first, width, groups);
            }
            for (i, row) in rows.iter().enumerate() {
                let groups = row.iter().map(|group| [*group]);
                self.weights.scatter(first + i, width, groups);
            }
        }
    }

    /// Writes the inputs of a group of all channels of a head, in a row each.
    ///
    /// # Safety
    /// No other thread writes this group, and none reads it.
    #[inline(always)]
    pub unsafe fn put_group(self, head: usize, group: usize, rows: [&[u8]; 4]) {
        let (places, start) = self.places(head);
        assert!(group < self.groups, "a group");
        for place in places {
            let at = place.at * self.groups + group * place.width;
            // SAFETY: this group is this thread's.
            let to = unsafe { self.weights.part(at..at + place.channels) };
            let [a, b, c, d] = rows.map(|row| &row[place.start - start..][..place.channels]);
            for ((((to, a), b), c), d) in to.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                *to = [*a, *b, *c, *d];
            }
        }
    }

    /// Writes one input of all channels of a head.
    ///
    /// # Safety
    /// No other thread writes its group, and none reads it.
    #[inline(always)]
    pub unsafe fn put_input(self, head: usize, input: usize, row: &[u8]) {
        let (places, start) = self.places(head);
        assert!(input / 4 < self.groups, "an input");
        for place in places {
            let at = place.at * self.groups + input / 4 * place.width;
            // SAFETY: this group is this thread's.
            let to = unsafe { self.weights.part(at..at + place.channels) };
            for (to, code) in to.iter_mut().zip(&row[place.start - start..]) {
                to[input % 4] = *code;
            }
        }
    }
}
