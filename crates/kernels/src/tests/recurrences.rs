//! All steps of a layer at once against steps one by one.

use std::ops::Range;

use half::{bf16, f16};

use super::random::Random;
use super::{Codes, Int8Weights, PER_ROW, PER_TENSOR, blocks, of, same_bits, some};
use crate::calls::linear::linear;
use crate::calls::pack::pack_halves;
use crate::calls::recurrent::{Recurrence, Step, recur, update_state};
use crate::isa::Isa;
use crate::loops::gates::Gates;
use crate::packed::Packed;
use crate::qparams::blocks::Blocks;

/// Steps with the given numbers of rows, forwards or backwards.
fn steps_of(active: &[usize], reverse: bool) -> Vec<Range<usize>> {
    let mut end = 0;
    let steps = active.iter().map(|active| {
        end += active;
        end - active..end
    });
    let mut steps: Vec<_> = steps.collect();
    if reverse {
        steps.reverse();
    }
    steps
}

/// The states that a recurrence replaces, and its outputs.
#[derive(Clone)]
struct States {
    h: Vec<f32>,
    c: Vec<f32>,
    hs: Vec<f32>,
    cs: Vec<f32>,
}

impl States {
    fn new(gates: Gates, state: &[f32], len: usize) -> Self {
        let if_c = |len: usize| if gates == Gates::Lstm { len } else { 0 };
        Self {
            h: state.to_vec(),
            c: state[..if_c(state.len())].to_vec(),
            hs: vec![0.; len],
            cs: vec![0.; if_c(len)],
        }
    }

    fn recurrence<'a>(
        &'a mut self,
        gates: Gates,
        steps: &'a [Range<usize>],
        weights: [&'a Packed; 2],
    ) -> Recurrence<'a> {
        Recurrence {
            gates,
            steps,
            weights,
            h: &mut self.h,
            c: &mut self.c,
            hs: &mut self.hs,
            cs: &mut self.cs,
        }
    }

    /// These steps by a product of the whole input, and a product and an update of the state
    /// for each step.
    fn one_by_one(
        &mut self,
        (isa, gates): (Isa, Gates),
        steps: &[Range<usize>],
        ih: &[f32],
        mut product: impl FnMut(&[f32], usize) -> Vec<f32>,
    ) {
        let rows = steps.iter().map(|rows| rows.end).max().unwrap_or(0);
        let n = ih.len().checked_div(rows).unwrap_or(0);
        let k = n / gates.count();
        for rows in steps {
            let active = rows.len();
            let h = &mut self.h[..active * k];
            let c = match gates {
                Gates::Lstm => &mut self.c[..active * k],
                _ => &mut [],
            };
            let hh = product(h, active);
            let step =
                Step { ih: &ih[rows.start * n..rows.end * n], hh: &hh, h: &mut *h, c: &mut *c };
            update_state(isa, gates, k, step);
            self.hs[rows.start * k..rows.end * k].copy_from_slice(h);
            if !self.cs.is_empty() {
                self.cs[rows.start * k..rows.end * k].copy_from_slice(c);
            }
        }
    }

    fn same(&self, expected: &Self, case: &str) {
        for (got, expected) in [
            (&self.h, &expected.h),
            (&self.c, &expected.c),
            (&self.hs, &expected.hs),
            (&self.cs, &expected.cs),
        ] {
            same_bits(got, expected, case);
        }
    }
}

/// Weights of gates, `[n, k]`, in every format.
struct Weights {
    int8: Int8Weights,
    halves: Vec<f16>,
    bfloats: Vec<bf16>,
    blocks: blocks::Weight,
}

impl Weights {
    fn new(n: usize, k: usize, random: &mut Random) -> Self {
        let codes = [Codes::Uniform, Codes::Heaped][n % 3 % 2];
        let mut int8 = Int8Weights::new(codes, n, k, random);
        int8.scales.fill(0.01);
        int8.zero_points = (0..n).map(|i| (i % 3) as i32 - 1).collect();
        let floats = int8.codes.iter().map(|code| f32::from(*code) * 0.01);
        Self {
            halves: floats.clone().map(f16::from_f32).collect(),
            bfloats: floats.map(bf16::from_f32).collect(),
            blocks: blocks::Weight::new(Blocks::Int4, n, k, random),
            int8,
        }
    }
}

#[test]
fn steps_together_equal_steps_one_by_one() {
    let mut random = Random(23);
    let actives: [&[usize]; 7] =
        [&[], &[1; 5], &[2, 2, 1], &[1, 3, 4], &[9, 9, 5, 1], &[40, 40], &[3, 3, 0]];
    let sizes = [(3, 1), (9, 5), (1, 16), (20, 100), (0, 130), (7, 390)];
    let cases = sizes.into_iter().flat_map(|(inputs, k)| actives.map(|active| (inputs, k, active)));
    let cases: Vec<_> = some(cases, &[9]).collect();
    // Each with whether all instruction sets give the same bits. If so, the fastest one computes
    // the expected result.
    type Pack = fn(&Weights, Isa, usize) -> Packed;
    let formats: [(_, Pack, _); 5] = [
        ("per row", |all, isa, gates| all.int8.packed(isa, gates, PER_ROW), true),
        ("per tensor", |all, isa, gates| all.int8.packed(isa, gates, PER_TENSOR), true),
        (
            "float16",
            |Weights { int8, halves, .. }, isa, gates| {
                pack_halves(isa, int8.k, gates, halves, &int8.bias)
            },
            true,
        ),
        ("blocks", |all, isa, gates| all.blocks.packed(isa, gates), true),
        (
            "bfloat16",
            |Weights { int8, bfloats, .. }, isa, gates| {
                pack_halves(isa, int8.k, gates, bfloats, &int8.bias)
            },
            false,
        ),
    ];
    // More products of the input than are computed at once, where there are four gates.
    let long: [(_, _, &[usize]); 2] = [(7, 130, &[70; 8]), (3, 130, &[1; 520])];
    for gates in [Gates::Lstm, Gates::Gru, Gates::Tanh, Gates::Relu] {
        let long = match gates {
            Gates::Lstm if !cfg!(miri) => &long[..],
            _ => &[],
        };
        for (inputs, k, active) in cases.iter().chain(long).copied() {
            let (n, m) = (gates.count() * k, active.iter().sum::<usize>());
            let batch = active.iter().copied().max().unwrap_or(0);
            let [ih, hh] = [inputs, k].map(|k| Weights::new(n, k, &mut random));
            let xs = random.floats(m * inputs);
            // One more sequence, of no steps.
            let state = random.floats((batch + 1) * k);
            let before = States::new(gates, &state, m * k);
            let steps = [false, true].map(|reverse| steps_of(active, reverse));
            for (format, pack, anywhere) in formats {
                let mut known = None;
                for isa in Isa::available().into_iter().rev() {
                    let [ih, hh] = [&ih, &hh].map(|weights| pack(weights, isa, gates.count()));
                    let mut got = [before.clone(), before.clone()];
                    let directions = got.iter_mut().zip(&steps);
                    let directions =
                        directions.map(|(got, steps)| got.recurrence(gates, steps, [&ih, &hh]));
                    recur(&xs, directions.collect());
                    let one_by_one = || {
                        let ih = linear(of(&xs, m, &ih));
                        steps.each_ref().map(|steps| {
                            let product = |h: &[f32], m| linear(of(h, m, &hh));
                            let mut states = before.clone();
                            states.one_by_one((isa, gates), steps, &ih, product);
                            states
                        })
                    };
                    let expected = known.take().filter(|_| anywhere).unwrap_or_else(one_by_one);
                    for ((got, expected), steps) in got.iter().zip(&expected).zip(&steps) {
                        let case = format!("{isa} {gates:?} {inputs} {k} {steps:?} {format}");
                        got.same(expected, &case);
                    }
                    known = Some(expected);
                }
            }
        }
    }
}

/// The input is encoded anew for a direction whose weights ask for other codes.
#[test]
fn directions_of_other_ranges_give_what_each_gives_alone() {
    let (gates, inputs, k) = (Gates::Gru, 9, 20);
    let mut random = Random(31);
    let n = gates.count() * k;
    let [wide, mut narrow] = [(); 2].map(|()| Weights::new(n, inputs, &mut random).int8);
    narrow.codes.iter_mut().for_each(|code| *code /= 2);
    let hh = Weights::new(n, k, &mut random).int8;
    let (steps, xs) = (steps_of(&[2, 2, 1], false), [0.5, -1.5, 2.].repeat(5 * inputs / 3));
    let before = States::new(gates, &[0.25; 40], 5 * k);
    for isa in Isa::available() {
        let [wide, narrow, hh] =
            [&wide, &narrow, &hh].map(|weights| weights.packed(isa, gates.count(), PER_ROW));
        let directions = [&wide, &narrow, &wide];
        let mut together = [before.clone(), before.clone(), before.clone()];
        let recurrences = together.iter_mut().zip(directions);
        let recurrences =
            recurrences.map(|(states, ih)| states.recurrence(gates, &steps, [ih, &hh]));
        recur(&xs, recurrences.collect());
        for (got, ih) in together.iter().zip(directions) {
            let mut alone = before.clone();
            recur(&xs, vec![alone.recurrence(gates, &steps, [ih, &hh])]);
            got.same(&alone, &isa.to_string());
        }
    }
}
