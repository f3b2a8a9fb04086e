//! Specs: their forms and precedence, rules on models, YAML and JSON, mistakes in them.

#[path = "../common/mod.rs"]
mod common;
mod file;
mod forms;
#[path = "../common/kit.rs"]
mod kit;
mod mistakes;
mod rules;
