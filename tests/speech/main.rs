//! Networks for audio that others trained, with their weights: float and int8 against the original.

mod crepe;
mod reference;
mod silero;
