//! Single steps: LSTMCell, GRUCell, RNNCell.

use std::sync::Arc;

use candle_core::Tensor;
use candle_nn::VarBuilder;

use super::gru::Gru;
use super::kind::{CellState, Gated, RecurrentKind};
use super::lstm::Lstm;
use super::rnn::Nonlinearity;
use super::state::{Given, as_rows, read_state};
use super::weights::{Direction, DirectionShape, Inits, check_input, is_for_kernels};
use crate::error::Result;
use crate::kernels::{self, Step};
use crate::nn::prefix::prefix_of;
use crate::nn::projection::Projection;
use crate::qconfig::QConfig;
use crate::sizes;
use crate::tap::{self, Tap};
use crate::tensor::{Elements, as_f32, from_f32_vec, mismatch, without_gradient};

/// A step of a recurrent layer: [`LSTMCell`], [`GRUCell`] and [`RNNCell`].
#[derive(Clone, Debug)]
pub struct RecurrentCell<K> {
    kind: K,
    name: Option<Arc<str>>,
    weights: Direction,
    pub(super) tap: Option<Tap>,
}

impl<K: RecurrentKind> RecurrentCell<K> {
    /// The state after one step from `state`, or from zeros: candle's `LSTMState` of an LSTM, else
    /// the tensor `h`.
    ///
    /// # Errors
    /// When the input or the state has a wrong shape or dtype, or is on another device than the
    /// weights.
    pub fn forward(&self, xs: &Tensor, state: Option<&K::State>) -> Result<K::State> {
        let _span = K::span(true, self.name());
        let given = K::given(xs, state);
        let (h, c) = self.step(given).map_err(|error| match self.name() {
            Some(name) => error.at(name),
            None => error.at(&K::KINDS[1].to_string()),
        })?;
        tap::report(self.tap.as_ref(), &given.tensors(), &h);
        Ok(K::state(h, c))
    }

    fn load(kind: K, [input, hidden]: [usize; 2], bias: bool, vb: &VarBuilder<'_>) -> Result<Self> {
        let shape = DirectionShape::new(kind.gates(), input, hidden);
        let inits = Inits::uniform(hidden, bias);
        Ok(Self {
            kind,
            name: prefix_of(vb),
            weights: Direction::load(shape, String::new(), inits, vb)?,
            tap: None,
        })
    }

    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub(super) fn directions(&self) -> &[Direction] {
        std::slice::from_ref(&self.weights)
    }

    pub(super) fn quantized(&self, qconfig: &QConfig) -> Result<Self> {
        Ok(Self {
            weights: self.weights.quantize(qconfig)?,
            name: self.name.clone(),
            tap: None,
            ..*self
        })
    }

    /// Checks `xs`, `[batch, input_size]` or `[input_size]`: the batch, and the shape of a state.
    fn input(&self, xs: &Tensor) -> Result<(usize, Vec<usize>)> {
        check_input(self.directions(), xs)?;
        let DirectionShape { gates, input, hidden, .. } = self.weights.shape;
        match *xs.dims() {
            [batch, last] if last == input => {
                let products = [batch, gates.count() * hidden];
                sizes::computed("forward", &products, xs.elem_count())?;
                Ok((batch, vec![batch, hidden]))
            }
            [last] if last == input => Ok((1, vec![hidden])),
            _ => {
                let expected = format!("[batch, {input}] or [{input}]");
                Err(mismatch("forward", expected, xs))
            }
        }
    }

    /// The h that follows from inputs as they are reported.
    pub(super) fn output(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        let given = Given::from_reported(inputs);
        let given = given.ok_or_else(|| tap::unlike("an input and a state", inputs))?;
        Ok(self.step(given)?.0)
    }

    fn step(&self, given: Given<'_>) -> Result<(Tensor, K::Cell)> {
        let (batch, shape) = self.input(given.xs)?;
        let sizes = [batch, self.weights.shape.hidden];
        if is_for_kernels(self.directions(), given, sizes) {
            self.by_kernels(given, batch, &shape)
        } else {
            self.by_candle(given, batch, &shape)
        }
    }

    fn by_kernels(
        &self,
        given: Given<'_>,
        batch: usize,
        shape: &[usize],
    ) -> Result<(Tensor, K::Cell)> {
        let xs = given.xs;
        let input = as_f32(xs, "forward")?;
        let isa = kernels::active()?;
        let mut h = read_state("state h", given.h, shape, <[f32]>::to_vec)?;
        let mut c = if K::Cell::EXISTS {
            read_state("state c", given.c, shape, <[f32]>::to_vec)?
        } else {
            Vec::new()
        };
        let values = Elements::new(&input);
        let pairs = [(&self.weights.ih, values.as_slice()?), (&self.weights.hh, &h[..])];
        let [ih, hh] = Projection::multiply_both(pairs, batch)?;
        let step = Step { ih: &ih, hh: &hh, h: &mut h, c: &mut c };
        let DirectionShape { gates, hidden, .. } = self.weights.shape;
        kernels::update_state(isa, gates, hidden, step);
        let sources = given.tensors();
        let tensor = |values| without_gradient(from_f32_vec(values, shape, xs.dtype())?, &sources);
        Ok((tensor(h)?, K::Cell::apply([], |[]| tensor(c))?))
    }

    fn by_candle(
        &self,
        Given { xs, h, c }: Given<'_>,
        batch: usize,
        shape: &[usize],
    ) -> Result<(Tensor, K::Cell)> {
        let dtype = self.weights.ih.dtype();
        let rows = [batch, self.weights.shape.hidden];
        let state = |op, given: Option<&Tensor>| {
            sizes::allocated(op, shape)?;
            as_rows(op, given, [shape, &rows], dtype, xs.device())
        };
        let h = state("state h", h)?;
        let c = K::Cell::apply([], |[]| state("state c", c))?;
        let rows = xs.to_dtype(dtype)?.reshape((batch, self.weights.shape.input))?;
        let products = [&self.weights.ih.try_forward(&rows)?, &self.weights.hh.try_forward(&h)?];
        let (h, c) = self.kind.step(products, &h, &c)?;
        let like_xs = |state: &Tensor| Ok(state.reshape(shape)?.to_dtype(xs.dtype())?);
        Ok((like_xs(&h)?, K::Cell::apply([&c], |[c]| like_xs(c))?))
    }
}

/// A step of an [`LSTM`](super::LSTM): `torch.nn.LSTMCell`.
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
pub type LSTMCell = RecurrentCell<Lstm>;

/// A step of a [`GRU`](super::GRU): `torch.nn.GRUCell`; shapes as in [`LSTMCell`].
pub type GRUCell = RecurrentCell<Gru>;

/// A step of an [`RNN`](super::RNN): `torch.nn.RNNCell`; shapes as in [`LSTMCell`].
pub type RNNCell = RecurrentCell<Nonlinearity>;

impl<K: Gated> RecurrentCell<K> {
    /// Loads the cell from `vb`.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    pub fn new(
        input_size: usize,
        hidden_size: usize,
        bias: bool,
        vb: VarBuilder<'_>,
    ) -> Result<Self> {
        Self::load(K::default(), [input_size, hidden_size], bias, &vb)
    }
}

impl RNNCell {
    /// Loads the cell from `vb`.
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
        Self::load(nonlinearity, [input_size, hidden_size], bias, &vb)
    }
}
