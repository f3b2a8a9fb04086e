//! Tensors that no layer holds: fields of a user's own types, and the weights of candle's
//! convolutions.

use candle_core::quantized::{QMatMul, QTensor};
use candle_core::{Tensor, Var};
use candle_nn as nn;
use candle_nn::var_builder::{Backend, VarBuilderArgs};

use super::tied::WeightId;
use super::walk::{Quantizable, Walk, WalkMut};
use crate::error::Result;

macro_rules! shown {
    ($($holder:ty, $self:ident, $walk:ident => $shown:expr;)+) => {$(
        impl Quantizable for $holder {
            fn visit(&$self, $walk: &mut Walk<'_>) -> Result<()> {
                $shown
            }

            fn visit_mut(&mut self, _walk: &mut WalkMut<'_>) -> Result<()> {
                Ok(())
            }
        }
    )+};
}

shown! {
    Tensor, self, walk => {
        walk.tensor(self);
        Ok(())
    };
    Var, self, walk => self.as_tensor().visit(walk);
    // It keeps the float memory of quantized layers that were made of its variables.
    nn::VarMap, self, walk => self.data().visit(walk);
    QTensor, self, walk => {
        walk.quantized_tensor(self, None);
        Ok(())
    };
    QMatMul, self, walk => match self {
        Self::QTensor(tensor) => {
            walk.quantized_tensor(tensor, Some(WeightId::of_shared(tensor)));
            Ok(())
        }
        Self::Tensor(tensor) | Self::TensorF16(tensor) => tensor.visit(walk),
    };
}

/// A builder's source cannot be listed: a file, or all float tensors of the model.
impl<B: Backend> Quantizable for VarBuilderArgs<'_, B> {
    fn visit(&self, walk: &mut Walk<'_>) -> Result<()> {
        walk.var_builder(std::any::type_name::<Self>());
        Ok(())
    }

    fn visit_mut(&mut self, _walk: &mut WalkMut<'_>) -> Result<()> {
        Ok(())
    }
}

macro_rules! convolutions {
    ($($name:ident),+) => {
        shown! {$(
            nn::$name, self, walk => {
                walk.tensor_of(concat!("candle_nn::", stringify!($name)), "weight", self.weight());
                Ok(())
            };
        )+}
    };
}

convolutions! { Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d }
