//! Tied weights: one matrix that several layers hold, as an embedding's table and the output
//! projection of a language model often are.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use candle_core::{CpuStorage, Layout, Storage, Tensor};

use crate::tensor::MemoryId;

/// The memory that a weight is in, and the part of it: equal for layers that hold the same matrix,
/// through clones or views of one tensor, or one quantized weight.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::WeightId;
///
/// let table = Tensor::zeros((6, 4), candle_core::DType::F32, &Device::Cpu)?;
/// let id = WeightId::of_tensor(&table);
/// assert_eq!(id, WeightId::of_tensor(&table.flatten_all()?.reshape((6, 4))?));
/// assert_ne!(id, WeightId::of_tensor(&table.narrow(0, 0, 5)?)); // a part of it
/// assert_ne!(id, WeightId::of_tensor(&table.copy()?)); // other memory
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// An id keeps its memory alive.
#[derive(Clone)]
pub struct WeightId {
    memory: MemoryId,
    /// Bytes of the whole memory, where they are known.
    bytes: Option<usize>,
    /// The part that a view shows.
    part: Option<ViewLayout>,
    /// Keeps the address from being used again.
    _alive: Arc<dyn Any + Send + Sync>,
}

/// The elements of a view, and their order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ViewLayout {
    offset: usize,
    /// Size and stride of each axis; the stride of an axis of one element leads nowhere.
    axes: Vec<(usize, usize)>,
}

impl WeightId {
    /// The id of a float weight.
    pub fn of_tensor(tensor: &Tensor) -> Self {
        let (storage, layout) = tensor.storage_and_layout();
        Self {
            memory: MemoryId::new(&*storage),
            bytes: match &*storage {
                Storage::Cpu(CpuStorage::F32(values)) => Some(size_of_val(&**values)),
                Storage::Cpu(CpuStorage::F16(values)) => Some(size_of_val(&**values)),
                Storage::Cpu(CpuStorage::BF16(values)) => Some(size_of_val(&**values)),
                Storage::Cpu(CpuStorage::F64(values)) => Some(size_of_val(&**values)),
                Storage::Cpu(CpuStorage::F8E4M3(values)) => Some(size_of_val(&**values)),
                _ => None,
            },
            part: Some(ViewLayout::new(layout)),
            _alive: Arc::new(tensor.clone()),
        }
    }

    /// The id of a quantized weight behind a pointer.
    pub(crate) fn of_shared<T: Any + Send + Sync>(shared: &Arc<T>) -> Self {
        Self {
            memory: MemoryId::new(&**shared),
            bytes: None,
            part: None,
            _alive: Arc::<T>::clone(shared),
        }
    }

    /// The memory, which several weights may share.
    pub(crate) fn memory(&self) -> MemoryId {
        self.memory
    }

    /// Bytes of the whole memory, where they are known.
    pub(crate) fn memory_bytes(&self) -> Option<usize> {
        self.bytes
    }
}

impl ViewLayout {
    fn new(layout: &Layout) -> Self {
        let axes = layout.dims().iter().zip(layout.stride());
        let axes = axes.map(|(size, stride)| (*size, if *size > 1 { *stride } else { 0 }));
        Self { offset: layout.start_offset(), axes: axes.collect() }
    }
}

impl PartialEq for WeightId {
    fn eq(&self, other: &Self) -> bool {
        (self.memory, &self.part) == (other.memory, &other.part)
    }
}

impl Eq for WeightId {}

impl Hash for WeightId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.memory, &self.part).hash(state);
    }
}

impl fmt::Debug for WeightId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeightId")
            .field("memory", &self.memory)
            .field("part", &self.part)
            .finish_non_exhaustive()
    }
}

/// A quantized weight that a layer lends to others which held the same float matrix; see
/// [`Layer::lend`](super::Layer::lend).
#[derive(Clone)]
pub struct LentWeight(Arc<dyn Any + Send + Sync>);

impl LentWeight {
    /// Lends what `weight` points to.
    pub(crate) fn new<T: Any + Send + Sync>(weight: Arc<T>) -> Self {
        Self(weight)
    }

    /// The lent weight, if it is a `T`.
    pub(crate) fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(&self.0).downcast().ok()
    }
}

impl fmt::Debug for LentWeight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentWeight").finish_non_exhaustive()
    }
}
