pub mod encoder;
pub mod experts;
#[cfg(feature = "cuda")]
pub mod flash_encoder;
pub mod window;
