//! The models: `architecture` is the table of known models; `layer` loads their layers by names, and
//! `transformer`, `attention` and `mlp` compute them.

mod adapters;
mod architecture;
mod attention;
mod bert;
mod clip;
mod deberta;
mod decoder;
mod disentangled;
mod head;
mod layer;
mod mlp;
mod modernbert;
mod nomic;
mod projections;
mod rope;
mod rows;
mod sizes;
mod static_embedding;
mod t5;
mod transformer;
mod view;
#[cfg(feature = "images")]
mod vision;

pub(crate) use adapters::{TASKS, adapted};
pub(crate) use architecture::{Answers, Architecture, Network};
pub(crate) use clip::Tower;
pub(crate) use head::{ClassHead, matrix};
pub(crate) use rows::Rows;
pub(crate) use sizes::Sizes;
pub(crate) use static_embedding::{TABLE, config as static_config};
pub(crate) use view::Sees;
#[cfg(feature = "images")]
pub(crate) use vision::{Vision, VisionConfig};
