//! Which mutant this process runs.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

const UNKNOWN: u32 = u32::MAX;
const TRACE: u32 = u32::MAX - 1;

static ACTIVE: AtomicU32 = AtomicU32::new(UNKNOWN);

/// Whether it is this one.
#[inline]
pub fn on(number: u32) -> bool {
    match ACTIVE.load(Ordering::Relaxed) {
        UNKNOWN | TRACE => decide(number),
        active => active == number,
    }
}

/// Reads the environment; without a mutant there, the mutants that are reached are written to a
/// file.
#[cold]
fn decide(number: u32) -> bool {
    static SEEN: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());
    let trace = std::env::var_os("DYNQUANT_MUTANT_TRACE");
    let Some(trace) = trace else {
        let active = std::env::var("DYNQUANT_MUTANT").ok();
        let active = active.and_then(|number| number.parse().ok()).unwrap_or(0);
        ACTIVE.store(active, Ordering::Relaxed);
        return active == number;
    };
    ACTIVE.store(TRACE, Ordering::Relaxed);
    if SEEN.lock().is_ok_and(|mut seen| seen.insert(number)) {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(trace);
        if let Ok(mut file) = file {
            let _ = file.write_all(format!("{number}\n").as_bytes());
        }
    }
    false
}
