//! All steps of a recurrent layer, on threads that stay together from the first to the last.
//!
//! ```text
//! ranges and codes of the whole input              once for both directions
//! for each chunk of steps
//!   for each range of units                        a task
//!     products of the input                        in the caches until the chunk has used them
//!   for each step
//!     for each block of rows                       a task
//!       ranges and codes of the hidden state
//!     for each range of units                      a task
//!       products of the panels of their gates      from the core's own L2, step after step
//!       gates and state                            while the products are in its L1 or L2
//! ```
//!
//! A thread has the same units throughout. It needs only parts of the hidden state from other
//! threads, to quantize it.
//!
//! The products and states of a batch are stored panel by panel, so each thread writes one
//! contiguous range. Pieces of rows would be a page apart, each a cache miss of its own.
//!
//! Three alternatives are slower: gates interleaved within a panel, because updates become short
//! and threads share the state; both directions at once, because the weights of one nearly fill a
//! core's cache; an update after each panel in place of a thread's last one.

mod operands;
mod plan;
mod state;
mod step;
mod steps;

pub use operands::Recurrence;
pub use step::{Step, update_state};

use super::quantize::{self, BLOCK_GROUPS, Codes};
use crate::arch;
use crate::packed::Element;
use crate::qparams::activation::DynamicConfig;
use crate::threads::Threads;
use steps::run;

/// All steps of both directions of a layer, or of its only one: of `xs`, the input of all steps,
/// `[rows, input]`.
///
/// Quantizing or rounding activations takes place once for the input, and at each step for the
/// hidden state.
///
/// # Panics
/// If the sizes of the operands do not agree, or weights are of several types.
pub fn recur(xs: &[f32], directions: Vec<Recurrence<'_>>) {
    let Some(first) = directions.first() else {
        return;
    };
    let element = first.weights[0].element();
    directions.iter().for_each(|d| d.check(xs, element));
    match element {
        Element::Int8(config) => dynamic(xs, directions, config),
        Element::Float16 => float(xs, directions),
        Element::BFloat16 => bfloat(xs, directions),
        Element::Blocks { .. } => blocks(xs, directions),
    }
}

fn dynamic(xs: &[f32], directions: Vec<Recurrence<'_>>, config: DynamicConfig) {
    let Some(first) = directions.first() else {
        return;
    };
    let sums = directions.iter().any(|d| d.weights[0].has_zero_points());
    let threads = Threads::of_caller();
    let mut codes = Codes::take();
    let (rows, [ih, _]) = (first.rows(), first.weights);
    let (groups, rows) = codes.room(rows, rows * ih.groups());
    quantize::quantize(Some(&threads), ih, config, sums, xs, (groups, rows));
    let inputs = (&*groups, &*rows);
    for direction in directions {
        let [_, hh] = direction.weights;
        let sums = hh.has_zero_points();
        run(&threads, direction, inputs, arch::multiply, |h, room| {
            quantize::quantize(None, hh, config, sums, h, room);
        });
    }
    codes.keep();
}

fn bfloat(xs: &[f32], directions: Vec<Recurrence<'_>>) {
    let Some(first) = directions.first() else {
        return;
    };
    let threads = Threads::of_caller();
    let mut codes = Codes::take();
    let (rows, [ih, _]) = (first.rows(), first.weights);
    let (groups, rows) = codes.room(rows, rows * ih.groups());
    let groups = quantize::as_pairs(groups);
    quantize::round(Some(&threads), ih, xs, (groups, rows));
    let inputs = (&*groups, &*rows);
    for direction in directions {
        let [_, hh] = direction.weights;
        run(
            &threads,
            direction,
            inputs,
            arch::multiply_bf16,
            |h, room| {
                quantize::round(None, hh, h, room);
            },
        );
    }
    codes.keep();
}

fn blocks(xs: &[f32], directions: Vec<Recurrence<'_>>) {
    let Some(first) = directions.first() else {
        return;
    };
    let threads = Threads::of_caller();
    let mut codes = Codes::take();
    let (rows, [ih, _]) = (first.rows(), first.weights);
    let (groups, rows) = codes.room(rows, rows * ih.groups() * BLOCK_GROUPS);
    let groups = quantize::as_blocks(groups);
    quantize::blocks(Some(&threads), ih, xs, (groups, rows));
    let inputs = (&*groups, &*rows);
    for direction in directions {
        let [_, hh] = direction.weights;
        run(
            &threads,
            direction,
            inputs,
            arch::multiply_blocks,
            |h, room| {
                quantize::blocks(None, hh, h, room);
            },
        );
    }
    codes.keep();
}

fn float(xs: &[f32], directions: Vec<Recurrence<'_>>) {
    let threads = Threads::of_caller();
    for direction in directions {
        run(
            &threads,
            direction,
            (xs, &[]),
            arch::multiply_f16,
            |h, (groups, _)| {
                groups.copy_from_slice(h);
            },
        );
    }
}
