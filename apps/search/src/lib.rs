//! Search by meaning and by words in a folder of text files: see README.md.
//!
//! [`update`] makes an [`index`] of a folder: its files ([`walk`]) are cut into [`passages`], of
//! which the embeddings become [`vectors`] and the words [`terms`]. [`search`] asks both, and
//! [`rank`] merges the answers.

pub mod highlight;
pub mod identity;
pub mod index;
pub mod markdown;
pub mod options;
pub mod passages;
pub mod place;
pub mod progress;
pub mod rank;
pub mod search;
pub mod show;
pub mod terms;
pub mod update;
pub mod vectors;
pub mod walk;
