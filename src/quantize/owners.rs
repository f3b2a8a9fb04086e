//! Assigns memory that several layers hold to one of them, so that a report counts each byte once.

use std::collections::{BTreeMap, HashMap};

use super::survey::Survey;
use crate::module::{LayerKind, MemoryId, WeightId, WeightInfo};

/// The weights of a layer, before or after quantization, or a tensor in none.
pub(super) struct HeldWeights {
    pub swapped: bool,
    pub holder: Holder,
    pub weights: Vec<WeightInfo>,
}

/// The holder of a weight; among several, the first in this order counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Holder {
    Multiplies,
    Embedding,
    /// A tensor in no layer, in a strict type: whichever place holds it too, it is refused.
    Strict,
    NoLayer,
}

impl Holder {
    pub fn new(kind: &LayerKind) -> Self {
        match kind {
            LayerKind::Embedding => Self::Embedding,
            _ => Self::Multiplies,
        }
    }
}

/// Index of the layer, and of the weight within it.
type Place = (usize, usize);

/// Every layer's weights, and the bytes each of them counts.
pub(super) struct Owners {
    layers: Vec<Vec<WeightInfo>>,
    counts: BTreeMap<Place, Count>,
}

#[derive(Clone, Copy)]
struct Count {
    bytes: usize,
    /// The weight that counts the bytes this one does not.
    owner: Place,
}

impl Owners {
    /// Counts each memory once, however many views of it there are.
    ///
    /// A layer that was left counts before a swapped one, because all the memory it holds
    /// stays allocated; then a layer that multiplies before an embedding, which would share its
    /// weight, and before a tensor in no layer, first one in a strict type; then the first.
    pub fn new(layers: Vec<HeldWeights>) -> Self {
        let mut counts = BTreeMap::new();
        let mut memories: BTreeMap<Place, _> = BTreeMap::new();
        let mut firsts: HashMap<MemoryId, Place> = HashMap::new();
        for (layer, held) in layers.iter().enumerate() {
            for (weight, info) in held.weights.iter().enumerate() {
                let place = (layer, weight);
                match &info.id {
                    Some(id) => {
                        let first = *firsts.entry(id.memory()).or_insert(place);
                        let holders: &mut Vec<_> = memories.entry(first).or_default();
                        holders.push(((held.swapped, held.holder, place), id, info.bytes));
                    }
                    None => {
                        let (bytes, owner) = (info.bytes, place);
                        counts.insert(place, Count { bytes, owner });
                    }
                }
            }
        }
        for mut holders in memories.into_values() {
            holders.sort_by_key(|(rank, ..)| *rank);
            share_out(&holders, &mut counts);
        }
        Self { layers: layers.into_iter().map(|held| held.weights).collect(), counts }
    }

    /// The owners of a model's weights and float tensors before quantization: the layers, some of
    /// which will be swapped, then the tensors.
    pub fn before(survey: &Survey, is_swapped: impl Fn(usize) -> bool) -> Self {
        let layers = survey.layers.iter().enumerate().map(|(index, found)| HeldWeights {
            swapped: is_swapped(index),
            holder: Holder::new(&found.kind),
            weights: found.weights.clone(),
        });
        let tensors = survey.tensors.iter().map(|found| HeldWeights {
            swapped: false,
            holder: if found.strict { Holder::Strict } else { Holder::NoLayer },
            weights: vec![found.info.clone()],
        });
        Self::new(layers.chain(tensors).collect())
    }

    pub fn bytes(&self, layer: usize) -> usize {
        self.counts.range((layer, 0)..(layer + 1, 0)).map(|(_, count)| count.bytes).sum()
    }

    /// The sum of a count of elements over the weights that the layer counts.
    pub fn count(&self, layer: usize, elements: fn(&WeightInfo) -> usize) -> usize {
        let weights = self.layers[layer].iter().enumerate();
        let counted =
            weights.filter(|(weight, _)| self.owner((layer, *weight)) == (layer, *weight));
        counted.map(|(_, info)| elements(info)).sum()
    }

    /// The layer that counts a weight of this one, if it is another.
    pub fn other(&self, layer: usize) -> Option<usize> {
        let mut owners = (0..self.layers[layer].len()).map(|weight| self.owner((layer, weight)).0);
        owners.find(|owner| *owner != layer)
    }

    fn owner(&self, place: Place) -> Place {
        self.counts.get(&place).map_or(place, |count| count.owner)
    }
}

/// Whether it was swapped, its holder and its place.
type Rank = (bool, Holder, Place);

/// Divides one memory among the weights that hold parts of it: each counts its part while any is
/// left, a part counted before counts nothing, and the first weight counts the remainder.
fn share_out(holders: &[(Rank, &WeightId, usize)], counts: &mut BTreeMap<Place, Count>) {
    let [((first_swapped, _, first), id, _), ..] = holders else { return };
    let mut rest = id.memory_bytes();
    let mut counted: HashMap<&WeightId, Place> = HashMap::new();
    for ((swapped, _, place), id, size) in holders {
        let stays = *swapped && !first_swapped;
        let (bytes, owner) = match counted.get(id) {
            Some(owner) => (0, *owner),
            None if stays => (0, *first),
            None => {
                let bytes = rest.map_or(*size, |rest| rest.min(*size));
                (bytes, if bytes == *size { *place } else { *first })
            }
        };
        rest = rest.map(|rest| rest - bytes);
        counted.entry(id).or_insert(owner);
        counts.insert(*place, Count { bytes, owner });
    }
    if let (Some(count), Some(rest)) = (counts.get_mut(first), rest) {
        count.bytes += rest;
    }
}
