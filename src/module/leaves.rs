//! Types that hold neither layers nor weights that are multiplied: numbers, text, and candle's own
//! types except for layers with a namesake in `nn` and the types in `tensors`. A walk passes by, so
//! that containers of them and of layers are trees, and `Model<Head = ()>` is a model without a
//! head.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::ffi::OsString;
use std::hash::Hash;
use std::marker::PhantomData;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

use candle_core::quantized::GgmlDType;
use candle_core::{D, DType, Device, DeviceLocation, Layout, Shape, TensorId};
use candle_nn as nn;

/// Makes types trees without layers.
macro_rules! leaves {
    (generic: $([$($generics:tt)*] $leaf:ty),+ $(,)?) => {
        $crate::module::trees::trees! { self, _walk: $([$($generics)*] $leaf => Ok(()), Ok(());)+ }
    };
    ($($leaf:ty),+ $(,)?) => {
        $crate::module::leaves::leaves! { generic: $([] $leaf),+ }
    };
}

pub(crate) use leaves;

#[cfg(feature = "tracing")]
leaves! { tracing::Span }

leaves! {
    (), RangeFull, bool, char, u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64,
    half::f16, half::bf16, NonZeroU32, NonZeroU64, NonZeroUsize,
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize,
    str, &str, String, Cow<'_, str>, OsString, PathBuf, Duration, Instant,
}

leaves! {
    generic:
    [T: ?Sized] PhantomData<T>,
    // No layer is `Copy`, and none can be hashed or put in order.
    [T: Copy] Range<T>, [T: Copy] RangeFrom<T>, [T: Copy] RangeInclusive<T>, [T: Copy] RangeTo<T>,
    [T: Copy] RangeToInclusive<T>,
    [T: Eq + Hash, S] HashSet<T, S>, [T: Ord] BTreeSet<T>,
}

leaves! {
    TensorId, Device, DeviceLocation, DType, Layout, Shape, D, GgmlDType,
    crate::kernels::FusedActivation, crate::kernels::Precision, crate::ops::kv_cache::KvCache,
}

leaves! {
    nn::LayerNorm, nn::LayerNormConfig, nn::RmsNorm, nn::BatchNorm, nn::BatchNormConfig,
    nn::GroupNorm, nn::Conv1dConfig, nn::Conv2dConfig, nn::ConvTranspose1dConfig,
    nn::ConvTranspose2dConfig, nn::Activation,
    nn::PReLU, nn::Dropout, nn::ops::Identity, nn::Init, nn::LSTMConfig, nn::GRUConfig,
    nn::rnn::LSTMState, nn::rnn::GRUState, nn::rnn::Direction,
    nn::kv_cache::Cache, nn::kv_cache::KvCache, nn::kv_cache::RotatingCache,
    nn::kv_cache::RotatingKvCache, nn::kv_cache::IndicesAndMask, nn::kv_cache::ScatteredKvCache,
    nn::kv_cache::ScatteredCacheBuilder, nn::kv_cache::ConcatKvCache,
    nn::kv_cache::InterleavedKvCache, nn::kv_cache::RawInterleavedKvCache,
    nn::attention::AttnMask,
}
