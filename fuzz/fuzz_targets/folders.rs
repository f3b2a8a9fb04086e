//! The examples' readers of folders.
#![no_main]

// The character model's modules, which find each other in the root.
#[allow(dead_code)]
#[path = "../../examples/support/checkpoint.rs"]
mod checkpoint;
#[allow(dead_code)]
#[path = "../../examples/lstm/config.rs"]
mod config;
#[allow(dead_code)]
#[path = "../../examples/lstm/folder.rs"]
mod folder;
#[path = "../targets/folders.rs"]
mod folders;
#[path = "../../examples/support/json.rs"]
mod json;
#[allow(dead_code)]
#[path = "../../examples/lstm/model.rs"]
mod model;
#[allow(dead_code)]
#[path = "../../examples/lstm/text.rs"]
mod text;

libfuzzer_sys::fuzz_target!(|data: &[u8]| folders::run(data));
