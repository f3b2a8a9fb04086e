//! A quantized weight and what it does with activations.

use std::sync::{Arc, OnceLock};

use candle_core::Tensor;

use crate::error::Result;
use crate::kernels::{
    self, Activation, Operands, Packed, Quantizer, Range, Recurrence, Rounding, RowParams, Rows,
    Scratch,
};
use crate::module::{WeightDType, WeightId, WeightInfo};
use crate::qconfig::{ActivationConfig, Arithmetic, DynamicConfig, Granularity};
use crate::qparams::{self, QDType, QParams};
use crate::qweight::QWeight;
use crate::tensor::{Elements, as_f32, from_f32_vec};

#[derive(Debug)]
pub(in crate::nn) struct Quantized {
    pub(super) weight: QWeight,
    /// Dynamic with int8 weights, float with float16 weights.
    pub(super) activation: ActivationConfig,
    /// Filled when somebody asks for the weight as a tensor.
    dequantized: OnceLock<Tensor>,
}

impl Quantized {
    pub(super) fn new(weight: QWeight, activation: ActivationConfig) -> Self {
        Self {
            weight,
            activation,
            dequantized: OnceLock::new(),
        }
    }

    pub(super) fn forward(
        &self,
        xs: &Tensor,
        rows: usize,
        shape: &[usize],
        activation: Option<Activation>,
    ) -> Result<Tensor> {
        let input = as_f32(xs, "forward")?;
        let ys = self.product(Operands {
            activation,
            ..self.operands(Elements::of(&input).as_slice()?, rows)
        });
        from_f32_vec(ys, shape, xs.dtype())
    }

    pub(super) fn multiply(&self, xs: &[f32], rows: usize) -> Vec<f32> {
        self.product(self.operands(xs, rows))
    }

    fn product(&self, operands: Operands<'_>) -> Vec<f32> {
        match self.activation {
            ActivationConfig::Dynamic(config) => kernels::linear(operands, quantizer(config)),
            ActivationConfig::Float => kernels::linear_f16(operands),
        }
    }

    pub(super) fn multiply_into(
        &self,
        xs: &[f32],
        rows: usize,
        scratch: &mut Scratch,
        out: &mut [f32],
    ) {
        let operands = self.operands(xs, rows);
        match self.activation {
            ActivationConfig::Dynamic(config) => {
                kernels::linear_into(operands, quantizer(config), scratch, out);
            }
            ActivationConfig::Float => kernels::linear_f16_into(operands, out),
        }
    }

    /// All steps of both directions of a layer, or of its only one, over the rows of its input.
    /// Their weights are packed by gates and quantized like this one.
    pub(in crate::nn) fn recur(&self, xs: &[f32], directions: Vec<Recurrence<'_>>) {
        match self.activation {
            ActivationConfig::Dynamic(config) => {
                let mut scratch = Scratch::take();
                kernels::recur(xs, directions, quantizer(config), &mut scratch);
                scratch.keep();
            }
            ActivationConfig::Float => kernels::recur_f16(xs, directions),
        }
    }

    pub(in crate::nn) fn packed(&self) -> &Packed {
        self.weight.packed()
    }

    pub(super) fn operands<'a>(&'a self, lhs: &'a [f32], m: usize) -> Operands<'a> {
        let rhs = self.weight.packed();
        Operands {
            lhs,
            m,
            rhs,
            activation: None,
        }
    }

    /// What [`info`](super::Projection::info) says of it.
    pub(in crate::nn) fn info(self: &Arc<Self>, name: &str) -> WeightInfo {
        let weight = &self.weight;
        let dtype = match weight.dtype() {
            None => WeightDType::F16,
            Some(QDType::QInt8) => WeightDType::QInt8,
            Some(QDType::QUInt8) => WeightDType::QUInt8,
        };
        WeightInfo::new(name, &weight.shape(), dtype, weight.bytes())
            .quantized(weight.saturated())
            .held_as(WeightId::of_shared(self))
    }

    /// `out_features` and `in_features`.
    pub(in crate::nn) fn shape(&self) -> [usize; 2] {
        self.weight.shape()
    }

    /// Calls `sink` with the weight of one output channel, chunk by chunk.
    pub(in crate::nn) fn read_channel(&self, channel: usize, sink: impl FnMut(&[f32])) {
        self.weight.packed().read_channel(channel, sink);
    }

    pub(in crate::nn) fn dequantized(&self) -> &Tensor {
        self.dequantized.get_or_init(|| {
            let weight = self.weight.dequantize();
            // A tensor of the right length on the CPU cannot fail to be made.
            weight.unwrap_or_else(|error| unreachable!("dequantize: {error}"))
        })
    }
}

/// How activations are quantized, in the words of the kernels.
pub(super) fn quantizer(config: DynamicConfig) -> Quantizer<'static> {
    const fn params(qparams: QParams) -> RowParams {
        RowParams {
            scale: qparams.scale,
            zero_point: qparams.zero_point,
        }
    }
    macro_rules! with {
        ($calculate:path) => {
            match config.reduce_range {
                true => &|range: Range| params($calculate(range.min, range.max, true)),
                false => &|range: Range| params($calculate(range.min, range.max, false)),
            }
        };
    }
    let rows = match config.granularity {
        Granularity::PerTensor => Rows::Together,
        Granularity::PerRow => Rows::Apart,
    };
    let (rounding, calculate_qparams): (_, &(dyn Fn(Range) -> RowParams + Sync)) =
        match (config.arithmetic, config.granularity) {
            (Arithmetic::OnnxRuntime, _) => {
                (Rounding::Divided, with!(qparams::onnxruntime_activation))
            }
            (Arithmetic::PyTorch, Granularity::PerTensor) => {
                (Rounding::Fused, with!(qparams::per_tensor_activation))
            }
            (Arithmetic::PyTorch, Granularity::PerRow) => {
                (Rounding::Fused, with!(qparams::per_row_activation))
            }
        };
    Quantizer {
        rows,
        rounding,
        calculate_qparams,
    }
}
