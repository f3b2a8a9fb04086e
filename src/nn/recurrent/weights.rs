//! The weights of one direction of one layer.

use candle_core::{Result as CandleResult, Tensor};
use candle_nn::{Init, VarBuilder};

use super::state::Given;
use crate::error::Result;
use crate::kernels::{Gates, Packed};
use crate::module::WeightInfo;
use crate::nn::projection::Projection;
use crate::qconfig::QConfig;
use crate::sizes;
use crate::tensor::{check_cpu_float, check_float, mismatch};
use crate::weight::StoredWeight;

/// The weights of one direction of one layer.
#[derive(Clone, Debug)]
pub(super) struct Direction {
    /// The end of the names in a checkpoint, after `weight_ih`: `_l0`, `_l0_reverse`.
    pub suffix: String,
    pub reverse: bool,
    pub shape: DirectionShape,
    pub ih: Projection,
    pub hh: Projection,
    /// The LSTM's projection of the hidden state.
    pub hr: Option<Projection>,
}

/// The sizes of one direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct DirectionShape {
    pub gates: Gates,
    pub input: usize,
    pub hidden: usize,
    /// Size of the projected hidden state, 0 for none.
    pub proj: usize,
}

/// The distributions of the initial weights of one direction, which are drawn without a checkpoint.
pub(super) struct Inits {
    pub w_ih: Init,
    pub w_hh: Init,
    pub b_ih: Option<Init>,
    pub b_hh: Option<Init>,
}

impl Inits {
    /// The distributions of PyTorch's weights and biases of recurrent layers.
    pub fn uniform(hidden_size: usize, bias: bool) -> Self {
        let bound = 1. / (hidden_size.max(1) as f64).sqrt();
        let init = Init::Uniform { lo: -bound, up: bound };
        let of_bias = bias.then_some(init);
        Self { w_ih: init, w_hh: init, b_ih: of_bias, b_hh: of_bias }
    }
}

impl DirectionShape {
    /// The sizes without a projection.
    pub fn new(gates: Gates, input: usize, hidden: usize) -> Self {
        Self { gates, input, hidden, proj: 0 }
    }

    /// Size of the hidden state as the next step and layer see it.
    pub fn state(self) -> usize {
        match self.proj {
            0 => self.hidden,
            proj => proj,
        }
    }
}

impl Direction {
    /// Loads the weights under PyTorch's names, which end in `suffix`. A cell's is empty, and its
    /// steps are single products, of no gates.
    pub fn load(
        shape: DirectionShape,
        suffix: String,
        inits: Inits,
        vb: &VarBuilder<'_>,
    ) -> CandleResult<Self> {
        let rows = sizes::elements("weight", &[shape.gates.count(), shape.hidden])?;
        let gates = match &*suffix {
            "" => 1,
            _ => shape.gates.count(),
        };
        let projection = |name, shape: [usize; 2], gates, init, bias: Option<Init>| {
            let weight_name = format!("weight_{name}{suffix}");
            let weight = || load(vb, &shape, &weight_name, init);
            let bias = || {
                let get = |init| load(vb, &[rows], &format!("bias_{name}{suffix}"), init);
                bias.map(get).transpose()
            };
            Projection::load(vb, &weight_name, shape, gates, weight, bias)
        };
        let hr = match shape.proj {
            0 => None,
            proj => Some(projection("hr", [proj, shape.hidden], 1, inits.w_hh, None)?),
        };
        Ok(Self {
            ih: projection("ih", [rows, shape.input], gates, inits.w_ih, inits.b_ih)?,
            hh: projection("hh", [rows, shape.state()], gates, inits.w_hh, inits.b_hh)?,
            hr,
            reverse: suffix.ends_with("_reverse"),
            shape,
            suffix,
        })
    }

    /// The packed weights of the input and of the hidden state, where all steps can be taken at
    /// once.
    pub fn packed(&self) -> Option<[&Packed; 2]> {
        let (ih, hh) = self.ih.qweight().zip(self.hh.qweight())?;
        (self.hr.is_none() && ih.is_like(hh)).then_some([ih.packed(), hh.packed()])
    }

    /// The names of the weights in a checkpoint, each with its projection.
    fn named(&self) -> impl Iterator<Item = (String, &Projection)> {
        let both = [("ih", &self.ih), ("hh", &self.hh)].into_iter();
        let all = both.chain(self.hr.as_ref().map(|hr| ("hr", hr)));
        all.map(|(name, projection)| (format!("weight_{name}{}", self.suffix), projection))
    }

    pub fn projections(&self) -> impl Iterator<Item = &Projection> {
        [&self.ih, &self.hh].into_iter().chain(&self.hr)
    }

    pub fn weight_infos(&self) -> Vec<WeightInfo> {
        let named = self.named();
        named.map(|(name, projection)| projection.info(&name)).collect()
    }

    pub fn stored(&self) -> impl Iterator<Item = StoredWeight> {
        let named = self.named();
        named.map(|(name, projection)| projection.stored(&name))
    }

    pub fn quantize(&self, qconfig: &QConfig) -> Result<Self> {
        let mut quantized = self.clone();
        let all = [&mut quantized.ih, &mut quantized.hh].into_iter();
        let all = all.chain(quantized.hr.as_mut());
        for (to, (name, projection)) in all.zip(self.named()) {
            *to = projection.quantize(qconfig).map_err(|e| e.at(&name))?;
        }
        Ok(quantized)
    }
}

/// Whether the weights are quantized.
fn is_quantized(directions: &[Direction]) -> bool {
    let first = directions.first();
    first.is_some_and(|direction| direction.ih.qweight().is_some())
}

/// Checks that the weights can multiply a tensor of that dtype, where it is.
pub fn check_input(directions: &[Direction], xs: &Tensor) -> Result<()> {
    if is_quantized(directions) {
        check_cpu_float(xs, "forward")
    } else {
        check_float(xs, "forward")
    }
}

/// Whether the kernels run these weights over these tensors; else candle's operations do, which have
/// no meaning for sizes of 0.
pub fn is_for_kernels(directions: &[Direction], given: Given<'_>, sizes: [usize; 2]) -> bool {
    let ours = |tensor: &Tensor| tensor.device().is_cpu() && !tensor.track_op();
    let mut all = directions.iter().flat_map(Direction::projections);
    is_quantized(directions)
        || sizes.contains(&0)
        || all.all(|p| p.qweight().is_some() || (ours(p.weight()) && p.bias().is_none_or(ours)))
            && given.tensors().into_iter().all(ours)
}

/// A weight or bias; a custom backend may not give the shape that it is asked for.
fn load(vb: &VarBuilder<'_>, shape: &[usize], name: &str, init: Init) -> Result<Tensor> {
    sizes::elements("weight", shape)?;
    let tensor = vb.get_with_hints(shape, name, init)?;
    if tensor.dims() == shape {
        Ok(tensor)
    } else {
        Err(mismatch("weight", format!("{shape:?}"), &tensor).at(&vb.pp(name).prefix()))
    }
}
