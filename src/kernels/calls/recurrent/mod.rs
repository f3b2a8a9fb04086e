//! All steps of a recurrent layer, on threads that stay together from the first to the last.
//!
//! ```text
//! ranges and codes of the whole input              once for both directions
//! for each chunk of steps
//!   for each stretch of units                      a task
//!     products of the input                        in the caches until the chunk has used them
//!   for each step
//!     for each block of rows                       a task
//!       ranges and codes of the hidden state
//!     for each stretch of units                    a task
//!       products of the panels of their gates      from the core's own L2, step after step
//!       gates and state                            while the products are in its L1 or L2
//! ```
//!
//! A thread has the same units throughout. What it needs of another is what codes are made of: a
//! part of the hidden state.
//!
//! The products and states of a batch lie panel by panel, so that what a thread computes of them
//! is one stretch of memory. Pieces of rows, each a page from the next, would come one by one.

mod operands;
mod plan;
mod state;
mod step;
mod steps;

pub use operands::Recurrence;
pub use step::{Step, update_state};

use super::quantize::{Codes, Encoder};
use crate::kernels::loops::product::Lhs;
use crate::kernels::threads::Threads;
use crate::qparams::activation::{ActivationConfig, DynamicConfig, Granularity};
use steps::run;

/// All steps of both directions of a layer, or of its only one: of `xs`, the input of all steps,
/// `[rows, input]`.
///
/// Dynamic activations are quantized: the input once, the hidden state at each step.
///
/// # Panics
/// If the sizes of the operands do not agree, or weights are not of the kind that the activations
/// are for.
pub fn recur(xs: &[f32], directions: Vec<Recurrence<'_>>, activations: ActivationConfig) {
    match activations {
        ActivationConfig::Dynamic(config) => dynamic(xs, directions, config),
        ActivationConfig::Float => float(xs, directions),
    }
}

fn dynamic(xs: &[f32], directions: Vec<Recurrence<'_>>, config: DynamicConfig) {
    let Some(first) = directions.first() else {
        return;
    };
    directions.iter().for_each(|d| d.check::<[u8; 4]>(xs));
    let sums = directions.iter().any(|d| d.ih.has_zero_points());
    let threads = Threads::of_caller();
    let mut codes = Codes::take();
    let room = codes.room(first.rows(), first.rows() * first.ih.groups());
    let inputs = Encoder::new(first.ih, config, sums).quantize(&threads, xs, room);
    let apart = config.granularity == Granularity::PerRow;
    for direction in directions {
        let encoder = Encoder::new(direction.hh, config, direction.hh.has_zero_points());
        run(&threads, direction, inputs, apart, |h, room| {
            encoder.quantize_alone(h, room);
        });
    }
    codes.keep();
}

fn float(xs: &[f32], directions: Vec<Recurrence<'_>>) {
    let threads = Threads::of_caller();
    for direction in directions {
        direction.check::<f32>(xs);
        let inputs = Lhs {
            m: direction.rows(),
            groups: xs,
            rows: &[],
        };
        run(&threads, direction, inputs, true, |h, room| {
            room.groups.copy_from_slice(h);
        });
    }
}
