//! Mixtures of experts: MLPs, of which each row is computed by those that its router chose.

use std::collections::BTreeMap;

use candle_core::{DType, Result as CandleResult, Tensor};
use candle_nn::{Module, VarBuilder};

use super::linear::{Linear, linear_no_bias};
use super::projection::Projection;
use crate::error::{Error, Result};
use crate::kernels::{self, FusedActivation};
use crate::module::trees::trees;
use crate::ops;
use crate::sizes;
use crate::tensor::{Elements, as_f32, from_f32_vec, mismatch, without_gradient};
use crate::trace;

/// The experts that are computed by one call of the kernels.
const AT_ONCE: usize = 8;

/// An MLP, `down(activation(gate(x)) * up(x))`, or without a gate `down(activation(up(x)))`.
#[derive(Clone, Debug)]
pub struct Expert {
    gate_proj: Option<Linear>,
    up_proj: Linear,
    down_proj: Linear,
    activation: FusedActivation,
}

impl Expert {
    /// An expert of these layers, with the activation function SiLU.
    pub fn new(gate_proj: Linear, up_proj: Linear, down_proj: Linear) -> Self {
        let gate_proj = Some(gate_proj);
        Self { gate_proj, ..Self::plain(up_proj, down_proj) }
    }

    /// An expert without a gate, with the activation function SiLU.
    pub fn plain(up_proj: Linear, down_proj: Linear) -> Self {
        Self { gate_proj: None, up_proj, down_proj, activation: FusedActivation::Silu }
    }

    /// This expert with another activation function.
    #[must_use]
    pub fn with_activation(self, activation: FusedActivation) -> Self {
        Self { activation, ..self }
    }

    fn forward(&self, xs: &Tensor) -> CandleResult<Tensor> {
        let inner = match &self.gate_proj {
            Some(gate) => {
                let [gate, up] = Linear::forward_each([gate, &self.up_proj], xs)?;
                ops::activate_mul(&gate, &up, self.activation)?
            }
            None => ops::activate(&self.up_proj.forward(xs)?, self.activation)?,
        };
        self.down_proj.forward(&inner)
    }

    /// The features of an input and of an output.
    fn sizes(&self) -> Result<[usize; 2]> {
        let shape = |linear: &Linear| linear.projection().shape();
        let ((inner, inputs), (outputs, of_down)) =
            (shape(&self.up_proj)?, shape(&self.down_proj)?);
        let (of_gate, features) = self.gate_proj.as_ref().map_or(Ok((inner, inputs)), shape)?;
        if [of_gate, features, of_down] != [inner, inputs, inner] {
            let expected =
                format!("gate [{inner}, {inputs}] and down [{outputs}, {inner}] as of up");
            let got = [of_gate, features, outputs, of_down];
            return Err(Error::shape("experts", expected, &got));
        }
        Ok([inputs, outputs])
    }

    /// The products of the input: of the gate, if there is one, and up.
    fn firsts(&self) -> impl Iterator<Item = &Projection> {
        let all = self.gate_proj.iter().chain([&self.up_proj]);
        all.map(Linear::projection)
    }

    /// Whether the products are quantized alike, and report to nobody.
    fn is_computed_as(&self, other: &Self) -> bool {
        let [up, down] = [&other.up_proj, &other.down_proj].map(Linear::projection);
        (self.activation, self.gate_proj.is_some()) == (other.activation, other.gate_proj.is_some())
            && self.firsts().all(|first| first.is_computed_as(up))
            && self.down_proj.projection().is_computed_as(down)
    }
}

/// A mixture of experts: each row is computed by some of them, and the results are summed by
/// weights.
///
/// [`Router`](super::Router) chooses. The weights of an expert are layers of the model,
/// `0.gate_proj` and so on, each quantized as a [`Linear`]. Quantized, the rows of an expert are
/// one product, and the result of a row has the same bits whatever experts the other rows have.
///
/// # Shapes
/// - input: `[.., in_features]`
/// - `chosen`, u32, and `weights` of each row: `[.., experts_per_row]`
/// - output: `[.., out_features]` in the dtype of the input
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_dynquant::{QConfigSpec, nn, quantize_dynamic};
/// use candle_nn::{VarBuilder, VarMap};
///
/// let vars = VarMap::new();
/// let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
/// let router = nn::router(64, 4, vb.pp("gate"))?;
/// let mut experts = nn::experts(4, 64, 32, vb.pp("experts"))?;
/// let report = quantize_dynamic(&mut experts, &QConfigSpec::int8())?;
/// assert_eq!(report.swapped().count(), 4 * 3);
/// let xs = Tensor::randn(0f32, 1., (5, 64), &Device::Cpu)?;
/// let (chosen, weights) = router.choose(&xs, 2, true)?;
/// assert_eq!(experts.forward(&xs, &chosen, &weights)?.dims(), [5, 64]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Experts(Vec<Expert>);

trees! { self, walk:
    [] Expert => {
        walk.child("gate_proj", &self.gate_proj)?;
        walk.child("up_proj", &self.up_proj)?;
        walk.child("down_proj", &self.down_proj)
    }, {
        walk.child("gate_proj", &mut self.gate_proj)?;
        walk.child("up_proj", &mut self.up_proj)?;
        walk.child("down_proj", &mut self.down_proj)
    };
    [] Experts => self.0.visit(walk), self.0.visit_mut(walk);
}

/// The rows of an expert, and their places among the weights.
#[derive(Default)]
struct Share {
    rows: Vec<u32>,
    places: Vec<u32>,
}

impl Experts {
    /// Experts of equal sizes, which are checked when they are used.
    pub fn new(experts: Vec<Expert>) -> Self {
        Self(experts)
    }

    /// Experts of stacked weights: gates and `up` in one, `[experts, 2 inner_features, in_features]`,
    /// and `down`, `[experts, out_features, inner_features]`.
    ///
    /// # Errors
    /// When a tensor has another shape.
    pub fn stacked(gate_up: &Tensor, down: &Tensor) -> CandleResult<Self> {
        let ((count, both, _), (other, _, inner)) = (gate_up.dims3()?, down.dims3()?);
        if (count, both) != (other, 2 * inner) {
            let expected = format!("[{other}, {}, in_features]", 2 * inner);
            return Err(mismatch("experts", expected, gate_up).into());
        }
        let expert = |index| {
            let (both, down) = (gate_up.get(index)?, down.get(index)?);
            let linear = |weight| Linear::new(weight, None);
            let [gate, up] = [0, inner].map(|first| both.narrow(0, first, inner));
            Ok(Expert::new(linear(gate?), linear(up?), linear(down)))
        };
        Ok(Self((0..count).map(expert).collect::<CandleResult<_>>()?))
    }

    /// The sum of the results of the `chosen` experts of each row, times their `weights`.
    ///
    /// # Errors
    /// When shapes or dtypes do not fit, or an expert does not exist.
    pub fn forward(&self, xs: &Tensor, chosen: &Tensor, weights: &Tensor) -> CandleResult<Tensor> {
        trace::forward!("experts");
        let shares = self.shares(xs, chosen, weights)?;
        let Some(first) = self.0.first() else {
            return Err(Error::argument("experts", "1 or more", 0).into());
        };
        let [inputs, outputs] = first.sizes()?;
        let batch = match xs.dims() {
            [batch @ .., last] if *last == inputs => batch,
            _ => return Err(mismatch("experts", format!("[.., {inputs}]"), xs).into()),
        };
        let shape = [batch, &[outputs]].concat();
        sizes::computed("experts", &shape, xs.elem_count())?;
        if shape.contains(&0) {
            return Tensor::zeros(shape, xs.dtype(), xs.device());
        }
        if !self.are_alike(&shares)? {
            let ys = self.by_tensors(xs, &shares, weights, [inputs, outputs])?;
            return ys.reshape(shape);
        }
        let f32s = [as_f32(xs, "experts")?, as_f32(weights, "experts")?];
        let [rows, factors] = f32s.each_ref().map(Elements::new);
        let (rows, factors) = (rows.as_slice()?, factors.as_slice()?);
        let ys =
            self.by_kernels((rows, batch.iter().product()), &shares, factors, [inputs, outputs])?;
        let ys = from_f32_vec(ys, &shape, xs.dtype())?;
        Ok(without_gradient(ys, &[xs, weights])?)
    }

    /// The rows of each expert that has some, by its index.
    fn shares(
        &self,
        xs: &Tensor,
        chosen: &Tensor,
        weights: &Tensor,
    ) -> Result<Vec<(usize, Share)>> {
        let batch = xs.dims().split_last().map_or(&[][..], |(_, batch)| batch);
        let count = match chosen.dims().split_last() {
            Some((count, rows)) if rows == batch => *count,
            _ => {
                let expected = format!("experts of each row of {batch:?}");
                return Err(mismatch("experts chosen", expected, chosen));
            }
        };
        if weights.dims() != chosen.dims() {
            let expected = format!("{:?}", chosen.dims());
            return Err(mismatch("weights of experts", expected, weights));
        }
        if chosen.dtype() != DType::U32 {
            return Err(Error::dtype("experts chosen", "u32", chosen.dtype()));
        }
        let mut shares = BTreeMap::<u32, Share>::new();
        for (place, expert) in chosen.flatten_all()?.to_vec1()?.into_iter().enumerate() {
            let share = shares.entry(expert).or_default();
            share.rows.push((place / count) as u32);
            share.places.push(place as u32);
        }
        match shares.keys().find(|expert| **expert as usize >= self.0.len()) {
            None => {
                Ok((shares.into_iter()).map(|(expert, share)| (expert as usize, share)).collect())
            }
            Some(expert) => {
                let expected = format!("one of {}, from 0 on", self.0.len());
                Err(Error::argument("expert", expected, expert))
            }
        }
    }

    /// Whether the experts of these rows are quantized alike, and report to nobody.
    fn are_alike(&self, shares: &[(usize, Share)]) -> Result<bool> {
        let Some((first, _)) = shares.first() else {
            return Ok(false);
        };
        let first = &self.0[*first];
        let sizes = first.sizes()?;
        let mut are_alike = true;
        for (index, _) in shares {
            let expert = &self.0[*index];
            let got = expert.sizes()?;
            if got != sizes {
                let got = format!("{got:?} of expert {index}");
                let expected = format!("{sizes:?}, as of the others");
                return Err(Error::argument("features of experts", expected, got));
            }
            are_alike &= expert.is_computed_as(first);
        }
        Ok(are_alike)
    }

    /// Expert after expert by candle's operations, through which gradients flow.
    fn by_tensors(
        &self,
        xs: &Tensor,
        shares: &[(usize, Share)],
        weights: &Tensor,
        [inputs, outputs]: [usize; 2],
    ) -> CandleResult<Tensor> {
        let xs = xs.reshape(((), inputs))?;
        let weights = weights.flatten_all()?.to_dtype(xs.dtype())?;
        let mut sum = Tensor::zeros((xs.dim(0)?, outputs), xs.dtype(), xs.device())?;
        for (index, share) in shares {
            let tensor = |values: &[u32]| Tensor::from_slice(values, values.len(), xs.device());
            let (rows, places) = (tensor(&share.rows)?, tensor(&share.places)?);
            let ys = self.0[*index].forward(&xs.index_select(&rows, 0)?)?;
            let weights = weights.index_select(&places, 0)?.unsqueeze(1)?;
            sum = sum.index_add(&rows, &ys.broadcast_mul(&weights)?, 0)?;
        }
        Ok(sum)
    }

    /// The rows of several experts at once.
    fn by_kernels(
        &self,
        (xs, count): (&[f32], usize),
        shares: &[(usize, Share)],
        weights: &[f32],
        [inputs, outputs]: [usize; 2],
    ) -> Result<Vec<f32>> {
        let isa = kernels::active()?;
        // The inputs of an expert are a matrix, which is there for an expert of all rows.
        let is_there = |share: &Share| share.rows.iter().copied().eq(0..count as u32);
        let rows: Vec<_> = (shares.iter().filter(|(_, share)| !is_there(share)))
            .flat_map(|(_, share)| &share.rows)
            .collect();
        let mut gathered = vec![0.; rows.len() * inputs];
        kernels::for_each_row(&mut gathered, inputs, |index, row| {
            row.copy_from_slice(&xs[*rows[index] as usize * inputs..][..inputs]);
        });
        let mut rest = &gathered[..];
        let mut parts = Vec::with_capacity(shares.len());
        for some in shares.chunks(AT_ONCE) {
            let firsts = some.iter().flat_map(|(index, share)| {
                let rows = share.rows.len();
                let mut input = xs;
                if !is_there(share) {
                    (input, rest) = rest.split_at(rows * inputs);
                }
                let firsts = self.0[*index].firsts();
                firsts.map(move |first| (first, input, rows))
            });
            let firsts: Vec<_> = firsts.collect();
            let each = firsts.len() / some.len();
            let firsts = Projection::multiply_all::<{ 2 * AT_ONCE }>(&firsts);
            let inner = firsts.chunks_exact(each).zip(some).map(|(ys, (index, _))| {
                let activation = self.0[*index].activation.into();
                match ys {
                    [gate, up] => kernels::activate_mul(isa, activation, gate, up),
                    _ => kernels::activate(isa, activation, &ys[0]),
                }
            });
            let inner: Vec<_> = inner.collect();
            let lasts = some.iter().zip(&inner);
            let lasts = lasts.map(|((index, share), inner)| {
                (self.0[*index].down_proj.projection(), &inner[..], share.rows.len())
            });
            let lasts: Vec<_> = lasts.collect();
            parts.extend(Projection::multiply_all::<AT_ONCE>(&lasts));
        }
        // The terms of each row, in the order of the experts.
        let mut terms = vec![Vec::new(); count];
        for ((_, share), part) in shares.iter().zip(&parts) {
            let rows = share.rows.iter().zip(&share.places);
            for ((row, place), ys) in rows.zip(part.chunks_exact(outputs.max(1))) {
                terms[*row as usize].push((weights[*place as usize], ys));
            }
        }
        let mut sums = vec![0.; count * outputs];
        kernels::for_each_row(&mut sums, outputs, |row, sums| {
            for (weight, ys) in &terms[row] {
                for (sum, y) in sums.iter_mut().zip(*ys) {
                    *sum += weight * y;
                }
            }
        });
        Ok(sums)
    }
}

/// Loads `count` experts without biases: `0.gate_proj.weight` and `0.up_proj.weight`,
/// `[inner_dim, in_dim]`, `0.down_proj.weight`, `[in_dim, inner_dim]`, and so on.
///
/// # Errors
/// When a tensor is missing or has another shape.
pub fn experts(
    count: usize,
    in_dim: usize,
    inner_dim: usize,
    vb: VarBuilder<'_>,
) -> CandleResult<Experts> {
    let expert = |index| {
        let vb = vb.pp(index);
        Ok(Expert::new(
            linear_no_bias(in_dim, inner_dim, vb.pp("gate_proj"))?,
            linear_no_bias(in_dim, inner_dim, vb.pp("up_proj"))?,
            linear_no_bias(inner_dim, in_dim, vb.pp("down_proj"))?,
        ))
    };
    let experts: CandleResult<_> = (0..count).map(expert).collect();
    Ok(Experts::new(experts?))
}
