//! The example's BERT: its reader of folders, its answers against PyTorch's, attention in 8 bits,
//! and tuning it.

mod attention;
mod faulty_folders;
mod minilm;
mod tuning;
