//! The weights of one direction of one layer.

use candle_core::Result as CandleResult;
use candle_nn::{Init, VarBuilder};

use super::load;
use crate::error::Result;
use crate::kernels::Gates;
use crate::module::WeightInfo;
use crate::nn::Projection;
use crate::qconfig::{ActivationConfig, QConfig};
use crate::qweight::QWeight;
use crate::sizes;

/// The weights of one direction of one layer.
#[derive(Clone, Debug)]
pub(super) struct Direction {
    /// The end of the names in a checkpoint, after `weight_ih`: `_l0`, `_l0_reverse`.
    suffix: String,
    pub reverse: bool,
    pub ih: Projection,
    pub hh: Projection,
    /// The LSTM's projection of the hidden state.
    pub hr: Option<Projection>,
}

/// The sizes of one direction.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub gates: Gates,
    pub input: usize,
    pub hidden: usize,
    /// Size of the projected hidden state, 0 for none.
    pub proj: usize,
}

/// How the initial weights of one direction are drawn where there is no checkpoint.
pub(super) struct Inits {
    pub w_ih: Init,
    pub w_hh: Init,
    pub b_ih: Option<Init>,
    pub b_hh: Option<Init>,
}

impl Shape {
    /// Size of the hidden state as the next step and layer see it.
    pub fn state(self) -> usize {
        match self.proj {
            0 => self.hidden,
            proj => proj,
        }
    }
}

impl Direction {
    /// Loads the weights under PyTorch's names, which end in `suffix`.
    pub fn load(
        shape: Shape,
        suffix: String,
        inits: Inits,
        vb: &VarBuilder<'_>,
    ) -> CandleResult<Self> {
        let gates = shape.gates.count();
        let rows = sizes::elements("weight", &[gates, shape.hidden])?;
        let weight = |name, rows, columns, init| {
            let name = format!("weight_{name}{suffix}");
            load(vb, &[rows, columns], &name, init)
        };
        let bias = |name, init: Option<Init>| {
            let get = |init| load(vb, &[rows], &format!("bias_{name}{suffix}"), init);
            init.map(get).transpose()
        };
        let hr = match shape.proj {
            0 => None,
            proj => Some(weight("hr", proj, shape.hidden, inits.w_hh)?),
        };
        let ih = weight("ih", rows, shape.input, inits.w_ih)?;
        let ih = Projection::new(ih, bias("ih", inits.b_ih)?);
        let hh = weight("hh", rows, shape.state(), inits.w_hh)?;
        let hh = Projection::new(hh, bias("hh", inits.b_hh)?);
        Ok(Self {
            ih: ih.with_gates(gates),
            hh: hh.with_gates(gates),
            hr: hr.map(|weight| Projection::new(weight, None)),
            reverse: suffix.ends_with("_reverse"),
            suffix,
        })
    }

    /// The quantized weights of the input and of the hidden state, where all steps can be taken
    /// at once.
    pub fn quantized(&self) -> Option<([&QWeight; 2], ActivationConfig)> {
        let ((ih, activations), (hh, _)) = self.ih.quantized().zip(self.hh.quantized())?;
        self.hr.is_none().then_some(([&**ih, &**hh], activations))
    }

    /// The names of the weights in a checkpoint, each with its projection.
    fn named(&self) -> impl Iterator<Item = (String, &Projection)> {
        let both = [("ih", &self.ih), ("hh", &self.hh)].into_iter();
        let all = both.chain(self.hr.as_ref().map(|hr| ("hr", hr)));
        all.map(|(name, projection)| (format!("weight_{name}{}", self.suffix), projection))
    }

    pub fn weights(&self) -> Vec<WeightInfo> {
        let named = self.named();
        named
            .map(|(name, projection)| projection.info(&name))
            .collect()
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
