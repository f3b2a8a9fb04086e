//! Tensors that no layer holds: fields of a user's own types, and the weights of candle's
//! convolutions.

use candle_core::quantized::{QMatMul, QTensor};
use candle_core::{Tensor, Var};
use candle_nn as nn;
use candle_nn::var_builder::{Backend, VarBuilderArgs};

use super::tied::WeightId;
use super::trees::trees;

trees! { self, walk:
    [] Tensor => { walk.tensor(self); Ok(()) }, Ok(());

    [] Var => self.as_tensor().visit(walk), Ok(());

    /// A map of variables, which keeps the float memory of quantized layers that were made of them.
    [] nn::VarMap => self.data().visit(walk), Ok(());

    [] QTensor => { walk.quantized_tensor(self, None); Ok(()) }, Ok(());

    [] QMatMul =>
        match self {
            Self::QTensor(tensor) => {
                walk.quantized_tensor(tensor, Some(WeightId::of_shared(tensor)));
                Ok(())
            }
            Self::Tensor(tensor) | Self::TensorF16(tensor) => tensor.visit(walk),
        },
        Ok(());

    /// A builder's source cannot be listed: a file, or all float tensors of the model.
    [B: Backend] VarBuilderArgs<'_, B> => {
        walk.var_builder(std::any::type_name::<Self>());
        Ok(())
    }, Ok(());
}

macro_rules! convolutions {
    ($($name:ident),+) => {
        trees! { self, walk: $(
            [] nn::$name => {
                walk.tensor_of(concat!("candle_nn::", stringify!($name)), "weight", self.weight());
                Ok(())
            }, Ok(());
        )+ }
    };
}

convolutions! { Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d }
