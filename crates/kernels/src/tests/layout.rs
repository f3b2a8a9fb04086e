//! The layout of packed weights: panels, and where in them a weight is.

use std::panic::{AssertUnwindSafe, catch_unwind};

use half::{bf16, f16};

use super::PER_ROW;
use crate::calls::pack::{pack_codes, pack_halves};
use crate::isa::{Isa, Registers};
use crate::packed::{Element, Packed};
use crate::reference::Int8;

const INT8: Element = Element::Int8(PER_ROW);

impl<'a> Int8<'a> {
    /// Weights of these codes.
    pub fn new(codes: &'a [i8], scales: &'a [f32], zero_points: &'a [i32]) -> Self {
        Self { codes, scales, zero_points }
    }
}

/// Gates, channels of each, and inputs.
const SHAPES: [[usize; 3]; 13] = [
    [1, 0, 5],
    [1, 5, 0],
    [1, 1, 1],
    [1, 17, 9],
    [1, 64, 8],
    [1, 70, 3],
    [1, 200, 6],
    [3, 7, 4],
    [3, 33, 5],
    [4, 16, 2],
    [4, 130, 7],
    // Broken blocks of what is packed together, on several threads.
    [1, 20, 2_050],
    [2, 17, 1_027],
];

/// The parts of a weight of some shape; every channel differs from the others.
struct Parts {
    codes: Vec<i8>,
    scales: Vec<f32>,
    zero_points: Vec<i32>,
    bias: Vec<f32>,
}

impl Parts {
    fn new(n: usize, k: usize) -> Self {
        let floats = |first: f32| (0..n).map(|i| first + i as f32).collect();
        Self {
            codes: (0..n * k).map(|i| (i * 37 + i / 7) as u8 as i8).collect(),
            scales: floats(1.),
            zero_points: (0..n).map(|i| i as i32 % 255 - 128).collect(),
            bias: floats(0.5),
        }
    }

    fn int8(&self, isa: Isa, gates: usize, k: usize) -> Packed {
        let int8 = Int8::new(&self.codes, &self.scales, &self.zero_points);
        pack_codes(isa, k, gates, int8, &self.no_bias(), PER_ROW).with_bias(&self.bias)
    }

    /// A bias that another one replaces.
    fn no_bias(&self) -> Vec<f32> {
        vec![0.; self.bias.len()]
    }

    fn halves(&self) -> Vec<f16> {
        let halves = self.codes.iter().map(|code| f16::from_f32((*code).into()));
        halves.collect()
    }

    fn float16(&self, isa: Isa, gates: usize, k: usize) -> Packed {
        pack_halves(isa, k, gates, &self.halves(), &self.bias)
    }

    fn bfloats(&self) -> Vec<bf16> {
        let bfloats = self.codes.iter().map(|code| bf16::from_f32((*code).into()));
        bfloats.collect()
    }

    fn bfloat16(&self, isa: Isa, gates: usize, k: usize) -> Packed {
        pack_halves(isa, k, gates, &self.bfloats(), &self.no_bias()).with_bias(&self.bias)
    }
}

/// Every instruction set, and every shape on it.
fn cases() -> impl Iterator<Item = (Isa, [usize; 3], String)> {
    let shapes = SHAPES.into_iter().take(if cfg!(miri) { 4 } else { SHAPES.len() });
    let of = move |isa| shapes.clone().map(move |shape| (isa, shape, format!("{isa} {shape:?}")));
    Isa::available().into_iter().flat_map(of)
}

#[test]
fn channels_are_cut_into_few_wide_panels_gate_by_gate() {
    for (isa, [gates, units, k], case) in cases() {
        let Registers { lanes, panel_width, .. } = isa.registers();
        let parts = Parts::new(gates * units, k);
        for packed in [parts.int8(isa, gates, k), parts.float16(isa, gates, k)] {
            let registers = units.div_ceil(lanes);
            let of_gate = registers.div_ceil(panel_width / lanes);
            assert_eq!(packed.panels(), gates * of_gate, "{case}");
            assert_eq!((packed.n(), packed.k()), (gates * units, k), "{case}");
            assert_eq!((packed.gates(), packed.isa()), (gates, isa), "{case}");
            assert_eq!(packed.padded_n(), gates * registers * lanes, "{case}");
            for gate in 0..gates {
                let mut first = 0;
                for index in (gate..packed.panels()).step_by(gates) {
                    let (panel, width) = (packed.panel(index), packed.panel(index).sums.len());
                    assert_eq!(panel.start, gate * units + first, "{case}");
                    let padded = gate * registers * lanes + first;
                    assert_eq!(panel.padded_start, padded, "{case}");
                    // All about as wide, in whole registers.
                    let few = registers / of_gate;
                    let fits = width == few * lanes || width == (few + 1) * lanes;
                    assert!(fits && width <= panel_width, "{case}: {width}");
                    assert_eq!(panel.channels, width.min(units - first), "{case}");
                    first += width;
                }
                assert_eq!(first, registers * lanes, "{case}");
            }
            let ends = (0..packed.panels()).map(|index| packed.panel(index).weights.as_ptr_range());
            let ends: Vec<_> = ends.collect();
            assert!(ends.windows(2).all(|pair| pair[0].end == pair[1].start), "{case}");
            if let Some(first) = ends.first() {
                assert_eq!(first.start.align_offset(64), 0, "{case}");
            }
        }
    }
}

#[test]
fn a_weight_is_where_the_layout_says() {
    for (isa, [gates, units, k], case) in cases() {
        let (parts, shift) = (Parts::new(gates * units, k), isa.registers().shift);
        let [int8, float16] = [parts.int8(isa, gates, k), parts.float16(isa, gates, k)];
        let bfloat16 = parts.bfloat16(isa, gates, k);
        let (halves, bfloats) = (parts.halves(), parts.bfloats());
        // Inputs of bfloat16 that are stored together, and their order.
        let (together, order) =
            if bfloat16.alternates() { (4, &[1, 3, 0, 2][..]) } else { (2, &[0, 1][..]) };
        assert_eq!(
            (int8.groups(), float16.groups(), bfloat16.groups()),
            (k.div_ceil(4), k, k.next_multiple_of(together) / 2),
            "{case}"
        );
        for index in 0..int8.panels() {
            let pairs = bfloat16.panel(index);
            assert_eq!(
                pairs.weights.len(),
                k.next_multiple_of(together) * pairs.sums.len() * 2,
                "{case}"
            );
            for input in 0..k.next_multiple_of(together) {
                for lane in 0..pairs.sums.len() {
                    let there = input < k && lane < pairs.channels;
                    let value = there.then(|| bfloats[(pairs.start + lane) * k + input]);
                    let expected = value.map_or([0; 2], |value| value.to_le_bytes());
                    let group = input / together * pairs.sums.len() + lane;
                    let at = (group * together + order[input % together]) * 2;
                    assert_eq!(pairs.weights[at..at + 2], expected, "{case}: {lane} {input}");
                }
            }
            assert!(pairs.zero_points.is_empty() && pairs.bias == int8.panel(index).bias);
            let (panel, of_half) = (int8.panel(index), float16.panel(index));
            let width = panel.sums.len();
            assert_eq!(panel.weights.len(), k.div_ceil(4) * width * 4, "{case}");
            assert_eq!(of_half.weights.len(), k * width * 2, "{case}");
            for lane in 0..width {
                let channel = (lane < panel.channels).then_some(panel.start + lane);
                let zero = channel.map_or(0, |channel| parts.zero_points[channel]);
                for input in 0..k.next_multiple_of(4) {
                    let code = channel.filter(|_| input < k).map(|c| parts.codes[c * k + input]);
                    let expected = code.map_or(0, |code| code.cast_unsigned().wrapping_add(shift));
                    let at = (input / 4 * width + lane) * 4 + input % 4;
                    assert_eq!(panel.weights[at], expected, "{case}: {lane} {input}");
                    if let (Some(channel), true) = (channel, input < k) {
                        let at = (input * width + lane) * 2;
                        let bytes = halves[channel * k + input].to_le_bytes();
                        assert_eq!(of_half.weights[at..at + 2], bytes, "{case}");
                    }
                }
                let Some(channel) = channel else {
                    let padding = (panel.sums[lane], panel.scales[lane], panel.bias[lane]);
                    assert_eq!(padding, (0, 0., 0.), "{case}");
                    continue;
                };
                let codes = parts.codes[channel * k..][..k].iter();
                let sum: i32 = codes.map(|code| i32::from(*code) - zero).sum();
                assert_eq!(panel.sums[lane], sum, "{case}");
                assert_eq!(panel.scales[lane], parts.scales[channel], "{case}");
                assert_eq!(of_half.scales[lane], 1., "{case}");
                let bias = parts.bias[channel];
                assert_eq!((panel.bias[lane], of_half.bias[lane]), (bias, bias), "{case}");
                let shifted = panel.zero_points.get(lane).map_or(0, |zero| *zero);
                assert_eq!(shifted, zero + i32::from(shift), "{case}");
            }
            assert!(of_half.zero_points.is_empty(), "{case}");
        }
    }
}

#[test]
fn channels_and_all_weights_are_read_back_in_order() {
    for (isa, [gates, units, k], case) in cases() {
        let parts = Parts::new(gates * units, k);
        let [int8, float16] = [parts.int8(isa, gates, k), parts.float16(isa, gates, k)];
        let (halves, bfloats) = (parts.halves(), parts.bfloats());
        assert_eq!((int8.codes(), int8.halves()), (parts.codes.clone(), Vec::new()), "{case}");
        assert_eq!((float16.codes(), float16.halves()), (Vec::new(), halves.clone()), "{case}");
        let bfloat16 = parts.bfloat16(isa, gates, k);
        assert_eq!(bfloat16.bfloats(), bfloats, "{case}");
        assert!(bfloat16.codes().is_empty() && bfloat16.halves().is_empty());
        assert!(int8.bfloats().is_empty() && float16.bfloats().is_empty());
        for channel in 0..gates * units {
            let (of_int8, of_half) = (int8.channel(channel), float16.channel(channel));
            assert_eq!((of_int8.element, of_half.element), (INT8, Element::Float16));
            let (scale, zero) = (parts.scales[channel], parts.zero_points[channel]);
            assert_eq!((int8.scale(channel), int8.zero_point(channel)), (scale, zero), "{case}");
            let affine = of_int8.affine();
            assert_eq!((affine.shift, affine.scale), (zero + 128, scale), "{case}");
            assert_eq!(affine.offset, 0., "{case}");
            let row = &parts.codes[channel * k..][..k];
            for first in (0..k).step_by(4) {
                let mut codes = [[0; 4]; 2];
                let groups = (k - first).div_ceil(4).min(2);
                of_int8.codes(first, &mut codes[..groups]);
                let expected = row[first..].iter().map(|code| code.cast_unsigned() ^ 128);
                assert!(expected.zip(codes.as_flattened()).all(|(a, b)| a == *b), "{case}");
                let (of_bfloat, rest) = (bfloat16.channel(channel), channel * k + first..);
                let got = of_bfloat.halves(first..k).map(bf16::from_le_bytes);
                assert!(got.eq(bfloats[rest.clone()][..k - first].iter().copied()), "{case}");
                let got = of_half.halves(first..k).map(f16::from_le_bytes);
                assert!(got.eq(halves[rest][..k - first].iter().copied()), "{case}");
            }
        }
        // Where a panic does not end the process.
        if cfg!(panic = "unwind") {
            let one_more = catch_unwind(AssertUnwindSafe(|| int8.channel(gates * units)));
            assert!(one_more.is_err(), "{case}");
        }
    }
}

#[test]
fn sizes_and_zero_points_are_those_in_memory() {
    for (isa, [gates, units, k], case) in cases() {
        let mut parts = Parts::new(gates * units, k);
        let int8 = parts.int8(isa, gates, k);
        let padded = int8.padded_n();
        // Weights begin at a cache line; sums, scales and zero points have four bytes each.
        let weights = k.next_multiple_of(4) * padded + 64;
        let shift = i32::from(isa.registers().shift);
        let some = parts.zero_points.iter().any(|zero| zero + shift != 0);
        assert_eq!(int8.has_zero_points(), some, "{case}");
        let arrays = if some { 3 } else { 2 };
        assert_eq!(int8.bytes(), weights + arrays * 4 * padded, "{case}");
        let float16 = parts.float16(isa, gates, k);
        assert_eq!(float16.bytes(), 2 * k * padded + 64 + 2 * 4 * padded, "{case}");
        assert!(!float16.has_zero_points(), "{case}");

        parts.zero_points.fill(-shift);
        let symmetric = parts.int8(isa, gates, k);
        assert!(!symmetric.has_zero_points(), "{case}");
        for channel in 0..gates * units {
            assert_eq!(symmetric.zero_point(channel), -shift, "{case}");
        }
    }
}

#[test]
fn a_register_has_the_parameters_of_its_channels() {
    // Portable registers have 8 lanes.
    let isa = Isa::available()[0];
    for zero in [0, 5] {
        let mut parts = Parts::new(16, 6);
        parts.zero_points.fill(zero);
        let packed = parts.int8(isa, 1, 6);
        let panel = packed.panel(0);
        let groups = panel.groups::<32, 2>();
        assert_eq!(groups.len(), 2);
        assert_eq!(groups.as_flattened().as_flattened(), panel.weights);
        let both = panel.channels::<8, 2>(0);
        let second = panel.channels::<8, 1>(8);
        for (lane, register) in [(0, both[0]), (8, both[1]), (8, second[0])] {
            assert_eq!(register.sums[..], panel.sums[lane..lane + 8]);
            assert_eq!(register.scales[..], parts.scales[lane..lane + 8]);
            assert_eq!(register.bias[..], parts.bias[lane..lane + 8]);
            assert_eq!(register.zero_points.copied(), (zero != 0).then_some([zero; 8]));
        }
    }
}

#[test]
fn groups_are_put_at_their_lanes() {
    let isa = Isa::available()[0];
    // Three groups of 13 channels; a register has 8.
    let rows: [[[u8; 4]; 3]; 8] =
        std::array::from_fn(|lane| std::array::from_fn(|group| [1 + (lane * 3 + group) as u8; 4]));
    for (lane, first, groups) in [(0, 0, 2), (0, 1, 3), (8, 0, 3), (8, 2, 1)] {
        let mut packed = Packed::zeros(isa, INT8, 20, 1, &[0.; 13]);
        let mut panel = packed.panels_mut().next().expect("a panel");
        let rows_of_groups = rows.each_ref().map(|row| &row[..groups]);
        panel.put(lane, first, rows_of_groups);
        let panel = packed.panel(0);
        for (place, got) in panel.weights.as_chunks::<4>().0.iter().enumerate() {
            let (group, at) = (place / 16, place % 16);
            let written =
                (first..first + groups).contains(&group) && (lane..13.min(lane + 8)).contains(&at);
            let expected = if written { rows[at - lane][group - first] } else { [0; 4] };
            assert_eq!(*got, expected, "{lane} {first} {groups}: {group} {at}");
        }
    }
}

#[test]
fn every_other_pass_begins_with_the_last_panel() {
    let packed = Parts::new(4, 4).int8(Isa::available()[0], 1, 4);
    assert_eq!([(); 4].map(|()| packed.turn()), [false, true, false, true]);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn tiles_read_a_panel_and_all_behind_it() {
    for (isa, [gates, units, k], case) in cases() {
        let packed = Parts::new(gates * units, k).int8(isa, gates, k);
        let panels = (0..packed.panels()).map(|index| packed.panel(index).weights.len());
        let mut behind: usize = panels.sum();
        for index in 0..packed.panels() {
            let weights = packed.panel(index).weights;
            let from = packed.weights_from(index);
            assert_eq!(from.as_ptr(), weights.as_ptr(), "{case}");
            assert!(from.len() >= behind, "{case}");
            behind -= weights.len();
        }
    }
}

#[test]
#[cfg_attr(panic = "abort", ignore = "a panic ends the process")]
fn weights_of_another_type_and_gates_that_do_not_divide_are_refused() {
    let isa = Isa::available()[0];
    let refused = |f: &dyn Fn()| catch_unwind(AssertUnwindSafe(f)).is_err();
    for [own, other] in [[INT8, Element::Float16], [Element::Float16, INT8]] {
        let packed = Packed::zeros(isa, own, 4, 1, &[0.; 4]);
        packed.check_element(own);
        assert!(refused(&|| packed.check_element(other)));
        for (k, gates) in [(4, 0), (4, 3), (4, 5), (usize::MAX / 2, 1)] {
            let zeros = || Packed::zeros(isa, own, k, gates, &[0.; 4]);
            assert!(refused(&|| drop(zeros())));
        }
    }
}
