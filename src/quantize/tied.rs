//! Which layer counts a weight that several hold, so that a report's sums are those of memory.

use std::collections::HashMap;

use crate::module::{LayerKind, WeightId, WeightInfo};

/// What a layer holds, before or after.
pub(super) struct Held {
    pub swapped: bool,
    pub kind: LayerKind,
    pub weights: Vec<WeightInfo>,
}

/// Every layer's weights, and for each that has an identity the place that counts it.
pub(super) struct Owners {
    layers: Vec<Held>,
    places: HashMap<WeightId, Place>,
}

/// Index of the layer, and of the weight within it.
type Place = (usize, usize);

impl Owners {
    /// A layer that was left counts before one that was swapped, for what it holds stays; then one
    /// that multiplies before an embedding, which would share its weight; then the first.
    pub fn of(layers: Vec<Held>) -> Self {
        let rank = |(layer, weight): Place| {
            let held: &Held = &layers[layer];
            let is_embedding = held.kind == LayerKind::Embedding;
            (held.swapped, is_embedding, layer, weight)
        };
        let mut places: HashMap<WeightId, Place> = HashMap::new();
        for (layer, held) in layers.iter().enumerate() {
            for (weight, info) in held.weights.iter().enumerate() {
                if let Some(id) = info.id {
                    let place = (layer, weight);
                    let owner = places.entry(id).or_insert(place);
                    *owner = [*owner, place]
                        .into_iter()
                        .min_by_key(|p| rank(*p))
                        .unwrap_or(place);
                }
            }
        }
        Self { layers, places }
    }

    /// The sum over the weights that the layer counts.
    pub fn sum(&self, layer: usize, of: impl Fn(&WeightInfo) -> usize) -> usize {
        let weights = self.layers[layer].weights.iter().enumerate();
        let own =
            weights.filter(|(weight, info)| self.owner((layer, *weight), info) == (layer, *weight));
        own.map(|(_, info)| of(info)).sum()
    }

    /// The layer that counts a weight of this one, if it is another.
    pub fn other(&self, layer: usize) -> Option<usize> {
        let weights = self.layers[layer].weights.iter().enumerate();
        let mut owners = weights.map(|(weight, info)| self.owner((layer, weight), info).0);
        owners.find(|owner| *owner != layer)
    }

    fn owner(&self, place: Place, info: &WeightInfo) -> Place {
        let owner = info.id.and_then(|id| self.places.get(&id));
        owner.copied().unwrap_or(place)
    }
}
