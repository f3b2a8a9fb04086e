//! Convolutions of floats: blocks of outputs, each by the matrix of its windows or, for few output
//! channels, by sums of shifted rows.

use std::cell::Cell;
use std::ops::Range;

use gemm::Parallelism;

use super::geometry::Convolution;
use crate::arch::op::{Activate, ops};
use crate::calls::linear::SERIAL_MACS;
use crate::isa::Isa;
use crate::loops::buffer::{self, Aligned, as_uninit};
use crate::loops::product::Sink;
use crate::sizes;
use crate::threads::{TASKS_PER_THREAD, Threads};

/// Floats of a block's windows: half of a small L2.
const WINDOWS: usize = 64 << 10;

/// Outputs of a block of windows, at least and at most.
const OUTPUTS: [usize; 2] = [32, 1 << 10];

/// Outputs of a block of shifted rows, which stay in L1.
const SHIFTED_OUTPUTS: usize = 4 << 10;

/// Output channels whose results are held together.
const CHANNELS: usize = 64;

/// Output channels of a group below which a matrix of windows is read too seldom.
const FEW: usize = 8;

/// Outputs that are summed together, in registers.
const LANES: usize = 64;

/// A float weight, group by group of channels: `[out channels, in channels * taps]`.
#[derive(Clone, Copy)]
pub struct FloatWeight<'a> {
    /// The weights.
    pub values: &'a [f32],
    /// Whether each group is `[in channels * taps, out channels]`.
    pub transposed: bool,
    /// Added to the results of each output channel; empty for none.
    pub bias: &'a [f32],
    /// The output channels of all groups.
    pub channels: usize,
}

/// The convolution of `xs`, `[batch, channels, height, width]`: `[batch, out channels, height,
/// width]` of the [output](Convolution::out_size).
///
/// # Panics
/// If the number of values, weights or biases differs from the sizes, or a window does not fit.
pub fn convolve_f32(
    isa: Isa,
    convolution: &Convolution,
    weight: FloatWeight<'_>,
    xs: &[f32],
) -> Vec<f32> {
    let Convolution { shape, groups, .. } = *convolution;
    sizes::check("xs, [batch, channels, height, width]", xs, &shape);
    let channels = [shape[1], weight.channels];
    assert!(
        groups > 0 && channels.iter().all(|count| count.is_multiple_of(groups)),
        "groups: {groups} does not divide {channels:?} channels"
    );
    let terms = channels[0] / groups * convolution.kernel.iter().product::<usize>();
    sizes::check("weight", weight.values, &[weight.channels, terms]);
    if !weight.bias.is_empty() {
        sizes::check("bias, [out channels]", weight.bias, &[weight.channels]);
    }
    let size = convolution.out_size().expect("an output");
    let len = sizes::length("out", &[shape[0], weight.channels, size[0], size[1]]);
    let work = len.saturating_mul(terms);
    let threads = Threads::of_caller().for_multiply_adds(work);
    let count = threads.for_work(work, SERIAL_MACS);
    let blocks = Blocks::new(convolution, weight, size, count);
    // SAFETY: each block writes its elements, and together they are all.
    unsafe {
        buffer::filled(len, |out| {
            if len > 0 {
                let out = Sink::channels(out, size[0] * size[1]);
                threads.spread(count, blocks.count(), |index| {
                    blocks.compute(index, isa, xs, out);
                });
            }
        })
    }
}

thread_local! {
    static ROOM: Cell<Aligned> = Cell::default();
}

/// The blocks of an output: of a sample, some channels of a group, and rows and columns that lie one
/// behind the other.
struct Blocks<'a> {
    convolution: &'a Convolution,
    weight: FloatWeight<'a>,
    /// Height and width of the output.
    size: [usize; 2],
    /// Input and output channels of a group.
    channels: [usize; 2],
    /// Rows and columns of a block.
    block: [usize; 2],
    /// Blocks of the output channels of a group.
    parts: usize,
}

impl<'a> Blocks<'a> {
    fn new(
        convolution: &'a Convolution,
        weight: FloatWeight<'a>,
        size: [usize; 2],
        threads: usize,
    ) -> Self {
        let Convolution {
            shape,
            groups,
            kernel,
            stride,
            ..
        } = *convolution;
        let channels = [shape[1] / groups, weight.channels / groups];
        let (inputs, least, most) = if channels[1] < FEW {
            (stride, LANES, SHIFTED_OUTPUTS)
        } else {
            (kernel, OUTPUTS[0], OUTPUTS[1])
        };
        let inputs = channels[0].saturating_mul(inputs[0].saturating_mul(inputs[1]));
        let outputs = (WINDOWS / inputs.max(1)).clamp(least, most);
        let rows = (outputs / size[1].max(1)).clamp(1, size[0].max(1));
        let mut blocks = Self {
            convolution,
            weight,
            size,
            channels,
            block: [rows, size[1].min(outputs).max(1)],
            parts: 1,
        };
        if threads > 1 && channels[1] >= FEW {
            // Each part makes the matrix of windows anew.
            let tasks = blocks.count().max(1);
            let for_all = threads.div_ceil(tasks).min(channels[1] / (2 * FEW));
            let wanted = (TASKS_PER_THREAD * threads).div_ceil(tasks);
            blocks.parts = wanted.min(channels[1] / CHANNELS).max(for_all).max(1);
        }
        blocks
    }

    /// Blocks along the height and the width.
    fn grid(&self) -> [usize; 2] {
        [0, 1].map(|axis| self.size[axis].div_ceil(self.block[axis]))
    }

    fn count(&self) -> usize {
        let [down, across] = self.grid();
        self.convolution.shape[0] * self.convolution.groups * self.parts * down * across
    }

    /// Computes a block.
    ///
    /// # Safety
    /// No other thread computes it.
    unsafe fn compute(&self, index: usize, isa: Isa, xs: &[f32], out: Sink<'_>) {
        let [down, across] = self.grid();
        let (part, index) = (index % self.parts, index / self.parts);
        let (x, index) = (index % across, index / across);
        let (y, index) = (index % down, index / down);
        let range = |axis: usize, at: usize| {
            let first = at * self.block[axis];
            first..self.size[axis].min(first + self.block[axis])
        };
        let place = [range(0, y), range(1, x)];
        // Groups of all samples: `index` counts them.
        let [inputs, outputs] = self.channels;
        let area: usize = self.convolution.shape[2..].iter().product();
        let xs = &xs[index * inputs * area..][..inputs * area];
        let group = index % self.convolution.groups;
        let channels = outputs * part / self.parts..outputs * (part + 1) / self.parts;
        let mut room = Aligned::take(&ROOM);
        let write = |channel: usize, row: usize, results: &mut [f32]| {
            if let Some(activation) = self.convolution.activation {
                isa.run(Activate {
                    activation,
                    xs: results,
                });
            }
            let channel = index * outputs + channel;
            let first = (place[0].start + row) * self.size[1] + place[1].start;
            // SAFETY: these channels of these outputs are in this block alone, and one row is there.
            unsafe {
                let mut row = out.rows(channel..channel + 1, first..first + results.len());
                row.row(0).copy_from_slice(as_uninit(results));
            }
        };
        if outputs < FEW {
            self.shifted(&mut room, isa, group, xs, &place, write);
        } else {
            self.windows(&mut room, group, xs, (&place, channels), write);
        }
        room.keep(&ROOM);
    }

    /// The bias of an output channel of a group.
    fn bias(&self, group: usize, channel: usize) -> f32 {
        let bias = self.weight.bias.get(group * self.channels[1] + channel);
        bias.copied().unwrap_or(0.)
    }

    /// Multiplies the weights of some channels by the matrix of windows.
    fn windows(
        &self,
        room: &mut Aligned,
        group: usize,
        xs: &[f32],
        (place, channels): (&[Range<usize>; 2], Range<usize>),
        mut write: impl FnMut(usize, usize, &mut [f32]),
    ) {
        let Convolution {
            shape,
            kernel,
            stride,
            padding,
            ..
        } = *self.convolution;
        let area = shape[2] * shape[3];
        let outputs = place[0].len() * place[1].len();
        let terms = self.channels[0] * kernel[0] * kernel[1];
        let is_plain = [kernel, stride, padding] == [[1, 1], [1, 1], [0, 0]];
        let windows = if is_plain { 0 } else { terms * outputs };
        let [matrix, results] = room.split([windows, CHANNELS * outputs]);
        let (matrix, stride) = if is_plain {
            let first = place[0].start * shape[3] + place[1].start;
            (xs.get(first..).unwrap_or_default(), area)
        } else {
            self.fill(xs, place, matrix);
            (&*matrix, outputs)
        };
        let of_group = self.channels[1] * terms;
        let weights = &self.weight.values[group * of_group..][..of_group];
        let (across, down) = if self.weight.transposed {
            (self.channels[1], 1)
        } else {
            (1, terms)
        };
        for first in channels.clone().step_by(CHANNELS) {
            let count = CHANNELS.min(channels.end - first);
            let results = &mut results[..count * outputs];
            for (channel, results) in results.chunks_exact_mut(outputs).enumerate() {
                results.fill(self.bias(group, first + channel));
            }
            if terms > 0 {
                // The last elements that the product reads.
                _ = weights[(first + count - 1) * down + (terms - 1) * across];
                _ = matrix[(terms - 1) * stride + outputs - 1];
                // SAFETY: the strides lead from the first elements to these last ones at most, and
                // the results are `[count, outputs]`.
                unsafe {
                    gemm::gemm(
                        count,
                        outputs,
                        terms,
                        results.as_mut_ptr(),
                        1,
                        outputs as isize,
                        true,
                        weights[first * down..].as_ptr(),
                        across as isize,
                        down as isize,
                        matrix.as_ptr(),
                        1,
                        stride as isize,
                        1.,
                        1.,
                        false,
                        false,
                        false,
                        Parallelism::None,
                    );
                }
            }
            for (channel, results) in results.chunks_exact_mut(outputs).enumerate() {
                write(first + channel, 0, results);
            }
        }
    }

    /// The matrix of windows, `[in channels, taps, rows, columns]`.
    fn fill(&self, xs: &[f32], [rows, columns]: &[Range<usize>; 2], matrix: &mut [f32]) {
        let Convolution {
            kernel,
            stride,
            dilation,
            ..
        } = *self.convolution;
        let taps = (0..kernel[0]).flat_map(|y| (0..kernel[1]).map(move |x| (y, x)));
        let channels = (0..self.channels[0]).flat_map(|channel| {
            let tap = move |(y, x)| (channel, y, x);
            taps.clone().map(tap)
        });
        let mut lines = matrix.chunks_exact_mut(columns.len());
        for (channel, tap_y, tap_x) in channels {
            let x = columns.start * stride[1] + tap_x * dilation[1];
            for (y, line) in rows.clone().zip(&mut lines) {
                let y = y * stride[0] + tap_y * dilation[0];
                self.read(xs, channel, [y, x], line);
            }
        }
    }

    /// Reads positions of a channel, from one of the input with its padding on, in strides.
    fn read(&self, xs: &[f32], channel: usize, [y, x]: [usize; 2], to: &mut [f32]) {
        let Convolution {
            shape: [_, _, height, width],
            stride: [_, step],
            padding: [top, left],
            ..
        } = *self.convolution;
        let Some(y) = y.checked_sub(top).filter(|y| *y < height) else {
            return to.fill(0.);
        };
        let row = &xs[(channel * height + y) * width..][..width];
        let before = left.saturating_sub(x).div_ceil(step).min(to.len());
        let first = (x + before * step).saturating_sub(left);
        let inside = width.saturating_sub(first).div_ceil(step);
        let (padding, to) = to.split_at_mut(before);
        padding.fill(0.);
        let (to, padding) = to.split_at_mut(inside.min(to.len()));
        padding.fill(0.);
        if step == 1 {
            return to.copy_from_slice(row.get(first..first + to.len()).unwrap_or_default());
        }
        for (to, x) in to.iter_mut().zip(row.iter().skip(first).step_by(step)) {
            *to = *x;
        }
    }

    /// Adds the rows of the input, shifted by taps, for each output channel of a group.
    ///
    /// Of each channel, every `stride`-th position is a plane, so that successive outputs read
    /// successive positions of one, and rows follow one another.
    fn shifted(
        &self,
        room: &mut Aligned,
        isa: Isa,
        group: usize,
        xs: &[f32],
        [rows, columns]: &[Range<usize>; 2],
        mut write: impl FnMut(usize, usize, &mut [f32]),
    ) {
        let Convolution {
            kernel,
            stride,
            dilation,
            ..
        } = *self.convolution;
        let reach = [0, 1].map(|axis| (kernel[axis] - 1) * dilation[axis]);
        let phases = [0, 1].map(|axis| stride[axis].min(reach[axis] + 1));
        let height = rows.len() + reach[0] / stride[0];
        let width = columns.len() + reach[1] / stride[1];
        let [inputs, outputs] = self.channels;
        let planes = inputs * phases[0] * phases[1];
        let sums = ((rows.len() - 1) * width + columns.len()).next_multiple_of(LANES);
        let terms = inputs * kernel[0] * kernel[1];
        let [all, results, weights] = room.split([planes * height * width + LANES, sums, terms]);
        for (index, line) in all[..planes * height * width]
            .chunks_exact_mut(width)
            .enumerate()
        {
            let (plane, y) = (index / height, index % height);
            let (plane, x) = (plane / phases[1], plane % phases[1]);
            let (channel, phase) = (plane / phases[0], plane % phases[0]);
            let y = (rows.start + y) * stride[0] + phase;
            self.read(xs, channel, [y, columns.start * stride[1] + x], line);
        }
        let offset = |term: usize| {
            let (channel, tap) = (term / kernel[1] / kernel[0], term / kernel[1] % kernel[0]);
            let [y, x] = [tap * dilation[0], term % kernel[1] * dilation[1]];
            let plane = channel * phases[0] + y % stride[0];
            let plane = plane * phases[1] + x % stride[1];
            (plane * height + y / stride[0]) * width + x / stride[1]
        };
        let offsets: Vec<usize> = (0..terms).map(offset).collect();
        for channel in 0..outputs {
            let of_group = &self.weight.values[group * outputs * terms..][..outputs * terms];
            let (first, step) = if self.weight.transposed {
                (channel, outputs)
            } else {
                (channel * terms, 1)
            };
            let values = of_group[first..].iter().step_by(step);
            weights
                .iter_mut()
                .zip(values)
                .for_each(|(to, weight)| *to = *weight);
            isa.run(add_shifted(
                weights,
                &offsets,
                all,
                self.bias(group, channel),
                results,
            ));
            for row in 0..rows.len() {
                write(channel, row, &mut results[row * width..][..columns.len()]);
            }
        }
    }
}

ops! {
    /// The bias and products of weights and floats, each `offset` behind its result.
    fn add_shifted(
        weights: &'a [f32],
        offsets: &'a [usize],
        xs: &'a [f32],
        bias: f32,
        results: &'a mut [f32],
    ) {
        for (block, results) in results.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let xs = &xs[block * LANES..];
            let mut sums = [bias; LANES];
            for (weight, offset) in weights.iter().zip(offsets) {
                if let Some(xs) = xs[*offset..].first_chunk() {
                    sums = N::fma_each([*weight; LANES], *xs, sums);
                }
            }
            *results = sums;
        }
    }
}
