//! Many threads on one model, and repeated quantizing: the same bits, and no memory leaks. No memory
//! for what a file has and nobody reads.
//!
//! `cargo run --release -p stress` does the same for ten minutes, and in
//! tokio's blocking pool and forked children.

use std::time::Duration;

use candle_core::Result;
use candle_dynquant::{Checkpoint, QConfig};
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
    arrays_that_nobody_reads_take_no_memory()
}

/// The strings of a GGUF file's array are 16 MiB in the file, and several times that in memory.
fn arrays_that_nobody_reads_take_no_memory() -> Result<()> {
    const COUNT: u64 = 2 << 20;
    const STRING: u32 = 8;
    const ARRAY: u32 = 9;
    let (key, tensors, pairs) = (b"a.strings", 0u64, 1u64);
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend([tensors, pairs, key.len() as u64].map(u64::to_le_bytes).as_flattened());
    file.extend(key);
    file.extend([ARRAY, STRING].map(u32::to_le_bytes).as_flattened());
    file.extend(COUNT.to_le_bytes());
    file.resize(file.len() + COUNT as usize * size_of::<u64>(), 0);
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("arrays.gguf");
    std::fs::write(&path, file)?;
    // An allocation beyond the limit ends the process.
    let limit = |bytes| ALLOCATOR.set_limit(bytes).expect("a limit above what is allocated");
    limit(ALLOCATOR.allocated() + (4 << 20));
    let opened = Checkpoint::open(&path);
    limit(usize::MAX);
    assert_eq!(opened?.tensors().count(), 0);
    Ok(())
}

fn sixty_four_threads_share_a_model() -> Result<()> {
    let load = Load::new(QConfig::pytorch())?;
    leaks_nothing(&ALLOCATOR, SHORT, |duration| load.call_by_threads(64, duration));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(8).build();
    pool.map_err(candle_core::Error::wrap)?
        .install(|| (0..200).into_par_iter().for_each(|_| load.call()));
    println!("{} calls", load.done.into_inner());
    Ok(())
}
