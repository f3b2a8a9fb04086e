//! The example's BERT: its reader of folders, its answers against PyTorch's, and tuning it.

#[allow(dead_code)]
#[path = "../../examples/support/checkpoint.rs"]
mod checkpoint;
#[allow(dead_code)]
#[path = "../../examples/bert/config.rs"]
mod config;
#[allow(dead_code)]
#[path = "../../examples/bert/folder.rs"]
mod folder;
#[path = "../../examples/support/json.rs"]
mod json;
#[allow(dead_code)]
#[path = "../../examples/bert/measure.rs"]
mod measure;
#[allow(dead_code)]
#[path = "../../examples/bert/model.rs"]
mod model;
#[allow(dead_code)]
#[path = "../../examples/bert/texts.rs"]
mod texts;

mod faulty_folders;
mod minilm;
mod tuning;
