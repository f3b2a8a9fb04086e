//! How far one tensor is from another.

use candle_core::Tensor;
use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};

use crate::error::{Error, Result};
use crate::tensor::to_f32_vec;

/// How far values are from those expected, over any number of tensors.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::inspect::Deviation;
///
/// let (expected, got) = (Tensor::new(&[3f32, 4.], &Device::Cpu)?, Tensor::new(&[3f32, 4.5], &Device::Cpu)?);
/// let mut deviation = Deviation::default();
/// deviation.add(&expected, &got)?;
/// assert_eq!((deviation.sqnr_db(), deviation.max_abs()), (20., 0.5));
/// # Ok::<(), candle_dynquant::Error>(())
/// ```
/// As JSON it is an object of `sqnr_db`, `cosine` and `max_abs`; infinite values are `null`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Deviation {
    count: u64,
    /// Sum of squares of the values expected.
    signal: f64,
    /// Sum of squares of the values found.
    power: f64,
    /// Sum of squares of the differences.
    noise: f64,
    /// Sum of products of both.
    product: f64,
    max_abs: f64,
}

impl Deviation {
    /// Adds the elements of two tensors of one shape.
    ///
    /// # Errors
    /// When the shapes differ, or a dtype is not a float.
    pub fn add(&mut self, expected: &Tensor, got: &Tensor) -> Result<()> {
        if expected.dims() != got.dims() {
            let expected = format!("{:?}", expected.dims());
            return Err(Error::shape("deviation", expected, got.dims()));
        }
        let values = |tensor| to_f32_vec(tensor, "deviation");
        self.add_values(&values(expected)?, &values(got)?);
        Ok(())
    }

    pub(crate) fn add_values(&mut self, expected: &[f32], got: &[f32]) {
        self.count += expected.len() as u64;
        for (expected, got) in expected.iter().zip(got) {
            let (expected, got) = (f64::from(*expected), f64::from(*got));
            let error = expected - got;
            self.signal += expected * expected;
            self.power += got * got;
            self.noise += error * error;
            self.product += expected * got;
            // A NaN is as far as can be.
            let distance = if error.is_nan() { f64::INFINITY } else { error.abs() };
            self.max_abs = self.max_abs.max(distance);
        }
    }

    /// Adds the elements that another deviation has compared.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.signal += other.signal;
        self.power += other.power;
        self.noise += other.noise;
        self.product += other.product;
        self.max_abs = self.max_abs.max(other.max_abs);
    }

    /// Elements that were compared.
    #[doc(hidden)]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// `10 log10(sum x^2 / sum (x - x')^2)`, in decibels: infinite if nothing differs, minus
    /// infinity where a value is not finite.
    pub fn sqnr_db(&self) -> f64 {
        match (self.signal, self.noise) {
            (_, 0.) => f64::INFINITY,
            (signal, noise) if !(signal.is_finite() && noise.is_finite()) => f64::NEG_INFINITY,
            (signal, noise) => 10. * (signal / noise).log10(),
        }
    }

    /// The cosine of the angle between both, as vectors of all their elements: exactly 1 if they
    /// are equal, 0 if either is zero or not finite.
    pub fn cosine(&self) -> f64 {
        // Rounding would leave equal vectors a little below 1.
        if self.noise == 0. {
            return 1.;
        }
        let cosine = self.product / (self.signal.sqrt() * self.power.sqrt());
        if cosine.is_finite() { cosine.clamp(-1., 1.) } else { 0. }
    }

    /// The maximum difference of an element.
    pub fn max_abs(&self) -> f64 {
        self.max_abs
    }
}

impl Serialize for Deviation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Deviation", 3)?;
        object.serialize_field("sqnr_db", &self.sqnr_db())?;
        object.serialize_field("cosine", &self.cosine())?;
        object.serialize_field("max_abs", &self.max_abs())?;
        object.end()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn merged_deviations_equal_a_call_with_all_elements() -> Result<()> {
        let tensor = |values: [f32; 2]| Tensor::new(&values, &Device::Cpu);
        let pairs = [[[3., 4.], [3., 3.]], [[1., 0.], [-1., 0.]]];
        let (mut all, mut merged) = (Deviation::default(), Deviation::default());
        for [expected, got] in pairs {
            let (expected, got) = (tensor(expected)?, tensor(got)?);
            let mut other = Deviation::default();
            other.add(&expected, &got)?;
            merged.merge(&other);
            all.add(&expected, &got)?;
        }
        assert_eq!(merged, all);
        Ok(())
    }
}
