//! Convolutions of codes: every position becomes a row of codes once, and windows of these are
//! multiplied.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

use super::geometry::Convolution;
use crate::arch;
use crate::calls::linear::{Grid, SERIAL_MACS, parts_of};
use crate::calls::quantize::{Codes, encode, extent_of_finite, row_of};
use crate::loops::buffer::{self, Aligned, RowsMut};
use crate::loops::product::{Part, Product, Row, Sink, Windows};
use crate::loops::rows::Extent;
use crate::packed::{Element, Packed};
use crate::qparams::activation::DynamicConfig;
use crate::sizes;
use crate::threads::{Shared, Threads};

/// Floats of the positions that become codes together: half of a small L1.
const VALUES: usize = 4 << 10;

/// Floats of the results that are turned channels first together: half of a small L2.
const RESULTS: usize = 32 << 10;

/// The convolution of `xs`, `[batch, channels, height, width]`: `[batch, out channels, height,
/// width]` of the [output](Convolution::out_size), as
/// [`reference::windows`](crate::reference::windows) says, plus the residual, of the same shape. The
/// weight has a gate for each tap of
/// each group of channels, group by group; taps are in the order of rows, then of columns.
///
/// Where all positions share a scale and the taps of each channel do, too, sums are exact over all
/// taps, as ONNX Runtime's `ConvInteger` adds them.
///
/// A position that holds a NaN or an infinity makes NaN of the results that read it, and changes no
/// other. A result depends on its window only, unless all positions share a scale.
///
/// # Panics
/// If the number of values, the element or the sizes of the weight differ, or a window does not
/// fit.
pub fn convolve(
    convolution: &Convolution,
    rhs: &Packed,
    xs: &[f32],
    residual: Option<&[f32]>,
) -> Vec<f32> {
    let Element::Int8(config) = rhs.element() else {
        panic!("weight: expected int8, got {:?}", rhs.element());
    };
    let [batch, channels, ..] = convolution.shape;
    sizes::check("xs, [batch, channels, height, width]", xs, &convolution.shape);
    let [kernel_height, kernel_width] = convolution.kernel;
    assert_eq!(
        (kernel_height * kernel_width * convolution.groups, channels),
        (rhs.gates(), rhs.k() * convolution.groups),
        "taps and channels"
    );
    let size = convolution.out_size().expect("an output");
    let padded = convolution.padded().expect("an input");
    let (starts, taps) = windows(convolution, padded, size);
    let out_channels = rhs.n() / taps.len().max(1);
    let len = sizes::length("out", &[batch, out_channels, size[0], size[1]]);
    if let Some(residual) = residual {
        sizes::check("residual, [batch, out channels, height, width]", residual, &[len]);
    }
    let mut codes = Codes::take();
    let positions = batch * padded[0] * padded[1] * convolution.groups;
    let (groups, rows) = codes.room(positions, positions * rhs.row_groups());
    // SAFETY: each part writes its elements, and together they are all.
    let out = unsafe {
        buffer::filled(len, |out| {
            if len == 0 {
                return;
            }
            let encoding = Positions {
                convolution,
                weight: rhs,
                config,
                padded,
                positions: (VALUES / rhs.k().max(1)).clamp(16, 64),
                xs,
                codes: Shared::new(&mut *groups),
                rows: Shared::new(&mut *rows),
                extent: Mutex::new(Extent::EMPTY),
            };
            let windows = Windows {
                starts: &starts,
                taps: &taps,
                first: 0,
                exact: !config.per_row && has_common_scales(rhs, taps.len()),
            };
            let out = Sink::channels(out, size[0] * size[1]);
            run(&encoding, windows, residual, out);
        })
    };
    codes.keep();
    out
}

/// The first position of each window, and the distance of each tap.
fn windows(
    convolution: &Convolution,
    [height, width]: [usize; 2],
    size: [usize; 2],
) -> (Vec<usize>, Vec<usize>) {
    let extend = |places: &mut Vec<usize>, first, [rows, columns]: [usize; 2], step: [usize; 2]| {
        for y in 0..rows {
            let first = first + y * step[0] * width;
            places.extend((0..columns).map(|x| first + x * step[1]));
        }
    };
    let batch = convolution.shape[0];
    let (mut starts, mut taps) = (Vec::with_capacity(batch * size[0] * size[1]), Vec::new());
    for image in 0..batch {
        let first = image * height * width;
        extend(&mut starts, first, size, convolution.stride);
    }
    extend(&mut taps, 0, convolution.kernel, convolution.dilation);
    (starts, taps)
}

/// Whether the taps of each channel share a scale and a zero point, and their sums fit into i32.
fn has_common_scales(rhs: &Packed, taps: usize) -> bool {
    let difference = if rhs.has_zero_points() { 255 } else { 128 };
    let terms = i32::MAX as usize / (255 * difference);
    let is_common = |panel: usize| {
        let of_taps = rhs.panels_from(panel, taps);
        let width = of_taps.scales.len() / taps;
        let (scales, zero_points) = (of_taps.scales, of_taps.zero_points);
        scales[width..] == scales[..scales.len() - width]
            && zero_points.get(width..).unwrap_or_default()
                == &zero_points[..zero_points.len().saturating_sub(width)]
    };
    taps.checked_mul(rhs.k()).is_some_and(|count| count <= terms)
        && (0..rhs.panels()).step_by(taps.max(1)).all(is_common)
}

/// Encodes the input and multiplies it, in phases on the same threads.
fn run(encoding: &Positions<'_>, windows: Windows<'_>, residual: Option<&[f32]>, out: Sink<'_>) {
    let weight = encoding.weight;
    // Behind the residual, if there is one.
    let activation = (encoding.convolution.activation).filter(|_| residual.is_none());
    let residual = residual.map(|residual| (encoding.convolution, residual));
    let (m, taps) = (windows.starts.len(), windows.taps.len());
    let work = m.saturating_mul(weight.n()).saturating_mul(weight.k());
    let threads = Threads::of_caller().for_multiply_adds(work);
    let count = if work < SERIAL_MACS { 1 } else { threads.count() };
    let grid = Grid::new(
        weight.isa(),
        [m, weight.panels() / taps],
        weight.groups() * size_of::<[u8; 4]>(),
        count,
        1,
        parts_of(count, work, SERIAL_MACS),
    );
    let encodings = if encoding.config.per_row { 1 } else { 2 };
    // Each thread asks for the phases.
    let backwards = weight.turn();
    let phase = |phase: usize| match (count, phase == encodings) {
        (1, _) => (1, false),
        (_, false) => (encoding.parts(), false),
        (_, true) => (grid.parts(), backwards),
    };
    let task = |(): &mut (), phase: usize, index: usize| {
        let mut room = Aligned::take(&ROOM);
        let parts = if phase == encodings { grid.parts() } else { encoding.parts() };
        let indices = if count == 1 { 0..parts } else { index..index + 1 };
        for index in indices {
            if phase < encodings {
                encoding.part(&mut room, phase + 1 == encodings, index);
                continue;
            }
            // SAFETY: the phases before have written all codes and rows, and are over.
            let (codes, rows) = unsafe {
                let (codes, rows) = (encoding.codes, encoding.rows);
                (codes.read(0..codes.len()), rows.read(0..rows.len()))
            };
            let part = grid.part(index);
            // Panels of the same units of all groups of channels follow one another.
            let count = encoding.convolution.groups;
            let of_one = if count == 1 { part.panels.len() } else { 1 };
            for panels in part.panels.clone().step_by(of_one.max(1)) {
                let panels = panels..panels + of_one;
                let group = panels.start % count;
                let (positions, groups) = (rows.len() / count, codes.len() / count);
                let codes = &codes[group * groups..][..groups];
                let rows = &rows[group * positions..][..positions];
                let product = Product {
                    activation,
                    windows: Some(windows),
                    ..Product::of_groups(m, codes, rows, weight)
                };
                let part = Part { panels, ..part.clone() };
                // SAFETY: parts of a grid do not overlap, and each index comes once.
                unsafe { multiply(&product, (windows, residual), out, (count, part), &mut room) };
            }
        }
        room.keep(&ROOM);
    };
    threads.for_each_phase(encodings + 1, phase, || (), task);
}

thread_local! {
    static ROOM: Cell<Aligned> = Cell::default();
}

/// The input on its way to codes of positions, padding included.
struct Positions<'a> {
    convolution: &'a Convolution,
    weight: &'a Packed,
    config: DynamicConfig,
    padded: [usize; 2],
    /// Positions of a row that become codes together.
    positions: usize,
    xs: &'a [f32],
    codes: Shared<'a, [u8; 4]>,
    rows: Shared<'a, Row>,
    /// The extent of all finite positions, where they share a scale.
    extent: Mutex<Extent>,
}

impl Positions<'_> {
    /// Parts of each row of positions.
    fn columns(&self) -> usize {
        self.padded[1].div_ceil(self.positions)
    }

    /// Parts of a group of channels.
    fn parts_of_group(&self) -> usize {
        self.convolution.shape[0] * self.padded[0] * self.columns()
    }

    fn parts(&self) -> usize {
        self.convolution.groups * self.parts_of_group()
    }

    /// Takes the extent of some positions of a row, or writes their codes.
    fn part(&self, room: &mut Aligned, encodes: bool, index: usize) {
        let Convolution {
            shape: [batch, all_channels, height, width], padding: [top, left], ..
        } = *self.convolution;
        let weight = self.weight;
        let channels = weight.k();
        let (group, index) = (index / self.parts_of_group(), index % self.parts_of_group());
        let (row, first) = (index / self.columns(), index % self.columns() * self.positions);
        let end = self.padded[1].min(first + self.positions);
        let (image, y) = (row / self.padded[0], row % self.padded[0]);
        let inside = (top..top + height).contains(&y);
        let (start, stop) = if inside {
            (left.clamp(first, end), (left + width).clamp(first, end))
        } else {
            (first, first)
        };
        let place = (group * batch * self.padded[0] + row) * self.padded[1];
        let groups = weight.row_groups();
        // SAFETY: a part has these positions alone, and each index comes once a phase.
        let (codes, rows) = unsafe {
            (
                (self.codes).part((place + first) * groups..(place + end) * groups),
                self.rows.part(place + first..place + end),
            )
        };
        let (before, count) = (start - first, stop - start);
        let [values] = room.split([count * channels]);
        if count > 0 {
            let first = image * all_channels + group * channels;
            let at = (first * height + y - top) * width + start - left;
            let to = RowsMut::of_matrix(values, channels);
            let (isa, size) = (weight.isa(), [channels, count]);
            isa.transpose((&self.xs[at..], height * width), to, size);
        }
        let isa = weight.isa();
        let inner = &mut rows[before..before + count];
        if !encodes {
            let extent = extent_of_finite(isa, channels.max(1), values, inner);
            let mut all = self.extent.lock().unwrap_or_else(PoisonError::into_inner);
            *all = all.union(extent);
            return;
        }
        let common = (!self.config.per_row).then(|| {
            let all = self.extent.lock().unwrap_or_else(PoisonError::into_inner);
            row_of(self.config, *all)
        });
        let room = &mut codes[before * groups..(before + count) * groups];
        let how = (self.config, weight.has_zero_points(), common);
        encode(weight, how, values, (room, inner));
        for (range, groups) in [
            (0..before, 0..before * groups),
            (before + count..end - first, (before + count) * groups..(end - first) * groups),
        ] {
            rows[range].fill(PADDING);
            codes[groups].fill([0; 4]);
        }
    }
}

/// A position of padding: it adds -0.0, which changes no number.
const PADDING: Row = Row { scale: -0., ..Row::PLAIN };

/// Computes a part of the windows by some channels, of one group if there are several, and turns
/// it channels first.
///
/// # Safety
/// No other thread computes a part that overlaps.
unsafe fn multiply(
    product: &Product<'_, [u8; 4]>,
    (windows, residual): (Windows<'_>, Option<(&Convolution, &[f32])>),
    out: Sink<'_>,
    (groups, part): (usize, Part),
    room: &mut Aligned,
) {
    let (rhs, taps) = (product.rhs, windows.taps.len());
    let panels = part.panels.start * taps..part.panels.end * taps;
    let (first, last) = (rhs.panel(panels.start), rhs.panel(panels.end - taps));
    // Channels of the packed weight: a group's channels, once a tap.
    let channels = first.start..last.start + last.channels;
    let (units, n) = (rhs.n() / rhs.gates(), rhs.n() / taps);
    let channel = part.panels.start % groups * units + channels.start % units.max(1);
    let (width, image) = (channels.len(), out.width());
    let tile = rhs.isa().registers().tile_rows;
    let height = (RESULTS / width.max(1)).max(1).next_multiple_of(tile);
    let [results] = room.split([height * width]);
    for start in part.rows.clone().step_by(height) {
        let rows = start..part.rows.end.min(start + height);
        let product = Product {
            windows: Some(Windows { starts: &windows.starts[rows.clone()], ..windows }),
            ..*product
        };
        let results = &mut results[..rows.len() * width];
        let sink = Sink::channels(buffer::as_uninit(results), width);
        let sink = sink.moved(channels.start, 0);
        let of_rows = Part { rows: 0..rows.len(), panels: panels.clone(), step: None };
        // SAFETY: the results are this thread's.
        unsafe { arch::multiply(&product, &sink, of_rows) };
        let mut row = rows.start;
        while row < rows.end {
            let (sample, place) = (row / image, row % image);
            let count = (image - place).min(rows.end - row);
            let channels = sample * n + channel..sample * n + channel + width;
            // SAFETY: these channels of these windows are in this part alone.
            let to = |channels| unsafe { out.rows(channels, place..place + count) };
            let from = &results[(row - rows.start) * width..];
            (rhs.isa()).transpose((from, width), to(channels.clone()), [count, width]);
            if let Some((convolution, residual)) = residual {
                for channel in channels {
                    let residual = &residual[channel * image + place..][..count];
                    let mut rows = to(channel..channel + 1);
                    // SAFETY: one row is there, and written.
                    let xs = unsafe { rows.row(0).assume_init_mut() };
                    convolution.add_residual(rhs.isa(), xs, residual);
                }
            }
            row += count;
        }
    }
}
