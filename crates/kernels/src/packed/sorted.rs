//! The order of the groups of a panel where products of bytes add up in i16.
//!
//! `maddubs` multiplies two u8 by two i8 and adds the products up. Two weights of a pair can exceed
//! an i16 only if they have one sign and their absolute values add up to more than 128,
//! `255 * 128 < 2^15`. In one channel or another, half of all groups have such a pair where weights
//! have 384 inputs, fewer where they have more. The groups of a panel are of three classes, stored
//! one after the other, each in ascending order:
//!
//! 0. groups without such a pair;
//! 1. groups without such a pair once the second weight of each pair is negated, as they are
//!    stored. The second activation of each pair is complemented:
//!    `a * w = (255 - a) * -w + 255 * w`;
//! 2. the others. The signs go from weights to activations, which become i8:
//!    `a * w = (a - 128) * |w| + 128 * w`, or `(127 - a) * |w| + 127 * w` if `w < 0`. Two products
//!    of these are at least `2 * -128 * 128` and at most `2 * 127 * 128`.
//!
//! The terms without activations are added up beside the weights, for each channel.

use std::ops::Range;

pub const CLASSES: usize = 3;

/// Channels that are sorted together: as many as a register has.
const LANES: usize = 8;

/// The class of any group.
const LAST: usize = CLASSES - 1;

/// How many groups of a panel are of each class.
pub type Counts = [u32; CLASSES];

/// The order of the groups of all panels; empty where it is the inputs' order.
#[derive(Clone, Debug, Default)]
pub struct SortedGroups {
    /// Groups of a panel.
    groups: usize,
    /// How many groups of a panel are of each class.
    counts: Vec<Counts>,
    /// The distance of each group of a panel from the group before it in its class, in groups of
    /// inputs: two of 4 bits in a byte, the lower ones first. Each class begins with a byte.
    steps: Vec<u8>,
    /// The terms without activations, for each lane.
    starts: Vec<i32>,
}

/// The order of the groups of a panel.
#[derive(Clone, Copy)]
pub struct Sorted<'a> {
    pub counts: &'a Counts,
    pub steps: &'a [u8],
    pub starts: &'a [i32],
}

/// The order of the groups of panels, to be written; empty where they are not sorted.
#[derive(Default)]
pub struct SortedMut<'a> {
    groups: usize,
    counts: &'a mut [Counts],
    steps: &'a mut [u8],
    starts: &'a mut [i32],
}

impl SortedGroups {
    /// The order of panels of so many groups, with so many lanes in all.
    pub fn new([panels, groups, lanes]: [usize; 3]) -> Self {
        Self {
            groups,
            counts: vec![[0; CLASSES]; panels],
            steps: vec![0; panels * step_bytes(groups)],
            starts: vec![0; lanes],
        }
    }

    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Whether all groups are of the last class, in the order of inputs.
    pub fn is_futile(&self) -> bool {
        let is_futile = |counts: &Counts| counts[..LAST] == [0; LAST];
        self.counts.iter().all(is_futile)
    }

    pub fn bytes(&self) -> usize {
        size_of_val(&*self.counts) + size_of_val(&*self.steps) + size_of_val(&*self.starts)
    }

    /// The order of a panel, and what the lanes from it on begin with.
    #[inline(always)]
    pub fn panel(&self, index: usize, lanes: Range<usize>) -> Option<Sorted<'_>> {
        let counts = self.counts.get(index)?;
        let bytes = step_bytes(self.groups);
        Some(Sorted {
            counts,
            steps: &self.steps[index * bytes..][..bytes],
            starts: &self.starts[lanes],
        })
    }

    pub fn as_mut(&mut self) -> SortedMut<'_> {
        SortedMut {
            groups: self.groups,
            counts: &mut self.counts,
            steps: &mut self.steps,
            starts: &mut self.starts,
        }
    }
}

impl<'a> SortedMut<'a> {
    /// Splits off the first panel, of so many lanes.
    pub fn take(&mut self, lanes: usize) -> Self {
        Self {
            groups: self.groups,
            counts: self.counts.split_off_mut(..1).unwrap_or_default(),
            steps: (self.steps.split_off_mut(..step_bytes(self.groups))).unwrap_or_default(),
            starts: self.starts.split_off_mut(..lanes).unwrap_or_default(),
        }
    }

    /// Sorts the groups of a panel, unless most are of the last class: then all are.
    #[inline(always)]
    pub fn sort(&mut self, weights: &mut [u8]) {
        let ([counts], true) = (&mut *self.counts, self.groups > 0) else {
            return;
        };
        let bytes = weights.len() / self.groups;
        // Loops, as closures that are not inlined have no features of an instruction set.
        let mut classes = vec![0; self.groups];
        for (class, group) in classes.iter_mut().zip(weights.chunks_exact(bytes)) {
            *class = class_of(group.as_chunks().0);
        }
        let worst = classes.iter().filter(|class| **class == LAST).count();
        if 4 * worst > 3 * classes.len() {
            classes.fill(LAST);
        } else if classes.iter().any(|class| *class > 0) {
            within_reach(&mut classes);
        }
        // Copied at once, they took as long as all the rest: `rep movsb`.
        let mut unsorted = Vec::with_capacity(weights.len());
        for part in weights.chunks(1024) {
            unsorted.extend_from_slice(part);
        }
        for class in &classes {
            counts[*class] += 1;
        }
        // Without branches on classes, which no CPU predicts.
        let [first, second, _] = counts.map(|count| count as usize);
        let mut places = [0, first, first + second];
        let mut order = vec![0; classes.len()];
        for (group, class) in classes.iter().enumerate() {
            order[places[*class]] = group;
            places[*class] += 1;
        }
        for (class, Class { places, steps }) in classes_of(counts).into_iter().enumerate() {
            let mut last = 0;
            let to = weights[places.start * bytes..].chunks_exact_mut(bytes);
            for (i, (group, to)) in order[places].iter().copied().zip(to).enumerate() {
                self.steps[steps + i / 2] |= ((group - last) << (i % 2 * 4)) as u8;
                last = group;
                let from = registers(&unsorted[group * bytes..][..bytes]);
                let registers = registers_mut(to).iter_mut().zip(from);
                for ((to, from), starts) in registers.zip(self.starts.as_chunks_mut().0) {
                    *to = *from;
                    match class {
                        0 => {}
                        1 => negate(to, starts),
                        _ => add_terms(to, starts),
                    }
                }
            }
        }
    }
}

impl<'a> Sorted<'a> {
    /// The group of inputs of each of a channel's groups, and its codes as they were.
    pub fn unsorted(
        self,
        groups: impl Iterator<Item = &'a [u8; 4]>,
    ) -> impl Iterator<Item = (usize, [u8; 4])> {
        let classes = classes_of(self.counts).into_iter().enumerate();
        let places = classes.flat_map(move |(class, Class { places, steps })| {
            (0..places.len()).map(move |i| {
                let step = self.steps[steps + i / 2] >> (i % 2 * 4) & 15;
                (class, i == 0, usize::from(step))
            })
        });
        let mut input = 0;
        places
            .zip(groups)
            .map(move |((class, is_first, step), codes)| {
                input = step + if is_first { 0 } else { input };
                (input, if class == 1 { negated(*codes) } else { *codes })
            })
    }
}

/// The groups of a class within a panel.
pub struct Class {
    pub places: Range<usize>,
    /// The first byte of the steps.
    pub steps: usize,
}

/// The classes of a panel, one after the other.
#[inline(always)]
pub fn classes_of(counts: &Counts) -> [Class; CLASSES] {
    let (mut place, mut steps) = (0, 0);
    counts.map(|count| {
        let class = Class {
            places: place..place + count as usize,
            steps,
        };
        place = class.places.end;
        steps += count.div_ceil(2) as usize;
        class
    })
}

/// Bytes of the steps of a panel.
fn step_bytes(groups: usize) -> usize {
    (groups + CLASSES).div_ceil(2)
}

/// The codes of the channels of each register.
#[inline(always)]
fn registers(codes: &[u8]) -> &[[[u8; 4]; LANES]] {
    codes.as_chunks().0.as_chunks().0
}

#[inline(always)]
fn registers_mut(codes: &mut [u8]) -> &mut [[[u8; 4]; LANES]] {
    codes.as_chunks_mut().0.as_chunks_mut().0
}

/// Moves groups that are more steps behind the one before than 4 bits count to the last class.
fn within_reach(classes: &mut [usize]) {
    const MAX: usize = 15;
    let mut last = [0; CLASSES];
    for (group, class) in classes.iter_mut().enumerate() {
        if group - last[*class] > MAX || group - last[LAST] == MAX {
            *class = LAST;
        }
        last[*class] = group;
    }
}

/// The first class that a group of all channels can be of.
#[inline(always)]
fn class_of(pairs: &[[u8; 2]]) -> usize {
    let mut out = [[0i16; 16]; LAST];
    for pairs in pairs.as_chunks::<16>().0 {
        for (i, pair) in pairs.iter().enumerate() {
            let pair = i16::from_le_bytes(*pair);
            let (first, second) = (pair << 8 >> 8, pair >> 8);
            let exceeds = -i16::from(first.abs() + second.abs() > 128);
            // All bits of the sign.
            let opposite = (first ^ second) >> 15;
            out[0][i] |= exceeds & !opposite;
            // The least code has no negative.
            out[1][i] |= exceeds & opposite | -i16::from(second == -128);
        }
    }
    let is_clear = |out: &[i16; 16]| out.iter().fold(0, |all, out| all | out) == 0;
    out.iter().position(is_clear).unwrap_or(LAST)
}

/// Turns channels' codes into what the second class stores, and adds their terms without
/// activations.
#[inline(always)]
fn negate(codes: &mut [[u8; 4]; LANES], starts: &mut [i32; LANES]) {
    let all: [_; LANES] = std::array::from_fn(|lane| i32::from_le_bytes(codes[lane]));
    for (start, all) in starts.iter_mut().zip(all) {
        *start = start.wrapping_add(255 * ((all << 16 >> 24) + (all >> 24)));
    }
    *codes = all.map(|all| negated(all.to_le_bytes()));
}

/// Adds the terms without activations of channels' codes in the last class.
#[inline(always)]
fn add_terms(codes: &[[u8; 4]; LANES], starts: &mut [i32; LANES]) {
    let all: [_; LANES] = std::array::from_fn(|lane| i32::from_le_bytes(codes[lane]));
    let term = |w: i32| (w << 7) - (w & w >> 31);
    for (start, all) in starts.iter_mut().zip(all) {
        let terms = [24, 16, 8, 0].map(|shift| term(all << shift >> 24));
        *start = start.wrapping_add(terms[0] + terms[1] + terms[2] + terms[3]);
    }
}

/// Codes with the second of each pair negated.
#[inline(always)]
fn negated(codes: [u8; 4]) -> [u8; 4] {
    let codes = u32::from_le_bytes(codes);
    let second = ((codes >> 8 & 0xff_00ff ^ 0xff_00ff) + 0x1_0001) & 0xff_00ff;
    (codes & 0xff_00ff | second << 8).to_le_bytes()
}
