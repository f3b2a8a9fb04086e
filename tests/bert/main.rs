//! The example's BERT: its reader of folders, its answers against PyTorch's, and tuning it.

mod faulty_folders;
mod minilm;
mod tuning;
