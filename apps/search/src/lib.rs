//! Search by meaning in a folder of text files: see README.md.
//!
//! [`update`] makes an [`index`] of a folder: its files ([`walk`]) are cut into [`passages`], and
//! the embeddings of these are put into a [`graph`]. [`search`] asks it.

pub mod graph;
pub mod highlight;
pub mod identity;
pub mod index;
pub mod options;
pub mod passages;
pub mod place;
pub mod progress;
pub mod search;
pub mod show;
pub mod update;
pub mod walk;
