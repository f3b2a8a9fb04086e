//! Convolutions of floats: products of the weights and the input, shifted by each tap.
//!
//! Every `stride`-th position of a channel is a plane, with its padding, so that successive outputs
//! read successive positions, and rows follow one another. A tap is an offset into the planes: no
//! matrix of windows is made. Results at the ends of rows, of windows over two rows, are left out.

use std::cell::Cell;
use std::hint::black_box;
use std::ops::Range;
use std::slice::ChunksMut;

use super::geometry::Convolution;
use crate::arch::op::Activate;
use crate::calls::linear::SERIAL_MACS;
use crate::isa::Isa;
use crate::loops::buffer::{self, Aligned, as_uninit};
use crate::loops::float_tile::{COLUMNS, Left, Right};
use crate::loops::product::Sink;
use crate::sizes;
use crate::threads::Threads;

/// Floats of the planes, and of the results, of a block: each a quarter of a small L2.
const FLOATS: usize = 64 << 10;

/// Outputs of a block, at least and at most.
const OUTPUTS: [usize; 2] = [64, 4 << 10];

/// Output channels of a part that is worth planes of its own.
const MIN_CHANNELS: usize = 16;

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
/// width]` of the [output](Convolution::out_size), plus the residual, of the same shape.
///
/// # Panics
/// If the number of values, weights, biases or residuals differs from the sizes, or a window does
/// not fit.
pub fn convolve_f32(
    isa: Isa,
    convolution: &Convolution,
    weight: FloatWeight<'_>,
    xs: &[f32],
    residual: Option<&[f32]>,
) -> Vec<f32> {
    let Convolution { shape, groups, .. } = *convolution;
    sizes::check("xs, [batch, channels, height, width]", xs, &shape);
    let mut plain = *convolution;
    let convolution = if [plain.kernel, plain.stride, plain.padding] == [[1, 1], [1, 1], [0, 0]] {
        let [batch, channels, height, width] = shape;
        // Without windows, an image is a signal.
        plain.shape = [batch, channels, 1, height * width];
        &plain
    } else {
        convolution
    };
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
    if let Some(residual) = residual {
        sizes::check("residual, [batch, out channels, height, width]", residual, &[len]);
    }
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
                    blocks.compute(index, isa, (xs, residual), out);
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
        let Convolution { shape, groups, stride, .. } = *convolution;
        let channels = [shape[1] / groups, weight.channels / groups];
        let positions = channels[0].saturating_mul(stride[0].saturating_mul(stride[1]));
        let outputs = (FLOATS / positions.max(1)).clamp(OUTPUTS[0], OUTPUTS[1]);
        let rows = (outputs / size[1].max(1)).clamp(1, size[0].max(1));
        let mut blocks = Self {
            convolution,
            weight,
            size,
            channels,
            // All about equally high.
            block: [
                size[0].div_ceil(size[0].div_ceil(rows).max(1)).max(1),
                size[1].min(outputs).max(1),
            ],
            parts: 1,
        };
        // Each part makes planes anew: no more than each thread needs.
        let wanted = threads.div_ceil(blocks.count().max(1));
        blocks.parts = wanted.min(channels[1] / MIN_CHANNELS).max(1);
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
    unsafe fn compute(
        &self,
        index: usize,
        isa: Isa,
        (xs, residual): (&[f32], Option<&[f32]>),
        out: Sink<'_>,
    ) {
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
        let weights = outputs * self.terms();
        let weights = &self.weight.values[group * weights..][..weights];
        let mut room = Aligned::take(&ROOM);
        let write = |channel: usize, rows: ChunksMut<'_, f32>| {
            let bias = self.weight.bias.get(group * outputs + channel);
            let bias = bias.copied().unwrap_or(0.);
            let channel = index * outputs + channel;
            let width = place[1].len();
            for (y, row) in place[0].clone().zip(rows) {
                let results = &mut row[..width];
                results.iter_mut().for_each(|result| *result += bias);
                let first = y * self.size[1] + place[1].start;
                if let Some(residual) = residual {
                    let row = channel * self.size[0] * self.size[1] + first;
                    self.convolution.add_residual(isa, results, &residual[row..][..width]);
                } else if let Some(activation) = self.convolution.activation {
                    isa.run(Activate { activation, xs: results });
                }
                // SAFETY: these channels of these outputs are in this block alone, and one row is
                // there.
                unsafe {
                    let mut row = out.rows(channel..channel + 1, first..first + width);
                    row.row(0).copy_from_slice(as_uninit(results));
                }
            }
        };
        self.products(&mut room, isa, (weights, channels), xs, &place, write);
        room.keep(&ROOM);
    }

    /// The products that a result is the sum of.
    fn terms(&self) -> usize {
        self.channels[0] * self.convolution.kernel.iter().product::<usize>()
    }

    /// Computes the results of some channels, each in rows, and writes them.
    fn products(
        &self,
        room: &mut Aligned,
        isa: Isa,
        (weights, channels): (&[f32], Range<usize>),
        xs: &[f32],
        [rows, columns]: &[Range<usize>; 2],
        mut write: impl FnMut(usize, ChunksMut<'_, f32>),
    ) {
        let down = Planes::new(self.convolution, 0, rows, false);
        let across = Planes::new(self.convolution, 1, columns, rows.len() > 1);
        let width = across.len;
        let size = self.channels[0] * down.count * across.count * down.len * width;
        let sums = ((rows.len() - 1) * width + columns.len()).next_multiple_of(COLUMNS);
        let together = (FLOATS / sums).clamp(1, channels.len().max(1));
        // Padded sums read behind the last plane.
        let [all, results] = room.split([size + COLUMNS, together * sums]);
        self.fill(xs, [down, across], &mut all[..size]);
        let offset = |term: usize| {
            let [height, width] = self.convolution.kernel;
            let (channel, tap) = (term / width / height, term / width % height);
            let [(plane_y, y), (plane_x, x)] = [down.place(tap), across.place(term % width)];
            let plane = (channel * down.count + plane_y) * across.count + plane_x;
            (plane * down.len + y) * across.len + x
        };
        let offsets: Vec<usize> = (0..self.terms()).map(offset).collect();
        let (row, step) = if self.weight.transposed {
            (1, self.channels[1])
        } else {
            // If it knew that this is 1, the compiler would unroll the product's loop.
            (offsets.len(), black_box(1))
        };
        for first in channels.clone().step_by(together) {
            let count = together.min(channels.end - first);
            let results = &mut results[..count * sums];
            let left = Left {
                values: weights.get(first * row..).unwrap_or_default(),
                row,
                step,
                rows: count,
                depth: offsets.len(),
            };
            let right = Right { b: all, c: results, width: sums, keep: None };
            isa.multiply_shifted::<false>(left, right, &offsets);
            for (channel, results) in (first..).zip(results.chunks_exact_mut(sums)) {
                write(channel, results.chunks_mut(width));
            }
        }
    }

    /// Fills the planes of all channels, `[channels, planes down, planes across, rows, columns]`.
    fn fill(&self, xs: &[f32], [down, across]: [Planes; 2], planes: &mut [f32]) {
        let [_, _, height, width] = self.convolution.shape;
        let [skip, step] = [down.stride, across.stride];
        // Padding, and the positions behind the last one of some planes.
        planes.fill(0.);
        let numbers = (0..down.count).flat_map(|y| (0..across.count).map(move |x| (y, x)));
        for (number, (plane_y, plane_x)) in numbers.enumerate() {
            let [(above, y, rows), (before, x, columns)] =
                [down.inside(plane_y, height), across.inside(plane_x, width)];
            if rows * columns == 0 {
                continue;
            }
            for channel in 0..self.channels[0] {
                let plane = channel * down.count * across.count + number;
                let to = &mut planes[(plane * down.len + above) * across.len..];
                let from = xs[(channel * height + y) * width..].chunks(width).step_by(skip);
                for (to, from) in to.chunks_exact_mut(across.len).take(rows).zip(from) {
                    let (to, from) = (&mut to[before..before + columns], &from[x..]);
                    if step == 1 {
                        to.copy_from_slice(&from[..columns]);
                    } else {
                        let from = from.iter().step_by(step);
                        to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
                    }
                }
            }
        }
    }
}

/// The planes of a channel along an axis, as a block reads them.
#[derive(Clone, Copy)]
struct Planes {
    count: usize,
    /// Positions of a plane.
    len: usize,
    /// Input positions, with padding, from the first plane's first to the next plane's.
    apart: usize,
    /// The first input position, with padding.
    first: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
    /// Whether each tap has a plane.
    of_taps: bool,
}

impl Planes {
    /// The planes of some outputs: one for each remainder of positions by the stride, or one for each
    /// tap where that takes less memory or, `in_rows` and of a few times the memory, leaves out fewer
    /// results.
    fn new(convolution: &Convolution, axis: usize, outputs: &Range<usize>, in_rows: bool) -> Self {
        let [kernel, stride] = [convolution.kernel[axis], convolution.stride[axis]];
        let (padding, dilation) = (convolution.padding[axis], convolution.dilation[axis]);
        let reach = (kernel - 1) * dilation;
        let (count, len) = (stride.min(reach + 1), outputs.len() + reach / stride);
        let (of_taps, of_rests) = (kernel * outputs.len(), count * len);
        let leaves_out = in_rows && 8 * (len - outputs.len()) > outputs.len();
        let of_taps = of_taps <= of_rests || leaves_out && of_taps <= 4 * of_rests;
        let (count, len, apart) =
            if of_taps { (kernel, outputs.len(), dilation) } else { (count, len, 1) };
        Self {
            count,
            len,
            apart,
            first: outputs.start * stride,
            stride,
            padding,
            dilation,
            of_taps,
        }
    }

    /// The plane that a tap reads, and from which position on.
    fn place(self, tap: usize) -> (usize, usize) {
        if self.of_taps {
            (tap, 0)
        } else {
            let distance = tap * self.dilation;
            (distance % self.stride, distance / self.stride)
        }
    }

    /// The first position of a plane that is within the input, which one of the input it is, and how
    /// many there are.
    fn inside(self, plane: usize, size: usize) -> (usize, usize, usize) {
        let first = self.first + plane * self.apart;
        let before = self.padding.saturating_sub(first).div_ceil(self.stride).min(self.len);
        let first = first.saturating_add(before.saturating_mul(self.stride));
        let first = first.saturating_sub(self.padding);
        let count = size.saturating_sub(first).div_ceil(self.stride);
        (before, first, count.min(self.len - before))
    }
}
