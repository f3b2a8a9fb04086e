//! `y = x W^T + b`, float or quantized: what every layer multiplies through.

mod weight_error;

use std::sync::Arc;

use candle_core::{DType, Module, Result as CandleResult, Tensor};

pub use weight_error::WeightError;

use crate::error::{Error, Result};
use crate::kernels::{self, Activation, Codes, Operands};
use crate::module::{LentWeight, WeightDType, WeightId, WeightInfo};
use crate::ops;
use crate::qconfig::{ActivationConfig, QConfig, WeightConfig};
use crate::qweight::QWeight;
use crate::sizes;
use crate::tensor::{Elements, as_f32, check_float, from_f32_vec, mismatch, to_f32_vec};

/// `y = x W^T + b`, where `W` is float or quantized.
///
/// Every layer of [`nn`](crate::nn) multiplies through projections, so a layer of your own
/// that does can be quantized: see [`Layer`](crate::Layer).
///
/// # Shapes
/// - weight: `[out_features, in_features]`, bias: `[out_features]`
/// - input: `[.., in_features]` of rank 1 or more, f32, f16, bf16 or f64, contiguous or not
/// - output: `[.., out_features]` in the dtype of the input
///
/// Float, it is computed in the dtype of the weight by candle's own operations, so gradients
/// flow. Quantized, it is an inference-only operation on the CPU: activations become u8, the
/// sum is exact in i32, and the result is
/// `fma(sum, scale_of_activations * scale_of_weights, bias)` in f32, the same bits on every
/// CPU; [`kernels::reference`] is the definition. Rows that hold a NaN or an infinity become
/// NaN and touch no other row.
///
/// ```
/// use candle_core::{Device, Module, Tensor};
/// use candle_dynquant::{nn::Projection, QConfig};
///
/// let weight = Tensor::randn(0f32, 1., (3, 2), &Device::Cpu)?;
/// let float = Projection::new(weight, None);
/// let int8 = float.quantize(&QConfig::per_row_dynamic())?;
/// let xs = Tensor::randn(0f32, 1., (5, 2), &Device::Cpu)?;
/// let error = (float.forward(&xs)? - int8.forward(&xs)?)?.abs()?.max_all()?;
/// assert!(error.to_scalar::<f32>()? < 0.1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Projection {
    weight: Weight,
    bias: Option<Tensor>,
    activation: Option<Activation>,
    /// Gates of recurrent units that the output features are, one after the other; 1 for none.
    gates: usize,
}

#[derive(Clone, Debug)]
enum Weight {
    Float(Tensor),
    Quantized {
        weight: Arc<QWeight>,
        /// Dynamic with int8 weights, float with float16 weights.
        activations: ActivationConfig,
    },
}

impl Projection {
    /// A float projection; shapes are checked when it is used or quantized.
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self {
            weight: Weight::Float(weight),
            bias,
            activation: None,
            gates: 1,
        }
    }

    /// The same, packed for recurrent steps when it is quantized.
    #[must_use]
    pub(super) fn with_gates(self, gates: usize) -> Self {
        Self { gates, ..self }
    }

    /// The same with a function applied to every element of the output; quantized, while it is
    /// in the cache.
    #[must_use]
    pub fn with_activation(self, activation: Activation) -> Self {
        Self {
            activation: Some(activation),
            ..self
        }
    }

    /// The function that is applied to every element of the output.
    pub fn activation(&self) -> Option<Activation> {
        self.activation
    }

    /// The same projection with its weight quantized; `self` stays as it is.
    ///
    /// # Errors
    /// As [`QWeight::from_float`], and when the weight is quantized already.
    pub fn quantize(&self, qconfig: &QConfig) -> Result<Self> {
        let Weight::Float(weight) = &self.weight else {
            return Err(Error::UnsupportedQConfig {
                expected: "a float weight".into(),
                got: "one that is quantized already".into(),
            });
        };
        match (&qconfig.weight, qconfig.activation) {
            (WeightConfig::Int8(_), ActivationConfig::Dynamic(_))
            | (WeightConfig::Float16, ActivationConfig::Float) => {}
            _ => {
                return Err(Error::UnsupportedQConfig {
                    expected: "int8 weights with dynamic activations, or float16 weights with \
                               float activations"
                        .into(),
                    got: qconfig.to_string(),
                });
            }
        }
        // A bias that is a view of the weight's memory would keep it alive.
        let memory = WeightId::of_tensor(weight).memory();
        let bias = self.bias.as_ref().map(|bias| {
            let within = WeightId::of_tensor(bias).memory() == memory;
            if within {
                bias.force_contiguous()
            } else {
                Ok(bias.clone())
            }
        });
        let weight = QWeight::of_gates(self.gates, weight, self.bias.as_ref(), &qconfig.weight)?;
        Ok(Self {
            weight: Weight::Quantized {
                weight: Arc::new(weight),
                activations: qconfig.activation,
            },
            bias: bias.transpose()?,
            activation: self.activation,
            gates: self.gates,
        })
    }

    /// The weight, `[out_features, in_features]`; of a quantized projection the dequantized
    /// one, computed at the first call and kept.
    pub fn weight(&self) -> &Tensor {
        match &self.weight {
            Weight::Float(weight) => weight,
            Weight::Quantized { weight, .. } => weight.dequantized(),
        }
    }

    /// Dtype of the weight; f32 if it is quantized.
    pub(crate) fn dtype(&self) -> DType {
        match &self.weight {
            Weight::Float(weight) => weight.dtype(),
            Weight::Quantized { .. } => DType::F32,
        }
    }

    /// The bias, `[out_features]`; never quantized.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// The quantized weight, if it is quantized.
    pub fn qweight(&self) -> Option<&QWeight> {
        self.quantized().map(|(weight, _)| &**weight)
    }

    /// The description of this weight for a [`Layer`](crate::Layer), under the name it gives it.
    pub fn info(&self, name: &str) -> WeightInfo {
        match &self.weight {
            Weight::Float(weight) => WeightInfo::new(
                name,
                weight.dims(),
                weight.dtype().into(),
                weight.elem_count() * weight.dtype().size_in_bytes(),
            )
            .held_as(WeightId::of_tensor(weight)),
            Weight::Quantized { weight, .. } => weight_info(weight, name),
        }
    }

    /// The quantized weight, for a layer that holds the same tensor: see
    /// [`Layer::lend`](crate::Layer::lend).
    pub fn lend(&self) -> Option<LentWeight> {
        let quantized = self.quantized();
        quantized.map(|(weight, _)| LentWeight::new(Arc::clone(weight)))
    }

    /// How far the weight is from that of `float`.
    ///
    /// # Errors
    /// When the shapes differ.
    pub fn weight_error(&self, float: &Self) -> Result<WeightError> {
        let (expected, got) = (float.weight(), self.weight());
        if expected.dims() != got.dims() {
            return Err(Error::ShapeMismatch {
                op: "weight error",
                expected: format!("{:?}", expected.dims()),
                got: got.dims().to_vec(),
            });
        }
        let values = |tensor| to_f32_vec(tensor, "weight error");
        Ok(WeightError::of(&values(expected)?, &values(got)?))
    }

    /// [`forward`](Module::forward) with this crate's error.
    ///
    /// # Errors
    /// When the input has rank 0, another last dimension than `in_features`, or a dtype that
    /// is no float; quantized, also when it is not on the CPU.
    pub fn try_forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (n, k) = self.shape()?;
        let Some((_, batch)) = xs.dims().split_last().filter(|(last, _)| **last == k) else {
            return Err(mismatch("forward", format!("[.., {k}]"), xs));
        };
        let (rows, shape) = rows_and_shape(batch, n)?;
        match &self.weight {
            Weight::Float(weight) => self.forward_float(weight, xs, (rows, k), &shape),
            Weight::Quantized {
                weight,
                activations,
            } => {
                let input = as_f32(xs, "forward")?;
                let elements = Elements::of(&input);
                let operands = self.operands(weight, elements.as_slice()?, rows);
                let ys = kernels::linear(operands, *activations);
                from_f32_vec(ys, &shape, xs.dtype())
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
    /// let int8 = QConfig::per_row_dynamic();
    /// let query = Projection::new(weight()?, None).quantize(&int8)?;
    /// let key = Projection::new(weight()?, None).quantize(&int8)?;
    /// let xs = Tensor::randn(0f32, 1., (5, 8), &Device::Cpu)?;
    /// let [queries, keys] = Projection::forward_each([&query, &key], &xs)?;
    /// assert_eq!(keys.to_vec2::<f32>()?, key.try_forward(&xs)?.to_vec2::<f32>()?);
    /// # Ok::<(), candle_dynquant::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`try_forward`](Self::try_forward) of any of them.
    pub fn forward_each<const N: usize>(
        projections: [&Self; N],
        xs: &Tensor,
    ) -> Result<[Tensor; N]> {
        let outs = match Self::alike(projections, xs) {
            None => (projections.iter())
                .map(|projection| projection.try_forward(xs))
                .collect::<Result<Vec<_>>>()?,
            Some((activations, weights)) => {
                let batch = &xs.dims()[..xs.rank() - 1];
                let dtype = xs.dtype();
                let input = as_f32(xs, "forward")?;
                let mut rows = 0;
                let mut shapes = Vec::with_capacity(N);
                for weight in weights {
                    let of_one = rows_and_shape(batch, weight.shape()[0])?;
                    rows = of_one.0;
                    shapes.push(of_one.1);
                }
                let elements = Elements::of(&input);
                let values = elements.as_slice()?;
                let operands =
                    std::array::from_fn(|i| projections[i].operands(weights[i], values, rows));
                let outs = kernels::linear_each::<N>(operands, activations);
                let outs = outs.into_iter().zip(&shapes);
                outs.map(|(out, shape)| from_f32_vec(out, shape, dtype))
                    .collect::<Result<_>>()?
            }
        };
        // There are as many as there were projections.
        Ok(outs
            .try_into()
            .unwrap_or_else(|_| unreachable!("N outputs")))
    }

    /// The weights of projections of such an input, if they are quantized alike, and how.
    fn alike<'a, const N: usize>(
        projections: [&'a Self; N],
        xs: &Tensor,
    ) -> Option<(ActivationConfig, [&'a QWeight; N])> {
        let (first, activations) = projections.first()?.quantized()?;
        let mut weights: [&QWeight; N] = [first; N];
        for (weight, projection) in weights.iter_mut().zip(projections) {
            let (own, own_activations) = projection.quantized()?;
            if own_activations != activations || xs.dims().last() != Some(&own.shape()[1]) {
                return None;
            }
            *weight = own;
        }
        Some((activations, weights))
    }

    /// The quantized weight and what is done to activations, if it is quantized.
    pub(super) fn quantized(&self) -> Option<(&Arc<QWeight>, ActivationConfig)> {
        match &self.weight {
            Weight::Float(_) => None,
            Weight::Quantized {
                weight,
                activations,
            } => Some((weight, *activations)),
        }
    }

    fn operands<'a>(&self, weight: &'a QWeight, lhs: &'a [f32], m: usize) -> Operands<'a> {
        Operands {
            lhs,
            m,
            rhs: weight.packed(),
            activation: self.activation,
        }
    }

    /// `out_features` and `in_features`.
    ///
    /// # Errors
    /// When the weight has another rank than 2, or the bias another shape than `[out_features]`.
    pub(crate) fn shape(&self) -> Result<(usize, usize)> {
        let shape = match &self.weight {
            Weight::Quantized { weight, .. } => weight.shape(),
            Weight::Float(weight) => match weight.dims() {
                &[n, k] => [n, k],
                got => {
                    return Err(Error::ShapeMismatch {
                        op: "weight",
                        expected: "[out_features, in_features]".into(),
                        got: got.to_vec(),
                    });
                }
            },
        };
        match &self.bias {
            Some(bias) if bias.dims() != [shape[0]] => Err(Error::ShapeMismatch {
                op: "bias",
                expected: format!("[{}]", shape[0]),
                got: bias.dims().to_vec(),
            }),
            _ => Ok(shape.into()),
        }
    }

    /// The product of `xs`, `[rows, in_features]`, as `[rows, out_features]`, all f32.
    ///
    /// # Errors
    /// When the weight or bias has a wrong shape, dtype or device.
    pub(super) fn multiply(&self, xs: &[f32], rows: usize) -> Result<Vec<f32>> {
        if let Some((weight, activations)) = self.quantized() {
            return Ok(kernels::linear(
                self.operands(weight, xs, rows),
                activations,
            ));
        }
        let mut out = vec![0.; rows * self.shape()?.0];
        self.with_product(|product| {
            product(xs, rows, &mut out);
            Ok(())
        })?;
        Ok(out)
    }

    /// [`multiply`](Self::multiply) of two projections that are quantized alike, at once.
    ///
    /// # Errors
    /// As [`multiply`](Self::multiply).
    pub(super) fn multiply_both(
        [(a, a_xs), (b, b_xs)]: [(&Self, &[f32]); 2],
        rows: usize,
    ) -> Result<[Vec<f32>; 2]> {
        if let (Some((a_weight, activations)), Some((b_weight, b_activations))) =
            (a.quantized(), b.quantized())
            && activations == b_activations
        {
            let operands = [
                a.operands(a_weight, a_xs, rows),
                b.operands(b_weight, b_xs, rows),
            ];
            return Ok(kernels::linear_each(operands, activations));
        }
        Ok([a.multiply(a_xs, rows)?, b.multiply(b_xs, rows)?])
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
            Weight::Quantized {
                weight,
                activations,
            } => {
                let mut codes = Codes::take();
                let result = f(&mut |xs, rows, out| {
                    let operands = self.operands(weight, xs, rows);
                    kernels::linear_into(operands, *activations, &mut codes, out);
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
                let elements = Elements::of(&weight);
                let weight = elements.as_slice()?;
                f(&mut |xs, rows, out| kernels::linear_f32(xs, rows, weight, &bias, out))
            }
        }
    }

    /// `xs` is `[.., k]`, of so many rows, and the result has `shape`.
    fn forward_float(
        &self,
        weight: &Tensor,
        xs: &Tensor,
        (rows, k): (usize, usize),
        shape: &[usize],
    ) -> Result<Tensor> {
        check_float(xs, "forward")?;
        let dtype = xs.dtype();
        // candle's matmul has no meaning for empty operands, nor have most of its operations for
        // empty views.
        if shape.contains(&0) {
            return Ok(Tensor::zeros(shape, dtype, weight.device())?);
        }
        let ys = match k {
            0 => Tensor::zeros(shape, weight.dtype(), weight.device())?,
            _ => {
                let xs = xs.reshape((rows, k))?.to_dtype(weight.dtype())?;
                xs.matmul(&weight.t()?)?.reshape(shape)?
            }
        };
        let ys = match &self.bias {
            Some(bias) => ys.broadcast_add(bias)?,
            None => ys,
        };
        let ys = match self.activation {
            None => ys,
            Some(activation) => ops::activate(&ys, activation)?,
        };
        Ok(ys.to_dtype(dtype)?)
    }
}

/// The description of a quantized weight for the layer that holds it, under the name it gives it.
pub(super) fn weight_info(weight: &Arc<QWeight>, name: &str) -> WeightInfo {
    let dtype = WeightDType::of_codes(weight.dtype());
    WeightInfo::new(name, &weight.shape(), dtype, weight.bytes())
        .quantized(weight.saturated())
        .held_as(WeightId::of_shared(weight))
}

/// The rows of an input and the shape of the output, with `n` features.
///
/// # Errors
/// When there are more elements than memory can hold.
fn rows_and_shape(batch: &[usize], n: usize) -> Result<(usize, Vec<usize>)> {
    let shape = [batch, &[n]].concat();
    sizes::elements("forward", &shape)?;
    Ok((batch.iter().product(), shape))
}

impl Module for Projection {
    fn forward(&self, xs: &Tensor) -> CandleResult<Tensor> {
        Ok(self.try_forward(xs)?)
    }
}
