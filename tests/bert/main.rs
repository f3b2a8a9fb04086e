//! The example's BERT: its reader of folders, its answers against PyTorch's, and tuning it.

mod faulty_folders;
#[path = "../common/kit.rs"]
mod kit;
mod minilm;
mod tuning;
