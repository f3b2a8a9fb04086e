//! Codes in groups of inputs, as files and layers exchange them.

use candle_core::Tensor;
use half::f16;

use super::qweight::QWeight;
use crate::error::{Error, Result};
use crate::kernels::{self, BlockScale};
use crate::qconfig::{BLOCK, GroupConfig, GroupScheme, IntType};
use crate::sizes;

/// A weight in groups, `[out_features, in_features]` in row order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Grouped {
    pub groups: GroupConfig,
    /// The signed codes; codes of 4 bits less 8.
    pub codes: Vec<i8>,
    /// The scales, one per group, channel by channel.
    pub scales: Vec<f32>,
    /// The zero points less 8, one per scale; empty where codes are not affine.
    pub zero_points: Vec<i8>,
    /// The minimums, one per scale; empty where codes have none.
    pub minimums: Vec<f32>,
}

impl Grouped {
    /// The weight, packed to be multiplied; its channels are `gates` gates. A scale is rounded to
    /// float16, at most by 2^-11 of itself, unless it is a float16 already.
    ///
    /// # Errors
    /// When there are other numbers of codes, scales or zero points, a code or zero point is out of
    /// range, or a scale is not finite.
    pub fn qweight(
        &self,
        gates: usize,
        shape: [usize; 2],
        bias: Option<&Tensor>,
    ) -> Result<QWeight> {
        self.check(shape)?;
        let (groups, [_, k]) = (self.groups, shape);
        let offset = groups.dtype.offset();
        let (count, blocks) = (groups.count(k), k.div_ceil(BLOCK));
        // `minimums` is empty, or as long as `scales`.
        let of_channel = |channel: usize| {
            let groups = channel * count..(channel + 1) * count;
            [&self.scales, &self.minimums].map(|all| all.get(groups.clone()).unwrap_or_default())
        };
        let rounded: Vec<_> = (0..shape[0]).map(|i| factors(of_channel(i))).collect();
        let scale = |i: usize| {
            let (channel, block) = (i / blocks, i % blocks);
            let at = channel * count + block * BLOCK / groups.inputs(k);
            let zero = self.zero_points.get(at);
            let zero = zero.map_or(0., |zero| (i32::from(*zero) + offset) as f32);
            let [by, factor] = rounded[channel];
            let half = |x: f32| f16::from_f32(round(x, by) / factor);
            let minimum = self.minimums.get(at).map(|minimum| half(*minimum));
            BlockScale {
                scale: half(self.scales[at]),
                offset: minimum.unwrap_or(f16::from_f32(zero)),
            }
        };
        let scales: Vec<_> = (0..shape[0] * blocks).map(scale).collect();
        let factors: Vec<_> = rounded.iter().map(|[_, factor]| *factor).collect();
        let codes: Vec<_> =
            (self.codes.iter()).map(|code| (i32::from(*code) + offset) as u8).collect();
        QWeight::of_groups(gates, shape, groups, &codes, (&scales, &factors), bias)
    }

    /// The values, of rows of `k`.
    pub fn dequantize(&self, k: usize) -> Vec<f32> {
        let (inputs, count) = (self.groups.inputs(k), self.groups.count(k));
        let value = |(i, code): (usize, &i8)| {
            let at = i / k * count + i % k / inputs;
            if let Some(minimum) = self.minimums.get(at) {
                return (i32::from(*code) + 8) as f32 * self.scales[at] + minimum;
            }
            let zero = self.zero_points.get(at).copied().unwrap_or(0);
            (i32::from(*code) - i32::from(zero)) as f32 * self.scales[at]
        };
        self.codes.iter().enumerate().map(value).collect()
    }

    fn check(&self, [n, k]: [usize; 2]) -> Result<()> {
        let GroupConfig { dtype, scheme, .. } = self.groups;
        self.groups.blocks()?;
        let elements = sizes::weight("codes", [n, k])?;
        let scales = n * self.groups.count(k);
        let count = |needed| if scheme == needed { scales } else { 0 };
        let (zeros, minimums) = (count(GroupScheme::Affine), count(GroupScheme::Minimum));
        for (what, expected, got) in [
            ("number of codes", elements, self.codes.len()),
            ("number of scales", scales, self.scales.len()),
            ("number of zero points", zeros, self.zero_points.len()),
            ("number of minimums", minimums, self.minimums.len()),
        ] {
            if expected != got {
                return Err(Error::argument(what, expected, got));
            }
        }
        if dtype == IntType::Int4 {
            for code in self.codes.iter().chain(&self.zero_points) {
                if !(-8..8).contains(code) {
                    return Err(Error::argument("code of 4 bits", "-8 to 7", code));
                }
            }
        }
        for (what, numbers) in [("scale", &self.scales), ("minimum", &self.minimums)] {
            if let Some(index) = numbers.iter().position(|number| !number.is_finite()) {
                let got = format!("{} at index {index}", numbers[index]);
                return Err(Error::argument(what, "a finite number", got));
            }
        }
        Ok(())
    }
}

/// Rounds a number to float16 times a power of two, `by`.
fn round(x: f32, by: f32) -> f32 {
    f16::from_f32(x / by).to_f32() * by
}

/// The powers of two by which the scales and minimums of a channel are rounded, and its factor.
fn factors(numbers: [&[f32]; 2]) -> [f32; 2] {
    let all = || numbers.into_iter().flatten().copied();
    let exact = kernels::factor_of_scales(all());
    if all().all(|x| round(x, exact) == x) {
        return [exact; 2];
    }
    let [scale, minimum] = numbers.map(|all| all.iter().fold(0f32, |max, x| max.max(x.abs())));
    let power = |x: f32| f32::from_bits(x.to_bits() & 0xff << 23);
    let has_room = scale >= 2f32.powi(-10) || scale < f32::MIN_POSITIVE;
    let by_scale = if has_room { 1. } else { power(scale) };
    // Times 2^-24, the least float16, it is an f32.
    let by = by_scale.max((power(scale.max(minimum)) / 2f32.powi(14)).max(2f32.powi(-125)));
    [by, kernels::factor_of_scales(all().map(|x| round(x, by)))]
}

impl QWeight {
    /// Whether channels have factors beside the scales of their groups.
    pub(crate) fn has_factors(&self) -> bool {
        let [n, _] = self.shape();
        self.groups().is_some() && (0..n).any(|channel| self.packed().scale(channel) != 1.)
    }

    /// The codes and scales of a weight in groups; `None` of others.
    pub(crate) fn grouped(&self) -> Option<Grouped> {
        let groups = self.groups()?;
        let [_, k] = self.shape();
        let (codes, scales) = self.packed().blocks();
        let (count, blocks) = (groups.count(k), k.div_ceil(BLOCK).max(1));
        let offset = groups.dtype.offset();
        let firsts = (0..scales.len()).filter(|i| {
            let block = i % blocks;
            block.is_multiple_of(groups.inputs(k) / BLOCK)
        });
        let of_groups: Vec<_> = firsts.map(|i| scales[i]).collect();
        let zero_points =
            of_groups.iter().map(|scale| (scale.offset.to_f32() as i32 - offset) as i8);
        let factors = (0..of_groups.len()).map(|i| self.packed().scale(i / count.max(1)));
        let pairs = of_groups.iter().zip(factors);
        let minimums = pairs.clone().map(|(scale, factor)| scale.offset.to_f32() * factor);
        let count_of = |scheme| {
            if groups.scheme == scheme { of_groups.len() } else { 0 }
        };
        Some(Grouped {
            groups,
            codes: codes.iter().map(|code| (i32::from(*code) - offset) as i8).collect(),
            scales: pairs.map(|(scale, factor)| scale.scale.to_f32() * factor).collect(),
            zero_points: zero_points.take(count_of(GroupScheme::Affine)).collect(),
            minimums: minimums.take(count_of(GroupScheme::Minimum)).collect(),
        })
    }
}
