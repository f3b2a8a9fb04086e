//! The common part of layers and cells.

use std::sync::Arc;

use candle_core::Tensor;

use super::cell::RecurrentCell;
use super::kind::RecurrentKind;
use super::stack::Recurrent;
use super::weights::Direction;
use crate::error::Result;
use crate::module::trees::layers;
use crate::module::{Layer, LayerKind, WeightInfo};
use crate::nn::projection::Projection;
use crate::qconfig::QConfig;
use crate::tap::{Replay, Tap};
use crate::weight::StoredWeight;

macro_rules! recurrent_layer {
    ($layer:ty, $is_cell:literal) => {
        impl<K: RecurrentKind + 'static> Layer for $layer {
            fn kind(&self) -> LayerKind {
                let [layer, cell] = K::KINDS;
                if $is_cell { cell } else { layer }
            }

            fn checkpoint_name(&self) -> Option<&str> {
                self.name()
            }

            fn weight_infos(&self) -> Vec<WeightInfo> {
                self.directions().iter().flat_map(Direction::weight_infos).collect()
            }

            fn quantize(&self, qconfig: &QConfig) -> Result<Self> {
                self.quantized(qconfig)
            }

            fn stored(&self) -> Result<Vec<StoredWeight>> {
                Ok(self.directions().iter().flat_map(Direction::stored).collect())
            }

            fn weights(&self) -> Result<Vec<Tensor>> {
                let all = self.directions().iter().flat_map(Direction::projections);
                all.map(Projection::value).collect()
            }

            fn attach(&mut self, tap: Option<Tap>) -> bool {
                self.tap = tap;
                true
            }

            fn replay(&self) -> Option<Replay> {
                let layer = self.clone();
                Some(Arc::new(move |inputs| layer.output(inputs)))
            }
        }
    };
}

recurrent_layer!(Recurrent<K>, false);
recurrent_layer!(RecurrentCell<K>, true);
layers! { [K: RecurrentKind + 'static] Recurrent<K>, [K: RecurrentKind + 'static] RecurrentCell<K> }
