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
//! contiguous range. Pieces of rows would be a page apart, each a cache miss.
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

use super::quantize::{Activations, Codes, Unencoded};
use crate::arch;
use crate::loops::blocks::RowBlock;
use crate::loops::product::Pair;
use crate::packed::Element;
use crate::threads::Threads;
use steps::run;

/// Computes all steps of the directions of a layer, one or both, from `xs`, the input of all steps,
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
        Element::Float16 => float(xs, directions),
        Element::Int8(_) => encoded::<[u8; 4]>(xs, directions),
        Element::BFloat16 => encoded::<Pair>(xs, directions),
        Element::Blocks { .. } => encoded::<RowBlock>(xs, directions),
    }
}

fn encoded<A: Activations>(xs: &[f32], directions: Vec<Recurrence<'_>>) {
    let Some(first) = directions.first() else {
        return;
    };
    let sums = directions.iter().any(|d| d.weights[0].has_zero_points());
    let threads = Threads::of_caller();
    let mut codes = Codes::take();
    let count = first.rows();
    let mut splits = None;
    for direction in directions {
        let [ih, hh] = direction.weights;
        let (groups, rows) = codes.room_of::<A>(count, count * ih.row_groups());
        if splits.replace(ih.splits()) != Some(ih.splits()) {
            let from = Unencoded { threads: Some(&threads), rhs: ih, sums, lhs: xs };
            A::write(from, (&mut *groups, &mut *rows));
        }
        let inputs = (&*groups, &*rows);
        let sums = hh.has_zero_points();
        run(&threads, direction, inputs, A::KERNEL, |h, room| {
            A::write(Unencoded { threads: None, rhs: hh, sums, lhs: h }, room);
        });
    }
    codes.keep();
}

fn float(xs: &[f32], directions: Vec<Recurrence<'_>>) {
    let threads = Threads::of_caller();
    let copy = |h: &[f32], (groups, _): (&mut [f32], &mut [_])| groups.copy_from_slice(h);
    for direction in directions {
        run(&threads, direction, (xs, &[]), arch::multiply_f16, copy);
    }
}
