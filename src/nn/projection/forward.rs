//! The forward pass of projections: on tensors, on slices, and of several at once.

use candle_core::{Module, Result as CandleResult, Tensor};

use super::{Projection, Weight};
use crate::error::Result;
use crate::kernels::{self, Codes, FloatProduct, Product};
use crate::sizes;
use crate::tap;
use crate::tensor::{Elements, as_f32, from_f32_vec, mismatch, to_f32_vec, without_gradient};
use crate::weight::QWeight;

impl Projection {
    /// [`forward`](Module::forward) with this crate's error.
    #[doc(hidden)]
    pub fn try_forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.product_of(xs)?;
        tap::report(self.tap.as_ref(), &[xs], &ys);
        Ok(ys)
    }

    pub(super) fn product_of(&self, xs: &Tensor) -> Result<Tensor> {
        let (n, k) = self.shape()?;
        let Some((_, batch)) = xs.dims().split_last().filter(|(last, _)| **last == k) else {
            return Err(mismatch("forward", format!("[.., {k}]"), xs));
        };
        let (rows, shape) = rows_and_shape(batch, n, xs)?;
        match &self.weight {
            Weight::Float(weight) => self.forward_float(weight, xs, rows, &shape),
            Weight::Quantized(weight) => {
                let input = as_f32(xs, "forward")?;
                let elements = Elements::new(&input);
                let product = self.product(elements.as_slice()?, rows, weight);
                let ys = kernels::linear(product);
                without_gradient(from_f32_vec(ys, &shape, xs.dtype())?, &[xs])
            }
        }
    }

    /// [`try_forward`](Self::try_forward) of several projections of one input, such as query, key
    /// and value: where they are quantized alike, the input is quantized once, and all threads
    /// work at all of them at once.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_dynquant::{nn::Projection, QConfig};
    ///
    /// let weight = || Tensor::randn(0f32, 1., (4, 8), &Device::Cpu);
    /// let int8 = QConfig::int8();
    /// let query = Projection::new(weight()?, None).quantize(&int8)?;
    /// let key = Projection::new(weight()?, None).quantize(&int8)?;
    /// let xs = Tensor::randn(0f32, 1., (5, 8), &Device::Cpu)?;
    /// let [queries, keys] = Projection::forward_each([&query, &key], &xs)?;
    /// assert_eq!(keys.to_vec2::<f32>()?, key.try_forward(&xs)?.to_vec2::<f32>()?);
    /// # Ok::<(), candle_dynquant::Error>(())
    /// ```
    #[doc(hidden)]
    pub fn forward_each<const N: usize>(
        projections: [&Self; N],
        xs: &Tensor,
    ) -> Result<[Tensor; N]> {
        let outs = match Self::alike(projections, xs) {
            None => (projections.iter())
                .map(|projection| projection.try_forward(xs))
                .collect::<Result<Vec<_>>>()?,
            Some(weights) => {
                let batch = &xs.dims()[..xs.rank() - 1];
                let dtype = xs.dtype();
                let input = as_f32(xs, "forward")?;
                let rows = batch.iter().product();
                let shapes = weights.map(|weight| rows_and_shape(batch, weight.shape()[0], xs));
                let shapes = shapes.into_iter().collect::<Result<Vec<_>>>()?;
                let elements = Elements::new(&input);
                let values = elements.as_slice()?;
                let products =
                    std::array::from_fn(|i| projections[i].product(values, rows, weights[i]));
                let outs = kernels::linear_each::<N>(products);
                let outs = outs.into_iter().zip(&shapes);
                let outs = outs.map(|(out, (_, shape))| {
                    without_gradient(from_f32_vec(out, shape, dtype)?, &[xs])
                });
                let outs = outs.collect::<Result<Vec<_>>>()?;
                for (projection, ys) in projections.iter().zip(&outs) {
                    tap::report(projection.tap.as_ref(), &[xs], ys);
                }
                outs
            }
        };
        // An output for each projection.
        Ok(outs.try_into().unwrap_or_else(|_| unreachable!("N outputs")))
    }

    /// The weights of projections of such an input, if they are quantized alike.
    fn alike<'a, const N: usize>(
        projections: [&'a Self; N],
        xs: &Tensor,
    ) -> Option<[&'a QWeight; N]> {
        let first = projections.first()?.qweight()?;
        let mut weights = [first; N];
        for (weight, projection) in weights.iter_mut().zip(projections) {
            let other = projection.qweight()?;
            if !other.is_like(first) || xs.dims().last() != Some(&other.shape()[1]) {
                return None;
            }
            *weight = other;
        }
        Some(weights)
    }

    fn product<'a>(&self, xs: &'a [f32], rows: usize, weight: &'a QWeight) -> Product<'a, f32> {
        Product::new(xs, rows, weight.packed(), self.activation.map(Into::into))
    }

    /// The product of `xs`, `[rows, in_features]`, as `[rows, out_features]`, all f32.
    ///
    /// # Errors
    /// When the weight or bias has a wrong shape, dtype or device.
    pub(in crate::nn) fn multiply(&self, xs: &[f32], rows: usize) -> Result<Vec<f32>> {
        if let Some(weight) = self.qweight() {
            return Ok(kernels::linear(self.product(xs, rows, weight)));
        }
        let mut out = vec![0.; rows * self.shape()?.0];
        self.with_product(|product| {
            product(xs, rows, &mut out);
            Ok(())
        })?;
        Ok(out)
    }

    /// [`multiply`](Self::multiply) of two projections that are quantized alike, at once.
    pub(in crate::nn) fn multiply_both(
        [(a, a_xs), (b, b_xs)]: [(&Self, &[f32]); 2],
        rows: usize,
    ) -> Result<[Vec<f32>; 2]> {
        if let (Some(a_weight), Some(b_weight)) = (a.qweight(), b.qweight())
            && a_weight.is_like(b_weight)
        {
            let products = [a.product(a_xs, rows, a_weight), b.product(b_xs, rows, b_weight)];
            return Ok(kernels::linear_each(products));
        }
        Ok([a.multiply(a_xs, rows)?, b.multiply(b_xs, rows)?])
    }

    /// Whether both are quantized alike, and report to no tap.
    pub(in crate::nn) fn is_computed_as(&self, other: &Self) -> bool {
        let weights = self.qweight().zip(other.qweight());
        self.tap.is_none() && weights.is_some_and(|(weight, other)| weight.is_like(other))
    }

    /// [`multiply`](Self::multiply) of up to `N` projections that are quantized alike, at once, each
    /// with a number of rows. A float one has no result.
    pub(in crate::nn) fn multiply_all<const N: usize>(
        all: &[(&Self, &[f32], usize)],
    ) -> Vec<Vec<f32>> {
        let products = all.iter().filter_map(|(projection, xs, rows)| {
            Some(projection.product(xs, *rows, projection.qweight()?))
        });
        let products: Vec<_> = products.collect();
        let Some(first) = products.first() else {
            return Vec::new();
        };
        // Products without rows in place of those that there are not.
        let none = Product { m: 0, lhs: &[], ..*first };
        let products = std::array::from_fn(|i| *products.get(i).unwrap_or(&none));
        let outs = kernels::linear_each::<N>(products).into_iter();
        outs.take(all.len()).collect()
    }

    /// Calls `f` with the projection as a function on slices, for a loop that makes no tensors:
    /// `product(xs, rows, out)` with `xs` of `[rows, in_features]` and `out` of
    /// `[rows, out_features]`, all f32.
    ///
    /// # Errors
    /// When the weight or bias has a wrong shape, dtype or device, and whatever `f` returns.
    pub(crate) fn with_product<R>(
        &self,
        f: impl FnOnce(&mut dyn FnMut(&[f32], usize, &mut [f32])) -> Result<R>,
    ) -> Result<R> {
        let (n, _) = self.shape()?;
        match &self.weight {
            Weight::Quantized(weight) => {
                let mut codes = Codes::take();
                let result = f(&mut |xs, rows, out| {
                    let product = self.product(xs, rows, weight);
                    kernels::linear_into(product, &mut codes, out);
                });
                codes.keep();
                result
            }
            Weight::Float(weight) => {
                let bias = match &self.bias {
                    Some(bias) => to_f32_vec(bias, "forward")?,
                    None => vec![0.; n],
                };
                let weight = as_f32(weight, "forward")?;
                let elements = Elements::new(&weight);
                let weight = elements.as_slice()?;
                let isa = kernels::active()?;
                f(&mut |xs, rows, out| {
                    let product = FloatProduct {
                        lhs: xs,
                        m: rows,
                        rhs: weight,
                        bias: &bias,
                        activation: None,
                        is_exact: false,
                    };
                    kernels::linear_f32_into(isa, product, out);
                })
            }
        }
    }
}

impl Module for Projection {
    fn forward(&self, xs: &Tensor) -> CandleResult<Tensor> {
        Ok(self.try_forward(xs)?)
    }
}

/// The rows of an input and the shape of the output, with `n` features.
///
/// # Errors
/// As [`sizes::computed`].
fn rows_and_shape(batch: &[usize], n: usize, xs: &Tensor) -> Result<(usize, Vec<usize>)> {
    let shape = [batch, &[n]].concat();
    sizes::computed("forward", &shape, xs.elem_count())?;
    Ok((batch.iter().product(), shape))
}
