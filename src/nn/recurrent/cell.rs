//! Single steps: LSTMCell, GRUCell, RNNCell.

use std::sync::Arc;

use candle_core::Tensor;
use candle_nn::VarBuilder;

use super::{LSTMState, Nonlinearity, load, quantizable_layer, read_state, uniform_init};
use crate::error::{Error, Result};
use crate::kernels::{self, Gates, Isa, Step};
use crate::module::{LayerKind, WeightInfo};
use crate::nn::{Projection, prefix_of};
use crate::qconfig::QConfig;
use crate::sizes;
use crate::tensor::{Elements, as_f32, check_cpu_float, from_f32_vec, mismatch};

/// The weights of a cell.
#[derive(Clone, Debug)]
struct Cell {
    gates: Gates,
    input_size: usize,
    hidden_size: usize,
    name: Option<Arc<str>>,
    ih: Projection,
    hh: Projection,
}

impl Cell {
    fn load(
        gates: Gates,
        input_size: usize,
        hidden_size: usize,
        bias: bool,
        vb: &VarBuilder<'_>,
    ) -> Result<Self> {
        let init = uniform_init(hidden_size);
        let rows = sizes::elements("weight", &[gates.count(), hidden_size])?;
        let projection = |name: &str, columns: usize| -> Result<Projection> {
            let weight = load(vb, &[rows, columns], &format!("weight_{name}"), init)?;
            let bias = match bias {
                true => Some(load(vb, &[rows], &format!("bias_{name}"), init)?),
                false => None,
            };
            Ok(Projection::new(weight, bias))
        };
        Ok(Self {
            gates,
            input_size,
            hidden_size,
            name: prefix_of(vb),
            ih: projection("ih", input_size)?,
            hh: projection("hh", hidden_size)?,
        })
    }

    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn weights(&self) -> Vec<WeightInfo> {
        vec![self.ih.info("weight_ih"), self.hh.info("weight_hh")]
    }

    fn quantize(&self, qconfig: &QConfig) -> Result<Self> {
        Ok(Self {
            ih: self.ih.quantize(qconfig).map_err(|e| e.at("weight_ih"))?,
            hh: self.hh.quantize(qconfig).map_err(|e| e.at("weight_hh"))?,
            name: self.name.clone(),
            ..*self
        })
    }

    /// Checks `xs`, `[batch, input_size]` or `[input_size]`: the batch, and the shape of a state.
    fn input(&self, xs: &Tensor) -> Result<(usize, Vec<usize>)> {
        check_cpu_float(xs, "forward")?;
        match *xs.dims() {
            [batch, last] if last == self.input_size => Ok((batch, vec![batch, self.hidden_size])),
            [last] if last == self.input_size => Ok((1, vec![self.hidden_size])),
            _ => {
                let expected = format!("[batch, {0}] or [{0}]", self.input_size);
                Err(mismatch("forward", expected, xs))
            }
        }
    }

    /// h after `xs`; the cell state of an LSTM, `c`, is replaced.
    fn forward(
        &self,
        xs: &Tensor,
        (batch, shape): &(usize, Vec<usize>),
        h: Option<&Tensor>,
        c: &mut [f32],
    ) -> Result<Tensor> {
        let input = as_f32(xs, "forward")?;
        let isa = Isa::active()?;
        let mut h = read_state("state h", h, shape)?;
        let values = Elements::of(&input);
        let pairs = [(&self.ih, values.as_slice()?), (&self.hh, &h[..])];
        let [ih, hh] = Projection::multiply_both(pairs, *batch)?;
        let step = Step {
            ih: &ih,
            hh: &hh,
            h: &mut h,
            c,
        };
        kernels::update_state(isa, self.gates, self.hidden_size, step);
        from_f32_vec(h, shape, xs.dtype())
    }

    /// [`forward`](Self::forward) of a cell whose state is h alone.
    fn forward_h(&self, kind: &str, xs: &Tensor, h: Option<&Tensor>) -> Result<Tensor> {
        let h = (self.input(xs)).and_then(|input| self.forward(xs, &input, h, &mut []));
        h.map_err(|e| e.at(self.name().unwrap_or(kind)))
    }
}

/// One step of an [`LSTM`](super::LSTM): `torch.nn.LSTMCell`.
///
/// # Shapes
/// - input: `[batch, input_size]` or `[input_size]`, any float dtype
/// - state: `h` and `c` of `[batch, hidden_size]` or `[hidden_size]`
///
/// Weights load as `weight_ih`, `weight_hh`, `bias_ih` and `bias_hh`.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_dynquant::nn;
/// use candle_nn::{VarBuilder, VarMap};
///
/// let vars = VarMap::new();
/// let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
/// let cell = nn::LSTMCell::new(16, 32, true, vb.pp("cell"))?;
/// let xs = Tensor::ones((3, 16), DType::F32, &Device::Cpu)?;
/// let state = cell.forward(&xs, None)?;
/// let state = cell.forward(&xs, Some(&state))?;
/// assert_eq!(state.c.dims(), [3, 32]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct LSTMCell {
    cell: Cell,
}

quantizable_layer!(LSTMCell, cell, LayerKind::LSTMCell);

impl LSTMCell {
    /// Loads a cell from `vb`.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    pub fn new(
        input_size: usize,
        hidden_size: usize,
        bias: bool,
        vb: VarBuilder<'_>,
    ) -> Result<Self> {
        let cell = Cell::load(Gates::Lstm, input_size, hidden_size, bias, &vb)?;
        Ok(Self { cell })
    }

    /// The state after one step from `state`, or from zeros.
    ///
    /// # Errors
    /// When the input or the state has a wrong shape or dtype, or is not on the CPU.
    pub fn forward(&self, xs: &Tensor, state: Option<&LSTMState>) -> Result<LSTMState> {
        let run = || {
            let input = self.cell.input(xs)?;
            let mut c = read_state("state c", state.map(|s| &s.c), &input.1)?;
            let h = self.cell.forward(xs, &input, state.map(|s| &s.h), &mut c)?;
            let c = from_f32_vec(c, &input.1, xs.dtype())?;
            Ok(LSTMState { h, c })
        };
        run().map_err(|e: Error| e.at(self.cell.name().unwrap_or("LSTMCell")))
    }
}

/// One step of a [`GRU`](super::GRU): `torch.nn.GRUCell`; shapes as in [`LSTMCell`].
#[derive(Clone, Debug)]
pub struct GRUCell {
    cell: Cell,
}

quantizable_layer!(GRUCell, cell, LayerKind::GRUCell);

impl GRUCell {
    /// Loads a cell from `vb`.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    pub fn new(
        input_size: usize,
        hidden_size: usize,
        bias: bool,
        vb: VarBuilder<'_>,
    ) -> Result<Self> {
        let cell = Cell::load(Gates::Gru, input_size, hidden_size, bias, &vb)?;
        Ok(Self { cell })
    }

    /// The state after one step from `h`, or from zeros.
    ///
    /// # Errors
    /// When the input or the state has a wrong shape or dtype, or is not on the CPU.
    pub fn forward(&self, xs: &Tensor, h: Option<&Tensor>) -> Result<Tensor> {
        self.cell.forward_h("GRUCell", xs, h)
    }
}

/// One step of an [`RNN`](super::RNN): `torch.nn.RNNCell`; shapes as in [`LSTMCell`].
#[derive(Clone, Debug)]
pub struct RNNCell {
    cell: Cell,
}

quantizable_layer!(RNNCell, cell, LayerKind::RNNCell);

impl RNNCell {
    /// Loads a cell from `vb`.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    pub fn new(
        input_size: usize,
        hidden_size: usize,
        bias: bool,
        nonlinearity: Nonlinearity,
        vb: VarBuilder<'_>,
    ) -> Result<Self> {
        let cell = Cell::load(nonlinearity.gates(), input_size, hidden_size, bias, &vb)?;
        Ok(Self { cell })
    }

    /// The state after one step from `h`, or from zeros.
    ///
    /// # Errors
    /// When the input or the state has a wrong shape or dtype, or is not on the CPU.
    pub fn forward(&self, xs: &Tensor, h: Option<&Tensor>) -> Result<Tensor> {
        self.cell.forward_h("RNNCell", xs, h)
    }
}
