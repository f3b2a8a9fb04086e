//! Many threads on one model; quantizing again and again: the same bits, and no more memory.
//!
//! `cargo run --release -p stress` does the same for ten minutes, and in
//! tokio's blocking pool and forked children.

mod common;

use std::thread;
use std::time::Duration;

use candle_core::Result;
use candle_dynquant::QConfig;
use common::load::{Load, quantize_and_drop, takes_no_more_memory};
use rayon::prelude::*;

const SHORT: Duration = Duration::from_secs(2);

/// One test: the memory is that of the process.
#[test]
fn a_load_takes_no_more_memory() -> Result<()> {
    sixty_four_threads_share_a_model()?;
    takes_no_more_memory(SHORT, quantize_and_drop);
    Ok(())
}

fn sixty_four_threads_share_a_model() -> Result<()> {
    let load = Load::new(QConfig::default_dynamic())?;
    takes_no_more_memory(SHORT, |duration| {
        thread::scope(|scope| {
            (0..64).for_each(|_| _ = scope.spawn(|| load.call_for(duration)));
        });
    });
    let pool = rayon::ThreadPoolBuilder::new().num_threads(8).build();
    pool.map_err(candle_core::Error::wrap)?
        .install(|| (0..200).into_par_iter().for_each(|_| load.call()));
    println!("{} calls", load.done.into_inner());
    Ok(())
}
