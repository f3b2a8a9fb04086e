//! Networks for audio that others trained, with their weights: float and int8 against the original.

mod crepe;
#[path = "../common/kit.rs"]
mod kit;
mod reference;
mod silero;
