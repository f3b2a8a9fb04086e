//! `dynquant port`: a candle model's source, rewritten to use candle-dynquant.
//!
//! Patterns are found in the syntax tree and changed in the text, by byte ranges, so that
//! formatting and comments stay. The result is ported again until nothing changes, so a second run
//! has nothing to do.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod attention;
mod built;
mod clones;
mod closures;
mod constructors;
mod declarations;
mod defaults;
mod derives;
mod draft;
mod facts;
mod features;
mod files;
mod folds;
mod format;
mod functions;
mod heads;
mod imports;
mod kernels;
mod layers;
mod marks;
mod names;
mod needs;
mod norms;
mod operands;
mod origins;
mod others;
mod projections;
mod rank;
mod releases;
mod render;
mod rounds;
mod routers;
mod scopes;
mod show;
mod source;
mod sums;
mod syntax;
mod table;
mod tied;
mod types;
mod unit;
mod unused;
mod walk;
mod weights;
mod world;
mod wrappers;

pub use show::{Args, run};

/// The stack size that [`run`] needs: the recursion over a syntax tree is as deep as an expression;
/// see `source::MAX_DEPTH`.
pub const STACK: usize = 1 << 30;
