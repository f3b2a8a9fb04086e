//! x86-64: each file is the loop nest of `tile`, compiled with an instruction set's features and
//! given its registers.

pub mod amx;
pub mod avx2;
pub mod avx512;
pub mod avx512_bf16;
pub mod avx512_vnni;
pub mod avx_vnni;
mod registers;
