//! The product of a float weight, and its gradients.

use candle_core::{
    CpuStorage, CustomOp3, DType, Layout, Result as CandleResult, Shape, Storage, Tensor,
};

use super::Projection;
use crate::error::Result;
use crate::kernels::{self, FloatProduct};
use crate::ops;
use crate::tensor::{Elements, check_float, from_f32_vec};

impl Projection {
    /// `xs` is `[.., k]`, of `rows` rows, and the result has `shape`.
    pub(super) fn forward_float(
        &self,
        weight: &Tensor,
        xs: &Tensor,
        rows: usize,
        shape: &[usize],
    ) -> Result<Tensor> {
        check_float(xs, "forward")?;
        let (dtype, [n, k]) = (xs.dtype(), [weight.dim(0)?, weight.dim(1)?]);
        // candle's matmul has no meaning for empty operands, nor have most of its operations for
        // empty views.
        if shape.contains(&0) {
            return Ok(Tensor::zeros(shape, dtype, weight.device())?);
        }
        let is_ours = weight.dtype() == DType::F32 && weight.device().is_cpu();
        // A copy of another layout at each call would take longer than the product.
        if k > 0 && is_ours && weight.is_contiguous() {
            let xs = xs.reshape((rows, k))?.to_dtype(DType::F32)?;
            let bias = match &self.bias {
                Some(bias) => bias.clone(),
                None => Tensor::zeros(n, DType::F32, weight.device())?,
            };
            let operands = [xs.contiguous()?, weight.clone(), bias.contiguous()?];
            return Ok(self.multiply_floats(operands)?.reshape(shape)?.to_dtype(dtype)?);
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

    /// The result, `[rows, n]`, of contiguous f32 on the CPU: rows, weight and bias.
    fn multiply_floats(&self, operands: [Tensor; 3]) -> Result<Tensor> {
        let is_tracked = operands.iter().any(Tensor::track_op);
        let [xs, weight, bias] = &operands;
        let shape = [xs.dim(0)?, weight.dim(0)?];
        let ys = {
            let [lhs, rhs, bias] = operands.each_ref().map(Elements::new);
            let product = FloatProduct {
                lhs: lhs.as_slice()?,
                m: shape[0],
                rhs: rhs.as_slice()?,
                bias: bias.as_slice()?,
                // candle has its gradient.
                activation: self.activation.filter(|_| !is_tracked).map(Into::into),
                is_exact: self.is_exact,
            };
            let ys = kernels::linear_f32(kernels::active()?, product);
            from_f32_vec(ys, &shape, DType::F32)?
        };
        if !is_tracked {
            return Ok(ys);
        }
        let ys = xs.apply_op3(weight, bias, Tracked(ys))?;
        match self.activation {
            None => Ok(ys),
            Some(activation) => Ok(ops::activate(&ys, activation)?),
        }
    }
}

/// `x W^T + b`, for candle's backward pass.
struct Tracked(Tensor);

impl CustomOp3 for Tracked {
    fn name(&self) -> &'static str {
        "a float layer of candle-dynquant"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> CandleResult<(CpuStorage, Shape)> {
        let (storage, layout) = self.0.storage_and_layout();
        match &*storage {
            Storage::Cpu(storage) => Ok((storage.clone(), layout.shape().clone())),
            _ => candle_core::bail!("float products run on the CPU"),
        }
    }

    fn bwd(
        &self,
        xs: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> CandleResult<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let gradient = gradient.contiguous()?;
        Ok((
            Some(gradient.matmul(weight)?),
            Some(gradient.t()?.matmul(xs)?),
            Some(gradient.sum(0)?),
        ))
    }
}
