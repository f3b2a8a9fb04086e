//! The calls: slices in, slices out. They check lengths, cut the work, and decide by their
//! thresholds whether it goes to several threads.

pub mod activation;
pub mod attention;
pub mod attention_int8;
pub mod convert;
pub mod convolution;
pub mod float;
mod heads;
pub mod inputs;
pub mod linear;
pub mod lookup;
pub mod norm;
pub mod pack;
pub mod pool;
pub mod quantize;
pub mod recurrent;
