//! Many threads on one model, and repeated quantizing: the same bits, and no memory leaks.
//!
//! `cargo run --release -p stress` does the same for ten minutes, and in
//! tokio's blocking pool and forked children.

use std::time::Duration;

use candle_core::Result;
use candle_dynquant::QConfig;
use candle_dynquant_support::load::{Counting, Load, counting, leaks_nothing, quantize_and_drop};
use rayon::prelude::*;

#[global_allocator]
static ALLOCATOR: Counting = counting();

const SHORT: Duration = Duration::from_secs(2);

/// A single test, since memory is counted for the whole process.
#[test]
fn a_load_leaks_nothing() -> Result<()> {
    sixty_four_threads_share_a_model()?;
    leaks_nothing(&ALLOCATOR, SHORT, quantize_and_drop);
    Ok(())
}

fn sixty_four_threads_share_a_model() -> Result<()> {
    let load = Load::new(QConfig::pytorch())?;
    leaks_nothing(&ALLOCATOR, SHORT, |duration| {
        load.call_by_threads(64, duration)
    });
    let pool = rayon::ThreadPoolBuilder::new().num_threads(8).build();
    pool.map_err(candle_core::Error::wrap)?
        .install(|| (0..200).into_par_iter().for_each(|_| load.call()));
    println!("{} calls", load.done.into_inner());
    Ok(())
}
