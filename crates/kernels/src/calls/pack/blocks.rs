//! Weights in blocks, from floats or from codes.

use super::{PanelValues, each_panel};
use crate::arch::op::ops;
use crate::calls::inputs::InputFactor;
use crate::error::{Error, Result};
use crate::isa::Isa;
use crate::loops::feedback::{self, Feedback};
use crate::loops::fit::{self, Equal};
use crate::packed::blocks::BlockCodes;
use crate::packed::{Element, Packed, PanelMut};
use crate::qparams::blocks::{BlockScale, Blocks, INPUTS};
use crate::reference::InBlocks;
use crate::sizes;

/// Packs `values`, `[n, k]`, in blocks, with a bias per channel. Groups of `group` inputs, a
/// multiple of 32 or all, share the scale that leaves the least squares of errors. Channels are
/// `gates` stretches of one length.
///
/// With `inputs`, the factor of its inputs, the error of each input is fed back into the inputs
/// before it: GPTQ, from the last to the first. Then the squares are of the errors of products.
///
/// Channels of very small or very large values are fitted as if they were near 1, and have a
/// factor where f16 has no room for their scales: see [`factor`](crate::qparams::blocks::factor).
///
/// # Errors
/// When a value is NaN or infinite.
///
/// # Panics
/// If there are not `n * k` values, `group` is not a multiple of 32, the factor is not of `k`
/// inputs, or `gates` do not divide `n`.
pub fn pack_blocks(
    isa: Isa,
    k: usize,
    gates: usize,
    values: &[f32],
    bias: &[f32],
    (format, group): (Blocks, usize),
    inputs: Option<&InputFactor>,
) -> Result<Packed> {
    sizes::check("values, [n, k]", values, &[bias.len(), k]);
    let feedback = inputs.map(|inputs| inputs.feedback(k));
    assert!(
        group > 0 && group.is_multiple_of(INPUTS),
        "group: expected a multiple of {INPUTS}, got {group}"
    );
    let mut packed = Packed::zeros(isa, per_block(format), k, gates, bias);
    each_panel(&mut packed, values, |channels, panel| {
        let extents = channels.extents()?;
        for (channel, extent) in extents.iter().enumerate() {
            panel.scales[channel] = block_factor(extent.min.abs().max(extent.max.abs()));
        }
        isa.run(fit((format, group), k, channels.values, feedback, panel));
        Ok::<_, Error>(())
    })?;
    Ok(packed.written())
}

/// Weights in blocks, for activations with a scale a block.
fn per_block(format: Blocks) -> Element {
    Element::Blocks { format, per_row: false }
}

/// The number by which a channel of values up to `max` is divided while its scales are searched: 1
/// where f16 has room for any of them.
pub fn block_factor(max: f32) -> f32 {
    const EXPONENT: u32 = 0xff << 23;
    if (2f32.powi(-7)..2f32.powi(14)).contains(&max) || max < f32::MIN_POSITIVE {
        return 1.;
    }
    // Times 2^-24, the least float16, it is an f32.
    f32::from_bits(max.to_bits() & EXPONENT).max(2f32.powi(-125))
}

ops! {
    /// Finds the scales of a panel's channels and writes their codes.
    fn fit(
        format: (Blocks, usize),
        k: usize,
        values: &'a [f32],
        feedback: Option<Feedback<'a>>,
        panel: PanelMut<'a>,
    ) {
        let mut scaled = Vec::with_capacity(values.len());
        for (channel, values) in values.chunks_exact(k.max(1)).enumerate() {
            // A power of two has an exact inverse.
            let inverse = 1. / panel.scales[channel];
            scaled.extend(values.iter().map(|x| x * inverse));
        }
        match feedback {
            None => each_alone(format, k, &scaled, panel),
            Some(feedback) => with_feedback(format, k, &scaled, feedback, panel),
        }
    }
}

#[inline(always)]
fn each_alone((format, group): (Blocks, usize), k: usize, values: &[f32], mut panel: PanelMut<'_>) {
    for (channel, values) in values.chunks_exact(k.max(1)).enumerate() {
        for (group_index, values) in values.chunks(group).enumerate() {
            let scale = fit::scale(format, values, Equal);
            for (block, values) in values.chunks(INPUTS).enumerate() {
                let codes = fit::codes(format, values, scale);
                let block = group_index * (group / INPUTS) + block;
                panel.put_block(format, [block, channel], &codes, scale);
            }
        }
    }
    panel.settle_factors(format);
}

/// Fits channels with feedback, block by block, so that all take the same factors from a cache.
#[inline(always)]
fn with_feedback(
    (format, group): (Blocks, usize),
    k: usize,
    values: &[f32],
    feedback: Feedback<'_>,
    mut panel: PanelMut<'_>,
) {
    let mut targets = values.to_vec();
    let mut scales = vec![BlockScale::default(); panel.scales.len()];
    for block in (0..k.div_ceil(INPUTS)).rev() {
        let range = [block * INPUTS, k.min((block + 1) * INPUTS)];
        let start = range[0] / group * group;
        let begins = range[1] == k.min(start + group);
        let rows = values.chunks_exact(k).zip(targets.chunks_exact_mut(k));
        for (channel, (values, targets)) in rows.enumerate() {
            let mut fitted = feedback::FittedChannel { values, targets };
            if begins {
                scales[channel] = fitted.scale(format, feedback, [start, range[1]]);
            }
            let codes = fitted.codes(format, feedback, range, scales[channel]);
            panel.put_block(format, [block, channel], &codes, scales[channel]);
        }
    }
    panel.settle_factors(format);
}

/// Packs codes in blocks, in row order, with a bias per channel. Channels are `gates` stretches of
/// one length.
///
/// # Panics
/// If there are not `n * k` codes, a scale for each block or `n` factors, or `gates` do not divide
/// `n`.
pub fn pack_block_codes(
    isa: Isa,
    k: usize,
    gates: usize,
    rhs: InBlocks<'_>,
    bias: &[f32],
) -> Packed {
    let (n, blocks) = (bias.len(), k.div_ceil(INPUTS));
    sizes::check("codes, [n, k]", rhs.codes, &[n, k]);
    sizes::check("scales, [n, blocks]", rhs.scales, &[n, blocks]);
    sizes::check("factors, [n]", rhs.factors, &[n]);
    let mut packed = Packed::zeros(isa, per_block(rhs.format), k, gates, bias);
    let write = |channels: PanelValues<'_, u8>, mut panel: PanelMut<'_>| {
        let rows = channels.values.chunks_exact(k.max(1));
        let channels = rows.zip(channels.range).enumerate();
        for (lane, (codes, channel)) in channels {
            panel.scales[lane] = rhs.factors[channel];
            let scales = &rhs.scales[channel * blocks..];
            for (block, (codes, scale)) in codes.chunks(INPUTS).zip(scales).enumerate() {
                let mut of_block: BlockCodes = [0; INPUTS];
                of_block[..codes.len()].copy_from_slice(codes);
                panel.put_block(rhs.format, [block, lane], &of_block, *scale);
            }
        }
        Ok::<_, std::convert::Infallible>(())
    };
    let Ok(()) = each_panel(&mut packed, rhs.codes, write);
    packed.written()
}
