//! YAML and JSON, read into a tree in which every value knows its line, column and key, so that a
//! reader can report where a mistake is.

mod node;
pub(crate) mod parse;

pub(crate) use node::{Map, Node, Read, Value};
pub(crate) use parse::deserialize_by_read;
